import json
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import binomtest

from pliant.errors import StoreError
from pliant.runs import CellConfig, CurvePoint, Record, Score, record_table

CELL = CellConfig(learning_rate=0.1, steps=100, eval_every=10)


def done(**fields: object) -> Record:
    parts = {"cell": CELL, "status": "done", "best_step": 10, "validation_accuracy": 0.5}
    return Record(**{**parts, "test": Score.from_counts(10, 5), **fields})


@given(st.integers(1, 10_000), st.floats(0, 1))
def test_wilson_equals_scipy(n: int, share: float):
    score = Score.from_counts(n, round(n * share))
    reference = binomtest(round(n * share), n).proportion_ci(0.95, method="wilson")
    assert score.ci_low == pytest.approx(reference.low, abs=1e-12)
    assert score.ci_high == pytest.approx(reference.high, abs=1e-12)
    assert 0 <= score.ci_low <= score.accuracy <= score.ci_high <= 1
    assert score.stderr == pytest.approx(math.sqrt(score.accuracy * (1 - score.accuracy) / n))


@given(st.lists(st.tuples(st.integers(0, 4), st.integers(0, 4)), min_size=1, max_size=60))
def test_score_from_labels(pairs: list[tuple[int, int]]):
    labels, predicted = (np.array(column) for column in zip(*pairs, strict=True))
    score = Score.from_labels(labels, predicted)
    assert score.accuracy == pytest.approx((labels == predicted).mean())
    by_class = [(predicted[labels == c] == c).mean() for c in set(labels.tolist())]
    assert score.macro_accuracy == pytest.approx(np.mean(by_class))
    assert Score.from_json(score.to_json()) == score


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Score.from_counts(0, 0), "cannot score 0 correct of 0"),
        (lambda: Score.from_counts(3, 4), "cannot score 4 correct of 3"),
        (lambda: Score.from_counts(3, -1), "cannot score -1 correct of 3"),
        (lambda: Score.from_counts(3, 1, per_class=[(2, 1)]), "do not add up"),
        (lambda: Score.from_labels([1, 2], [1]), "two lists of one length"),
        (lambda: Score.from_labels([], []), "cannot score"),
        (
            lambda: Score.from_json(Score.from_counts(4, 2).to_json().replace("0.5,", "0.6,", 1)),
            "accuracy 0.6 is not 2",
        ),
    ],
)
def test_score_refuses(make, message: str):
    with pytest.raises(StoreError, match=message):
        make()


def test_non_finite_losses_round_trip():
    curve = [
        {"step": 10, "train_loss": 1.5, "validation_loss": 2.0, "validation_accuracy": 0.25},
        {"step": 20, "train_loss": float("nan"), "validation_loss": float("inf")},
        CurvePoint(step=30, train_loss=float("-inf")),
    ]
    record = Record(cell=CELL, status="diverged", diverged_at=20, curve=curve)
    text = record.to_json()
    json.loads(text, parse_constant=lambda word: pytest.fail(f"{word} is not JSON"))
    back = Record.from_json(text)
    assert back.to_json() == text
    assert math.isnan(back.curve[1].train_loss)
    assert (back.curve[1].validation_loss, back.curve[2].train_loss) == (math.inf, -math.inf)
    assert back.curve[0] == record.curve[0]


def test_full_round_trip():
    record = done(trained_names=["a.b", "c"], environment={"torch": "2", "threads": 1, "cuda": None}, notes=["x"])
    assert Record.from_json(record.to_json()) == record
    assert "environment" not in record.outcome()
    assert record.outcome() == record.model_copy(update={"seconds": 3.0, "environment": {}}).outcome()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda fields: fields.update(statsu="done"), "unknown key 'statsu'. Did you mean 'status'"),
        (lambda fields: fields.pop("status"), "status is missing"),
        (lambda fields: fields.update(status="ok"), "status = 'ok'"),
        (lambda fields: fields.update(best_step="1"), "best_step = '1'"),
        (lambda fields: fields.update(validation_accuracy=1.5), "validation_accuracy = 1.5"),
        (lambda fields: fields["cell"].update(steps="x"), "cell = .*steps = 'x'"),
        (lambda fields: fields["cell"].update(components="mah"), "unknown component 'mah'"),
        (lambda fields: fields.update(curve=[{"step": -1}]), "step = -1"),
        (lambda fields: fields.update(curve=3), "curve = 3"),
        (lambda fields: fields.update(test=None), "test = None contradicts"),
        (lambda fields: fields.update(diverged_at=3), "contradict"),
        (lambda fields: fields.update(error="boom"), "contradict"),
    ],
)
def test_damage_is_named(change, message: str):
    fields = json.loads(done().to_json())
    change(fields)
    with pytest.raises(StoreError, match=message):
        Record.from_json(json.dumps(fields))


@pytest.mark.parametrize("text", ["", "{", "[1]", "\0" * 40])
def test_not_json(text: str):
    with pytest.raises(StoreError, match="Record: "):
        Record.from_json(text)


def test_environment_must_be_finite():
    with pytest.raises(StoreError, match="cannot be written as JSON"):
        done(environment={"gpu_hours": float("nan")}).to_json()


def test_table():
    lora = CELL.replace(method="lora", train=100)
    failed = Record(cell=lora, status="failed", error="boom")
    diverged = Record(cell=CELL.replace(learning_rate=9.0), status="diverged", diverged_at=3)
    frame = record_table([done(seconds=2.5), failed, diverged])
    assert frame["status"].tolist() == ["done", "failed", "diverged"]
    assert frame["id"].is_unique
    assert frame["variant"].tolist() == ["mha", "lora-r16-q+v", "mha"]
    assert frame["lora_targets"].tolist()[1] == "q+v"
    assert frame.loc[0, ["test_accuracy", "test_n", "seconds"]].tolist() == [0.5, 10, 2.5]
    assert frame["test_accuracy"].isna().tolist() == [False, True, True]
    assert frame["train_limit"].tolist()[1] == 100
    empty = record_table([])
    assert list(empty.columns) == list(frame.columns)
    assert {str(frame[name].dtype) for name in ("learning_rate", "test_accuracy")} == {"float64"}
    assert str(empty["steps"].dtype) == str(frame["steps"].dtype) == "Int64"
