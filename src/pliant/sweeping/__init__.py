"""Sweeps: a recipe is spelled out into cells, and an engine runs those that are missing."""

from pliant.sweeping.grid import cells
from pliant.sweeping.recipe import Override, Recipe, load_recipe, read_changes, read_recipe, recipe_names

__all__ = ["Override", "Recipe", "cells", "load_recipe", "read_changes", "read_recipe", "recipe_names"]
