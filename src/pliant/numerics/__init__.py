"""The numerical core: tensors in, tensors and plain numbers out. It knows no model, no name, no file."""

from pliant.numerics.estimate import Design, RateStatistics, RateSummary
from pliant.numerics.rates import (
    distances_all,
    distances_matched,
    distances_within,
    norms,
    rates_of_change,
    squared_distances,
)

__all__ = [
    "Design",
    "RateStatistics",
    "RateSummary",
    "distances_all",
    "distances_matched",
    "distances_within",
    "norms",
    "rates_of_change",
    "squared_distances",
]
