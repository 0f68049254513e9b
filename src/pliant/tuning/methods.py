"""How each method of a cell chooses what is trained."""

from collections.abc import Callable
from dataclasses import dataclass

from pliant.components import Anatomy
from pliant.runs import CellConfig
from pliant.runs.config import Method
from pliant.tuning.select import Selection, select


@dataclass(frozen=True)
class Prepared:
    """A model that is ready to be trained.

    Attributes:
        selection: what is trained.
        finish: called when training is over and the selection released; True keeps what was trained in the model's
            weights, False leaves them as they are.
    """

    selection: Selection
    finish: Callable[[bool], None] = lambda keep: None


def _components(anatomy: Anatomy, cell: CellConfig) -> Prepared:
    return Prepared(select(anatomy, cell.roles))


METHODS: dict[Method, Callable[[Anatomy, CellConfig], Prepared]] = {"components": _components}
