"""Where a run stands, in memory and in the file that it resumes from."""

import json
import os
import pickle
import secrets
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from pliant.errors import StoreError, TrainingError
from pliant.runs import CellConfig, CurvePoint
from pliant.runs.atomic import storing, sync_folder
from pliant.tuning.guards import copies, write_back
from pliant.tuning.select import Selection

FILE = "checkpoint.pt"


@dataclass
class Best:
    """The state that was chosen so far: highest validation accuracy, the earlier of equals."""

    step: int
    accuracy: float
    weights: dict[str, Tensor]
    buffers: dict[str, Tensor]


@dataclass
class Progression:
    """Where a run stands, beside weights, optimizer and schedule.

    Attributes:
        step: optimizer steps done.
        seconds: time of earlier starts of this run.
        curve: evaluations.
        best: the state to end with.
        diverged_at: the step whose loss was not finite.
        resumed: states of optimizer, schedule and loss scale that are still to be taken up.
    """

    step: int = 0
    seconds: float = 0.0
    curve: list[CurvePoint] = field(default_factory=list)
    best: Best | None = None
    diverged_at: int | None = None
    resumed: dict[str, Any] | None = None


def write_checkpoint(
    folder: Path, cell: CellConfig, selection: Selection, run: Progression, states: dict[str, Any]
) -> None:
    """Write everything that the run needs to go on, in one step: the old file is replaced by a whole new one.

    Only what is trained is written, not the model.

    Args:
        folder: made if it is not there.
        cell: what is trained.
        selection: its tensors.
        run: where it stands.
        states: of `optimizer`, `schedule` and `scaler` (None without).

    Raises:
        StoreError: it cannot be written.
    """
    content = {
        "cell": cell.canonical(),
        "variant": cell.variant,
        "names": list(selection.parameters),
        "weights": copies(selection.parameters),
        "buffers": copies(selection.buffers),
        "best": None if run.best is None else vars(run.best),
        "curve": [point.model_dump() for point in run.curve],
        "step": run.step,
        "seconds": run.seconds,
        "diverged_at": run.diverged_at,
        **states,
    }
    path = folder / FILE
    temporary = folder / f".{FILE}.{os.getpid()}-{secrets.token_hex(4)}.tmp"
    with storing("write", path):
        folder.mkdir(parents=True, exist_ok=True)
        try:
            with temporary.open("xb") as file:
                torch.save(content, file)
                file.flush()
                os.fsync(file.fileno())
            temporary.replace(path)
        except RuntimeError as error:  # how torch reports that a write came back short
            raise OSError(str(error)) from error
        finally:
            temporary.unlink(missing_ok=True)
        sync_folder(folder)


def read_checkpoint(folder: Path, cell: CellConfig, selection: Selection) -> Progression:
    """Take up a run: weights go into the model, the rest is returned; a fresh start if there is no file.

    Raises:
        TrainingError: the checkpoint is of another component set, or of another cell.
        StoreError: it cannot be read.
    """
    path = folder / FILE
    if not path.is_file():
        return Progression()
    try:
        with storing("read", path):
            left = torch.load(path, map_location="cpu", weights_only=True)
    except (RuntimeError, EOFError, ValueError, KeyError, pickle.UnpicklingError) as error:
        raise StoreError(f"{path} is damaged ({error}); remove it to train this cell from its start") from error
    if left["variant"] != cell.variant or left["names"] != list(selection.parameters):
        raise TrainingError(
            f"{path} holds the optimizer state of {left['variant']!r} ({len(left['names'])} tensors), which cannot go "
            f"on with {cell.variant!r} ({len(selection.parameters)} tensors): tensors would get each other's momentum. "
            "Resume with the same component set, or choose another folder."
        )
    if left["cell"] != cell.canonical():
        there, here = json.loads(left["cell"]), json.loads(cell.canonical())
        differing = [
            f"{key}: {there.get(key)!r} there, {here.get(key)!r} here" for key in here if there.get(key) != here[key]
        ]
        raise TrainingError(f"{path} is of another cell ({'; '.join(differing)}). Choose another folder.")
    write_back(left["weights"], selection.parameters)
    write_back(left["buffers"], selection.buffers)
    return Progression(
        step=left["step"],
        seconds=left["seconds"],
        curve=[CurvePoint(**point) for point in left["curve"]],
        best=None if left["best"] is None else Best(**left["best"]),
        diverged_at=left["diverged_at"],
        resumed={key: left[key] for key in ("optimizer", "schedule", "scaler")},
    )
