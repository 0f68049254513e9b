"""The main job as one function of plain arguments."""

from pliant.job.config import TuneConfig
from pliant.job.result import TuneResult
from pliant.job.run import pick_device, tune

__all__ = ["TuneConfig", "TuneResult", "pick_device", "tune"]
