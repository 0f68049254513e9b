"""What the main job found and made."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import pandas as pd

from pliant.advising.race import Race
from pliant.errors import ConfigError
from pliant.measuring import Measurement
from pliant.runs import Record, Score
from pliant.tuning import ProbeResult


@dataclass(frozen=True)
class TuneResult:
    """What the main job found and made.

    Attributes:
        folder: with model/, result.json, measurement.parquet, config.json and the cells of race and training.
        chosen: component set that was trained; reason says why.
        record: of the training.
        probe: linear probing of the pretrained model, the reference.
        measurement: plasticity before training.
        energy: gradient energy by role at the probed head; empty if no choice was to be made.
        race: None if the component set and learning rate were given.
        criteria: how each criterion's order of roles agrees with the race's; empty without a race.
        notes: what the user should be told.
        seconds: the whole job took.
    """

    folder: Path
    chosen: str
    reason: str
    record: Record
    probe: ProbeResult
    measurement: Measurement = field(repr=False)
    energy: Mapping[str, float]
    race: Race | None
    criteria: pd.DataFrame = field(repr=False)
    notes: tuple[str, ...]
    seconds: float

    @property
    def test(self) -> Score:
        """The trained model on the test images."""
        if self.record.test is None:
            raise ConfigError("the test images were not read in this run")
        return self.record.test

    def to_json(self) -> str:
        """Return what goes to result.json."""
        roles = self.measurement.by_role
        values: dict[str, Any] = {
            "chosen": self.chosen,
            "reason": self.reason,
            "trained_parameters": self.record.trained_parameters,
            "total_parameters": self.record.total_parameters,
            "test_accuracy": self.test.accuracy,
            "test_accuracy_ci": [self.test.ci_low, self.test.ci_high],
            "test_macro_accuracy": self.test.macro_accuracy,
            "n_test": self.test.n,
            "validation_accuracy": self.record.validation_accuracy,
            "best_step": self.record.best_step,
            "learning_rate": self.record.cell.learning_rate,
            "probe_test_accuracy": self.probe.test.accuracy,
            "probe_test_accuracy_ci": [self.probe.test.ci_low, self.probe.test.ci_high],
            "convention": self.measurement.provenance["convention"],
            "plasticity_by_role": dict(zip(roles["role"], roles["plasticity"], strict=True)),
            "plasticity_stderr_by_role": dict(zip(roles["role"], roles["stderr"], strict=True)),
            "gradient_energy_by_role": dict(self.energy),
            "race": None if self.race is None else _race_json(self.race),
            "criteria": json.loads(self.criteria.to_json(orient="records")),
            "frozen_tensors_unchanged": self.record.frozen_tensors_unchanged,
            "trained_tensors_moved": self.record.trained_tensors_moved,
            "dtype": self.record.dtype,
            "notes": list(self.notes),
            "environment": self.record.environment,
            "seconds": self.seconds,
        }
        return json.dumps(values, indent=1) + "\n"


def _race_json(race: Race) -> dict[str, Any]:
    return {
        "chosen": race.chosen,
        "learning_rate": race.learning_rate,
        "tied": list(race.tied),
        "reason": race.reason,
        "warnings": list(race.warnings),
        "trials": [asdict(t) for t in race.trials],
    }
