"""The main job as one function of plain arguments."""

from pliant.job.advice import advise
from pliant.job.config import TuneConfig
from pliant.job.probing import probe
from pliant.job.result import Advice, TuneResult
from pliant.job.run import tune

__all__ = ["Advice", "TuneConfig", "TuneResult", "advise", "probe", "tune"]
