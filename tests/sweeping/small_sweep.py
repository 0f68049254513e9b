"""A tiny model in a folder, and recipes of cells that take a tenth of a second: what the tests of sweeps share."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from pliant.runs import CellConfig, Record, Store
from pliant.sweeping import Event, Recipe
from pliant.terms import Preprocessing

BASE: dict[str, Any] = {
    "data": "digits", "train": 40, "validation": 40, "test": 40, "steps": 12, "eval_every": 3, "batch_size": 8,
    "learning_rate": 0.1,
}  # fmt: skip


def make_model(folder: Path) -> Path:
    """Write a ViT of two blocks of 16 features, for images of 8 px."""
    import torch
    from transformers import ViTConfig, ViTForImageClassification

    from pliant.models import save

    sizes = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}
    options = {**sizes, "image_size": 8, "patch_size": 4, "num_labels": 2, "initializer_range": 0.2}
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = ViTForImageClassification(ViTConfig(**options)).eval()
    half = (0.5, 0.5, 0.5)
    return save(model, folder, preprocessing=Preprocessing(8, 8, None, "bilinear", half, half, "made for tests"))


def make_recipe(model: Path | str, *, name: str = "small", **axes: list[Any]) -> Recipe:
    """A recipe over these axes."""
    base = {key: value for key, value in BASE.items() if key not in axes}
    return Recipe(name=name, base={"model": str(model), **base}, axes=axes)


def outcomes(store: Store) -> dict[str, tuple[object, bytes]]:
    """What must be equal however cells were run: outcome and metrics of each."""
    entries = store.entries()
    assert all(entry.record is not None and entry.record.status != "failed" for entry in entries)
    return {e.cell.id: (e.record.outcome(), (e.folder / "metrics.jsonl").read_bytes()) for e in entries}


def ends(events: Iterable[Event]) -> dict[str, str]:
    """How each cell ended."""
    from pliant.sweeping.events import ENDS

    found: dict[str, str] = {}
    for event in events:
        if event.job == "cell" and event.kind in ENDS:
            assert event.cell.id not in found, "a job ended twice"
            found[event.cell.id] = event.kind
    return found


def records(store: Store, cells: Iterable[CellConfig]) -> list[Record | None]:
    return [store.record(cell) for cell in cells]


def twelve(model: Path | str, **axes: list[Any]) -> Recipe:
    """Twelve cells, each long enough to be killed in the midst of it."""
    return make_recipe(
        model, name="twelve", **{"components": ["mha", "ln1", "fc1"], "seed": [0, 1], "learning_rate": [0.1, 0.3],
        "steps": [40], "eval_every": [5], **axes}
    )  # fmt: skip


def drive(recipe: Recipe, out: Path, begun: Any, **options: Any) -> None:
    """Run a sweep in a process that is to be killed; write into a journal which cells were started."""
    from pliant.sweeping import sweep

    def listener(event: Event, standing: object) -> None:
        if event.kind == "started" and event.job == "cell":
            with (out / "journal").open("a") as journal:
                journal.write(f"{event.cell.id}\n")
            begun.set()

    sweep(recipe, out=out, checkpoint_seconds=0, listener=listener, **options)


def command(arguments: list[str], said: Path) -> None:
    """Run a command as a terminal does: in a group of processes of its own, what it says in a file."""
    import os
    import sys

    from pliant.cli.app import run

    os.setpgid(0, 0)
    with said.open("w") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    sys.stdout = sys.stderr = open(1, "w", closefd=False)
    sys.exit(run(arguments))


def away(cell: CellConfig, scratch: Path) -> None:
    """Train a cell as a machine of a cluster does, in a process that is to be killed."""
    from pliant.sweeping.worker import Worker, train_away

    train_away(Worker(checkpoint_seconds=0), cell, scratch=scratch)
