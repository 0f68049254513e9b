"""Two measurements side by side: the same model before and after tuning, or two models."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from pliant.errors import ConfigError
from pliant.measuring.files import read_measurement
from pliant.measuring.measurement import Measurement, records

_SHOULD_AGREE = ("source", "target", "pairs", "dtype", "seed")
_SIDES = ("_a", "_b")


@dataclass(frozen=True)
class Comparison:
    """Two measurements of one convention, a and b.

    Attributes:
        frame: one row per component that either has: component, role, block, plasticity_a, stderr_a, plasticity_b,
            stderr_b, difference (b − a), its standard error, ratio (b/a). What one model lacks is NaN.
        by_role: the same for the means over roles.
        notes: in what the two were not measured alike, one sentence each.
        provenance: of a and of b.

    The standard error of a difference is √(stderr_a² + stderr_b²), as for different items. Where both were measured on
    the same items their errors mostly cancel, and it is too large: differences are then better known than it says.
    """

    frame: pd.DataFrame = field(repr=False)
    by_role: pd.DataFrame
    notes: tuple[str, ...]
    provenance: Mapping[str, Mapping[str, Any]] = field(repr=False)

    def to_json(self) -> str:
        """Return everything as JSON."""
        parts = {"components": records(self.frame), "by_role": records(self.by_role)}
        return json.dumps({"provenance": self.provenance, "notes": self.notes, **parts}, indent=1, allow_nan=False)


def compare(a: Measurement | str | Path, b: Measurement | str | Path) -> Comparison:
    """Put two measurements side by side.

    Args:
        a: a measurement, or a file that one was saved in.
        b: what it is compared with.

    Raises:
        ConfigError: they follow different conventions; such numbers mean different things.
        DataError: a file holds no measurement.
    """
    first, second = (m if isinstance(m, Measurement) else read_measurement(m) for m in (a, b))
    conventions = [m.provenance["convention"] for m in (first, second)]
    if conventions[0] != conventions[1]:
        raise ConfigError(
            f"one measurement is {conventions[0]}, the other {conventions[1]}; numbers of the two cannot be "
            "compared. Measure both in one."
        )
    return Comparison(
        frame=_beside(first.frame, second.frame, ["component", "role", "block"]),
        by_role=_beside(first.by_role, second.by_role, ["role"]),
        notes=_notes(first.provenance, second.provenance),
        provenance={"a": dict(first.provenance), "b": dict(second.provenance)},
    )


def _beside(a: pd.DataFrame, b: pd.DataFrame, keys: list[str]) -> pd.DataFrame:
    values = [*keys, "plasticity", "stderr"]
    joined = a[values].merge(b[values], on=keys, how="outer", suffixes=_SIDES, sort=False)
    order = {key: i for i, key in enumerate(dict.fromkeys([*a[keys[0]], *b[keys[0]]]))}
    joined = joined.sort_values(keys[0], key=lambda names: names.map(order), ignore_index=True)
    return joined.assign(
        difference=joined["plasticity_b"] - joined["plasticity_a"],
        stderr=np.hypot(joined["stderr_a"], joined["stderr_b"]),
        ratio=joined["plasticity_b"] / joined["plasticity_a"],
    )


def _notes(a: Mapping[str, Any], b: Mapping[str, Any]) -> tuple[str, ...]:
    notes = [f"{key} differs: {a.get(key)!r} and {b.get(key)!r}" for key in _SHOULD_AGREE if a.get(key) != b.get(key)]
    if a.get("fingerprint") == b.get("fingerprint"):
        notes.append("both were measured on the same weights")
    return tuple(notes)
