"""What a pruned sweep leaves in its store beside its cells: how every setting came through the short runs."""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import pandas as pd
from pydantic import TypeAdapter

from pliant.errors import StoreError

RUNGS = "rungs"
"""Folder of a pruned sweep's short runs, in its store."""

VERDICTS = "pruning.json"
"""File in it: how every contestant came through."""


@dataclass(frozen=True)
class Verdict:
    """How one contestant came through one rung.

    Attributes:
        contestant: its id.
        model: what is trained; optimizer by which.
        data: what it competes on.
        variant: what it trains; learning_rate at which rate.
        share: of the steps that were trained.
        accuracy: mean validation accuracy over seeds; None if one of them diverged or failed.
        stderr: standard error of that mean: of the images it was measured on.
        kept: whether it goes on.
    """

    contestant: str
    model: str
    optimizer: str
    data: str
    variant: str
    learning_rate: float
    share: float
    accuracy: float | None
    stderr: float | None
    kept: bool


def given_up(verdicts: Iterable[Verdict]) -> pd.DataFrame:
    """Return what was left after short runs: columns model, optimizer, data, variant, learning_rate."""
    names = ["model", "optimizer", "data", "variant", "learning_rate"]
    return pd.DataFrame([{n: getattr(v, n) for n in names} for v in verdicts if not v.kept], columns=names)


def read_verdicts(folder: Path) -> tuple[Verdict, ...]:
    """Read how the settings of a pruned sweep came through; empty if the store in `folder` was not pruned.

    Raises:
        StoreError: the file is there and cannot be read.
    """
    path = folder / RUNGS / VERDICTS
    try:
        return _VERDICTS.validate_json(path.read_bytes())
    except FileNotFoundError:
        return ()
    except (OSError, ValueError) as error:
        said = " ".join(str(error).split())[:200]
        raise StoreError(
            f"{path} cannot be read ({said}): what the sweep gave up is not known. The same sweep with --prune writes "
            "it again"
        ) from error


_VERDICTS = TypeAdapter(tuple[Verdict, ...], config={"strict": False, "allow_inf_nan": False})
