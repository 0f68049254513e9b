"""Stores and measurements made of records that are written directly: no model is trained."""

import itertools
import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pandas as pd

from pliant.measuring.measurement import COLUMNS, Measurement
from pliant.runs import CellConfig, CurvePoint, MetricLog, Record, Score, Store
from pliant.runs.probes import ProbeKey, ProbeLine
from pliant.terms import component_id

ACCURACY = {"full": 0.91, "mha": 0.90, "fc1": 0.88, "fc2": 0.87, "ln2": 0.80, "ln1": 0.79, "emb": 0.75}
PARAMETERS = {"full": 688_138, "mha": 224_650, "fc1": 224_650, "fc2": 222_922, "ln2": 2_314, "ln1": 2_314, "emb": 9_000}
RATES = (0.01, 0.03, 0.1, 0.3)
PLASTICITY = {"ln1": 0.5, "mha": 1.3, "ln2": 0.6, "fc1": 1.2, "fc2": 1.1}
N_TEST = 500


def cells(
    *,
    data: Sequence[str] = ("digits",),
    variants: Sequence[str] = tuple(ACCURACY),
    rates: Sequence[float] = RATES,
    seeds: Sequence[int] = (0, 42, 3407),
    **fields: object,
) -> list[CellConfig]:
    """A grid of cells."""
    return [
        CellConfig(data=d, components=v, learning_rate=r, seed=s, **{"steps": 40, "eval_every": 10, **fields})
        for d, v, r, s in itertools.product(data, variants, rates, seeds)
    ]


def record(cell: CellConfig, **fields: object) -> Record:
    """What such a cell might have produced, the same each time; best at the second highest rate."""
    noise = np.random.default_rng(int(cell.id, 16) % 2**32)
    difficulty = sum(map(ord, cell.data)) % 7 * 0.02
    level = ACCURACY.get(cell.variant, 0.85) - difficulty - 0.03 * abs(np.log10(cell.learning_rate / 0.1))
    shares = np.clip(level + noise.normal(0, 0.006, 2), 0.01, 0.99)
    test = Score.from_counts(N_TEST, round(float(shares[0]) * N_TEST))
    speed = 1 + 4 * ACCURACY.get(cell.variant, 0.85)
    curve = [
        CurvePoint(
            step=step,
            train_loss=float(2.3 * np.exp(-speed * step / cell.steps)),
            validation_loss=float(2.4 * np.exp(-0.6 * speed * step / cell.steps)),
            validation_accuracy=float(shares[1]) * step / cell.steps,
        )
        for step in range(cell.eval_every, cell.steps + 1, cell.eval_every)
    ]
    made = {
        "cell": cell,
        "status": "done",
        "best_step": cell.steps,
        "validation_accuracy": float(shares[1]),
        "test": test if cell.read_test else None,
        "trained_parameters": PARAMETERS.get(cell.variant, 10_000),
        "total_parameters": 688_138,
        "seconds": 10.0 + PARAMETERS.get(cell.variant, 10_000) / 5e4,
        "peak_memory_bytes": 400_000_000 + 500 * PARAMETERS.get(cell.variant, 10_000),
        "curve": tuple(curve),
        "environment": {"device": "cpu", "threads": 1, "versions": {"torch": "2.14.1"}, "fingerprint": "0" * 16},
    }
    return Record(**{**made, **fields})


def diverged(cell: CellConfig) -> Record:
    """A cell whose loss stopped being finite."""
    nothing = {"best_step": None, "validation_accuracy": None, "test": None}
    return record(cell, status="diverged", diverged_at=7, **nothing)


def store(folder: Path, planned: Sequence[CellConfig], *, records: bool = True, metrics: bool = False) -> Store:
    """Write a store of these cells, done."""
    made = Store(folder)
    made.plan(planned)
    for cell in planned if records else ():
        finish(made, record(cell), metrics=metrics)
    return made


def finish(made: Store, result: Record, *, metrics: bool = False) -> None:
    """Put one record in its place."""
    claim = made.claim(result.cell)
    assert claim is not None
    with claim:
        if metrics:
            with MetricLog(claim.metrics) as log:
                for step in range(1, result.cell.steps + 1):
                    log.write(step, gradient_norm=float(ACCURACY.get(result.cell.variant, 0.5) * np.exp(-step / 40)))
        claim.finish(result)


def probe(folder: Path, cell: CellConfig, *, accuracy: float = 0.7) -> None:
    """Write the linear probe that a cell is compared with."""
    score = Score.from_counts(N_TEST, round(accuracy * N_TEST))
    line = ProbeLine(
        key=ProbeKey.of(cell),
        pooling="mean",
        layer="block05",
        strength=1.0,
        n_train=300,
        validation=score,
        test=score,
        seconds=1.0,
    )
    line.store(folder)


def measurement(
    *,
    model: str = "bundled",
    target: str = "digits",
    blocks: int = 6,
    convention: str = "insitu",
    plasticity: dict[str, float] = PLASTICITY,
) -> Measurement:
    """Plasticity that falls with depth, with narrow intervals."""
    rows = []
    for role, block in itertools.product(plasticity, range(blocks)):
        value = plasticity[role] * (1 + 0.1 * (blocks / 2 - block) / blocks)
        row = dict.fromkeys(COLUMNS, value) | {"component": component_id(role, block), "role": role, "block": block}
        row |= {"depth": block / max(1, blocks - 1), "stderr": 0.01 * value, "max": 3 * value, "n_pairs": 4096}
        rows.append(
            row | {"ci_low": 0.98 * value, "ci_high": 1.02 * value, "n_source": 128, "n_target": 128, "n_dropped": 0}
        )
    frame = pd.DataFrame(rows)
    roles = [
        {"role": r, "plasticity": v, "stderr": 0.01 * v, "ci_low": 0.98 * v, "ci_high": 1.02 * v, "blocks": blocks,
         "spread": 0.1, "n_source": 128, "n_target": 128, "n_pairs": 4096, "n_dropped": 0}
        for r, v in plasticity.items()
    ]  # fmt: skip
    about = {
        "model": model,
        "source": "fashion-sample",
        "target": target,
        "convention": convention,
        "pairs": "all",
        "seed": 0,
    }
    return Measurement(frame[list(COLUMNS)], pd.DataFrame(roles), about)


def tuned(folder: Path, *, data: str = "digits") -> Path:
    """What `pliant tune` leaves: cells of a race, result.json, config.json, measurement.parquet."""
    race = cells(
        data=(data,), variants=("mha", "fc1", "ln1", "full"), rates=(0.03, 0.1, 0.3), seeds=(0,), read_test=False
    )
    final = cells(data=(data,), variants=("mha",), rates=(0.1,), seeds=(0,), steps=80)
    store(folder, [*race, *final])
    trials = [
        {"components": c.variant, "parameters": PARAMETERS[c.variant], "learning_rate": c.learning_rate,
         "validation_accuracy": record(c).validation_accuracy, "stderr": 0.012, "n_validation": 300, "status": "done",
         "seconds": 3.0}
        for c in race
    ]  # fmt: skip
    done = record(final[0])
    assert done.test is not None
    result = {
        "chosen": "mha",
        "reason": "mha trains the fewest parameters of those within one standard error of the best",
        "trained_parameters": done.trained_parameters,
        "total_parameters": done.total_parameters,
        "test_accuracy": done.test.accuracy,
        "test_accuracy_ci": [done.test.ci_low, done.test.ci_high],
        "n_test": done.test.n,
        "probe_test_accuracy": 0.7,
        "probe_test_accuracy_ci": [0.66, 0.74],
        "race": {"chosen": "mha", "learning_rate": 0.1, "tied": ["full", "mha"], "reason": "mha is smaller",
                 "warnings": [], "trials": trials},
        "criteria": [
            {"criterion": "plasticity", "about": "mean rate of change", "control": False, "order": "mha > fc1 > ln1",
             "same": False, "spearman": 0.5, "p": 0.4, "n": 3}
        ],
        "notes": ["mha: its best learning rate 0.3 is at the edge of its grid"],
        "environment": {"device": "cpu"},
        "seconds": 60.0,
    }  # fmt: skip
    (folder / "result.json").write_text(json.dumps(result))
    (folder / "config.json").write_text(json.dumps({"model": "bundled", "data": data, "components": "auto"}))
    measurement(target=data).save(folder / "measurement.parquet")
    return folder
