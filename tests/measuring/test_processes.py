"""Two processes under torchrun find exactly what one finds."""

import os
import socket
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest

from measuring.sharing import CASES, measured
from pliant.measuring import read_measurement
from pliant.measuring.processes import Processes, local_device, processes

TESTS = Path(__file__).parents[1]


def free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return int(s.getsockname()[1])


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Run `sharing.py` under torchrun, once for all tests."""
    made = tmp_path_factory.mktemp("shared")
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2", "--master-addr=127.0.0.1"]
    script = [f"--master-port={free_port()}", str(TESTS / "measuring" / "sharing.py"), str(made)]
    path = os.pathsep.join([str(TESTS), *filter(None, [os.environ.get("PYTHONPATH")])])
    threads = {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo", "PYTHONPATH": path}
    run = subprocess.run(
        [*torchrun, *script], env={**os.environ, **threads}, capture_output=True, text=True, timeout=240, check=False
    )
    assert run.returncode == 0, run.stderr[-3000:]
    return made


@pytest.mark.parametrize("case", ["insitu", "shared"])
def test_both_processes_find_what_one_finds(folder: Path, case: str) -> None:
    expected = measured(case)
    for rank in (0, 1):
        found = read_measurement(folder / f"{case}-{rank}.json")
        pd.testing.assert_frame_equal(found.frame, expected.frame, check_exact=True, check_dtype=False)
        pd.testing.assert_frame_equal(found.by_role, expected.by_role, check_exact=True, check_dtype=False)
        if expected.heads is not None:
            pd.testing.assert_frame_equal(found.heads, expected.heads, check_exact=True, check_dtype=False)
        assert found.provenance["processes"] == 2
        assert found.provenance["passes"] == expected.provenance["passes"] == 5


def test_both_stop_when_all_passes_together_suffice(folder: Path) -> None:
    """One pass a process and round, so a whole number of rounds."""
    found = [read_measurement(folder / f"until-{rank}.json") for rank in (0, 1)]
    pd.testing.assert_frame_equal(found[0].frame, found[1].frame, check_exact=True)
    assert [f.provenance["stopped"] for f in found] == ["sure", "sure"]
    assert [f.provenance["passes"] for f in found] == [2, 2]


def test_an_error_in_one_process_stops_both(folder: Path) -> None:
    own, told = (folder / "error-1.txt").read_text(), (folder / "error-0.txt").read_text()
    assert own.startswith("block00.ln1: ")
    assert "not finite" in own
    assert told == f"process 1 of 2 stopped: MeasurementError: {own}"


def test_alone_there_is_nothing_to_share(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    assert processes() == Processes(0, 1, None)
    monkeypatch.setenv("LOCAL_RANK", "3")
    assert (local_device("cuda"), local_device("cpu"), local_device("cuda:0")) == ("cuda:3", "cpu", "cuda:0")


def test_every_case_is_run() -> None:
    assert set(CASES) == {"insitu", "shared", "until"}
