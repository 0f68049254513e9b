"""A surface: values over a grid in two directions, as plain numbers."""

import math
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import pandas as pd
from jaxtyping import Float

Kind = Literal["loss", "rate"]


@dataclass(frozen=True)
class Surface:
    """Values over a grid.

    Attributes:
        kind: `loss` over directions of a component's weights, or `rate` of change over directions of its input.
        component: a component set (`mha`, `mha+fc1`) or one component (`block03.mha`).
        x, y: coordinates of the grid's columns and rows; (0, 0) is the checkpoint, or the input itself.
        values: value at [row, column]; nan where there is none (the rate at the input itself, a loss that overflowed).
        path: of gradient descent as the plane sees it: x, y, loss after each step; none for rates.
        about: what the directions are, and how much of the path lies in them.
    """

    kind: Kind
    component: str
    x: tuple[float, ...]
    y: tuple[float, ...]
    values: Float[np.ndarray, "rows columns"] = field(repr=False)
    path: tuple[tuple[float, float, float], ...] = field(default=(), repr=False)
    about: dict[str, Any] = field(default_factory=dict)

    @property
    def frame(self) -> pd.DataFrame:
        """One row for each point of the grid: kind, component, x, y, value."""
        columns, rows = np.meshgrid(self.x, self.y)
        table = pd.DataFrame({"x": columns.ravel(), "y": rows.ravel(), "value": self.values.ravel()})
        return table.assign(kind=self.kind, component=self.component)[["kind", "component", "x", "y", "value"]]

    def plain(self) -> dict[str, Any]:
        """Return the surface as what JSON can hold; nan becomes null."""
        values = [[None if not math.isfinite(v) else v for v in row] for row in self.values.tolist()]
        return {
            "kind": self.kind,
            "component": self.component,
            "x": list(self.x),
            "y": list(self.y),
            "values": values,
            "path": [list(point) for point in self.path],
            "about": self.about,
        }


def axis(low: float, high: float, points: int) -> tuple[float, ...]:
    """Return evenly spaced coordinates, ends included.

    >>> axis(-1.0, 1.0, 5)
    (-1.0, -0.5, 0.0, 0.5, 1.0)
    """
    return tuple(np.linspace(low, high, points).tolist())
