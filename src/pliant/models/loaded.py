"""What loading gives: a model with everything that is needed to feed it and to name its weights."""

import hashlib
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from pliant.errors import ModelError
from pliant.terms import Preprocessing


@dataclass(frozen=True)
class Loaded:
    """A model, ready to use, and what belongs to it.

    Attributes:
        model: in evaluation mode, float32, on the CPU (as it was given, if it came through `from_module`).
        name: as the user gave it.
        source: what the name led to: a folder, or a hub id with its revision.
        preprocessing: what the checkpoint expects of an image; None for a text model.
        tokenizer: of a text model, if its files are there; else None.
        fingerprint: of the weights, see `fingerprint`.
        notes: what the user should be told about this checkpoint, one sentence each.
    """

    model: nn.Module = field(repr=False)
    name: str
    source: str
    preprocessing: Preprocessing | None
    tokenizer: Any | None
    fingerprint: str
    notes: tuple[str, ...] = ()


def fingerprint(model: nn.Module, *, without: Collection[str] = ()) -> str:
    """Hash a model's weights: 16 hex digits of SHA-256 over names, dtypes, shapes and bytes of its state.

    Covers parameters and persistent buffers, in the order of their names, but for those in `without`; device and train
    or eval mode do not matter.

    >>> layer = nn.Linear(2, 1)
    >>> _ = nn.init.ones_(layer.weight), nn.init.zeros_(layer.bias)
    >>> fingerprint(layer)
    '45323465f6d32377'
    """
    digest = hashlib.sha256()
    for name, tensor in sorted(model.state_dict().items()):
        if name in without:
            continue
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
        flat = tensor.detach().cpu().contiguous().reshape(-1)
        digest.update(flat.view(torch.uint8).numpy().data if flat.numel() else b"")
    return digest.hexdigest()[:16]


def from_module(
    model: nn.Module,
    *,
    name: str | None = None,
    preprocessing: Preprocessing | None = None,
    tokenizer: Any | None = None,
) -> Loaded:
    """Take a model that is already there (torchvision, timm, one's own), as it is.

    The model is neither moved nor changed; it must hold its floating point weights in float32.

    Args:
        model: any module.
        name: for tables and file names; the class name if not given.
        preprocessing: what the model expects of an image; needed for work on image data sets, not for tensors.
        tokenizer: of a text model.

    Raises:
        ModelError: a floating point tensor is not in float32.
    """
    check_float32(model, f"the given {type(model).__name__}", "Call model.float() first.")
    return Loaded(
        model=model,
        name=name or type(model).__name__,
        source=f"object of class {type(model).__module__}.{type(model).__qualname__}",
        preprocessing=preprocessing,
        tokenizer=tokenizer,
        fingerprint=fingerprint(model),
    )


def check_float32(model: nn.Module, what: str, advice: str) -> None:
    """Refuse a model with a floating point tensor in another precision than float32."""
    tensors = [*model.named_parameters(), *model.named_buffers()]
    wrong = [f"{n} ({t.dtype})" for n, t in tensors if t.is_floating_point() and t.dtype != torch.float32]
    if wrong:
        raise ModelError(
            f"{what} has {len(wrong)} tensors that are not float32, such as {', '.join(wrong[:3])}. {advice}"
        )
