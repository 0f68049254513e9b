import json
import subprocess
import sys

import pytest

from pliant.cli.app import run
from reporting import synthetic


@pytest.fixture(autouse=True)
def _no_scripts(monkeypatch):
    """Vega's scripts take seconds to put together, and nothing here opens a page."""
    monkeypatch.setattr("pliant.reporting.page.bundle", lambda: "")


def test_report(tmp_path, capsys):
    synthetic.measurement().save(tmp_path / "measurement.parquet")
    assert run(["report", str(tmp_path), "--charts", "svg", "--tables", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["page"] == str(tmp_path / "report.html")
    names = {path.rsplit("/", 1)[1] for path in told["files"]}
    assert {"plasticity-by-role.svg", "plasticity.tex", "components.csv"} <= names
    assert run(["report", str(tmp_path)]) == 0
    assert f"Written: {tmp_path / 'report.html'}" in capsys.readouterr().out.replace("\n", "")


def test_report_of_nothing(tmp_path, capsys):
    assert run(["report", str(tmp_path)]) == 1
    assert "holds nothing to report" in capsys.readouterr().err
    assert run(["report", str(tmp_path), "--charts", "gif"]) == 1
    assert "unknown format of charts 'gif'" in capsys.readouterr().err


def test_landscape(tmp_path, capsys):
    options = ["--points", "3", "--images", "12", "--steps", "2", "--device", "cpu", "-c", "ln1", "-c", "mha"]
    assert run(["landscape", *options, "--out", str(tmp_path / "out"), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert [(s["kind"], s["component"]) for s in told["surfaces"]] == [
        ("loss", "ln1"), ("loss", "mha"), ("rate", "block03.ln1"), ("rate", "block03.mha"),
    ]  # fmt: skip
    assert told["provenance"]["images"] == 12
    assert told["provenance"]["learning_rate"] > 0
    names = {p.name for p in (tmp_path / "out").iterdir()}
    assert {"landscape-pca.json", "landscape-loss.svg", "landscape-rate.png", "report.html"} <= names


def test_landscape_of_an_unknown_component(tmp_path, capsys):
    assert run(["landscape", "-c", "atention", "--images", "12", "--out", str(tmp_path)]) == 1
    assert "unknown component 'atention'" in capsys.readouterr().err


def test_a_store_is_reported_without_torch():
    code = "import sys, pliant.reporting; sys.exit(1 if {'torch', 'transformers'} & set(sys.modules) else 0)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
