"""Proofs that what is frozen stays as it was and that what is chosen is trained."""

import gc
import hashlib
import math
from collections.abc import Callable, Iterable, Mapping

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from pliant.components import Anatomy
from pliant.components.attention import attention_weights
from pliant.errors import AnatomyError, TrainingError

_WRAPPERS = {"DataParallel", "DistributedDataParallel", "FullyShardedDataParallel", "FSDPModule"}
"""By name: importing FSDP takes longer than everything else here."""


def refuse_wrapped(model: nn.Module) -> None:
    """Refuse a model that is already wrapped for data parallel training: the wrapper has settled what is trained.

    Raises:
        TrainingError: the model is such a wrapper, holds one, or is held by one.
    """
    wrapper = next((m for m in model.modules() if _WRAPPERS & {kind.__name__ for kind in type(m).__mro__}), None)
    if wrapper is None and torch.distributed.is_available() and torch.distributed.is_initialized():
        # A wrapper leaves no mark on the module that it holds, so the wrappers themselves are looked for.
        # By type(): isinstance asks objects for their __class__, and some answer with a warning.
        held = (o for o in gc.get_objects() if issubclass(type(o), DistributedDataParallel))
        wrapper = next((w for w in held if any(m is model for m in w.modules())), None)
    if wrapper is not None:
        raise TrainingError(
            f"components must be chosen before the model is wrapped for data parallel training, but it is wrapped "
            f"already ({type(wrapper).__name__}): the wrapper would go on averaging the gradients of what was "
            "trainable when it was made. Select first, wrap afterwards."
        )


def digest(tensor: Tensor) -> bytes:
    """Hash the bytes of a tensor."""
    flat = tensor.detach().cpu().contiguous().reshape(-1)
    return hashlib.sha256(flat.view(torch.uint8).numpy().data if flat.numel() else b"").digest()


def digests(tensors: Mapping[str, Tensor]) -> dict[str, bytes]:
    """Hash each tensor."""
    return {name: digest(tensor) for name, tensor in tensors.items()}


def copies(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Copy tensors to the CPU."""
    return {name: t.detach().to("cpu", copy=True) for name, t in tensors.items()}


@torch.no_grad()
def write_back(values: Mapping[str, Tensor], targets: Mapping[str, Tensor]) -> None:
    """Copy values into the tensors of the same names, in place."""
    for name, value in values.items():
        targets[name].copy_(value)


def largest(tensors: Iterable[Tensor]) -> list[float]:
    """Return the largest absolute entry of each tensor (NaN if it has one), with one transfer from the device."""
    present = [t for t in tensors if t.numel()]
    if not present:
        return []
    return torch.stack([n.float() for n in torch._foreach_norm(present, math.inf)]).tolist()


def key_biases(anatomy: Anatomy) -> frozenset[str]:
    """Names of the parameters that are nothing but an offset of all keys of a softmax attention.

    Such a bias b adds the same amount, q·b, to all logits of a query, and the softmax takes it out again: its gradient
    is exactly zero but for rounding, so neither a zero gradient nor a bias that has not moved is a fault. Where keys
    are normalised it is the norm's bias that this holds for; where they are rotated afterwards, for none.
    """
    names = {id(p): name for name, p in anatomy.model.named_parameters()}
    found = set()
    for component in anatomy.of("mha"):
        if not component.modules:
            continue
        try:
            weights = attention_weights(anatomy, component)
        except AnatomyError:
            continue  # a layout without a known key bias
        if weights.rotary:
            continue
        if weights.qk_norm:
            inside = anatomy.module(component.modules[0]).named_modules()
            biases = [getattr(m, "bias", None) for name, m in inside if name.rpartition(".")[2] == "k_norm"]
        else:
            biases = [weights.b_k]
        found |= {names[id(b)] for b in biases if id(b) in names}
    return frozenset(found)


def unused(model: nn.Module, suspects: Mapping[str, nn.Parameter], forward: Callable[[], Tensor]) -> tuple[str, ...]:
    """Return the parameters among `suspects` that provably do not enter the model's output.

    Two findings are needed: a backward pass leaves no gradient at all, and the output does not change by a bit when
    the parameter is filled with NaN. The second is the proof: where a backward path is merely cut (a detached
    activation, a `no_grad` block), the NaN still comes through, and the parameter stays under suspicion.

    Args:
        model: in evaluation mode, or at least without randomness.
        suspects: chosen parameters by name.
        forward: runs the model on a few images and returns logits.
    """
    tensors = list(suspects.values())
    logits = forward()
    gradients = torch.autograd.grad(logits.float().square().sum(), tensors, allow_unused=True)
    silent = {n: p for (n, p), g in zip(suspects.items(), gradients, strict=True) if g is None}
    return tuple(name for name, p in silent.items() if _without_effect(p, logits.detach(), forward))


@torch.no_grad()
def _without_effect(parameter: nn.Parameter, logits: Tensor, forward: Callable[[], Tensor]) -> bool:
    kept = parameter.detach().clone()
    try:
        parameter.fill_(math.nan)
        return torch.equal(forward(), logits)
    finally:
        parameter.copy_(kept)
