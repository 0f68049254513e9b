"""A store that something went wrong with: each time a clear error, nothing lost, the other cells go on."""

import errno
import json
import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from pliant.errors import StoreError
from pliant.runs import Store, write_atomically
from runs.cell_work import make_cells, run_cell, work

CELLS = make_cells(3)


@pytest.fixture
def store(tmp_path: Path) -> Store:
    """A store whose first two cells are done."""
    work(tmp_path / "out", CELLS[:2])
    return Store(tmp_path / "out")


@pytest.fixture
def tmpfs(mounted_tmpfs: Callable[[str], Path]) -> Path:
    return mounted_tmpfs("320k")


@pytest.mark.parametrize(
    "content", [b"", b"{", b"\0" * 100, b'{"cell": 3}', None], ids=["empty", "cut", "zeros", "wrong", "another"]
)
def test_a_damaged_result_is_a_failure_that_can_be_retried(store: Store, content: bytes | None):
    damaged = store.path(CELLS[0]) / "result.json"
    content = (store.path(CELLS[1]) / "result.json").read_bytes() if content is None else content
    damaged.write_bytes(content)
    entry = store.entry(CELLS[0])
    assert entry.state == "failed"
    assert f"{damaged} is damaged" in entry.record.error
    assert store.claim(CELLS[0]) is None
    work(store.folder, CELLS)  # the others go on
    assert [store.entry(cell).state for cell in CELLS] == ["failed", "done", "done"]
    assert store.retry_failed() == (CELLS[0],)
    assert (store.path(CELLS[0]) / "errors" / "001-result.json").read_bytes() == content
    work(store.folder, CELLS)
    assert [store.entry(cell).state for cell in CELLS] == ["done"] * 3


def test_a_result_that_cannot_be_opened(store: Store):
    result = store.path(CELLS[0]) / "result.json"
    result.unlink()
    result.mkdir()
    assert "is damaged" in store.record(CELLS[0]).error


def test_foreign_files_are_named_and_left_alone(store: Store):
    cells = store.folder / "cells"
    (cells / "notes.txt").write_text("mine")
    (cells / "stuff").mkdir()
    (cells / "stuff" / "plot.png").write_text("mine")
    (cells / "empty").mkdir()  # what a process leaves that dies right after making a folder
    (store.path(CELLS[0]) / "notes.txt").write_text("mine")
    assert {entry.cell for entry in store.entries()} == set(CELLS[:2])
    assert sorted(store.problems()) == [
        f"{cells / 'notes.txt'}: a foreign file, left alone",
        f"{cells / 'stuff'}: a folder without config.json, left alone",
    ]
    work(store.folder, CELLS)
    assert len(store.records()) == 3
    assert (cells / "notes.txt").read_text() == (store.path(CELLS[0]) / "notes.txt").read_text() == "mine"


def test_a_changed_configuration_is_refused_with_the_difference(store: Store):
    config = store.path(CELLS[0]) / "config.json"
    fields = json.loads(config.read_text())
    config.write_text(json.dumps({**fields, "learning_rate": 0.5}))
    with pytest.raises(StoreError, match=r"holds another cell .*learning_rate: 0\.5 here, 0\.1 there"):
        store.claim(CELLS[0])
    with pytest.raises(StoreError, match="holds another cell"):
        store.entry(CELLS[0])
    (problem,) = store.problems()
    assert "does not belong to its folder" in problem
    work(store.folder, CELLS[1:])
    assert [entry.cell for entry in store.entries()] == sorted(CELLS[1:], key=lambda cell: cell.name)


@pytest.mark.parametrize("content", ["", "{", '{"steps": 3}', '{"lr": 1}'])
def test_an_unreadable_configuration_is_refused(store: Store, content: str):
    (store.path(CELLS[0]) / "config.json").write_text(content)
    with pytest.raises(StoreError, match=r"config\.json cannot be read as a cell: "):
        store.claim(CELLS[0])
    assert [record.cell for record in store.records()] == [CELLS[1]]
    assert "cannot be read as a cell" in store.problems()[0]


def test_a_renamed_folder_is_a_problem(store: Store):
    store.path(CELLS[0]).rename(store.folder / "cells" / "best")
    assert "does not belong to its folder" in store.problems()[0]
    assert store.entry(CELLS[0]).state == "missing"


def test_a_lost_configuration_is_written_again(store: Store):
    (store.path(CELLS[0]) / "config.json").unlink()
    assert "without config.json" in store.problems()[0]
    store.plan(CELLS)
    assert store.entry(CELLS[0]).state == "done"


def test_failed_writes_leave_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    path = tmp_path / "file"
    write_atomically(path, "old")

    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(StoreError, match=r"cannot write .*file: the disk is full\. Free some space") as raised:
        write_atomically(path, "new")
    assert raised.value.errno == errno.ENOSPC
    assert [child.read_text() for child in tmp_path.iterdir()] == ["old"]


def test_a_full_disk_at_the_end_of_a_cell(store: Store, monkeypatch: pytest.MonkeyPatch):
    before = store.frame()
    claim = store.claim(CELLS[2])
    record = run_cell(claim)
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", lambda descriptor: (_ for _ in ()).throw(OSError(errno.ENOSPC, "full")))
        with pytest.raises(StoreError, match="the disk is full"):
            claim.finish(record)
    assert store.frame().equals(before)
    assert store.entry(CELLS[2]).state == "running"
    assert claim.checkpoint.exists()
    claim.finish(record)  # the record can be tried again
    assert store.record(CELLS[2]) == record


def test_a_small_disk_fills_up(tmpfs: Path, tmp_path: Path):
    cells = make_cells(20)
    with pytest.raises(StoreError, match="the disk is full"):
        work(tmpfs, cells)
    finished = Store(tmpfs, create=False).records()
    assert 0 < len(finished) < len(cells)
    states = {entry.state for entry in Store(tmpfs).entries()}
    assert states <= {"done", "missing"}
    with pytest.raises(StoreError, match="the disk is full"):
        work(tmpfs, cells)
    shutil.copytree(tmpfs, tmp_path / "large")
    work(tmp_path / "large", cells)
    records = {record.cell: record for record in Store(tmp_path / "large").records()}
    assert set(records) == set(cells)
    assert all(records[record.cell] == record for record in finished)
    assert not Store(tmp_path / "large").problems()


def test_a_read_only_store_can_be_read(tmpfs: Path):
    work(tmpfs, CELLS[:1])
    Store(tmpfs).plan(CELLS[:2])
    subprocess.run(["mount", "-o", "remount,ro", tmpfs], check=True)
    store = Store(tmpfs, create=False)
    assert [entry.state for entry in store.entries()].count("done") == 1
    assert len(store.frame()) == 1
    assert store.claim(CELLS[0]) is None
    for cell in CELLS[1:]:
        with pytest.raises(StoreError, match=r"read-only\. Choose another folder"):
            store.claim(cell)


@pytest.mark.skipif(os.geteuid() == 0, reason="no folder is closed to root")
def test_a_folder_without_permission(store: Store):
    store.plan(CELLS)
    folder = store.path(CELLS[2])
    folder.chmod(0o500)
    try:
        with pytest.raises(StoreError, match="permission denied"):
            store.claim(CELLS[2])
        work(store.folder, CELLS[:2])
    finally:
        folder.chmod(0o700)


def test_an_error_of_the_system_keeps_its_number(tmp_path: Path):
    with pytest.raises(StoreError, match=r"cannot write .*No such file") as raised:
        write_atomically(tmp_path / "nowhere" / "file", "x")
    assert raised.value.errno == errno.ENOENT
