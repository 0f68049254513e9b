"""Two measurements side by side."""

import json
import math
from pathlib import Path

import pytest
import torch

from families import sample
from pliant.errors import ConfigError
from pliant.measuring import Measurement, compare, measure

CHOSEN = sample("timm VisionTransformer")


def measured(*, doubled: bool = False, seed: int = 1, **arguments: object) -> Measurement:
    model = CHOSEN.model()
    if doubled:
        with torch.no_grad():
            model.blocks[0].mlp.fc2.weight.mul_(2)
    return measure(model, CHOSEN.inputs(8, seed), **arguments)  # type: ignore[arg-type]


def test_before_and_after_a_change() -> None:
    before, after = measured(), measured(doubled=True)
    found = compare(before, after)
    rows = found.frame.set_index("component")
    assert list(rows.index) == list(before.frame["component"])
    changed = rows.loc["block00.fc2"]
    assert changed.ratio == pytest.approx(2, rel=1e-5)
    assert changed.difference == pytest.approx(changed.plasticity_a, rel=1e-5)
    assert changed.stderr == pytest.approx(math.hypot(changed.stderr_a, changed.stderr_b))
    assert rows.loc["block00.mha"].difference == 0
    role = found.by_role.set_index("role").loc["fc2"]
    assert role.difference == pytest.approx(role.plasticity_b - role.plasticity_a)
    assert found.notes == ()


def test_models_of_different_depth() -> None:
    shallow = measured()
    deep = Measurement(
        shallow.frame.assign(
            component=[c.replace("block00", "block02") for c in shallow.frame["component"]],
            block=[2 if b == 0 else b for b in shallow.frame["block"]],
        ),
        shallow.by_role,
        shallow.provenance,
    )
    found = compare(shallow, deep).frame.set_index("component")
    assert len(found) == 15
    assert math.isnan(found.loc["block00.mha"].plasticity_b)
    assert math.isnan(found.loc["block02.mha"].difference)
    assert found.loc["block01.mha"].difference == 0


def test_files_are_compared_and_what_differs_is_said(tmp_path: Path) -> None:
    a = measured(pairs="all").save(tmp_path / "a.parquet")
    b = measured(seed=2, precision="bfloat16").save(tmp_path / "b.json")
    found = compare(a, b)
    assert found.notes == ("dtype differs: 'float32' and 'bfloat16'", "both were measured on the same weights")
    plain = json.loads(found.to_json())
    assert plain["provenance"]["a"]["dtype"] == "float32"
    assert len(plain["components"]) == 10


def test_conventions_are_never_mixed() -> None:
    with pytest.raises(ConfigError, match=r"one measurement is insitu, the other shared; .* cannot be compared"):
        compare(measured(), measured(convention="shared"))
