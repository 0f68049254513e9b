"""Statistics of comparisons: tables in; tests, intervals and rank correlations out.

Every result is a frozen dataclass that says how many values it rests on (`n`) and what differed between them
(`varied`). What cannot be computed is refused with a `ConfigError`, or stands as None or `Unavailable` with the reason;
no result holds nan. (In the frames made of results, pandas turns None into missing values.)
"""

from pliant.stats.association import (
    Association,
    DataAssociation,
    associate,
    association_table,
    associations,
    random_order,
)
from pliant.stats.choice import Choice, Choices, Pick, choose_learning_rates, fewest_within_error
from pliant.stats.comparison import Comparison, compare
from pliant.stats.effects import Estimate
from pliant.stats.paired import PairedTest, PairwiseTests, holm, paired, pairwise
from pliant.stats.ranks import CriticalDifference, FriedmanTest, critical_difference, friedman, nemenyi_difference
from pliant.stats.spread import Robustness, Spread, robustness
from pliant.stats.summary import Summary, relative_gain, relative_gains, summarize
from pliant.stats.tables import Complete, Unavailable, check_scores, complete_table, family_means

__all__ = [
    "Association",
    "Choice",
    "Choices",
    "Comparison",
    "Complete",
    "CriticalDifference",
    "DataAssociation",
    "Estimate",
    "FriedmanTest",
    "PairedTest",
    "PairwiseTests",
    "Pick",
    "Robustness",
    "Spread",
    "Summary",
    "Unavailable",
    "associate",
    "association_table",
    "associations",
    "check_scores",
    "choose_learning_rates",
    "compare",
    "complete_table",
    "critical_difference",
    "family_means",
    "fewest_within_error",
    "friedman",
    "holm",
    "nemenyi_difference",
    "paired",
    "pairwise",
    "random_order",
    "relative_gain",
    "relative_gains",
    "robustness",
    "summarize",
]
