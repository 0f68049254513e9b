"""Work on a batch part by part; on a CPU, parts spread over threads that each compute alone.

Small products spread badly over PyTorch's own threads: every operation ends with all of them waiting for the slowest,
which on a busy machine costs more than they gain. Here each thread takes a whole part, small enough for its cache.
"""

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache

import torch

CPU_PART = 16
"""Images of one part on a CPU."""

DEVICE_PART = 256
"""Images of one part on an accelerator; bounds the memory for intermediate values."""


@lru_cache(maxsize=1)
def _pool(threads: int, process: int) -> ThreadPoolExecutor:
    """Keep the threads between batches; a forked process has none of its parent's, so it gets its own."""
    return ThreadPoolExecutor(threads, thread_name_prefix="pliant-data")


def in_parts(work: Callable[[slice], None], count: int, device: torch.device) -> None:
    """Call `work` for consecutive parts of a batch of `count` images, on as many threads as PyTorch would use.

    The result does not depend on the number of threads as long as `work` treats each image for itself.
    """
    size = CPU_PART if device.type == "cpu" else DEVICE_PART
    parts = [slice(start, start + size) for start in range(0, count, size)]
    threads = torch.get_num_threads()
    if threads == 1 or len(parts) == 1 or device.type != "cpu":
        for part in parts:
            work(part)
        return
    inference = torch.is_inference_mode_enabled()  # belongs to a thread, as the number of threads does

    def alone(part: slice) -> None:
        torch.set_num_threads(1)
        with torch.inference_mode(inference):
            work(part)

    try:
        for _ in _pool(threads, os.getpid()).map(alone, parts):
            pass
    finally:
        torch.set_num_threads(threads)
