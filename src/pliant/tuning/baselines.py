"""Methods and baselines: one entry each; all are trained by the one loop, and differ in what is frozen."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from torch import nn

from pliant.components import Anatomy, find_components
from pliant.errors import AnatomyError
from pliant.models import Loaded
from pliant.runs import CellConfig
from pliant.runs.config import Method
from pliant.tuning.delta import delta_bytes
from pliant.tuning.lora import lora
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


def _lora(anatomy: Anatomy, cell: CellConfig) -> Prepared:
    return Prepared(*lora(anatomy, cell))


def _bitfit(anatomy: Anatomy, cell: CellConfig) -> Prepared:
    """All biases (Ben Zaken et al. 2022)."""
    biases = {n for n, p in anatomy.model.named_parameters() if "bias" in n.rpartition(".")[2] and p.ndim == 1}
    return Prepared(_tensors(anatomy, biases, cell))


def _norms(anatomy: Anatomy, cell: CellConfig) -> Prepared:
    """All norms, wherever they are: of blocks, the final one, of queries and keys, of pooled tokens."""
    norms = {name for name, m in anatomy.model.named_modules() if "norm" in type(m).__name__.lower()}
    return Prepared(
        _tensors(anatomy, {n for n, _ in anatomy.model.named_parameters() if n.rpartition(".")[0] in norms}, cell)
    )


def _tensors(anatomy: Anatomy, names: set[str], cell: CellConfig) -> Selection:
    """Select tensors by name, and the classifier."""
    heads = anatomy.parameters(("head",))
    if not names - set(heads):
        raise AnatomyError(
            f"{cell.variant} matches no tensor of {type(anatomy.model).__name__} outside its classifier; "
            f"train a component set instead: {', '.join(anatomy.roles)}."
        )
    parameters: dict[str, nn.Parameter] = {
        n: p for n, p in anatomy.model.named_parameters() if n in names or n in heads
    }
    return Selection(anatomy, parameters, name=cell.variant)


METHODS: dict[Method, Callable[[Anatomy, CellConfig], Prepared]] = {
    "components": _components,
    "lora": _lora,
    "bitfit": _bitfit,
    "norms": _norms,
}
"""How each method of a cell chooses what is trained. The classifier always is; with components the final norm, too."""


@dataclass(frozen=True)
class Baseline:
    """Something to compare component sets with.

    Attributes:
        name: in tables.
        about: one line.
        fields: of the cell that runs it.
    """

    name: str
    about: str
    fields: dict[str, Any] = field(default_factory=dict)


BASELINES: dict[str, Baseline] = {
    b.name: b
    for b in (
        Baseline("full", "every tensor", {"components": "full"}),
        Baseline("head", "classifier and final norm alone", {"components": "head"}),
        Baseline("emb", "patch, class and position embedding", {"components": "emb"}),
        Baseline("bitfit", "all biases", {"method": "bitfit"}),
        Baseline("norms", "all norms, the final one included", {"method": "norms"}),
        Baseline("lora", "low-rank matrices beside q and v", {"method": "lora"}),
    )
}
"""What component sets are compared with."""


@dataclass(frozen=True)
class Footprint:
    """What a cell trains, known before it is trained.

    Attributes:
        variant: what is trained, in one word.
        modules: full names of the modules that hold trained tensors.
        tensors: their number; `parameters` that of their weights, of `total` in the model.
        saved_bytes: size of the file of what is trained.
    """

    variant: str
    modules: tuple[str, ...]
    tensors: int
    parameters: int
    total: int
    saved_bytes: int


def footprint(cell: CellConfig, loaded: Loaded, *, anatomy: Anatomy | None = None) -> Footprint:
    """Resolve what a cell would train in a model, and count it; the model is given back as it was.

    Raises:
        AnatomyError: the model lacks what the cell wants to train.
    """
    found = anatomy or find_components(loaded.model)
    total = sum(p.numel() for p in loaded.model.parameters())
    prepared = METHODS[cell.method](found, cell)
    try:
        names = prepared.selection.parameters
        return Footprint(
            variant=cell.variant,
            modules=tuple(dict.fromkeys(_module(n) for n in names)),
            tensors=len(names),
            parameters=prepared.selection.trained_parameters,
            total=total,
            saved_bytes=delta_bytes(names),
        )
    finally:
        prepared.selection.restore()
        prepared.finish(False)


def _module(name: str) -> str:
    """Return the module that a tensor belongs to; LoRA's matrices belong to the map that they are added to."""
    return name.split(".lora_")[0] if ".lora_" in name else name.rpartition(".")[0]
