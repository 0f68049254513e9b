"""A measurement comes back from a file as it was, in every format."""

import json
from pathlib import Path

import pandas as pd
import pytest

from families import sample
from pliant.errors import ConfigError, DataError
from pliant.measuring import Measurement, measure, read_measurement
from pliant.measuring.measurement import COLUMNS, HEAD_COLUMNS

FORMATS = (".parquet", ".csv", ".json")


@pytest.fixture(scope="module")
def measurement() -> Measurement:
    """Two items make one pair: standard errors are NaN."""
    chosen = sample("timm VisionTransformer")
    return measure(chosen.model(), chosen.inputs(2), per_head=True)


@pytest.mark.parametrize("ending", FORMATS)
def test_round_trip(measurement: Measurement, ending: str, tmp_path: Path) -> None:
    path = measurement.save(tmp_path / "deep" / f"m{ending}")
    found = read_measurement(path)
    assert tuple(found.frame.columns) == COLUMNS
    assert found.provenance == measurement.provenance
    pd.testing.assert_frame_equal(found.frame, measurement.frame, check_exact=True, check_dtype=False)
    pd.testing.assert_frame_equal(found.by_role, measurement.by_role, check_exact=True, check_dtype=False)
    assert found.heads is not None
    assert tuple(found.heads.columns) == HEAD_COLUMNS
    pd.testing.assert_frame_equal(found.heads, measurement.heads, check_exact=True, check_dtype=False)
    assert found.frame["stderr"].isna().all()
    again = read_measurement(found.save(tmp_path / f"again{ending}"))
    pd.testing.assert_frame_equal(again.frame, found.frame, check_exact=True)


def test_without_heads_there_are_none(tmp_path: Path) -> None:
    chosen = sample("timm VisionTransformer")
    plain = measure(chosen.model(), chosen.inputs(3), roles=("ln1",))
    for ending in FORMATS:
        assert read_measurement(plain.save(tmp_path / f"m{ending}")).heads is None


def test_the_table_alone_is_an_ordinary_file(measurement: Measurement, tmp_path: Path) -> None:
    parquet, csv = (measurement.save(tmp_path / f"m{ending}") for ending in (".parquet", ".csv"))
    for frame in (pd.read_parquet(parquet), pd.read_csv(csv)):
        assert list(frame["component"]) == list(measurement.frame["component"])
    about = json.loads((tmp_path / "m.provenance.json").read_text())
    assert about["provenance"]["convention"] == "insitu"


def test_json_is_strict(measurement: Measurement) -> None:
    def refuse(name: str) -> None:
        raise AssertionError(name)

    found = json.loads(measurement.to_json(), parse_constant=refuse)
    assert found["components"][0]["stderr"] is None
    assert list(found) == ["provenance", "by_role", "heads", "components"]


def test_other_endings_and_files_are_refused(measurement: Measurement, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"m\.xlsx: expected a name that ends in \.parquet, \.csv or \.json"):
        measurement.save(tmp_path / "m.xlsx")
    assert list(tmp_path.iterdir()) == []
    for name, content in (("a.json", "{}"), ("b.json", "no json"), ("c.parquet", "no parquet"), ("d.csv", "x\n1\n")):
        (tmp_path / name).write_text(content)
        with pytest.raises(DataError, match=f"{name} is no measurement written by pliant"):
            read_measurement(tmp_path / name)
    pd.DataFrame({"x": [1]}).to_parquet(tmp_path / "e.parquet")
    with pytest.raises(DataError, match=r"e\.parquet is no measurement"):
        read_measurement(tmp_path / "e.parquet")
    with pytest.raises(DataError, match=r"nowhere\.json is no measurement"):
        read_measurement(tmp_path / "nowhere.json")
