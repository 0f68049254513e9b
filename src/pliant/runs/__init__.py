"""Cells, what they produced, and the folder that keeps both. No torch here."""

from pliant.runs.config import CellConfig
from pliant.runs.record import CurvePoint, Record, Score

__all__ = ["CellConfig", "CurvePoint", "Record", "Score"]
