"""Sweeps: a recipe is spelled out into cells, and an engine runs those that are missing."""

from pliant.sweeping.engine import Engine, Settings
from pliant.sweeping.engines import ENGINES, make_engine
from pliant.sweeping.estimate import Plan, Planned
from pliant.sweeping.events import Event
from pliant.sweeping.grid import cells
from pliant.sweeping.planning import plan_sweep
from pliant.sweeping.progress import Standing
from pliant.sweeping.recipe import Override, Recipe, load_recipe, read_changes, read_recipe, recipe_names
from pliant.sweeping.result import SweepResult
from pliant.sweeping.run import sweep

__all__ = [
    "ENGINES",
    "Engine",
    "Event",
    "Override",
    "Plan",
    "Planned",
    "Recipe",
    "Settings",
    "Standing",
    "SweepResult",
    "cells",
    "load_recipe",
    "make_engine",
    "plan_sweep",
    "read_changes",
    "read_recipe",
    "recipe_names",
    "sweep",
]
