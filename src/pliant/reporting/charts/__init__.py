"""Charts: for each a function that computes its data, and one that draws them."""

from pliant.reporting.charts.accuracy import accuracy_by_set, draw_accuracy, draw_gain, gain_by_set
from pliant.reporting.charts.components import (
    bounds_beside_measured,
    draw_bounds,
    draw_plasticity_by_depth,
    draw_plasticity_by_role,
    draw_probe_by_depth,
    plasticity_by_depth,
    plasticity_by_role,
    probe_by_depth,
)
from pliant.reporting.charts.cost import accuracy_and_cost, criterion_and_outcome, draw_cost, draw_criterion
from pliant.reporting.charts.landscape import contour_lines, draw_landscape, map_cells
from pliant.reporting.charts.ranks import draw_ranks, rank_diagram
from pliant.reporting.charts.robustness import POOLED, draw_robustness, robustness_boxes
from pliant.reporting.charts.training import draw_race, draw_training, race_trials, steps_to_loss, training_curves

__all__ = [
    "POOLED",
    "accuracy_and_cost",
    "accuracy_by_set",
    "bounds_beside_measured",
    "contour_lines",
    "criterion_and_outcome",
    "draw_accuracy",
    "draw_bounds",
    "draw_cost",
    "draw_criterion",
    "draw_gain",
    "draw_landscape",
    "draw_plasticity_by_depth",
    "draw_plasticity_by_role",
    "draw_probe_by_depth",
    "draw_race",
    "draw_ranks",
    "draw_robustness",
    "draw_training",
    "gain_by_set",
    "map_cells",
    "plasticity_by_depth",
    "plasticity_by_role",
    "probe_by_depth",
    "race_trials",
    "rank_diagram",
    "robustness_boxes",
    "steps_to_loss",
    "training_curves",
]
