"""Running the passes of a measurement: one after another, shared among processes, until they are done or suffice."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor

from pliant.components import Anatomy, Component
from pliant.errors import DataError
from pliant.measuring.capture import Hooks, Inputs, Listener, batch_size, listening, observing, run, visiting
from pliant.measuring.heads import heads_shown
from pliant.measuring.items import Items, joined
from pliant.measuring.meter import Meter
from pliant.measuring.padding import Padding
from pliant.measuring.plan import Plan, measured, passes
from pliant.measuring.processes import Processes, local_device, processes
from pliant.measuring.shared import SharedInput, apply_component
from pliant.measuring.shortcuts import Shortcuts
from pliant.terms import Convention

Progress = Callable[[int, int], None]
"""Called after each pass with passes done and passes in all."""


def measure_items(
    anatomy: Anatomy,
    source: Items,
    target: Items | None = None,
    *,
    plan: Plan,
    device: str | torch.device = "cpu",
    progress: Progress | None = None,
    meter: Meter | None = None,
) -> Meter:
    """Run the passes of a plan and return the meter that has counted them: a new one, or the one that is given.

    A given meter listens to tensors, of every pass, in this process; a new one is shown them as they arise or by
    shortcuts, and the processes of a `torchrun` share the passes.

    Raises:
        DataError: too few items to form a pair; source and target differ in the shape of an item.
        MeasurementError: values that are not finite, or another process failed.
    """
    for side in (source, target):
        if side is not None and len(side) < (2 if target is None else 1):
            raise DataError(f"got {len(side)} items of {side.name}; a rate needs two distinct items")
    device = local_device(str(device))
    listens = meter is not None
    meter = Meter(measured(anatomy, plan), plan.design) if meter is None else meter
    was = next(anatomy.model.parameters()).device
    try:
        anatomy.model.to(device)
        with observing(anatomy.model), _runner(anatomy, meter, plan, device, listens=listens) as runner:
            _rounds(runner, source, target, progress)
    finally:
        anatomy.model.to(was)
    return meter


class Runner:
    """Runs one pass for a meter, in either convention."""

    def __init__(self, anatomy: Anatomy, meter: Meter, plan: Plan, device: str, *, listens: bool) -> None:
        """Prepare; hooks are attached by whoever gives them. A meter that `listens` is given tensors."""
        self.anatomy, self.meter, self.plan, self.device, self.listens = anatomy, meter, plan, device, listens
        self.shared = SharedInput(anatomy)
        self.shortcuts = Shortcuts(anatomy, meter.components) if plan.convention == "shared" and not listens else None
        self.hooks: Hooks | None = None

    def __call__(self, index: int, batch: Inputs, source: int) -> None:
        """Run pass `index`, whose first `source` items are source items."""
        inputs = moved(batch, self.device)
        padding = _padding(inputs)
        self.meter.begin(index, source=source, items=batch_size(inputs), padding=padding)
        with self._precision():
            if self.listens:
                one_pass(
                    self.anatomy, self.meter.components, self.meter.listen, inputs,
                    shared=self.shared, convention=self.plan.convention,
                )  # fmt: skip
            elif self.hooks is not None:
                self.hooks.run(inputs)
            elif self.shortcuts is not None:
                shared = self.shared(inputs)
                self.shortcuts.show(self.meter, shared, padded=padding is not None, per_head=self.plan.per_head)
        self.meter.end()

    def everything(self, group: Processes) -> Meter:
        """Return a meter that has counted what all processes have; every process has to call this."""
        if group.world == 1:
            return self.meter
        joint = Meter(self.meter.components, self.plan.design)
        for state in group.gather(self.meter.state()):
            joint.merge(state)
        return joint

    def _precision(self) -> AbstractContextManager[Any]:
        if self.plan.precision == "float32":
            return nullcontext()
        kind = torch.device(self.device).type
        return torch.autocast(kind, dtype=getattr(torch, self.plan.precision))


@contextmanager
def _runner(anatomy: Anatomy, meter: Meter, plan: Plan, device: str, *, listens: bool) -> Iterator[Runner]:
    runner = Runner(anatomy, meter, plan, device, listens=listens)
    with ExitStack() as stack:
        if plan.convention == "insitu" and not listens:
            if plan.per_head:
                stack.enter_context(heads_shown(anatomy, meter.components, meter))
            runner.hooks = stack.enter_context(visiting(anatomy, meter.components, meter))
        yield runner


def one_pass(
    anatomy: Anatomy,
    components: Sequence[Component],
    listener: Listener,
    batch: Inputs,
    *,
    shared: SharedInput,
    convention: Convention,
) -> None:
    """Show a listener every component's input and output for one batch, source items first."""
    if convention == "insitu":
        with listening(anatomy, components, listener, batch=batch_size(batch)) as watch:
            run(anatomy.model, batch)
            watch.check()
        return
    tokens = shared(batch)
    for component in components:
        listener(component, *apply_component(anatomy, component, tokens))


def moved(batch: Inputs, device: str | torch.device) -> Inputs:
    """Return a batch on a device."""
    if isinstance(batch, Mapping):
        return {name: value.to(device) for name, value in batch.items()}
    return batch.to(device)


def _padding(inputs: Inputs) -> Padding | None:
    mask = inputs.get("attention_mask") if isinstance(inputs, Mapping) else None
    return Padding.of(mask) if isinstance(mask, Tensor) else None


def _shape(batch: Inputs) -> list[int]:
    first = next(iter(batch.values())) if isinstance(batch, Mapping) else batch
    return list(first.shape[1:])


def _rounds(runner: Runner, source: Items, target: Items | None, progress: Progress | None) -> None:
    """Take the passes, with `until` one a process at a time; end with everything in the meter of every process."""
    group, until = Processes() if runner.listens else processes(), runner.plan.until
    cut = passes(len(source), None if target is None else len(target), runner.plan)
    done, stopped = 0, "data used up"
    shape: list[int] | None = None
    while done < len(cut) and stopped != "sure":
        last = len(cut) if until is None else min(done + group.world, len(cut))
        error = None
        try:
            for index in range(done + group.rank, last, group.world):
                batch, n_source = joined(source, target, *cut[index])
                shape = shape or _shape(batch)
                runner(index, batch, n_source)
                if progress is not None:
                    progress(min(index + group.world - group.rank, len(cut)), len(cut))
        except Exception as caught:
            error = caught
        group.agree(error)
        done = last
        if until is not None and runner.everything(group).relative_stderr() < until:
            stopped = "sure"
    for rank, state in enumerate(group.gather(runner.meter.state())):
        if rank != group.rank:
            runner.meter.merge(state)
    shape = next(s for s in group.gather(shape) if s is not None)
    runner.meter.course = {"passes": done, "stopped": stopped, "processes": group.world, "item_shape": shape}
