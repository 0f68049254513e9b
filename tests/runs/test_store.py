from collections.abc import Callable
from pathlib import Path

import pytest

from pliant.errors import StoreError
from pliant.runs import CellConfig, Record, Store
from pliant.runs.store import STATES
from runs.cell_work import make_cells, run_cell, work

CELLS = make_cells(4)


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "out")


def states(store: Store) -> list[str]:
    return [store.entry(cell).state for cell in CELLS]


def test_states_follow_from_files_and_locks(store: Store):
    store.plan(CELLS)
    assert states(store) == ["missing"] * 4
    running, failing, finishing = (store.claim(cell) for cell in CELLS[:3])
    failing.fail(ValueError("boom"))
    finishing.finish(run_cell(finishing))
    seen_by_another = Store(store.folder, create=False)
    assert states(seen_by_another) == ["running", "failed", "done", "missing"]
    assert sorted(entry.state for entry in seen_by_another.entries()) == sorted(STATES)
    assert "process " in seen_by_another.entry(CELLS[0]).owner
    running.release()
    assert states(seen_by_another) == ["missing", "failed", "done", "missing"]
    assert not seen_by_another.problems()


def test_a_cell_is_claimed_once(store: Store):
    claim = store.claim(CELLS[0])
    assert store.claim(CELLS[0]) is None
    claim.release()
    with store.claim(CELLS[0]) as again:
        again.finish(run_cell(again))
    assert store.claim(CELLS[0]) is None


def test_listing_does_not_disturb_claiming(store: Store):
    for _ in range(50):
        assert store.entry(CELLS[0]).state == "missing"
        store.claim(CELLS[0]).release()


def test_files_of_a_finished_cell(store: Store):
    with store.claim(CELLS[0]) as claim:
        record = run_cell(claim)
        assert claim.checkpoint.exists()
        (claim.folder / ".result.json.7-00000000.tmp").write_text("half")
        claim.finish(record)
    assert store.record(CELLS[0]) == record
    names = {path.name for path in store.path(CELLS[0]).iterdir()}
    assert {"config.json", "metrics.jsonl", "environment.json", "result.json", "lock"} <= names
    assert "checkpoint" not in names
    assert [row["step"] for row in store.metrics(CELLS[0])] == list(range(1, 21))
    assert store.path(CELLS[0]).name == CELLS[0].name


def test_a_dead_writers_leavings_are_cleared(store: Store):
    store.plan(CELLS[:1])
    left = store.path(CELLS[0]) / ".result.json.7-00000000.tmp"
    left.write_text("half")
    store.claim(CELLS[0]).release()
    assert not left.exists()


@pytest.mark.parametrize("look", [Store.claim, lambda store, cell: store.plan([cell])], ids=["claimed", "planned"])
def test_a_checkpoint_that_outlived_its_result_is_removed(store: Store, look: Callable[[Store, CellConfig], None]):
    with store.claim(CELLS[0]) as claim:
        claim.finish(run_cell(claim))
    claim.checkpoint.mkdir()
    assert look(store, CELLS[0]) is None
    assert not claim.checkpoint.exists()


def test_planning_leaves_the_checkpoint_of_an_unfinished_cell(store: Store):
    with store.claim(CELLS[0]) as claim:
        claim.checkpoint.mkdir()
    store.plan([CELLS[0]])
    assert claim.checkpoint.exists()


def test_interrupted_claims_leave_the_cell_missing(store: Store):
    def interrupted() -> None:
        with store.claim(CELLS[0]) as claim:
            claim.checkpoint.mkdir()
            raise KeyboardInterrupt("stop")

    with pytest.raises(KeyboardInterrupt, match="stop"):
        interrupted()
    assert states(store)[0] == "missing"
    assert store.claim(CELLS[0]).checkpoint.exists()


def test_a_failure_keeps_traceback_and_environment(store: Store):
    def explode() -> None:
        raise ValueError("the loss exploded")

    claim = store.claim(CELLS[0])
    claim.describe({"torch": "2.14"})
    try:
        explode()
    except ValueError as error:
        claim.fail(error)
    record = store.record(CELLS[0])
    assert record.status == "failed"
    assert "in explode" in record.error
    assert record.environment == {"torch": "2.14"}
    assert store.claim(CELLS[0]) is None


def test_a_failed_record_is_a_failure(store: Store):
    with store.claim(CELLS[0]) as claim:
        claim.finish(Record(cell=CELLS[0], status="failed", error="boom"))
    assert states(store)[0] == "failed"
    assert not (store.path(CELLS[0]) / "result.json").exists()


def test_retrying_keeps_history(store: Store):
    for attempt in ("first", "second"):
        claim = store.claim(CELLS[0])
        claim.checkpoint.mkdir(exist_ok=True)
        claim.fail(attempt)
        assert store.retry_failed() == (CELLS[0],)
        assert states(store)[0] == "missing"
        assert claim.checkpoint.exists()
    history = store.path(CELLS[0]) / "errors"
    assert {path.name: path.read_text() for path in history.iterdir()} == {
        "001-error.txt": "first\n",
        "002-error.txt": "second\n",
    }
    work(store.folder, CELLS)
    assert states(store) == ["done"] * 4
    assert store.retry_failed() == ()


def test_retrying_from_the_start_drops_the_checkpoint(store: Store):
    claim = store.claim(CELLS[0])
    claim.checkpoint.mkdir()
    claim.fail("boom")
    assert store.retry(CELLS[0], from_start=True)
    assert not claim.checkpoint.exists()


@pytest.mark.parametrize("state", ["missing", "running", "done"])
def test_only_failed_cells_are_retried(store: Store, state: str):
    claim = store.claim(CELLS[0])
    if state == "done":
        claim.finish(run_cell(claim))
    if state == "missing":
        claim.release()
    assert store.entry(CELLS[0]).state == state
    assert not store.retry(CELLS[0])
    assert store.entry(CELLS[0]).state == state


def test_a_diverged_cell_is_done(store: Store):
    with store.claim(CELLS[0]) as claim:
        claim.finish(
            Record(cell=CELLS[0], status="diverged", diverged_at=3, curve=[{"step": 3, "train_loss": float("nan")}])
        )
    assert states(store)[0] == "done"
    assert store.frame()["status"].tolist() == ["diverged"]


def test_frame_has_every_record(store: Store):
    assert store.frame().empty
    store.claim(CELLS[0]).fail("boom")
    work(store.folder, CELLS)
    frame = store.frame()
    assert sorted(frame["status"]) == ["done"] * 3 + ["failed"]
    assert set(frame["id"]) == {cell.id for cell in CELLS}
    assert frame.set_index("id").loc[CELLS[1].id, "test_accuracy"] == store.record(CELLS[1]).test.accuracy


def test_a_record_goes_to_its_own_cell(store: Store):
    with store.claim(CELLS[0]) as claim, store.claim(CELLS[1]) as other:
        with pytest.raises(StoreError, match=f"a record of {CELLS[1].name} was given for the cell {CELLS[0].name}"):
            claim.finish(run_cell(other))


def test_a_claim_ends_with_its_release(store: Store):
    with store.claim(CELLS[0]) as claim:
        record = run_cell(claim)
    claim.release()
    with pytest.raises(StoreError, match="was given back"):
        claim.finish(record)
    with pytest.raises(StoreError, match="was given back"):
        claim.fail("boom")
    assert states(store)[0] == "missing"


def test_opening_makes_or_refuses(tmp_path: Path):
    with pytest.raises(StoreError, match="is no store of runs: it has no folder 'cells'"):
        Store(tmp_path, create=False)
    with pytest.raises(StoreError, match="is no store of runs: it is no folder"):
        Store(tmp_path / "nothing", create=False)
    assert not (tmp_path / "nothing").exists()
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError, match="cannot make the folder"):
        Store(tmp_path / "file")
    assert Store(tmp_path / "a" / "b").entries() == ()
