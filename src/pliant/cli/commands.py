"""The list of commands: importing this module registers all of them."""

from pliant.cli import advise, anatomy, audit, bounds, landscape, measure, probe, report, runs, sweep, tune

__all__ = ["advise", "anatomy", "audit", "bounds", "landscape", "measure", "probe", "report", "runs", "sweep", "tune"]
