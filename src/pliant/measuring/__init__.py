"""Measuring components: plasticity and bounds."""

from pliant.measuring.comparison import Comparison, compare
from pliant.measuring.files import read_measurement
from pliant.measuring.measurement import Measurement
from pliant.measuring.plasticity import measure

__all__ = ["Comparison", "Measurement", "compare", "measure", "read_measurement"]
