"""Several processes under `torchrun`: each takes a share of the passes, and all end with the same result.

What is exchanged are sums over passes, as plain values through gloo, so the result is what one process would have
found, to the last bit where the machines compute alike.
"""

import atexit
import os
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch.distributed as dist

from pliant.errors import MeasurementError

_TIMEOUT = timedelta(hours=2)
"""How long a process waits for the slowest one."""


@dataclass(frozen=True)
class Processes:
    """The processes that share a measurement; `rank` of `world` is this one."""

    rank: int = 0
    world: int = 1
    group: Any = None

    def gather(self, mine: Any) -> list[Any]:
        """Return what each process gives, in the order of their ranks; every process has to call this."""
        if self.world == 1:
            return [mine]
        found: list[Any] = [None] * self.world
        dist.all_gather_object(found, mine, group=self.group)
        return found

    def agree(self, error: Exception | None) -> None:
        """Stop everywhere if one process has stopped, so that none waits for it.

        Raises:
            MeasurementError: another process failed; this one's own error is raised as it is.
        """
        told = self.gather(None if error is None else f"{type(error).__name__}: {error}")
        if error is not None:
            raise error
        for rank, message in enumerate(told):
            if message is not None:
                raise MeasurementError(f"process {rank} of {self.world} stopped: {message}")


def processes() -> Processes:
    """Find out whether this is one of several processes, and connect it to the others if it is not yet."""
    if not dist.is_available():
        return Processes()
    if not dist.is_initialized():
        if int(os.environ.get("WORLD_SIZE", "1")) < 2 or "MASTER_ADDR" not in os.environ:
            return Processes()
        dist.init_process_group("gloo", timeout=_TIMEOUT)
        atexit.register(_leave)
    if dist.get_world_size() == 1:
        return Processes()
    group = None if dist.get_backend() == "gloo" else dist.new_group(backend="gloo", timeout=_TIMEOUT)
    return Processes(dist.get_rank(), dist.get_world_size(), group)


def _leave() -> None:
    if dist.is_initialized():
        dist.destroy_process_group()


def local_device(name: str) -> str:
    """Give each process its own GPU: `cuda` becomes `cuda:LOCAL_RANK` under torchrun.

    >>> local_device("cpu")
    'cpu'
    """
    rank = os.environ.get("LOCAL_RANK")
    return f"cuda:{rank}" if name == "cuda" and rank is not None else name
