"""Seconds for all bounds of a ViT-B/16 (random weights, 12 blocks of 12 heads), beside plain SVDs of the same matrices.

Timed apart: finding out what every component computes (one image through the model, then every module on a few random
tokens), and the bounds themselves, certified and published. The plain version takes the singular values of each full
matrix, heads' products included, in float64; it is timed on some blocks and scaled to all, and must agree.

    python benchmarks/bounds.py --json
    python benchmarks/bounds.py --threads 2 --rounds 5 --plain-blocks 12
"""

import argparse
import json
import math
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers import ViTConfig, ViTModel

from pliant.components import Anatomy, find_components
from pliant.components.attention import attention_weights
from pliant.measuring.bounds import _forms as find_forms
from pliant.measuring.bounds_certified import certified_bound, paper_bound
from pliant.measuring.bounds_forms import NormForm
from pliant.measuring.bounds_sets import SetMeter
from pliant.measuring.items import TensorItems
from pliant.measuring.passing import measure_items
from pliant.measuring.plan import measured, plan_of
from pliant.terms import BLOCK_ROLES


@dataclass(frozen=True)
class Timed:
    """What a call gave, and its seconds: by the clock, and of processors, which other work here changes less."""

    value: Any
    seconds: float
    cpu_seconds: float


def timed(work: Callable[[], Any]) -> Timed:
    start, cpu = time.perf_counter(), time.process_time()
    value = work()
    return Timed(value, time.perf_counter() - start, time.process_time() - cpu)


def largest(matrix: Tensor) -> float:
    return float(torch.linalg.svdvals(matrix.double())[0])


def plain_attention(anatomy: Anatomy, component: Any, radius: float, largest_norm: float, centre: Tensor) -> float:
    """Bound one attention as pliant does, every norm by the SVD of a full matrix."""
    w = attention_weights(anatomy, component)
    n, r = 197, min(radius, largest_norm)
    summed = squares = 0.0
    for head in range(w.heads):
        rows = slice(head * w.head_dim, (head + 1) * w.head_dim)
        q, k, v, o = w.w_q[rows].double(), w.w_k[rows].double(), w.w_v[rows].double(), w.w_o[:, rows].double()
        a, b = w.scale * q.T @ k, w.scale * k.T @ w.b_q[rows].double()
        size = largest(a)
        towards = min(size * radius + float((a.T @ centre + b).norm()), size * largest_norm + float(b.norm()))
        local = math.sqrt(n) + size * r**2 + math.sqrt(n) * r * towards
        summed += largest(o @ v) * local
        squares += (largest(v) * local) ** 2
    return min(summed, largest(w.w_o) * math.sqrt(squares))


def main() -> None:
    """Run the comparison and print it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--plain-blocks", type=int, default=1, help="blocks that the plain version is timed on")
    parser.add_argument("--threads", type=int, default=min(2, os.cpu_count() or 1))
    parser.add_argument("--json", action="store_true", help="print data only")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    torch.manual_seed(0)
    model = ViTModel(ViTConfig()).eval().requires_grad_(False)
    anatomy = find_components(model)
    plan = plan_of("insitu", "all", 2, BLOCK_ROLES, two=False)
    items = TensorItems("noise", torch.randn(2, 3, 224, 224))

    forms = timed(lambda: find_forms(anatomy, plan, items))
    norms = {name: form for name, form in forms.value.items() if isinstance(form, NormForm)}
    meter = SetMeter(measured(anatomy, plan), plan.design, norms)
    measure_items(anatomy, items, plan=plan, meter=meter)

    def every_bound() -> dict[str, float]:
        for name, form in forms.value.items():
            paper_bound(form, meter.sets[name])
        return {name: certified_bound(form, meter.sets[name]).value for name, form in forms.value.items()}

    ours = min((timed(every_bound) for _ in range(options.rounds)), key=lambda t: t.seconds)

    def plain() -> dict[str, float]:
        found = {}
        for component in measured(anatomy, plan):
            if component.block is None or component.block >= options.plain_blocks:
                continue
            if component.role == "mha":
                ball = meter.sets[component.id].ball
                found[component.id] = plain_attention(anatomy, component, ball.radius, ball.largest, ball.centre)
            elif component.role in ("fc1", "fc2"):
                found[component.id] = largest(anatomy.module(component.modules[0]).weight)
        return found

    slow, scale = timed(plain), len(anatomy.blocks) / options.plain_blocks
    result = {
        "threads": options.threads,
        "rounds": options.rounds,
        "components": len(ours.value),
        "forms_seconds": round(forms.seconds, 2),
        "forms_cpu_seconds": round(forms.cpu_seconds, 2),
        "bounds_seconds": round(ours.seconds, 2),
        "bounds_cpu_seconds": round(ours.cpu_seconds, 2),
        "plain_svd_seconds": round(slow.seconds * scale, 2),
        "plain_svd_cpu_seconds": round(slow.cpu_seconds * scale, 2),
        "plain_svd_blocks_timed": options.plain_blocks,
        "largest_relative_difference": max(abs(ours.value[n] / value - 1) for n, value in slow.value.items()),
    }
    if options.json:
        print(json.dumps(result))
    else:
        print(f"ViT-B/16, {result['components']} components, {options.threads} threads")
        for what, name in (("what they compute", "forms"), ("bounds", "bounds"), ("plain SVDs", "plain_svd")):
            print(f"{what}: {result[f'{name}_seconds']} s, of processors {result[f'{name}_cpu_seconds']} s")
        print(f"bounds and plain SVDs differ by {result['largest_relative_difference']:.1e}")


if __name__ == "__main__":
    main()
