"""Taking a model apart: roles, components, families."""

from pliant.components.component import Anatomy, Component
from pliant.components.families import FAMILIES, Family
from pliant.components.match import find_components

__all__ = ["FAMILIES", "Anatomy", "Component", "Family", "find_components"]
