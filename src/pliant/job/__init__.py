"""The main job as one function of plain arguments."""

from pliant.job.config import TuneConfig
from pliant.job.result import TuneResult
from pliant.job.run import tune

__all__ = ["TuneConfig", "TuneResult", "tune"]
