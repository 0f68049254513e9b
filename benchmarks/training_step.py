"""A step of pliant's training beside one of a bare PyTorch loop, in one process: same model, batches, optimizer.

Rounds alternate, so that both meet the same machine; the first step of each round is left out. CPU time is compared,
which other processes do not stretch; `--wall` compares the clock's.

    python benchmarks/training_step.py
    python benchmarks/training_step.py --model FOLDER --data fashion-mnist --image-size 98 --batch 32 --steps 8 --json
"""

import argparse
import json
import statistics
import time
from collections.abc import Callable

import torch
from torch.nn.functional import cross_entropy
from transformers import get_cosine_schedule_with_warmup

from pliant.components import find_components
from pliant.data import ImageData, load
from pliant.models import Loaded
from pliant.models import load as load_model
from pliant.runs import CellConfig
from pliant.tuning import select, train
from pliant.tuning.batches import Order, preprocessing_of, values_of


def bare(cell: CellConfig, loaded: Loaded, data: ImageData, clock: Callable[[], float]) -> float:
    """Seconds of a step of the loop that one writes by hand."""
    values = values_of(data.train, preprocessing_of(cell, loaded))
    if values is None:
        raise SystemExit("the images are too many to be kept as pixel values; give fewer with --train")
    labels, order = torch.from_numpy(data.train.labels), Order(len(data.train), cell.batch_size, seed=cell.seed)
    model = loaded.model
    with select(find_components(model), cell.components or "") as selection:
        parameters = list(selection.parameters.values())
        optimizer = torch.optim.SGD(parameters, lr=cell.learning_rate, momentum=cell.momentum)
        schedule = get_cosine_schedule_with_warmup(optimizer, 0, cell.steps)
        model.train()
        start = 0.0
        for step in range(cell.steps):
            if step == 1:
                start = clock()
            chosen = torch.from_numpy(order(step))
            loss = cross_entropy(model(values[chosen]).logits, labels[chosen])
            loss.backward()
            torch.nn.utils.clip_grad_norm_(parameters, 1.0)
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()
        return (clock() - start) / (cell.steps - 1)


def ours(cell: CellConfig, loaded: Loaded, data: ImageData, clock: Callable[[], float]) -> float:
    """Seconds of a step of `pliant.tuning.train`, evaluation and set-up left out."""
    times: list[float] = []
    train(cell, loaded, data, device="cpu", keep=False, progress=lambda step, steps, point: times.append(clock()))
    return (times[-2] - times[0]) / (len(times) - 2)


def main() -> None:
    """Run the comparison and print it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="bundled")
    parser.add_argument("--data", default="digits")
    parser.add_argument("--train", type=int, default=200, help="training images")
    parser.add_argument("--image-size", type=int, default=None)
    parser.add_argument("--components", default="mha")
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--wall", action="store_true", help="compare wall-clock instead of CPU time")
    parser.add_argument("--json", action="store_true", help="print data only")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    clock = time.perf_counter if options.wall else time.process_time

    data = load(options.data, train=options.train, validation=20, test=20)
    loaded = load_model(options.model, classes=data.classes, image_size=options.image_size)
    cell = CellConfig(
        components=options.components,
        learning_rate=0.01,
        steps=options.steps,
        eval_every=options.steps,
        batch_size=options.batch,
    )
    rounds = [(bare(cell, loaded, data, clock), ours(cell, loaded, data, clock)) for _ in range(options.rounds)]
    found = {
        "components": options.components,
        "bare_ms": 1e3 * statistics.median(b for b, _ in rounds),
        "pliant_ms": 1e3 * statistics.median(p for _, p in rounds),
        "ratio": statistics.median(p / b for b, p in rounds),
        "ratios": sorted(round(p / b, 3) for b, p in rounds),
    }
    if options.json:
        print(json.dumps(found))
    else:
        print(
            f"{found['components']}: bare loop {found['bare_ms']:.1f} ms a step, pliant {found['pliant_ms']:.1f} ms, "
            f"ratio {found['ratio']:.3f} (rounds: {found['ratios']})"
        )


if __name__ == "__main__":
    main()
