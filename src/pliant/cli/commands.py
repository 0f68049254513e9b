"""The list of commands: importing this module registers all of them."""

from pliant.cli import anatomy, measure, report, runs, sweep, tune

__all__ = ["anatomy", "measure", "report", "runs", "sweep", "tune"]
