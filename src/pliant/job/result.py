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
class Advice:
    """What to train, and why.

    Attributes:
        folder: with the measurement and the runs of the race.
        chosen: component set; learning_rate to train it at; reason says why.
        probe: linear probing of the pretrained model, the reference.
        measurement: plasticity before training.
        energy: gradient energy by role at the probed head; empty if no choice was to be made.
        race: None if the component set and learning rate were given.
        criteria: how each criterion's order of roles agrees with the race's; empty without a race.
        notes: what the user should be told.
    """

    folder: Path
    chosen: str
    learning_rate: float
    reason: str
    probe: ProbeResult
    measurement: Measurement = field(repr=False)
    energy: Mapping[str, float]
    race: Race | None
    criteria: pd.DataFrame = field(repr=False)
    notes: tuple[str, ...]

    def values(self) -> dict[str, Any]:
        """Return everything as plain values, for JSON."""
        roles, reference = self.measurement.by_role, self.probe.test
        return {
            "chosen": self.chosen,
            "learning_rate": self.learning_rate,
            "reason": self.reason,
            "probe_test_accuracy": reference.accuracy,
            "probe_test_accuracy_ci": [reference.ci_low, reference.ci_high],
            "convention": self.measurement.provenance["convention"],
            "plasticity_by_role": dict(zip(roles["role"], roles["plasticity"], strict=True)),
            "plasticity_stderr_by_role": dict(zip(roles["role"], roles["stderr"], strict=True)),
            "gradient_energy_by_role": dict(self.energy),
            "race": None if self.race is None else _race_json(self.race),
            "criteria": json.loads(self.criteria.to_json(orient="records")),
            "notes": list(self.notes),
        }

    def to_json(self) -> str:
        """Return the advice as JSON."""
        return json.dumps(self.values(), indent=1) + "\n"


@dataclass(frozen=True)
class TuneResult:
    """What the main job found and made.

    Attributes:
        advice: what was chosen, and on what evidence.
        record: of the training.
        seconds: the whole job took.
    """

    advice: Advice
    record: Record
    seconds: float

    @property
    def folder(self) -> Path:
        """The folder with model/, result.json, measurement.parquet, config.json and the cells."""
        return self.advice.folder

    @property
    def chosen(self) -> str:
        """The component set that was trained."""
        return self.advice.chosen

    @property
    def test(self) -> Score:
        """The trained model on the test images."""
        if self.record.test is None:
            raise ConfigError("the test images were not read in this run")
        return self.record.test

    def to_json(self) -> str:
        """Return what goes to result.json."""
        record = self.record
        values: dict[str, Any] = {
            **self.advice.values(),
            "trained_parameters": record.trained_parameters,
            "total_parameters": record.total_parameters,
            "test_accuracy": self.test.accuracy,
            "test_accuracy_ci": [self.test.ci_low, self.test.ci_high],
            "test_macro_accuracy": self.test.macro_accuracy,
            "n_test": self.test.n,
            "validation_accuracy": record.validation_accuracy,
            "best_step": record.best_step,
            "frozen_tensors_unchanged": record.frozen_tensors_unchanged,
            "trained_tensors_moved": record.trained_tensors_moved,
            "dtype": record.dtype,
            "environment": record.environment,
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
