"""What a folder holds that can be reported: cells and probes of a store, the result of the main job, measurements.

Nothing that is missing or damaged stops a report: it becomes a sentence in `problems`. Only a folder that holds nothing
to report at all is refused.
"""

import json
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar

import pandas as pd

from pliant.errors import DataError, PliantError, StoreError
from pliant.runs import Record, Store, record_table
from pliant.runs.probes import ProbeLine, read_probes
from pliant.runs.pruning import Verdict, read_verdicts

if TYPE_CHECKING:  # measuring imports torch, which takes seconds; a store alone needs none of it
    from pliant.measuring.measurement import Measurement

Kind = Literal["sweep", "tune", "measurement"]
Read = TypeVar("Read")

TABLE_SUFFIXES = (".parquet", ".csv")


@dataclass(frozen=True)
class Material:
    """Everything that a report is made of.

    Attributes:
        kind: what was asked: a sweep of cells, the main job, or a measurement.
        path: the folder or file that was given.
        records: of cells that are done (diverged ones too) or failed.
        runs: these as a table (see `record_table`).
        states: number of cells by state: done, diverged, failed, running, missing.
        probes: linear probes of a store.
        measurements: what was measured, each with the name of its file.
        bounds: tables of bounds, with a column `model`; empty if there are none.
        layers: accuracy of a probe after every component, with a column `data`; empty if there is none.
        landscapes: what `pliant landscape` wrote.
        result: of the main job, as in result.json.
        config: of the main job, as in config.json.
        pruned: how the settings of a pruned sweep came through its short runs; empty without pruning.
        problems: what could not be read.
    """

    kind: Kind
    path: Path
    records: tuple[Record, ...] = field(default=(), repr=False)
    runs: pd.DataFrame = field(default_factory=pd.DataFrame, repr=False)
    states: Mapping[str, int] = field(default_factory=dict)
    probes: tuple[ProbeLine, ...] = field(default=(), repr=False)
    measurements: tuple[tuple[str, "Measurement"], ...] = field(default=(), repr=False)
    bounds: pd.DataFrame = field(default_factory=pd.DataFrame, repr=False)
    layers: pd.DataFrame = field(default_factory=pd.DataFrame, repr=False)
    landscapes: tuple[Mapping[str, Any], ...] = field(default=(), repr=False)
    result: Mapping[str, Any] | None = field(default=None, repr=False)
    config: Mapping[str, Any] | None = field(default=None, repr=False)
    pruned: tuple[Verdict, ...] = field(default=(), repr=False)
    problems: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """What the report is of, in a word."""
        return self.path.resolve().name

    @property
    def components(self) -> pd.DataFrame:
        """All measured components with the label of their measurement in `model`; empty if nothing was measured."""
        frames = [m.frame.assign(model=label) for label, m in self.labelled]
        return pd.concat(frames, ignore_index=True) if frames else pd.DataFrame()

    @property
    def labelled(self) -> tuple[tuple[str, "Measurement"], ...]:
        """Measurements with a label that tells them apart: model, data, convention; the file where these are alike."""
        labels = [_label(m) for _, m in self.measurements]
        twice = {label for label, count in Counter(labels).items() if count > 1}
        names = [name for name, _ in self.measurements]
        return tuple(
            (f"{label} ({name})" if label in twice else label, m)
            for label, name, (_, m) in zip(labels, names, self.measurements, strict=True)
        )


def _label(measurement: "Measurement") -> str:
    about = measurement.provenance
    sides = [short(str(about[side])) for side in ("source", "target") if about.get(side)]
    return f"{short(str(about.get('model', 'model')))}: {' against '.join(sides)}, {about.get('convention', '?')}"


def short(name: str) -> str:
    """Return a name as it fits on a chart: of a path only its last part; hub ids and names as they are.

    >>> short("/data/models/dinov2-small/"), short("folder:/home/me/photos"), short("facebook/dinov2-small")
    ('dinov2-small', 'folder:photos', 'facebook/dinov2-small')
    """
    kind, colon, path = name.rpartition(":") if name.partition(":")[0].isalpha() else ("", "", name)
    return f"{kind}{colon}{Path(path).name}" if path.startswith(("/", ".", "~")) else name


def read(path: str | Path) -> Material:
    """Read what a folder (or the file of a measurement) holds.

    Raises:
        DataError: nothing there, or nothing that can be reported; says what was expected.
    """
    path = Path(path)
    if path.is_file():
        return _file(path)
    if not path.is_dir():
        raise DataError(
            f"{path}: no such folder or file; expected a store of runs, a folder of `pliant tune`, or a table."
        )
    problems: list[str] = []
    records, states = _cells(path, problems)
    result = _json(path / "result.json", problems)
    found = Material(
        kind="tune"
        if result is not None and isinstance(result.get("chosen"), str)
        else "sweep"
        if records or states
        else "measurement",
        path=path,
        records=records,
        runs=record_table(records),
        states=states,
        probes=read_probes(path, problems=problems),
        measurements=tuple(_tables(path, "measurement", _measurement, problems)),
        bounds=_joined(_tables(path, "bounds", _bounds, problems), "model"),
        layers=_joined(_tables(path, "probe", _layers, problems), "data"),
        landscapes=tuple(v for _, v in _tables(path, "landscape", _landscape, problems, suffixes=(".json",))),
        result=result,
        config=_json(path / "config.json", problems),
        pruned=_pruned(path, problems),
        problems=tuple(problems),
    )
    if found.kind == "measurement" and not any(
        (found.measurements, len(found.bounds), len(found.layers), found.landscapes)
    ):
        reason = f" What is there cannot be read: {' '.join(problems)}" if problems else ""
        raise DataError(
            f"{path} holds nothing to report: expected cells/ (a store of runs), result.json (of `pliant tune`), or "
            f"measurement.parquet.{reason}"
        )
    return found


def _cells(path: Path, problems: list[str]) -> tuple[tuple[Record, ...], dict[str, int]]:
    """Read a store's records and count its cells by state."""
    if not (path / "cells").is_dir():
        return (), {}
    store = Store(path, create=False)
    entries = store.entries()
    problems += store.problems()
    states = Counter(
        "diverged" if e.record is not None and e.record.status == "diverged" else str(e.state) for e in entries
    )
    return tuple(e.record for e in entries if e.record is not None), dict(states)


def _pruned(path: Path, problems: list[str]) -> tuple[Verdict, ...]:
    try:
        return read_verdicts(path)
    except StoreError as error:
        problems.append(str(error))
        return ()


def _json(path: Path, problems: list[str]) -> Mapping[str, Any] | None:
    try:
        value = json.loads(path.read_bytes())
    except FileNotFoundError:
        return None
    except (OSError, ValueError, RecursionError) as error:
        problems.append(f"{path.name} cannot be read ({error}).")
        return None
    return value if isinstance(value, dict) else None


def _tables(
    folder: Path,
    stem: str,
    reader: Callable[[Path], Read],
    problems: list[str],
    *,
    suffixes: Iterable[str] = (*TABLE_SUFFIXES, ".json"),
) -> list[tuple[str, Read]]:
    """Read every file of the folder whose name begins with a word."""
    found = []
    for path in sorted(folder.glob(f"{stem}*")):
        if path.suffix in suffixes and path.is_file() and not path.name.endswith(".provenance.json"):
            try:
                found.append((path.name, reader(path)))
            except PliantError as error:
                problems.append(str(error))
    return found


def _frame(path: Path) -> pd.DataFrame:
    try:
        if path.suffix == ".parquet":
            return pd.read_parquet(path)
        if path.suffix == ".csv":
            return pd.read_csv(path, comment="#")
        rows = json.loads(path.read_bytes())
        return pd.DataFrame(rows if isinstance(rows, list) else rows.get("components", rows.get("rows", [])))
    except (OSError, ValueError, AttributeError, RecursionError) as error:
        raise DataError(f"{path.name} is no table that can be read ({error}).") from error


def _file(path: Path) -> Material:
    """Read one file: a measurement, or else bounds."""
    try:
        return Material("measurement", path, measurements=((path.name, _measurement(path)),))
    except DataError as error:
        try:
            bounds = _bounds(path)
        except DataError:
            raise error from None
        return Material(
            "measurement", path, bounds=bounds if "model" in bounds.columns else bounds.assign(model=path.stem)
        )


def _measurement(path: Path) -> "Measurement":
    from pliant.measuring.files import read_measurement

    return read_measurement(path)


def _bounds(path: Path) -> pd.DataFrame:
    """Read a table of bounds; in JSON, the published ones are a table of their own, and the model is named."""
    if path.suffix != ".json":
        found = _frame(path)
    else:
        try:
            parts = json.loads(path.read_bytes())
            found = pd.DataFrame([*parts["components"], *(parts.get("paper") or [])])
            about = parts.get("provenance") or {}
            if "model" in about:
                label = f"{short(str(about['model']))}: {about.get('convention', '')}"
                found = found.assign(model=label.rstrip(": "))
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise DataError(f"{path.name} holds no bounds that can be read ({error}).") from error
    return _with_numbers(found, path, "bounds", ("component", "role"), ("bound", "max"))


def _layers(path: Path) -> pd.DataFrame:
    return _with_numbers(
        _frame(path), path, "probe", ("layer", "role"), ("block", "accuracy", "ci_low", "ci_high", "n")
    )


def _with_numbers(
    frame: pd.DataFrame, path: Path, what: str, text: Iterable[str], numbers: Iterable[str]
) -> pd.DataFrame:
    """Refuse a table that lacks columns, or has anything but numbers in those of numbers."""
    wanted = (*text, *numbers)
    if missing := [name for name in wanted if name not in frame.columns]:
        raise DataError(f"{path.name} holds no {what}: it has no column {', '.join(missing)}.")
    if wrong := [name for name in numbers if not pd.api.types.is_numeric_dtype(frame[name])]:
        raise DataError(f"{path.name} holds no {what}: {', '.join(wrong)} are no numbers.")
    return frame


def _landscape(path: Path) -> Mapping[str, Any]:
    try:
        value: Mapping[str, Any] = dict(json.loads(path.read_bytes()))
        surfaces = value.get("surfaces")
        if not isinstance(surfaces, list) or not all(isinstance(s, dict) and "kind" in s for s in surfaces):
            raise ValueError("no surfaces in it")
        return value
    except (OSError, TypeError, ValueError, RecursionError) as error:
        raise DataError(f"{path.name} is no landscape ({error}).") from error


def _joined(tables: Iterable[tuple[str, pd.DataFrame]], column: str) -> pd.DataFrame:
    """Put tables of one kind together; a table without `column` gets its file's name there."""
    frames = [t if column in t.columns else t.assign(**{column: name.rsplit(".", 1)[0]}) for name, t in tables]
    return pd.concat(frames, ignore_index=True) if frames else pd.DataFrame()
