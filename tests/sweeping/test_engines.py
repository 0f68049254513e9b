"""The contract of engines, over all of them."""

import contextlib
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from pliant.errors import ConfigError, StoreError, UnknownNameError
from pliant.runs import CellConfig, Store
from pliant.runs.probes import ProbeKey, read_probe
from pliant.sweeping import ENGINES, Event, Settings, cells, make_engine
from pliant.sweeping.engine import Engine
from pliant.sweeping.jobs import CellJob, ProbeJob
from pliant.sweeping.worker import share_of_cores
from sweeping.small_sweep import ends, make_recipe, outcomes

KINDS = {
    "local": ("local", Settings(threads=1)),
    "workers": ("local", Settings(workers=2)),
    "ray": ("ray", Settings(workers=1)),
}


def test_every_engine_is_tested():
    assert {name for name, _ in KINDS.values()} == set(ENGINES)


@pytest.fixture(scope="module")
def made() -> Iterator[Callable[[str], Engine]]:
    """Makes each engine once: starting one takes seconds."""
    engines: dict[str, Engine] = {}
    with contextlib.ExitStack() as stack:

        def get(kind: str) -> Engine:
            name, settings = KINDS[kind]
            if name == "ray":
                pytest.importorskip("ray", reason="Ray is not installed")
            if kind not in engines:
                engines[kind] = stack.enter_context(make_engine(name, settings))
            return engines[kind]

        yield get


@pytest.fixture(params=KINDS)
def engine(request: pytest.FixtureRequest, made: Callable[[str], Engine]) -> Engine:
    return made(request.param)


@pytest.fixture(scope="module")
def some(model: Path) -> tuple[CellConfig, ...]:
    return cells(make_recipe(model, components=["mha", "ln1"], seed=[0, 1]))


@pytest.fixture(scope="module")
def alone(some: tuple[CellConfig, ...], tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[object, bytes]]:
    """Each cell by an engine of its own."""
    store = Store(tmp_path_factory.mktemp("alone"))
    for cell in reversed(some):
        with make_engine("local", Settings()) as engine:
            engine.run([CellJob(cell, store.folder)], listen=lambda event: None)
    return outcomes(store)


def run(engine: Engine, store: Store, chosen: tuple[CellConfig, ...]) -> list[Event]:
    events: list[Event] = []
    engine.run([CellJob(cell, store.folder) for cell in chosen], listen=events.append)
    return events


class TestContract:
    def test_results_are_those_of_cells_run_alone(self, engine: Engine, some, alone, tmp_path: Path):
        store = Store(tmp_path)
        heard: list[str] = []

        def listen(event: Event) -> None:
            heard.append(event.kind)
            if event.kind == "done":
                assert store.record(event.cell) == event.record, "a result was announced before it was stored"

        engine.run([CellJob(cell, tmp_path) for cell in some], listen=listen)
        assert heard.count("done") == heard.count("started") == len(some)
        assert outcomes(store) == alone
        assert len({record.validation_accuracy for record in store.records()}) > 1
        assert not store.problems()
        assert not list(tmp_path.rglob("*.tmp"))

    def test_a_failed_cell_is_recorded_and_the_others_go_on(self, engine: Engine, some, alone, tmp_path: Path):
        broken = some[0].replace(data=f"folder:{tmp_path / 'nowhere'}")
        diverging = some[0].replace(learning_rate=1e30, clip_norm=None)
        store = Store(tmp_path / "out")
        events = run(engine, store, (broken, diverging, some[0]))
        assert ends(events) == {broken.id: "failed", diverging.id: "diverged", some[0].id: "done"}
        record = store.record(broken)
        assert record.status == "failed"
        assert "Traceback" in record.error
        assert "DataError" in record.error
        assert outcomes_of(store, some[0]) == alone[some[0].id]
        assert run(engine, store, (broken,))[-1].kind == "skipped"

    def test_what_others_have_or_cannot_be_used_is_left_alone(self, engine: Engine, some, tmp_path: Path):
        store = Store(tmp_path)
        store.plan(some)
        (store.path(some[1]) / "config.json").write_text("{}")
        claim = store.claim(some[0])
        with claim:
            events = run(engine, store, some[:3])
            assert ends(events) == {some[0].id: "elsewhere", some[1].id: "refused", some[2].id: "done"}
            refused = next(event for event in events if event.kind == "refused")
            assert "config.json cannot be read as a cell" in refused.text
            assert store.entry(some[0]).state == "running"
        assert ends(run(engine, store, (some[0], some[2]))) == {some[0].id: "done", some[2].id: "skipped"}

    def test_a_probe_is_computed_once(self, engine: Engine, some, tmp_path: Path):
        events: list[Event] = []
        for _ in range(2):
            engine.run([ProbeJob(some[0], tmp_path)], listen=events.append)
        assert [event.kind for event in events] == ["started", "done", "skipped"]
        line = read_probe(tmp_path, ProbeKey.of(some[0]))
        assert line.key == ProbeKey.of(some[3])
        assert line.test.n == 40
        assert line.test.accuracy > 0.3
        assert line.layer == "block01"


def outcomes_of(store: Store, cell: CellConfig) -> tuple[object, bytes]:
    return store.record(cell).outcome(), (store.path(cell) / "metrics.jsonl").read_bytes()


# --- workers that die -------------------------------------------------------------------------------------------------


def test_a_killed_worker_costs_no_cell(made, some, alone, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    store, events = Store(tmp_path), []

    def listen(event: Event) -> None:
        events.append(event)
        if event.kind == "started" and len([e for e in events if e.kind == "started"]) == 1:
            owner = store.entry(event.cell).owner
            os.kill(int(owner.split()[1]), signal.SIGKILL)

    engine = made("workers")
    engine.run([CellJob(cell, tmp_path) for cell in some], listen=listen)
    assert [event.kind for event in events].count("lost") == 1
    lost = next(event for event in events if event.kind == "lost")
    assert "ended by signal 9" in lost.text
    assert set(ends(events).values()) == {"done"}
    assert outcomes(store) == alone
    # What was tried often enough is given up.
    events.clear()
    again = some[0].replace(seed=7)

    def kill(event: Event) -> None:
        events.append(event)
        if event.kind == "started":
            os.kill(int(store.entry(event.cell).owner.split()[1]), signal.SIGKILL)

    monkeypatch.setattr(engine, "_retries", 0)
    engine.run([CellJob(again, tmp_path)], listen=kill)
    assert ends(events) == {again.id: "failed"}
    assert "its worker process died 1 times; the last one was ended by signal 9" in store.record(again).error


# --- settings that cannot be ------------------------------------------------------------------------------------------


def test_workers_share_the_cores(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("pliant.sweeping.worker.cores", lambda: 8)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    assert [share_of_cores(workers, None) for workers in (1, 2, 3, 8)] == [8, 4, 2, 1]
    assert share_of_cores(2, 3) == 3
    with pytest.raises(ConfigError, match="got 9 workers; expected at most 8, the number of cores"):
        share_of_cores(9, None)
    with pytest.raises(ConfigError, match="3 workers of 4 threads need 12 cores, and there are 8; give each at most 2"):
        share_of_cores(3, 4)
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    assert share_of_cores(2, None) == 2


def test_an_unknown_engine():
    with pytest.raises(UnknownNameError, match=r"unknown engine 'lokal'. Did you mean 'local'"):
        make_engine("lokal", Settings())


def test_a_store_that_cannot_be_written_stops_the_work(some, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    tried = []

    def full(self: CellJob, held: object, answer: object) -> Event:
        tried.append(self.cell)
        failure = StoreError("cannot write result.json: the disk is full")
        failure.errno = 28
        raise failure

    monkeypatch.setattr(CellJob, "settle", full)
    events: list[Event] = []
    with (
        make_engine("local", Settings()) as engine,
        pytest.raises(StoreError, match=r"nothing of the last 3 jobs could be stored: .*the disk is full"),
    ):
        engine.run([CellJob(cell, tmp_path) for cell in some], listen=events.append)
    told = [event.kind for event in events if event.kind != "step"]  # steps are told of now and then
    assert told == ["started", "kept"] * 3 + ["unstored"] * 3
    assert {Store(tmp_path).entry(cell).state for cell in some[:3]} == {"missing"}
