"""Choosing what is trained, proving it, training it."""

from pliant.tuning.probe import ProbeResult, ProbeRow, probe
from pliant.tuning.select import EndCheck, Selection, select
from pliant.tuning.train import train

__all__ = ["EndCheck", "ProbeResult", "ProbeRow", "Selection", "probe", "select", "train"]
