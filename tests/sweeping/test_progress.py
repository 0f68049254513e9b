"""How a sweep stands, and how that is shown."""

import re

import pytest
from rich.console import Console

from pliant.cli.sweep_talk import LiveDisplay, drawn
from pliant.runs import CellConfig, Record, Score
from pliant.sweeping import Event, Standing
from pliant.sweeping.progress import duration, line

CELLS = tuple(
    CellConfig(learning_rate=rate, components=components, steps=100, eval_every=50)
    for components in ("mha", "ln1")
    for rate in (0.1, 0.3)
)


def record(cell: CellConfig, accuracy: float) -> Record:
    score = Score.from_counts(100, round(100 * accuracy))
    return Record(cell=cell, status="done", best_step=50, validation_accuracy=accuracy, test=score, seconds=3.0)


def done(cell: CellConfig, accuracy: float) -> Event:
    return Event("done", "cell", cell, record=record(cell, accuracy))


def test_counts_time_left_and_the_best(monkeypatch: pytest.MonkeyPatch):
    now = [100.0]
    monkeypatch.setattr("pliant.sweeping.progress.time.monotonic", lambda: now[0])
    standing = Standing(CELLS, title="small")
    standing.known([record(CELLS[0], 0.8)])
    assert (standing.left, standing.done, standing.seconds_left) == (3, 1, None)
    standing.take(Event("started", "cell", CELLS[1]))
    now[0] += 10
    standing.take(Event("step", "cell", CELLS[1], step=50))
    assert standing.seconds_left == pytest.approx(50)  # half a cell took ten seconds, two and a half are left
    now[0] += 10
    standing.take(done(CELLS[1], 0.7))
    assert standing.seconds_left == pytest.approx(40)
    assert standing.best["digits", "mha"].validation_accuracy == 0.8
    standing.take(Event("failed", "cell", CELLS[2], text="MemoryError: no room"))
    standing.take(Event("started", "probe", CELLS[3]))
    assert (standing.left, standing.counts, standing.running) == (1, {"done": 2, "failed": 1}, {})
    standing.take(Event("skipped", "cell", CELLS[3], record=record(CELLS[3], 0.9)))
    assert (standing.left, standing.done, standing.seconds_left) == (0, 3, 0)
    assert standing.best["digits", "ln1"].validation_accuracy == 0.9


def test_lines():
    standing = Standing(CELLS)
    event = done(CELLS[0], 0.8)
    standing.take(event)
    assert re.fullmatch(
        r"\[1/4\] digits mha lr 0\.1 seed 0: validation 80\.0% in 3 s; about \d+ s left", line(event, standing)
    )
    failed = Event("failed", "cell", CELLS[1], text="ValueError: no")
    standing.take(failed)
    assert "digits mha lr 0.3 seed 0: failed: ValueError: no" in line(failed, standing)
    assert line(Event("started", "cell", CELLS[1]), standing) is None
    assert line(Event("waiting", text="waiting for room"), standing) == "waiting for room"
    probe = Event("done", "probe", CELLS[1], text="77.0% of the test images")
    assert line(probe, standing) == "linear probe of bundled on digits: 77.0% of the test images"


@pytest.mark.parametrize(("seconds", "text"), [(0.4, "0 s"), (89, "89 s"), (120, "2 min"), (7200, "2.0 h")])
def test_durations(seconds: float, text: str):
    assert duration(seconds) == text


def test_the_live_display(monkeypatch: pytest.MonkeyPatch):
    console = Console(force_terminal=True, width=100, record=True)
    display = LiveDisplay(console)
    standing = Standing(CELLS, title="small")
    for event in (
        Event("started", "cell", CELLS[0]),
        done(CELLS[0], 0.8),
        Event("failed", "cell", CELLS[1], text="ValueError: no"),
        Event("started", "cell", CELLS[2]),
        Event("step", "cell", CELLS[2], step=20),
    ):
        standing.take(event)
        display.take(event, standing)
    display.stop()
    shown = console.export_text()
    assert "failed: ValueError: no" in shown
    with console.capture() as capture:
        console.print(drawn(standing))
    text = re.sub(r"\x1b\[[0-9;]*m", "", capture.get())
    assert "small: 1 done; 1 failed; 2 left of 4; 0 s gone" in text
    assert "digits ln1 lr 0.1 seed 0 (20/100)" in text
    assert "80.0% at 0.1" in text
