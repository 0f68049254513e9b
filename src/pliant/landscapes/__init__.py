"""Surfaces to look at: the loss over directions of a component's weights, its rate of change over its input's."""

from pliant.landscapes.landscape import Landscape, landscape
from pliant.landscapes.surface import Surface

__all__ = ["Landscape", "Surface", "landscape"]
