"""Choosing what is trained, proving it, training it, and what it is compared with."""

from pliant.tuning.baselines import BASELINES, Baseline, Footprint, footprint
from pliant.tuning.probe import ProbeResult, ProbeRow, probe
from pliant.tuning.select import EndCheck, Selection, select
from pliant.tuning.train import train

__all__ = [
    "BASELINES",
    "Baseline",
    "EndCheck",
    "Footprint",
    "ProbeResult",
    "ProbeRow",
    "Selection",
    "footprint",
    "probe",
    "select",
    "train",
]
