"""Sections on where the numbers come from: every cell, and versions, devices, configurations."""

from collections.abc import Iterable, Mapping
from typing import Any

import pandas as pd

from pliant.reporting.material import Material
from pliant.reporting.section import Section
from pliant.reporting.tables import columns, table

LONGEST = 300
"""Letters of one value that are shown."""


def cells_section(material: Material) -> Section:
    """Every cell that has a record."""
    runs = material.runs
    if runs.empty:
        return Section("All runs")
    shown = columns(
        name=("run", "text"),
        data=("data", "text"),
        variant=("trained", "text"),
        optimizer=("optimizer", "text"),
        learning_rate=("learning rate", "rate"),
        seed=("seed", "count"),
        status=("status", "text"),
        validation_accuracy=("validation", "percent"),
        test_accuracy=("test", "percent"),
        best_step=("best step", "count"),
        trained_parameters=("parameters", "count"),
        seconds=("time, s", "number"),
        diverged_at=("diverged at step", "count"),
    )
    counts = ", ".join(f"{count} {state}" for state, count in material.states.items())
    note = f"Cells of the store: {counts}. The checkpoint of each run is the one with the best validation accuracy."
    return Section("All runs", "", (), (table("runs", "All runs", runs, shown, note=note),))


def provenance_section(material: Material) -> Section:
    """What the numbers may depend on beside the configuration."""
    rows: list[dict[str, str]] = []
    for label, measurement in material.labelled:
        rows += _flat(f"measurement of {label}", measurement.provenance)
    if material.config is not None:
        rows += _flat("configuration", material.config)
    if material.records:
        rows += _environment(material)
    if not rows:
        return Section("Provenance")
    shown = columns(of=("of", "text"), what=("what", "text"), value=("value", "text"))
    note = "Values that differ between runs are listed with the number of runs."
    made = table("provenance", "Provenance", pd.DataFrame(rows), shown, note=note)
    return Section("Provenance", "Enough to do the same again.", (), (made,))


def _flat(of: str, values: Mapping[str, Any], prefix: str = "") -> list[dict[str, str]]:
    rows = []
    for name, value in values.items():
        if isinstance(value, Mapping):
            rows += _flat(of, value, f"{prefix}{name}.")
        elif value is not None:
            rows.append({"of": of, "what": f"{prefix}{name}", "value": _short(value)})
    return rows


def _environment(material: Material) -> list[dict[str, str]]:
    seen: dict[str, dict[str, int]] = {}
    for record in material.records:
        for row in _flat("", {k: v for k, v in record.environment.items() if k != "optimizer"}):
            counts = seen.setdefault(row["what"], {})
            counts[row["value"]] = counts.get(row["value"], 0) + 1
    notes = _counted(note for record in material.records for note in record.notes)
    rows = [{"of": "runs", "what": what, "value": _several(counts)} for what, counts in seen.items()]
    return rows + [{"of": "runs", "what": "note", "value": text} for text in notes]


def _several(counts: Mapping[str, int]) -> str:
    if len(counts) == 1:
        return next(iter(counts))
    shown = "; ".join(f"{value} ({count} runs)" for value, count in list(counts.items())[:5])
    return shown if len(counts) <= 5 else f"{shown}; and {len(counts) - 5} other values"


def _counted(texts: Iterable[str]) -> list[str]:
    counts: dict[str, int] = {}
    for text in texts:
        counts[text] = counts.get(text, 0) + 1
    return [f"{text} ({count} runs)" for text, count in list(counts.items())[:20]]


def _short(value: Any) -> str:
    text = ", ".join(map(str, value)) if isinstance(value, list | tuple) else str(value)
    return text if len(text) <= LONGEST else f"{text[: LONGEST - 1]}…"
