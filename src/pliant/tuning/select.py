"""Choosing what is trained: everything else is frozen, and both are proved."""

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Self

import pandas as pd
import torch
from torch import Tensor, nn

from pliant.components import Anatomy
from pliant.errors import AnatomyError, TrainingError
from pliant.terms import ALWAYS_TRAINED, BLOCK_ROLES, ROLES, Role, components_name, nearest, parse_components
from pliant.tuning.guards import copies, digests, key_biases, largest, refuse_wrapped, unused
from pliant.tuning.modes import keep_in_evaluation, modules_to_train, release


@dataclass(frozen=True)
class EndCheck:
    """What was found at the end of training.

    Attributes:
        frozen_unchanged: frozen tensors and buffers that are byte-identical to what they were.
        trained_moved: chosen tensors that are not what they were.
        still: names of chosen tensors that are: key biases, and in short runs LoRA's first matrices; anything else
            is an error.
    """

    frozen_unchanged: int
    trained_moved: int
    still: tuple[str, ...]


def select(anatomy: Anatomy, roles: str | Iterable[Role]) -> "Selection":
    """Freeze a model but for some roles and what is always trained (final norm and head).

    The choice holds from this call until `restore`, or to the end of a `with` block:

        with select(anatomy(model), "mha+fc1") as selection:
            ...

    Args:
        anatomy: of the model, before any data parallel wrapper.
        roles: roles, or their name (`mha+fc1`, `full`, `head`).

    Raises:
        AnatomyError: the model has no parameters of a role that was asked for.
        TrainingError: the model is wrapped for data parallel training already.
    """
    chosen = parse_components(roles if isinstance(roles, str) else components_name(tuple(roles)))
    if chosen != ROLES and (missing := [r for r in chosen if r not in anatomy.roles]):
        near = nearest(missing[0], anatomy.roles)
        raise AnatomyError(
            f"{type(anatomy.model).__name__} has no parameters of role {', '.join(missing)}. It has "
            f"{', '.join(dict.fromkeys([*near, *anatomy.roles]))}: choose among these."
        )
    trained = anatomy.parameters(set(chosen) | (set(ALWAYS_TRAINED) & set(anatomy.roles)))
    return Selection(anatomy, trained, name=components_name(chosen))


class Selection:
    """A model in which some parameters are trained and all others are frozen.

    Frozen means: no gradient, evaluation mode kept through every later `train()` call, buffers untouched. `restore`
    (or leaving the `with` block, also by an exception) puts `requires_grad`, modes and classes back as they were;
    values stay as training left them.

    Attributes:
        anatomy: of the model, as it was when this was made.
        name: what was chosen, in one word: `mha+fc1`, `lora-r16-q+v`.
        parameters: what is trained, by full name.
        unused: parameters that were chosen but do not enter the forward pass; they were taken out again.
        inert: chosen key biases, which softmax attention makes ineffective (see `key_biases`).
        late: chosen tensors whose gradient is zero at first by construction.
        notes: what a reader of the result should know about the choice.
        initial: CPU copies of the chosen tensors as they were.
    """

    def __init__(
        self,
        anatomy: Anatomy,
        trained: Mapping[str, nn.Parameter],
        *,
        name: str,
        owners: Mapping[str, str] | None = None,
        late: Iterable[str] = (),
        also_active: Iterable[nn.Module] = (),
        frame: pd.DataFrame | None = None,
        notes: Iterable[str] = (),
    ) -> None:
        """Freeze everything but `trained`.

        Args:
            anatomy: of the model before any tensors were added to it.
            trained: parameters by full name.
            name: of the choice.
            owners: component of each trained parameter that is not in the anatomy (added by a baseline).
            late: names of parameters whose gradient is zero at first by construction (LoRA's first matrices).
            also_active: modules without parameters that go into training mode nevertheless (LoRA's dropout).
            frame: of the anatomy, if tensors were added or renamed since.
            notes: what a reader of the result should know about the choice.
        """
        model = anatomy.model
        refuse_wrapped(model)
        if not trained:
            raise TrainingError(f"nothing to train: {name!r} matches no parameter of {type(model).__name__}.")
        self.anatomy = anatomy
        self.name = name
        self.parameters = dict(trained)
        self.unused: tuple[str, ...] = ()
        self.inert = key_biases(anatomy) & set(trained)
        self.late = frozenset(late)
        self.notes = tuple(notes)
        self._frame = frame
        self.initial = copies(trained)
        self._chosen = dict(trained)
        self._owners = {p: c.id for c in anatomy.components for p in c.parameters} | dict(owners or {})
        self._unverified = set(trained)
        self._required = [(p, p.requires_grad) for p in model.parameters()]
        self._modes = {module: module.training for module in model.modules()}
        active = modules_to_train(model, trained.values()) | set(also_active)
        self._kept = [m for m in model.modules() if m not in active]
        self._active = active
        for parameter in model.parameters():
            parameter.requires_grad_(False)
        for parameter in trained.values():
            parameter.requires_grad_(True)
        keep_in_evaluation(self._kept)
        self._frozen = digests(self._frozen_tensors())
        self._restored = False

    @property
    def model(self) -> nn.Module:
        """The model that the choice was made in."""
        return self.anatomy.model

    @property
    def frame(self) -> pd.DataFrame:
        """One row per component: the anatomy's columns, then trained_tensors and trained_parameters.

        Tensors that a baseline added count for the component that they were added to.
        """
        tensors: dict[str, int] = {}
        numbers: dict[str, int] = {}
        for name, parameter in self.parameters.items():
            owner = self._owners[name]
            tensors[owner] = tensors.get(owner, 0) + 1
            numbers[owner] = numbers.get(owner, 0) + parameter.numel()
        frame = self.anatomy.frame if self._frame is None else self._frame
        return frame.assign(
            trained_tensors=frame["component"].map(tensors).fillna(0).astype("int64"),
            trained_parameters=frame["component"].map(numbers).fillna(0).astype("int64"),
        )

    @property
    def trained_parameters(self) -> int:
        """Number of trained weights (single numbers, not tensors)."""
        return sum(p.numel() for p in self.parameters.values())

    @property
    def buffers(self) -> dict[str, Tensor]:
        """Buffers of wholly trained parts, which training may change (running statistics)."""
        return {name: b for name, b in self.model.named_buffers() if not self._is_frozen_buffer(name)}

    @property
    def verified(self) -> bool:
        """Whether each chosen tensor has been seen with a finite, non-zero gradient."""
        return not self._unverified

    def owner(self, name: str) -> str:
        """Return the id of the component that a trained tensor belongs to."""
        return self._owners[name]

    def exclude_unused(self, forward: Callable[[], Tensor]) -> tuple[str, ...]:
        """Take out chosen tensors that provably never enter the forward pass (a mask token, an unused pooler).

        Such tensors exist outside the blocks only; one in a block, or in the head, stays chosen, so that
        `verify_gradients` reports it.

        Args:
            forward: runs the model on a few images, without randomness, and returns logits.
        """
        known = {p: c.role for c in self.anatomy.components for p in c.parameters}
        suspects = {n: p for n, p in self.parameters.items() if known.get(n, "mha") not in (*BLOCK_ROLES, "head")}
        if not suspects:
            return ()
        self.unused = unused(self.model, suspects, forward)
        for name in self.unused:
            self.parameters.pop(name).requires_grad_(False)
            self.initial.pop(name)
            self._unverified.discard(name)
            self._frozen |= digests({name: self._chosen[name]})
        return self.unused

    def drop_gradients(self, set_to_none: bool = True) -> None:
        """Forget the gradients of what is trained; nothing else has any."""
        for parameter in self.parameters.values():
            parameter.grad = None

    def verify_gradients(self, *, final: bool = True) -> None:
        """Check, after a backward pass, that each chosen tensor has a finite gradient that is not all zero.

        A tensor that has passed once is not looked at again. Key biases may have a zero gradient, never none.

        Args:
            final: False lets tensors whose gradient is zero at first by construction pass until a later call.

        Raises:
            TrainingError: lists the tensors that fail, and how.
        """
        names = [n for n in self.parameters if n in self._unverified]
        gradients = {n: g for n in names if (g := self.parameters[n].grad) is not None}
        sizes = dict(zip(gradients, largest(gradients.values()), strict=True))
        faults = []
        for name in names:
            size = sizes.get(name)
            if size is None:
                faults.append(f"{name}: no gradient")
            elif not math.isfinite(size):
                faults.append(f"{name}: gradient with {size}")
            elif size > 0 or name in self.inert:
                self._unverified.discard(name)
            elif final or name not in self.late:
                faults.append(f"{name}: gradient zero")
        if faults:
            raise TrainingError(
                f"{len(faults)} of {len(self.parameters)} chosen tensors ({self.name}) do not train: "
                f"{_few(faults)}. The path from the loss to them is cut, or they are not part of the forward pass; "
                "nothing was trained."
            )

    def verify_end(self, *, moved: bool = True) -> EndCheck:
        """Compare every tensor with what it was when the selection was made.

        Args:
            moved: whether a chosen tensor that has not moved is an error (it is not in a run that was cut short).

        Raises:
            TrainingError: a frozen tensor or buffer differs in a byte, or a chosen tensor does not.
        """
        after = digests(self._frozen_tensors())
        changed = [name for name, before in self._frozen.items() if after.get(name) != before]
        if changed:
            raise TrainingError(
                f"{len(changed)} frozen tensors moved during training of {self.name}: {_few(changed)}. "
                "The result is not one of training the chosen parts alone; look for code that writes to them."
            )
        still = tuple(n for n, before in self.initial.items() if torch.equal(before, self.parameters[n].cpu()))
        # What waits for another tensor to move first may be too late for a short run.
        stuck = [name for name in still if name not in self.inert | self.late]
        if stuck and moved:
            raise TrainingError(
                f"{len(stuck)} of {len(self.parameters)} chosen tensors ({self.name}) did not move: {_few(stuck)}. "
                "Their updates were below the resolution of float32: raise the learning rate or the number of steps."
            )
        return EndCheck(len(after), len(self.parameters) - len(still), still)

    def restore(self) -> None:
        """Put `requires_grad`, modes and classes back as they were found; a second call does nothing."""
        if self._restored:
            return
        self._restored = True
        release(self._kept)
        for module, mode in self._modes.items():
            module.training = mode
        for parameter, required in self._required:
            parameter.requires_grad_(required)
            parameter.grad = None

    def __enter__(self) -> Self:
        """Return the selection, which holds already."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Restore the model."""
        self.restore()

    def _frozen_tensors(self) -> dict[str, Tensor]:
        model = self.model
        parameters = {n: p for n, p in model.named_parameters() if n not in self.parameters}
        return parameters | {n: b for n, b in model.named_buffers() if self._is_frozen_buffer(n)}

    def _is_frozen_buffer(self, name: str) -> bool:
        owner = self.model.get_submodule(name.rpartition(".")[0])
        chosen = {id(p) for p in self._chosen.values()}
        return owner not in self._active or not all(id(p) in chosen for p in owner.parameters())


def _few(names: list[str], *, count: int = 6) -> str:
    more = f" and {len(names) - count} more" if len(names) > count else ""
    return f"{', '.join(names[:count])}{more}"
