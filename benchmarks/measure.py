"""What measuring costs: time and memory of every way, beside a plain version and beside one forward pass.

    python benchmarks/measure.py --json

ViT-B/16 at 224 pixels with random weights, 16 source and 16 target images, float32, two CPU threads. All ways are timed
in turn, several times over; the figures are ratios of medians, so that what else the machine does falls on all alike.
Each way's memory is its peak above what the loaded model and images occupy, in a process of its own.
"""

import argparse
import json
import os
import platform
import re
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import timm
import torch
from torch import Tensor, nn

from pliant import from_module, measure

WAYS = ("plain", "plain_frugal", "shared_matched", "shared_all", "forward", "insitu_matched", "insitu_all")

TARGETS = {
    "shared_matched_speedup": (">=", 3.5),
    "shared_matched_memory_ratio": ("<=", 1 / 3),
    "shared_all_over_matched": ("<=", 1.6),
    "insitu_over_forward": ("<=", 1.15),
    "insitu_all_over_forward": ("<=", 1.35),
    "insitu_memory_over_forward": ("<=", 1.3),
}


def embedded(model: nn.Module, images: Tensor) -> Tensor:
    """Return the tokens that enter the first block."""
    return model.norm_pre(model.patch_drop(model._pos_embed(model.patch_embed(images))))


def parts(model: nn.Module) -> list[tuple[nn.Module, bool]]:
    """Return every component, and whether its input is the padded one."""
    return [
        (part, part is block.mlp.fc2)
        for block in model.blocks
        for part in (block.norm1, block.attn, block.norm2, block.mlp.fc1, block.mlp.fc2)
    ]


def inputs(model: nn.Module, images: Tensor) -> tuple[Tensor, Tensor]:
    """Return the tokens that all components get, and the same padded with zeros to the width of the hidden features."""
    tokens = embedded(model, images)
    return tokens, nn.functional.pad(tokens, (0, model.blocks[0].mlp.fc2.in_features - tokens.shape[-1]))


@torch.no_grad()
def plain(model: nn.Module, source: Tensor, target: Tensor) -> list[Tensor]:
    """Measure matched pairs in the shared convention: all outputs of all components for both batches, subtracted."""
    x, y = (inputs(model, images) for images in (source, target))
    between = (x[0] - y[0]).flatten(1).norm(dim=1)
    of_x, of_y = ([part(tokens[padded]) for part, padded in parts(model)] for tokens in (x, y))
    return [(a - b).flatten(1).norm(dim=1) / between for a, b in zip(of_x, of_y, strict=True)]


@torch.no_grad()
def plain_frugal(model: nn.Module, source: Tensor, target: Tensor) -> list[Tensor]:
    """As `plain`, with the outputs of one component at a time in memory."""
    x, y = (inputs(model, images) for images in (source, target))
    between = (x[0] - y[0]).flatten(1).norm(dim=1)
    return [(part(x[padded]) - part(y[padded])).flatten(1).norm(dim=1) / between for part, padded in parts(model)]


def ways(arguments: argparse.Namespace, images: int) -> dict[str, Callable[[], object]]:
    """Build the model and the images; return every way to be timed."""
    torch.manual_seed(0)
    model = timm.create_model(arguments.model).eval()
    size = model.patch_embed.img_size[0]
    source, target = (torch.randn(images, 3, size, size) for _ in range(2))
    both, loaded = torch.cat([source, target]), from_module(model)

    def forward() -> None:
        with torch.no_grad():
            model(both)

    def measured(convention: str, pairs: str) -> Callable[[], object]:
        return lambda: measure(loaded, source, target, convention=convention, pairs=pairs, batch_size=max(2, images))

    return {
        "plain": lambda: plain(model, source, target),
        "plain_frugal": lambda: plain_frugal(model, source, target),
        "shared_matched": measured("shared", "matched"),
        "shared_all": measured("shared", "all"),
        "forward": forward,
        "insitu_matched": measured("insitu", "matched"),
        "insitu_all": measured("insitu", "all"),
    }


def timed(arguments: argparse.Namespace) -> tuple[dict[str, list[float]], float]:
    """Return seconds of every way, and the largest relative difference between shortcuts and the plain version."""
    known = ways(arguments, arguments.images)
    expected = torch.stack([r.mean() for r in known["plain"]()]).double()  # type: ignore[attr-defined]
    found = torch.tensor(known["shared_matched"]().frame["plasticity"].to_numpy())  # type: ignore[attr-defined]
    difference = float((found / expected - 1).abs().max())
    seconds: dict[str, list[float]] = {name: [] for name in known}
    for _ in range(arguments.repeats):
        for name, way in known.items():
            start = time.perf_counter()
            way()
            seconds[name].append(time.perf_counter() - start)
    return seconds, difference


def status(key: str) -> int:
    """Return a figure of this process's memory, in bytes (Linux)."""
    found = re.search(rf"{key}:\s+(\d+) kB", Path("/proc/self/status").read_text())
    if found is None:
        raise SystemExit(f"no {key} in /proc/self/status")
    return 1024 * int(found[1])


def peak(arguments: argparse.Namespace) -> int:
    """Return the bytes that one way takes above the loaded model and images.

    It is run on one image a side before, so that code loaded on first use does not count.
    """
    ways(arguments, 1)[arguments.memory_of]()
    way = ways(arguments, arguments.images)[arguments.memory_of]
    Path("/proc/self/clear_refs").write_text("5")  # forget the peak so far
    before = status("VmRSS")
    way()
    return status("VmHWM") - before


def peaks(arguments: argparse.Namespace) -> dict[str, int]:
    """Return the peak of every way, each in its own process."""
    found = {}
    for name in WAYS:
        command = [sys.executable, __file__, "--memory-of", name, "--images", str(arguments.images)]
        command += ["--model", arguments.model, "--threads", str(arguments.threads)]
        found[name] = int(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    return found


def environment(arguments: argparse.Namespace) -> dict[str, object]:
    """Return what the figures depend on."""
    cpu = re.search(r"model name\s*:\s*(.+)", Path("/proc/cpuinfo").read_text())
    return {
        "model": arguments.model,
        "images": f"{arguments.images} + {arguments.images}",
        "threads": torch.get_num_threads(),
        "cpu": cpu[1] if cpu else platform.processor(),
        "cores": os.cpu_count(),
        "load": os.getloadavg()[0],
        "torch": torch.__version__,
        "timm": timm.__version__,
        "python": platform.python_version(),
        "repeats": arguments.repeats,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print everything as JSON")
    parser.add_argument("--model", default="vit_base_patch16_224", help="a timm VisionTransformer")
    parser.add_argument("--images", type=int, default=16, help="source images, and target images")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--memory-of", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    if arguments.memory_of:
        print(peak(arguments))
        return
    before = os.getloadavg()[0]
    seconds, difference = timed(arguments)
    memory = peaks(arguments)
    median = {name: statistics.median(values) for name, values in seconds.items()}
    figures = {
        "shared_matched_speedup": median["plain"] / median["shared_matched"],
        "shared_matched_memory_ratio": memory["shared_matched"] / memory["plain"],
        "shared_all_over_matched": median["shared_all"] / median["shared_matched"],
        "insitu_over_forward": median["insitu_matched"] / median["forward"],
        "insitu_all_over_forward": median["insitu_all"] / median["forward"],
        "insitu_memory_over_forward": max(memory["insitu_matched"], memory["insitu_all"]) / memory["forward"],
    }
    if arguments.json:
        about = {**environment(arguments), "load_before": before}
        frugal = {
            "shared_matched_speedup_over_frugal": median["plain_frugal"] / median["shared_matched"],
            "shared_matched_memory_ratio_to_frugal": memory["shared_matched"] / memory["plain_frugal"],
        }
        found = {**figures, **frugal, "largest_difference": difference, "seconds": seconds, "peak_bytes": memory}
        print(json.dumps({**found, "environment": about}, indent=1))
        return
    for name, value in figures.items():
        sign, target = TARGETS[name]
        print(f"{name:30} {value:6.2f}   (target {sign} {target:.2f})")
    print(f"largest difference from the plain version {difference:.1e}")
    for name, value in median.items():
        print(f"{name:30} {value:6.2f} s {memory[name] / 2**20:8.0f} MiB")


if __name__ == "__main__":
    main()
