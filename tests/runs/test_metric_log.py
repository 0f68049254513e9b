import json
import math
from pathlib import Path

import pytest

from pliant.errors import StoreError
from pliant.runs import MetricLog, read_metrics


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "metrics.jsonl"


def write(path: Path, steps: range, *, resume_at: int = 0) -> None:
    with MetricLog(path, resume_at=resume_at) as log:
        for step in steps:
            log.write(step, loss=1 / step)


def test_resuming_equals_an_undisturbed_run(path: Path):
    write(path, range(1, 11))
    whole = path.read_bytes()
    write(path, range(1, 8))
    with path.open("ab") as file:
        file.write(b'{"step": 8, "lo')
    assert [row["step"] for row in read_metrics(path)] == list(range(1, 8))
    write(path, range(6, 11), resume_at=5)
    assert path.read_bytes() == whole


def test_starting_anew_drops_old_rows(path: Path):
    write(path, range(1, 5))
    write(path, range(1, 3))
    assert [row["step"] for row in read_metrics(path)] == [1, 2]


def test_non_finite_values(path: Path):
    with MetricLog(path) as log:
        log.write(1, loss=math.nan, norm=math.inf, role="mha", skipped=None)
    json.loads(path.read_text(), parse_constant=lambda word: pytest.fail(f"{word} is not JSON"))
    (row,) = read_metrics(path)
    assert math.isnan(row["loss"])
    assert (row["norm"], row["role"], row["skipped"]) == (math.inf, "mha", None)


def test_rows_are_there_while_the_log_is_open(path: Path):
    with MetricLog(path) as log:
        log.write(1, loss=0.5)
        assert read_metrics(path) == [{"step": 1, "loss": 0.5}]


@pytest.mark.parametrize("line", [b"nonsense", b"[1]", b'{"loss": 1}', b'{"step": "1"}', b"\0\0\0"])
def test_damage_in_the_middle(path: Path, line: bytes):
    path.write_bytes(b'{"step": 1}\n' + line + b'\n{"step": 3}\n')
    with pytest.raises(StoreError, match=r"metrics\.jsonl, line 2: expected a JSON object with a step"):
        read_metrics(path)
    write(path, range(2, 3), resume_at=1)
    assert [row["step"] for row in read_metrics(path)] == [1, 2]


def test_no_file(path: Path):
    assert read_metrics(path) == []
