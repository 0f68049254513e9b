"""The report: order of roles, JSON and CSV, the command, and bounds of the models that come with the package."""

import json
import math
import os
from pathlib import Path

import pandas as pd
import pytest

import pliant
from families import sample
from pliant.cli.app import run
from pliant.errors import ConfigError
from pliant.measuring.bounds import bounds
from pliant.measuring.bounds_certified import TOLERANCE
from pliant.measuring.bounds_report import BoundsReport, Order, role_table

QUICK = ["--items", "8", "--batch-size", "4", "--device", "cpu"]


@pytest.fixture(scope="module")
def report() -> BoundsReport:
    one = sample("transformers LLaMA and Qwen", "Qwen3")  # its attention has no bound
    return bounds(one.model(), one.inputs(3, 1), one.inputs(4, 2), local=1)


def test_order_is_by_value_and_says_whether_both_agree() -> None:
    frame = pd.DataFrame({"role": ["a", "b", "c"], "bound": [3.0, 1.0, 2.0], "mean": [0.3, 0.1, 0.2]})
    found = Order.of(frame, "role")
    assert found.by_bound == found.by_measurement == ("a", "c", "b")
    assert found.agree
    assert (found.kendall, found.spearman) == pytest.approx((1, 1))
    other = Order.of(frame.assign(mean=[0.1, 0.3, 0.2]), "role")
    assert other.by_measurement == ("b", "c", "a")
    assert not other.agree
    assert (other.kendall, other.spearman) == pytest.approx((-1, -1))
    assert str(other) == ("by bound a > c > b; by measurement b > c > a; they differ (Kendall -1.00, Spearman -1.00)")


def test_order_leaves_out_what_has_no_bound() -> None:
    frame = pd.DataFrame({"role": ["a", "b"], "bound": [math.nan, 1.0], "mean": [2.0, 1.0]})
    found = Order.of(frame, "role")
    assert (found.by_bound, found.by_measurement, found.left_out) == (("b",), ("b",), ("a",))
    assert math.isnan(found.kendall)
    assert "without a bound: a" in str(found)
    assert str(Order.of(frame.assign(bound=math.nan), "role")) == "no order: nothing has a certified bound"


def test_roles_are_ranked_only_where_every_block_is_certified(report: BoundsReport) -> None:
    table = report.by_role.set_index("role")
    assert table["kind"]["mha"] == "none"
    assert math.isnan(table["bound"]["mha"])
    assert pd.isna(table["rank_bound"]["mha"])
    assert sorted(table["rank_bound"].dropna()) == [1, 2, 3, 4]
    assert report.order.left_out == ("mha",)
    assert report.order_of_components.left_out == ("block00.mha", "block01.mha")
    fc1 = report.frame[report.frame["role"] == "fc1"]
    assert table["bound"]["fc1"] == pytest.approx(fc1["bound"].mean())
    assert table["max"]["fc1"] == fc1["max"].max()
    assert (table["slack_min"]["fc1"], table["slack_max"]["fc1"]) == (fc1["slack"].min(), fc1["slack"].max())
    assert report.measurement.frame["plasticity"].tolist() == report.frame["mean"].tolist()


def test_a_role_that_is_certified_in_some_blocks_says_in_how_many(report: BoundsReport) -> None:
    frame = report.frame.copy()
    frame.loc[(frame["role"] == "fc2") & (frame["block"] == 1), ["kind", "bound"]] = ["none", math.nan]
    table = role_table(frame, report.measurement.by_role).set_index("role")
    assert table["kind"]["fc2"] == "certified in 1 of 2"
    assert math.isnan(table["bound"]["fc2"])


def test_json_holds_everything(report: BoundsReport, tmp_path: Path) -> None:
    written = json.loads(report.save(tmp_path / "deep" / "bounds.json").read_text())
    assert written == json.loads(report.to_json())
    by_name = {row["component"]: row for row in written["components"]}
    assert by_name["block00.mha"]["bound"] is None
    assert by_name["block00.mha"]["reason"] == "queries and keys are normalised"
    assert by_name["block01.fc2"]["bound"] == pytest.approx(report.frame.set_index("component")["bound"]["block01.fc2"])
    assert written["order"]["left_out"] == ["mha"]
    assert len(written["sets"]["block00.mha"]["centre"]) == 32
    assert written["sets"]["block00.ln1"].keys() == {"count", "per_item", "s_min"}
    assert written["local"][0]["head"] is None
    assert written["provenance"]["convention"] == "insitu"


def test_csv_holds_the_table_and_other_endings_are_refused(report: BoundsReport, tmp_path: Path) -> None:
    read = pd.read_csv(report.save(tmp_path / "bounds.csv"))
    assert read["bound"].tolist() == pytest.approx(report.frame["bound"].tolist(), nan_ok=True)
    with pytest.raises(ConfigError, match=r"bounds\.xlsx: expected a name that ends in \.json or \.csv"):
        report.save(tmp_path / "bounds.xlsx")


def test_public_names() -> None:
    assert pliant.bounds is bounds
    assert pliant.BoundsReport is BoundsReport


def certified(found: BoundsReport) -> None:
    assert set(found.frame["kind"]) == {"certified"}
    assert (found.frame["max"] <= found.frame["bound"] * (1 + TOLERANCE)).all()


@pytest.mark.parametrize("convention", ["insitu", "shared"])
@pytest.mark.parametrize("pairs", ["all", "matched"])
def test_bundled_model_is_certified_throughout(convention: str, pairs: str) -> None:
    certified(bounds("bundled", "fashion-sample", "digits", items=12, convention=convention, pairs=pairs))


@pytest.mark.parametrize("convention", ["insitu", "shared"])
def test_dinov2_is_certified_throughout(convention: str) -> None:
    folder = os.environ.get("PLIANT_DINOV2")
    if not folder:
        pytest.skip("PLIANT_DINOV2 names no folder of DINOv2-small")
    found = bounds(folder, "fashion-sample", "digits", items=2, convention=convention)
    certified(found)
    assert len(found.frame) == 60


def test_command_prints_tables_and_the_order(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["bounds", "--blocks", "--local", "1", *QUICK]) == 0
    shown = capsys.readouterr().out
    for part in ("Bounds by component", "The published bound of attention", "Bounds by role", "diagnostic, no bound"):
        assert part in shown
    assert "Order by bound mha > " in shown
    assert "they differ" in shown or "they agree" in shown


def test_command_json_is_data_alone_on_stdout(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    out = tmp_path / "b.json"
    assert run(["bounds", "--json", "--convention", "shared", "--out", str(out), *QUICK]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found == json.loads(out.read_text())
    assert {row["kind"] for row in found["components"]} == {"certified"}
    assert {row["kind"] for row in found["paper"]} == {"paper"}


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["--data", "digtis"], 1, "Did you mean 'digits'"),
        (["--pairs", "matched"], 1, "need both source and target"),
        (["--local", "-1"], 2, "--local"),
        (["--local", "9", "--items", "8"], 1, "expected a number of items from 0 to 8"),
        (["--out", "bounds.txt", *QUICK], 1, "expected a name that ends in .json or .csv"),
    ],
)
def test_mistakes_give_one_message(
    arguments: list[str], code: int, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["bounds", *arguments]) == code
    assert message in capsys.readouterr().err


def test_help_has_an_example(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["bounds", "--help"]) == 0
    assert "Example: pliant bounds" in capsys.readouterr().out
