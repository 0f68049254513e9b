"""Cells, what they produced, and the folder that keeps both. No torch here."""

from pliant.runs.atomic import write_atomically
from pliant.runs.claim import Claim
from pliant.runs.config import CellConfig
from pliant.runs.metrics import MetricLog, read_metrics
from pliant.runs.record import CurvePoint, Record, Score
from pliant.runs.store import Entry, State, Store
from pliant.runs.table import record_table

__all__ = [
    "CellConfig",
    "Claim",
    "CurvePoint",
    "Entry",
    "MetricLog",
    "Record",
    "Score",
    "State",
    "Store",
    "read_metrics",
    "record_table",
    "write_atomically",
]
