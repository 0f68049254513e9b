"""LoRA as a method of a cell: where its matrices go in each family, and how they come into the weights at the end.

Hu et al. 2022: a map W gets W + (alpha / rank) · B A, with A (rank × in) random and B (out × rank) zero at first.
"""

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import pandas as pd
import torch
from torch import Tensor, nn

from pliant.components import Anatomy, Component
from pliant.components.attention import attention_weights
from pliant.errors import AnatomyError, TrainingError
from pliant.models.quiet import own_randomness
from pliant.runs import CellConfig
from pliant.runs.config import LoraTarget
from pliant.tuning.select import Selection

ADAPTER = "pliant"
"""peft's name for the set of matrices; it is part of the trained tensors' names."""


@dataclass(frozen=True)
class Adapted:
    """One map that LoRA is added to.

    Attributes:
        module: full name of the map.
        targets: what it computes; more than what was asked for where q, k and v are packed in one map.
        component: id of the component that it belongs to.
    """

    module: str
    targets: tuple[LoraTarget, ...]
    component: str


def resolve_targets(anatomy: Anatomy, targets: Sequence[LoraTarget]) -> tuple[Adapted, ...]:
    """Find the maps that compute `targets` in every block, in any family.

    Raises:
        AnatomyError: a target is not to be found, or is no map of its own that LoRA can be added to.
    """
    found: dict[str, tuple[list[LoraTarget], str]] = {}
    for component in anatomy.components:
        for target, module in _maps(anatomy, component).items():
            found.setdefault(module, ([], component.id))[0].append(target)
    adapted = [Adapted(m, tuple(ts), c) for m, (ts, c) in found.items() if set(ts) & set(targets)]
    covered = {t for one in adapted for t in one.targets}
    if missing := set(targets) - covered:
        present = ", ".join(dict.fromkeys(t for ts, _ in found.values() for t in ts)) or "none"
        raise AnatomyError(
            f"LoRA on {', '.join(sorted(missing))} matches no map of {type(anatomy.model).__name__}; it has {present}."
        )
    return tuple(adapted)


def _maps(anatomy: Anatomy, component: Component) -> dict[LoraTarget, str]:
    """Names of the linear maps of a component by what they compute."""
    if component.role == "fc2" or (component.role == "fc1" and len(component.modules) == 1):
        return {component.role: component.modules[0]}
    if component.role != "mha" or not component.modules:
        return {}
    weights = attention_weights(anatomy, component)
    by_weight = {
        id(module.weight): name
        for name, module in anatomy.model.named_modules()
        if isinstance(getattr(module, "weight", None), Tensor) and _is_linear(module)
    }
    parts: dict[LoraTarget, Tensor] = {"q": weights.w_q, "k": weights.w_k, "v": weights.w_v, "o": weights.w_o}
    # A packed or transposed weight comes as a view; the parameter that it looks into is its map's.
    names = {t: by_weight.get(id(w if w._base is None else w._base)) for t, w in parts.items()}
    attention = anatomy.module(component.modules[0])
    bypassed = isinstance(getattr(attention, "q_bias", None), Tensor) and hasattr(attention, "qkv")
    if None in names.values() or bypassed:  # timm's BEiT and Eva read the weight of qkv without calling it
        raise AnatomyError(
            f"{component.id}: {type(attention).__name__} does not call its projections as linear maps, so LoRA beside "
            "them would have no effect; train mha itself, or use a model whose attention does."
        )
    return {t: name for t, name in names.items() if name is not None}


def _is_linear(module: nn.Module) -> bool:
    return isinstance(module, nn.Linear) or type(module).__name__ == "Conv1D"


def lora(anatomy: Anatomy, cell: CellConfig) -> tuple[Selection, Callable[[bool], None]]:
    """Add LoRA's matrices to a model and train them and the classifier; nothing else.

    Returns:
        The selection, and what is to be called when training is over and the selection released: True merges the
        matrices into the weights in float32, False removes them; either way the model is of plain layers again.

    Raises:
        AnatomyError: the targets are not to be found.
        TrainingError: peft added matrices elsewhere than where they were asked for.
    """
    model = anatomy.model
    adapted = resolve_targets(anatomy, cell.lora_targets or ())
    frame = anatomy.frame
    required = [(p, p.requires_grad) for p in model.parameters()]
    try:
        _inject(model, [a.module for a in adapted], cell)
        for parameter, flag in required:  # peft froze them for good; the selection does it for its time
            parameter.requires_grad_(flag)
        return _selection(anatomy, adapted, cell, frame=frame), lambda keep: _remove(model, merge=keep)
    except BaseException:
        _remove(model, merge=False)
        raise


def _inject(model: nn.Module, names: Sequence[str], cell: CellConfig) -> None:
    from peft import LoraConfig, inject_adapter_in_model

    config = LoraConfig(
        r=cell.lora_rank or 16,
        lora_alpha=cell.lora_alpha or 16,  # a float works, and is what peft computes with
        lora_dropout=cell.lora_dropout or 0.0,
        target_modules=list(names),
        fan_in_fan_out=any(type(model.get_submodule(n)).__name__ == "Conv1D" for n in names),
    )
    with own_randomness(cell.seed), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what it would warn of (names, layouts) is checked in `_selection`
        inject_adapter_in_model(config, model, adapter_name=ADAPTER)


def _layers(model: nn.Module) -> dict[str, nn.Module]:
    from peft.tuners.tuners_utils import BaseTunerLayer

    return {name: module for name, module in model.named_modules() if isinstance(module, BaseTunerLayer)}


def _selection(anatomy: Anatomy, adapted: Sequence[Adapted], cell: CellConfig, *, frame: pd.DataFrame) -> Selection:
    model = anatomy.model
    layers = _layers(model)
    if set(layers) != {a.module for a in adapted}:
        raise TrainingError(f"peft added LoRA to {sorted(layers)}, but it was asked for {[a.module for a in adapted]}")
    owners: dict[str, str] = {}
    for a in adapted:
        for name, _ in layers[a.module].named_parameters():
            if f".{ADAPTER}." in f".{name}.":
                owners[f"{a.module}.{name}"] = a.component
    heads = anatomy.parameters(("head",))
    trained = {n: p for n, p in model.named_parameters() if n in owners or n in heads}
    dropouts = [m for layer in layers.values() for m in layer.modules() if isinstance(m, nn.Dropout)]
    return Selection(
        anatomy,
        trained,
        name=cell.variant,
        owners=owners,
        late=[n for n in owners if ".lora_A." in n],
        also_active=dropouts,
        frame=frame,
        notes=packed_note(adapted, cell.lora_targets or ()),
    )


def packed_note(adapted: Sequence[Adapted], targets: Sequence[LoraTarget]) -> tuple[str, ...]:
    """Say which maps do more than what was asked for."""
    more = [a for a in adapted if set(a.targets) - set(targets)]
    if not more:
        return ()
    computes = " and ".join(more[0].targets)
    return (f"LoRA on {' and '.join(targets)}: {len(more)} maps such as {more[0].module} compute {computes} at once",)


@torch.no_grad()
def _remove(model: nn.Module, *, merge: bool) -> None:
    for name, layer in _layers(model).items():
        if merge:
            layer.merge(safe_merge=True)  # type: ignore[operator]
        parent, _, last = name.rpartition(".")
        setattr(model.get_submodule(parent), last, layer.get_base_layer())  # type: ignore[operator]
    vars(model).pop("peft_config", None)
