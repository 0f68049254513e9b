import json
import math

import numpy as np
import pandas as pd
import pytest
from PIL import Image

from pliant.errors import ConfigError, UnknownNameError
from pliant.reporting import charts
from pliant.reporting.figure import Figure, thinned
from pliant.reporting.palette import BAR, DARK, LIGHT, STYLES, in_order, style_of
from pliant.stats import critical_difference
from pliant.terms import BLOCK_ROLES, ROLES
from reporting import synthetic

ORDER = ["full", "mha", "fc1", "ln1"]


def components() -> pd.DataFrame:
    return synthetic.measurement().frame.assign(model="bundled")


def chosen() -> pd.DataFrame:
    rows = [
        {
            "panel": d,
            "variant": v,
            "mean": m,
            "low": m - 0.01,
            "high": m + 0.01,
            "interval": "± std over 3 seeds",
            "n": 3,
        }
        for d, shift in (("pet", 0.0), ("snow", -0.1))
        for v, m in (("ln1", 0.8 + shift), ("mha", 0.9 + shift), ("full", 0.91 + shift))
    ]
    return pd.DataFrame(rows)


def bounds() -> pd.DataFrame:
    frame = components().assign(kind="certified", mean=lambda d: d["plasticity"], bound=lambda d: 5 * d["max"])
    paper = frame[frame["role"] == "mha"].assign(kind="paper", bound=lambda d: 10 * d["bound"])
    none = frame[frame["role"] == "ln2"].assign(kind="none", bound=math.nan, reason="q/k norm")
    return pd.concat([frame[frame["role"] != "ln2"], paper, none], ignore_index=True)


def curves() -> pd.DataFrame:
    rows = [
        {
            "panel": "digits",
            "variant": v,
            "seed": s,
            "step": step,
            "quantity": q,
            "value": start * math.exp(-step * rate),
        }
        for v, rate in (("mha", 0.02), ("ln1", 0.01))
        for s, start in ((0, 2.0), (1, 2.2))
        for step in range(1, 401)
        for q in ("gradient_norm", "train_loss")
    ]
    return pd.DataFrame(rows)


def layers() -> pd.DataFrame:
    frame = components().assign(data="digits", accuracy=lambda d: 0.5 + 0.05 * d["block"])
    return frame.assign(ci_low=frame["accuracy"] - 0.02, ci_high=frame["accuracy"] + 0.02)


def trials() -> pd.DataFrame:
    rows = [
        {"components": v, "learning_rate": r, "validation_accuracy": a, "stderr": 0.01, "parameters": p}
        for v, p, accuracies in (("mha", 100, (0.80, 0.85)), ("full", 600, (0.83, 0.86)), ("ln1", 2, (0.6, None)))
        for r, a in zip((0.03, 0.1), accuracies, strict=True)
    ]
    return pd.DataFrame(rows)


def scores() -> pd.DataFrame:
    noise = np.random.default_rng(0)
    level = np.array([0.9, 0.88, 0.8, 0.78]) + noise.normal(0, 0.01, (6, 4))
    return pd.DataFrame(level, index=[f"set{i}" for i in range(6)], columns=["mha", "fc1", "ln2", "ln1"])


def robust() -> pd.DataFrame:
    noise = np.random.default_rng(0)
    rows = [
        {
            "panel": "digits",
            "variant": v,
            "optimizer": o,
            "learning_rate": r,
            "seed": s,
            "value": 0.8 + noise.normal(0, 0.02),
        }
        for v in ("mha", "ln1")
        for o in ("sgd", "adamw")
        for r in (0.01, 0.1)
        for s in range(3)
    ]
    return pd.DataFrame(rows)


def costs() -> pd.DataFrame:
    return pd.DataFrame(
        {"variant": ["full", "mha", "fc1", "ln1"], "mean": [0.9, 0.92, 0.88, 0.8], "parameters": [600, 100, 100, 2],
         "memory": [800.0, 500.0, 500.0, None], "seconds": [20.0, 10.0, 10.0, 9.0]}
    )  # fmt: skip


def accuracy() -> pd.DataFrame:
    return charts.accuracy_by_set(chosen(), ORDER)


def ranks() -> Figure:
    test = critical_difference(scores())
    return charts.draw_ranks(charts.rank_diagram(test), test)


PROBES = {"pet": (0.78, 0.76, 0.80), "snow": (0.3, 0.28, 0.32)}

FIGURES = {
    "plasticity-by-role": lambda: charts.draw_plasticity_by_role(charts.plasticity_by_role(components())),
    "plasticity-by-depth": lambda: charts.draw_plasticity_by_depth(charts.plasticity_by_depth(components())),
    "bounds": lambda: charts.draw_bounds(charts.bounds_beside_measured(bounds())),
    "probe-by-depth": lambda: charts.draw_probe_by_depth(charts.probe_by_depth(layers())),
    "accuracy": lambda: charts.draw_accuracy(accuracy(), PROBES),
    "gain": lambda: charts.draw_gain(charts.gain_by_set(accuracy(), PROBES)),
    "robustness": lambda: charts.draw_robustness(charts.robustness_boxes(robust(), ORDER), {("digits", "sgd"): 0.85}),
    "cost": lambda: charts.draw_cost(charts.accuracy_and_cost(costs()), over="digits"),
    "criterion": lambda: charts.draw_criterion(
        charts.criterion_and_outcome(scores(), synthetic.PLASTICITY), name="plasticity: insitu"
    ),
    "training": lambda: charts.draw_training(charts.training_curves(curves(), ORDER)),
    "race": lambda: charts.draw_race(charts.race_trials(trials(), chosen="mha", tied=["full", "mha"])),
    "ranks": ranks,
}


def marks(spec: object, kind: str) -> list[dict]:
    """Every layer of a specification that draws this kind of mark."""
    if isinstance(spec, list):
        return [found for part in spec for found in marks(part, kind)]
    if not isinstance(spec, dict):
        return []
    mark = spec.get("mark")
    here = [spec] if (mark.get("type") if isinstance(mark, dict) else mark) == kind else []
    return here + [found for key in ("layer", "concat", "hconcat", "vconcat") for found in marks(spec.get(key), kind)]


@pytest.mark.parametrize("name", FIGURES)
def test_every_figure_is_labelled_finite_and_coloured_by_role(name):
    """Also: a bar that starts at its axis' end starts at zero; boxes have two ends of their own, on a shared scale."""
    figure = FIGURES[name]()
    assert figure.name == name
    assert figure.title
    assert figure.reading.endswith(".")
    assert len(figure.specs()) == len(figure.panels) > 0
    figure.chart().to_dict(validate=True)
    for spec in figure.specs():
        text = json.dumps(spec, allow_nan=False)
        assert spec["width"] == "container"
        assert '"title": "' in text, "an axis has no title"
        for variant in (*ROLES, "full"):
            if f'"domain": ["{variant}"' in text:
                assert STYLES[variant].colour in text
        for bar in marks(spec, "bar"):
            assert "x2" in bar["encoding"] or bar["encoding"]["x"]["scale"]["zero"] is True


def test_one_figure_in_every_format(tmp_path):
    figure = FIGURES["accuracy"]()
    written = {p.suffix: p for p in figure.save(tmp_path, ["svg", "png", "pdf"])}
    assert written[".svg"].read_text().startswith("<svg")
    assert "Accuracy by component set" in written[".svg"].read_text()
    with Image.open(written[".png"]) as picture:
        assert picture.width > 1000
    assert written[".pdf"].read_bytes().startswith(b"%PDF-")
    assert not list(tmp_path.glob("*.tmp"))
    with pytest.raises(UnknownNameError, match=r"unknown format of charts 'gif'.*svg"):
        figure.save(tmp_path, ["gif"])


def test_boxes_hold_the_quartiles():
    data = charts.plasticity_by_role(components())
    mha = data[data["role"] == "mha"]
    assert mha["median"].nunique() == 1
    assert mha["median"].iloc[0] == pytest.approx(np.median(mha["plasticity"]))
    assert mha["q25"].iloc[0] == pytest.approx(np.quantile(mha["plasticity"], 0.25))
    robustness = charts.robustness_boxes(robust(), ["ln1", "mha"])
    assert robustness["variant"].iloc[0] == "ln1"
    one = robustness[(robustness["variant"] == "mha") & (robustness["optimizer"] == "sgd")]
    assert (one["n"].iloc[0], len(one)) == (6, 6)
    assert one["high"].iloc[0] == pytest.approx(one["value"].max())


def test_intervals_without_a_number_are_missing():
    frame = components().assign(ci_high=math.inf)
    data = charts.plasticity_by_depth(frame)
    assert data["ci_high"].isna().all()
    json.dumps(charts.draw_plasticity_by_depth(data).specs(), allow_nan=False)


def test_bounds_data_has_four_kinds_and_no_row_without_a_number():
    data = charts.bounds_beside_measured(bounds())
    assert set(data["what"]) == {"certified bound", "paper's bound", "largest measured", "mean measured"}
    assert "ln2" not in set(data.loc[data["what"] == "certified bound", "role"])
    assert set(data.loc[data["what"] == "paper's bound", "role"]) == {"mha"}
    assert data["value"].gt(0).all()


def test_accuracy_keeps_the_given_order_and_leaves_out_what_has_none():
    lost = chosen().assign(mean=lambda d: d["mean"].where(d["variant"] != "ln1"))
    assert charts.accuracy_by_set(lost, ORDER)["variant"].drop_duplicates().tolist() == ["full", "mha"]
    with pytest.raises(ConfigError, match="accuracy by component set needs at least one row"):
        charts.accuracy_by_set(chosen().assign(mean=math.nan), ORDER)
    with pytest.raises(ConfigError, match="missing: interval"):
        charts.accuracy_by_set(chosen().drop(columns="interval"), ORDER)


def test_gain_is_relative_to_the_probe():
    data = charts.gain_by_set(accuracy(), {"pet": (0.75, 0.7, 0.8)})
    assert set(data["panel"]) == {"pet"}
    mha = data[data["variant"] == "mha"].iloc[0]
    assert (mha["gain"], mha["low"]) == pytest.approx((0.2, 0.89 / 0.75 - 1))


def test_a_far_probe_is_a_word_and_a_near_one_a_line():
    specs = charts.draw_accuracy(accuracy(), PROBES).specs()
    assert marks(specs[0], "text") == []
    assert "← linear probe 30.0%" in json.dumps(specs[1], ensure_ascii=False)


def test_pareto_front():
    data = charts.accuracy_and_cost(costs())
    front = {cost: set(part.loc[part["pareto"], "variant"]) for cost, part in data.groupby("cost")}
    assert front == {"parameters": {"mha", "ln1"}, "memory": {"mha"}, "seconds": {"mha", "ln1"}}


def test_curves_are_means_over_seeds_in_equal_stretches():
    data = charts.training_curves(curves(), ["ln1", "mha"])
    mha = data[(data["variant"] == "mha") & (data["quantity"] == "train_loss")]
    assert data["variant"].iloc[0] == "ln1"
    assert mha["step"].tolist()[:2] == [10, 20]
    assert len(mha) == 40
    first = np.exp(-0.02 * np.arange(1, 11)).mean()
    assert mha["value"].iloc[0] == pytest.approx(2.1 * first)
    assert (mha["low"].iloc[0], mha["high"].iloc[0]) == pytest.approx((2.0 * first, 2.2 * first))


def test_steps_to_a_common_loss():
    data = charts.steps_to_loss(charts.training_curves(curves(), ORDER), share=0.4)
    steps = dict(zip(data["variant"], data["steps"], strict=True))
    assert data["level"].nunique() == 1
    assert steps["ln1"] / steps["mha"] == pytest.approx(2.0, rel=0.05)
    slow = curves()[lambda d: (d["variant"] == "mha") | (d["step"] < 100)]
    found = charts.steps_to_loss(charts.training_curves(slow, ORDER), share=0.9)
    assert found.set_index("variant")["steps"].isna().to_dict() == {"mha": False, "ln1": True}


def test_curves_leave_out_what_a_log_scale_cannot_show():
    bad = curves()
    bad.loc[bad["step"] == 3, "value"] = math.nan
    bad.loc[bad["step"] == 4, "value"] = math.inf
    data = charts.training_curves(bad, ORDER)
    assert np.isfinite(data["value"]).all()
    with pytest.raises(ConfigError, match="curves over steps needs at least one row"):
        charts.training_curves(bad.assign(value=math.nan), ORDER)


def test_race_marks_winner_ties_and_leaves_out_diverged_trials():
    data = charts.race_trials(trials(), chosen="mha", tied=["full", "mha"])
    assert len(data) == 5
    outcome = data[data["outcome"] != ""].set_index("variant")["outcome"].to_dict()
    assert outcome == {"mha": "chosen", "full": "tie", "ln1": "best of its set"}


def test_rank_diagram_of_the_published_table():
    path = synthetic.Path(__file__).parents[1] / "reference" / "paper_table.csv"
    table = pd.read_csv(path, comment="#").set_index("dataset")[["mha", "fc1", "fc2", "ln2", "ln1"]]
    data = charts.rank_diagram(critical_difference(table))
    assert data[data["kind"] == "component"]["label"].tolist() == ["fc1", "mha", "ln2", "fc2", "ln1"]
    groups = data[data["kind"] == "Wilcoxon-Holm"]["label"].tolist()
    assert groups == ["fc1, mha, ln2, fc2", "ln2, fc2, ln1"]
    assert data[data["kind"] == "Nemenyi"]["high"].iloc[0] == pytest.approx(1 + 1.839, abs=1e-3)


def test_many_points_are_thinned_and_many_panels_named():
    frame = pd.DataFrame({"x": range(10_000)})
    assert (len(thinned(frame)), thinned(frame)["x"].iloc[0], thinned(frame)["x"].iloc[-1]) == (400, 0, 9999)
    wide = pd.concat([chosen()[chosen()["panel"] == "pet"].assign(panel=f"set{i}") for i in range(20)])
    figure = charts.draw_accuracy(charts.accuracy_by_set(wide, ORDER), {})
    assert len(figure.panels) == 12
    assert figure.note.startswith("8 more panels are left out (set12")


class TestPalette:
    def test_every_role_and_method_has_a_style(self):
        assert set(ROLES) <= set(STYLES)
        for variant in ("full", "bitfit", "norms", "lora-r4-q", "mha+fc1", "head"):
            assert style_of(variant).colour.startswith("#")
        assert BAR.startswith("M")

    def test_colours_show_on_both_backgrounds(self):
        for role in (*BLOCK_ROLES, "full", "emb"):
            for ink, least in ((LIGHT, 2.1), (DARK, 3.0)):
                assert contrast(STYLES[role].colour, ink.background) > least, (role, ink)
        for ink in (LIGHT, DARK):
            assert contrast(ink.text, ink.background) > 10
            assert contrast(ink.faint, ink.background) > 4.5

    @pytest.mark.parametrize("deficiency", ["none", "deutan", "protan", "tritan"])
    def test_roles_are_told_apart(self, deficiency):
        """Distance in CIELAB between any two block roles as seen with a colour deficiency (Machado et al. 2009)."""
        seen = {role: lab(seen_by(STYLES[role].colour, deficiency)) for role in BLOCK_ROLES}
        closest = min(np.linalg.norm(seen[a] - seen[b]) for a in BLOCK_ROLES for b in BLOCK_ROLES if a < b)
        assert closest > 11

    def test_roles_of_like_colours_differ_in_shape(self):
        assert len({STYLES[r].shape for r in BLOCK_ROLES}) == len(BLOCK_ROLES)

    def test_order(self):
        assert in_order(["ln1", "mha", "full", "emb"]) == ["full", "emb", "ln1", "mha"]
        assert in_order(["mha+fc1", "ln1", "mha"], {"ln1": 2.0, "mha": 1.0}) == ["ln1", "mha", "mha+fc1"]


def linear(colour: str) -> np.ndarray:
    """Linear RGB of a hex colour."""
    share = np.array([int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)])
    return np.where(share <= 0.04045, share / 12.92, ((share + 0.055) / 1.055) ** 2.4)


def contrast(a: str, b: str) -> float:
    """Contrast ratio (WCAG 2)."""
    low, high = sorted(float(linear(c) @ [0.2126, 0.7152, 0.0722]) for c in (a, b))
    return (high + 0.05) / (low + 0.05)


MACHADO = {
    "none": np.eye(3),
    "protan": [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]],
    "deutan": [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]],
    "tritan": [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.303900]],
}


def seen_by(colour: str, deficiency: str) -> np.ndarray:
    return np.clip(np.asarray(MACHADO[deficiency]) @ linear(colour), 0, 1)


def lab(rgb: np.ndarray) -> np.ndarray:
    """CIELAB of linear RGB (D65)."""
    to_xyz = [[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]]
    share = np.asarray(to_xyz) @ rgb / [0.9505, 1.0, 1.089]
    f = np.where(share > 0.008856, np.cbrt(share), 7.787 * share + 16 / 116)
    return np.array([116 * f[1] - 16, 500 * (f[0] - f[1]), 200 * (f[1] - f[2])])
