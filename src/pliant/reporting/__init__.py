"""Reports: a folder of runs or measurements in; one page to read, charts and tables out. Never a model."""

from pliant.reporting.report import report

__all__ = ["report"]
