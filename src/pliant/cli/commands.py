"""The list of commands: importing this module registers all of them."""

from pliant.cli import anatomy, measure, tune

__all__ = ["anatomy", "measure", "tune"]
