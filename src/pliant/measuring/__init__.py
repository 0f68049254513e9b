"""Measuring components: plasticity and bounds."""

from pliant.measuring.files import read_measurement
from pliant.measuring.measurement import Measurement
from pliant.measuring.plasticity import measure

__all__ = ["Measurement", "measure", "read_measurement"]
