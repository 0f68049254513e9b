import json
from importlib import import_module
from pathlib import Path

import pandas as pd
import pytest

from pliant.cli.app import run

QUICK = ["--items", "8", "--batch-size", "4", "--device", "cpu"]


def test_anatomy_prints_components_and_counts(capsys):
    assert run(["anatomy"]) == 0
    shown = capsys.readouterr().out
    assert "block03.mha" in shown
    assert "parameters in" in shown


def test_anatomy_json_accounts_for_every_parameter(capsys):
    assert run(["anatomy", "bundled", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    names = [name for row in rows for name in row["names"]]
    assert len(names) == len(set(names)) == sum(row["tensors"] for row in rows)
    assert sum(row["share"] for row in rows) == pytest.approx(1.0)


@pytest.mark.parametrize("convention", ["insitu", "shared"])
def test_measure_json_is_data_alone_on_stdout(capsys, convention: str):
    assert run(["measure", "--convention", convention, "--json", *QUICK]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["provenance"]["convention"] == convention
    assert {row["role"] for row in found["by_role"]} == {"ln1", "mha", "ln2", "fc1", "fc2"}
    assert all(row["plasticity"] > 0 and row["stderr"] > 0 for row in found["components"])


def test_measure_writes_a_file_with_provenance(tmp_path, capsys):
    out = tmp_path / "m.parquet"
    assert run(["measure", "--source", "fashion-sample", "--pairs", "matched", "--out", str(out), *QUICK]) == 0
    from pliant.measuring import read_measurement

    assert read_measurement(out).provenance["source"] == "fashion-sample"
    assert "Plasticity by role" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["anatomy", "bundeld"], 1, "bundled"),
        (["anatomy", "./nowhere"], 1, "nowhere"),
        (["measure", "--data", "digtis"], 1, "Did you mean 'digits'"),
        (["measure", "--pairs", "matched"], 1, "need both source and target"),
        (["measure", "--batch-size", "1"], 1, "at least 2"),
        (["measure", "--convention", "vitro"], 2, "vitro"),
        (["tune", "--setps", "3"], 2, "--steps"),
        (["tun"], 2, "tune"),
        (["tune", "--components", "mah"], 1, "Did you mean 'mha'"),
        (["tune", "--steps", "0"], 2, "--steps"),
    ],
)
def test_mistakes_give_one_message_and_the_right_exit_code(arguments, code, message, capsys):
    assert run(arguments) == code
    shown = capsys.readouterr()
    assert message in shown.err
    assert "Traceback" not in shown.err
    assert shown.out == ""


def command_names() -> list[str]:
    import pliant.cli.commands
    from pliant.cli.app import app

    assert pliant.cli.commands.__all__
    return sorted(c.name or c.callback.__name__ for c in app.registered_commands if c.callback)


@pytest.mark.parametrize("command", command_names())
def test_help_has_an_example(command: str, capsys):
    assert run([command, "--help"]) == 0
    assert f"Example: pliant {command}" in " ".join(capsys.readouterr().out.split())


def test_audit_finds_nothing_against_digits_and_a_bad_image_in_a_folder(tmp_path, capsys):
    assert run(["audit"]) == 0
    assert "nothing stands against training" in capsys.readouterr().out
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "broken.png").write_bytes(b"no image")
    assert run(["audit", f"folder:{tmp_path}", "--json"]) == 1
    rows = json.loads(capsys.readouterr().out)
    assert sum("broken.png" in row["where"] for row in rows) == 2


def test_advise_stops_before_training(tmp_path, capsys):
    arguments = [
        "advise",
        "--train",
        "40",
        "--validation",
        "30",
        "--test",
        "20",
        "--race-steps",
        "2",
        "--batch-size",
        "8",
    ]
    assert run([*arguments, "--budget", "5%", "--out", str(tmp_path / "o"), "--device", "cpu", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["chosen"] in ("ln1", "ln2")
    assert not (tmp_path / "o" / "model").exists()


def test_probe_prints_the_line_to_beat(capsys):
    assert run(["probe", "--train", "60", "--validation", "50", "--test", "40", "--layer", "blocks", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert len(rows) == 6
    assert all(row["n"] == 40 for row in rows)


@pytest.mark.parametrize("ending", ["parquet", "csv", "json"])
def test_probe_writes_its_table(ending: str, tmp_path: Path, capsys):
    sizes = ["--train", "60", "--validation", "50", "--test", "40"]
    out = tmp_path / "new" / f"probe.{ending}"
    assert run(["probe", *sizes, "--out", str(out), "--no-cache"]) == 0
    assert "from disk" not in capsys.readouterr().out
    read = {"parquet": pd.read_parquet, "csv": pd.read_csv, "json": pd.read_json}[ending]
    assert read(out)[["layer", "n"]].values.tolist() == [["block05", 40]]
    assert run(["probe", *sizes]) == 0
    assert run(["probe", *sizes]) == 0
    assert "Features of 150 images were read from disk" in " ".join(capsys.readouterr().out.split())


def test_a_link_stays_a_link(tmp_path: Path):
    (tmp_path / "link.csv").symlink_to(tmp_path / "real.csv")
    sizes = ["--train", "60", "--validation", "50", "--test", "40"]
    assert run(["probe", *sizes, "--out", str(tmp_path / "link.csv")]) == 0
    assert (tmp_path / "link.csv").is_symlink()
    assert len(pd.read_csv(tmp_path / "real.csv")) == 1


@pytest.mark.parametrize(
    ("name", "message"), [("nowhere", "is no folder"), ("file", "is no folder"), (".", "no folder 'cells'")]
)
def test_runs_of_what_is_no_store(name: str, message: str, tmp_path: Path, capsys):
    (tmp_path / "file").touch()
    assert run(["runs", str(tmp_path / name)]) == 1
    told = " ".join(capsys.readouterr().err.split())
    assert message in told
    assert "Expected the folder of `pliant sweep`" in told


@pytest.mark.parametrize(
    ("command", "out", "message"),
    [
        ("measure", "m.xlsx", "expected a name that ends in .parquet, .csv or .json"),
        ("bounds", "b.parquet", "expected a name that ends in .json or .csv"),
        ("probe", "folder.csv", "which is a folder; expected the name of a file"),
        ("probe", "file/p.csv", "file is no folder. Choose another one"),
        ("landscape", "file", "file is no folder. Choose another one"),
        ("measure", "/proc/m.csv", "cannot write into /proc"),
        ("measure", f"{'a' * 300}/m.csv", "File name too long"),
        ("probe", f"{'a' * 240}.csv", "File name too long"),
        ("bounds", "~/b.json", "the shell has not expanded ~"),
    ],
)
def test_what_cannot_be_written_is_refused_before_the_work(command, out, message, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").touch()
    (tmp_path / "folder.csv").mkdir()
    for module, name in (("pliant.measuring.subject", "load"), ("pliant.landscapes.landscape", "load_model")):
        monkeypatch.setattr(import_module(module), name, lambda *_, **__: pytest.fail("work was begun"))
    assert run([command, "--out", out]) == 1
    shown = capsys.readouterr()
    assert message in " ".join(shown.err.split())
    assert shown.out == ""
    assert sorted(p.name for p in tmp_path.iterdir()) == ["file", "folder.csv"]


def test_two_measurements_side_by_side(tmp_path, capsys):
    names = [str(tmp_path / f"{pairs}.json") for pairs in ("all", "matched")]
    for name, pairs in zip(names, ("all", "matched"), strict=True):
        assert run(["measure", "--source", "fashion-sample", "--pairs", pairs, "--out", name, *QUICK]) == 0
    capsys.readouterr()
    assert run(["measure", *names, "--compare", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert {"plasticity_a", "plasticity_b", "difference"} <= set(found["by_role"][0])
    assert run(["measure", names[0], "--compare"]) == 1
    assert "expected two saved measurements" in capsys.readouterr().err


def test_measuring_stops_when_sure(capsys):
    assert run(["measure", "--until", "20%", "--batch-size", "8", "--device", "cpu", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert all(row["stderr"] < 0.2 * row["plasticity"] for row in found["by_role"])
    assert run(["measure", "--until", "soon"]) == 1
    assert "expected a share such as 2%" in capsys.readouterr().err
