"""What a result may depend on beside its cell, and what a run costs."""

import functools
import os
import platform
from importlib.metadata import version
from pathlib import Path

import psutil
import torch
from pydantic import JsonValue

LIBRARIES = ("pliant", "torch", "torchvision", "transformers", "accelerate", "peft", "timm", "numpy")


@functools.cache
def _versions() -> dict[str, JsonValue]:
    return {library: version(library) for library in LIBRARIES}


def environment(device: torch.device) -> dict[str, JsonValue]:
    """Describe versions, device and threads."""
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else platform.processor() or platform.machine()
    return {
        "python": platform.python_version(),
        "versions": dict(_versions()),
        "device": device.type,
        "device_name": name,
        "threads": torch.get_num_threads(),
        "processes": int(os.environ.get("WORLD_SIZE", "1")),
    }


def forget_peak_memory() -> None:
    """Start the count of `peak_memory` anew, where the system lets a process do so (Linux, CUDA)."""
    if torch.cuda.is_available():
        torch.cuda.reset_peak_memory_stats()
    try:
        Path("/proc/self/clear_refs").write_text("5")
    except OSError:
        pass  # then the peak of the whole process is all there is


def peak_memory(device: torch.device) -> int:
    """Return the largest memory in bytes since `forget_peak_memory`: of the device, or of the process on a CPU.

    Where the system does not count it, the process's memory now is returned.
    """
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    try:
        status = Path("/proc/self/status").read_text()
        return int(status.split("VmHWM:")[1].split()[0]) * 1024
    except (OSError, IndexError, ValueError):
        return int(psutil.Process().memory_info().rss)
