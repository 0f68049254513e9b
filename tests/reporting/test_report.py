import json
import re
import shutil
from dataclasses import replace

import pandas as pd
import pytest

from pliant.errors import DataError, UnknownNameError
from pliant.reporting import page as page_module
from pliant.reporting import report
from pliant.reporting.analysis import analyse, family_of, split
from pliant.reporting.charts import draw_plasticity_by_role, plasticity_by_role
from pliant.reporting.claims import claims
from pliant.reporting.findings import answer, asked, warnings
from pliant.reporting.material import read
from pliant.reporting.page import embedded
from pliant.reporting.report import sections
from pliant.reporting.run_sections import step_rows
from pliant.runs import record_table
from reporting import synthetic
from reporting.browser import Browser, chromium

EVIL = "<script>alert(1)</script>"


@pytest.fixture
def no_scripts(monkeypatch):
    """Vega's scripts take seconds to put together; only a browser needs them."""
    monkeypatch.setattr(page_module, "bundle", lambda: "")


@pytest.fixture(scope="module")
def sweep(tmp_path_factory):
    """The cells of the recipe `digits`, with probe, measurement and gradient norms."""
    folder = tmp_path_factory.mktemp("stores") / "digits-sweep"
    planned = synthetic.cells()
    synthetic.store(folder, planned, metrics=True)
    synthetic.probe(folder, planned[0])
    synthetic.measurement().save(folder / "measurement.parquet")
    return folder


def words(folder) -> str:
    """Everything that a report says, without writing it."""
    material = read(folder)
    series = analyse(material)
    said = [asked(material, series), answer(material, series), *warnings(material, series)]
    for section in sections(material, series):
        said += [section.title, section.lead, *section.absent, *(f.note for f in section.figures)]
        said += [cell for table in section.tables for row in table.rows for cell in row]
    text = "\n".join(said)
    assert not re.search(r"\b(nan|inf|NaN|None)\b|<NA>", text), text
    return text


class TestSweep:
    def test_answer_and_sections(self, sweep):
        material = read(sweep)
        (series,) = analyse(material)
        assert material.kind == "sweep"
        assert material.states == {"done": 84}
        assert series.order == ["full", "mha", "fc1", "fc2", "ln2", "ln1", "emb"]
        assert asked(material, [series]).endswith("84 runs over 4 learning rates each and 3 seeds.")
        said = answer(material, [series])
        assert re.match(r"On digits, full validates best; it gets 9\d\.\d% ± \d\.\d points \(std over 3 seeds\)", said)
        assert "the best single component, mha" in said
        assert said.endswith("the linear probe 70.0%.")
        titles = [s.title for s in sections(material, [series])]
        assert titles == [
            "Accuracy", "Tests over data sets", "Does plasticity order the outcome?", "Robustness", "Cost", "Training",
            "The paper's claims", "Plasticity", "All runs", "Provenance",
        ]  # fmt: skip
        figures = [f.name for s in sections(material, [series]) for f in s.figures]
        assert len(set(figures)) == len(figures) == 8

    def test_one_data_set_says_what_tests_need(self, sweep):
        text = words(sweep)
        assert "the Friedman test needs at least 2 data sets, got 1 (digits)" in text

    def test_claims(self, sweep):
        material = read(sweep)
        (series,) = analyse(material)
        found = {c.text[:2]: c for c in claims(series, step_rows(series, material))}
        assert found["1."].verdict == "holds"
        assert found["1."].evidence == (
            "measured (insitu convention, the paper's is shared) mha 1.30 > fc1 1.20 > fc2 1.10 > ln2 0.60 > ln1 0.50."
        )
        assert found["2a"].verdict == "holds"
        assert found["3a"].verdict == "holds"
        assert "n = 3" in found["4."].evidence
        bare = claims(series, step_rows(series, material).iloc[:0])
        assert {c.verdict for c in bare if c.text.startswith("3")} == {"cannot be told"}

    @pytest.mark.parametrize(
        ("norms", "rho", "p", "verdict"),
        [  # in order of plasticity: mha, fc1, fc2, ln2, ln1; of the 120 orders of five, so many are as far from 0
            ((5, 4, 3, 1, 2), "0.90", "0.083", "holds"),
            ((1, 2, 3, 4, 5), "-1.00", "0.017", "does not hold"),
            ((4, 5, 2, 3, 1), "0.80", "0.13, as by chance", "cannot be told"),
            ((3, 1, 2, 5, 4), "-0.60", "0.35, as by chance", "cannot be told"),
        ],
    )
    def test_five_roles_decide_nothing_unless_their_order_is_nearly_perfect(self, sweep, norms, rho, p, verdict):
        material = read(sweep)
        (series,) = analyse(material)
        curves = step_rows(series, material)
        given = dict(zip(("mha", "fc1", "fc2", "ln2", "ln1"), norms, strict=True))
        of_roles = (curves["quantity"] == "gradient_norm") & curves["variant"].isin(given)
        curves.loc[of_roles, "value"] = curves.loc[of_roles, "variant"].map(given).astype("float64")
        (found,) = [c for c in claims(series, curves) if c.text.startswith("3a")]
        assert found.verdict == verdict
        assert f"is {rho} over 5 roles (p {p})" in found.evidence

    def test_claims_are_about_the_papers_convention(self, sweep, tmp_path):
        folder = tmp_path / "copy"
        shutil.copytree(sweep, folder)
        shared = {"ln1": 3.0, "mha": 0.2, "ln2": 2.0, "fc1": 1.5, "fc2": 1.1}
        synthetic.measurement(convention="shared", plasticity=shared).save(folder / "measurement-shared.parquet")
        material = read(folder)
        (series,) = analyse(material)
        found = {c.text[:2]: c for c in claims(series, step_rows(series, material))}
        assert found["1."].verdict == "does not hold"
        assert found["1."].evidence == (
            "measured (shared convention) ln1 3.00 > ln2 2.00 > fc1 1.50 > fc2 1.10 > mha 0.20."
        )
        assert series.order == ["full", "ln1", "ln2", "fc1", "fc2", "mha", "emb"]
        found = [a.criterion for a in series.comparison.spearman]
        assert found[:2] == ["plasticity (shared)", "plasticity (insitu)"]

    def test_page_and_files(self, sweep, tmp_path, no_scripts):
        folder = tmp_path / "copy"
        shutil.copytree(sweep, folder)
        done = []
        page = report(folder, charts=["svg"], tables=True, progress=lambda *step: done.append(step))
        assert page == folder / "report.html"
        assert page.stat().st_size < 1_000_000
        names = {p.name for p in (folder / "report").iterdir()}
        assert {"accuracy.svg", "training.svg", "results.tex", "results.md", "results.csv", "claims.md"} <= names
        assert done[-1][0] == done[-1][1] == len(done)
        assert report(folder) == page, "a second report replaces the first"
        assert synthetic.Store(folder).problems() == ()

    def test_unknown_format_before_any_work(self, sweep):
        with pytest.raises(UnknownNameError, match="unknown format of charts 'jpg'"):
            report(sweep, charts=["jpg"])


class TestSeries:
    def test_several_data_sets_and_optimisers(self, tmp_path):
        data = ("cifar10", "cifar10-c-snow", "pet", "flowers102")
        sets = ("full", "mha", "fc1", "ln1")
        planned = synthetic.cells(data=data, variants=sets, seeds=(0, 42), rates=(0.03, 0.1))
        planned += synthetic.cells(data=data[:2], variants=("mha", "ln1"), seeds=(0,), rates=(1e-3,), optimizer="adamw")
        synthetic.store(tmp_path, planned)
        material = read(tmp_path)
        sgd, adamw = analyse(material)
        assert (sgd.label, adamw.label) == ("sgd", "adamw")
        assert sgd.comparison.n == 4
        assert sgd.comparison.families.n == 3
        assert "mean rank" in answer(material, [sgd, adamw])
        assert "on 3 families" in answer(material, [sgd, adamw])
        names = [f.name for s in sections(material, [sgd, adamw]) for f in s.figures]
        assert {"accuracy-sgd", "accuracy-adamw", "ranks-sgd", "ranks-families-sgd", "robustness"} <= set(names)
        (robust,) = [f for s in sections(material, [sgd, adamw]) for f in s.figures if f.name == "robustness"]
        assert robust.panels[0].title == "all data sets, sgd"
        assert [p.title for p in robust.panels].count("cifar10, adamw") == 1
        text = words(tmp_path)
        assert re.search(r"adamw: Only one learning rate was tried: cifar10(-c-snow)?/(mha|ln1)", text)
        assert "adamw: One seed only" in text

    def test_fields_that_tell_like_cells_apart_make_series(self):
        planned = synthetic.cells(variants=("mha",), seeds=(0,)) + synthetic.cells(
            variants=("mha",), seeds=(0,), steps=80
        )
        table = record_table([synthetic.record(c) for c in planned])
        assert [label for label, _, _ in split(table)] == ["steps 40", "steps 80"]

    def test_steps_that_follow_from_the_data_do_not(self):
        planned = synthetic.cells(variants=("mha",)) + synthetic.cells(data=("pet",), variants=("mha",), steps=80)
        assert len(list(split(record_table([synthetic.record(c) for c in planned])))) == 1

    def test_many_series_keep_their_tables(self, tmp_path):
        planned = []
        for decay in range(7):
            planned += synthetic.cells(variants=("mha", "ln1"), seeds=(0,), rates=(0.1,), weight_decay=decay / 100)
        synthetic.store(tmp_path, planned)
        parts = sections(read(tmp_path), analyse(read(tmp_path)))
        accuracy = [s for s in parts if s.title.startswith("Accuracy")]
        assert [s.title for s in accuracy] == [f"Accuracy (weight decay {d / 100})" for d in range(7)]
        assert [len(s.figures) for s in accuracy] == [1] * 6 + [0]
        assert all(len(s.tables) == 1 for s in accuracy)

    def test_families(self):
        assert family_of("cifar10-c-motion_blur:/data") == "cifar10"
        assert family_of("folder:/a/domainnet") == "folder:/a/domainnet"


class TestBadInput:
    def test_nothing_there(self, tmp_path):
        with pytest.raises(DataError, match="no such folder or file"):
            report(tmp_path / "absent")
        with pytest.raises(DataError, match="holds nothing to report: expected cells/"):
            report(tmp_path)
        (tmp_path / "notes.txt").write_text("x")
        with pytest.raises(DataError, match="is no measurement"):
            report(tmp_path / "notes.txt")

    def test_empty_store(self, tmp_path):
        synthetic.store(tmp_path, synthetic.cells(seeds=(0,)), records=False)
        text = words(tmp_path)
        assert "No cell has a result yet" in text
        assert "28 of 28 cells have not been run." in text
        assert "There is no answer yet" in text

    def test_partial_store_without_probe(self, tmp_path):
        planned = synthetic.cells(seeds=(0,), variants=("mha", "ln1", "fc1"))
        made = synthetic.store(tmp_path, planned, records=False)
        for cell in planned[:5]:
            synthetic.finish(made, synthetic.record(cell))
        synthetic.finish(made, synthetic.diverged(planned[5]))
        failed = made.claim(planned[6])
        with failed:
            failed.fail("RuntimeError: out of memory")
        text = words(tmp_path)
        assert "1 of 12 cells diverged" in text
        assert "cells have not been run" in text
        assert "One seed only, so how much seeds matter is unknown: digits/ln1, digits/mha." in text
        assert "95 % interval" in text
        assert "No linear probe of digits in this store" in text
        assert "No measurement of this model in the folder" in text

    def test_a_pruned_sweep(self, tmp_path):
        """What was given up belongs to the grid, and limits what can be said of spreads."""
        some = {"seeds": (0, 42), "variants": ("mha", "ln1")}
        planned = synthetic.cells(rates=(0.1, 0.3), **some)
        other = synthetic.cells(rates=(0.001, 0.01), optimizer="adamw", **some)
        synthetic.store(tmp_path, [*planned, *other])
        (tmp_path / "rungs").mkdir()
        path = tmp_path / "rungs" / "pruning.json"
        verdict = {"contestant": "x", "model": "bundled", "optimizer": "sgd", "data": "digits", "variant": "mha",
                   "learning_rate": 0.1, "share": 0.1, "accuracy": 0.5, "stderr": 0.01, "kept": True}  # fmt: skip
        given_up = [
            {**verdict, "variant": v, "learning_rate": r, "kept": False} for v in ("mha", "ln1") for r in (0.03, 1.0)
        ]
        path.write_text(json.dumps([verdict, *given_up]))
        material = read(tmp_path)
        by_label = {one.label: one for one in analyse(material)}
        series, adamw = by_label["sgd"], by_label["adamw"]
        assert [c.edge for c in series.choices.choices] == [None, None]
        assert [c.edge for c in adamw.choices.choices] == ["high", "high"], "another optimizer, another grid"
        assert (series.pruned, adamw.pruned) == (True, False)
        assert series.choices.choices[0].grid == (0.03, 0.1, 0.3, 1.0)
        assert "spreads over learning rates are those of the settings that were kept" in words(tmp_path)
        told = {c.text[:2]: c for c in claims(series, step_rows(series, material))}
        assert told["2b"].verdict == "cannot be told"
        # Once everything has been run after all, nothing is hidden.
        path.write_text(json.dumps([verdict, {**verdict, "kept": False}]))
        assert not any(series.pruned for series in analyse(read(tmp_path)))
        path.write_text("[{")
        assert "what the sweep gave up is not known" in words(tmp_path)

    @pytest.mark.parametrize(
        ("name", "text", "said"),
        [
            ("bounds.csv", "component,role,bound,max\nx,mha,y,1\n", "bounds.csv holds no bounds: bound are no numbers"),
            ("probe.csv", "hello\n1\n", "probe.csv holds no probe: it has no column layer"),
            ("probe-x.json", "[1, 2]", "probe-x.json holds no probe"),
            ("landscape.json", '{"surfaces": {"a": 1}}', "landscape.json is no landscape"),
            ("measurement.json", '{"components": [], "by_role": [], "provenance": null}', "is no measurement"),
            ("measurement.json", "[" * 100_000, "is no measurement"),
            ("rungs/pruning.json", '[{"variant": ["mha"]}]', "what the sweep gave up is not known"),
            ("rungs/pruning.json", "{}", "what the sweep gave up is not known"),
            ("probes/x.json", "{}", "probes/x.json is no linear probe that can be read"),
        ],
    )
    def test_files_of_other_things_are_named(self, tmp_path, name, text, said):
        synthetic.store(tmp_path, synthetic.cells(seeds=(0,), variants=("mha",)))
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
        told = words(tmp_path)
        assert said in told
        assert "Probe by depth" not in told

    def test_rates_that_are_none(self, tmp_path):
        synthetic.store(tmp_path, synthetic.cells(seeds=(0,), variants=("mha",)))
        for column, value in (("plasticity", float("nan")), ("plasticity", "x"), ("block", "x")):
            made = synthetic.measurement()
            replace(made, frame=made.frame.assign(**{column: value})).save(tmp_path / "measurement.parquet")
            assert "measurement.parquet is no measurement" in words(tmp_path)

    def test_all_diverged(self, tmp_path):
        planned = synthetic.cells(seeds=(0,), variants=("mha",))
        made = synthetic.store(tmp_path, planned, records=False)
        for cell in planned:
            synthetic.finish(made, synthetic.diverged(cell))
        text = words(tmp_path)
        assert "4 of 4 cells diverged" in text
        assert "digits/mha: none of its 4 cells has a validation accuracy (4 diverged)." in text

    def test_cells_that_did_not_read_the_test_images(self, tmp_path):
        synthetic.store(tmp_path, synthetic.cells(seeds=(0,), variants=("mha",), read_test=False))
        assert "There is no answer yet" in words(tmp_path)
        (figure,) = [f for s in sections(read(tmp_path), ()) for f in s.figures]
        assert figure.title == "Validation accuracy so far"
        assert figure.data["outcome"].tolist().count("tie") == 1
        synthetic.store(tmp_path, synthetic.cells(seeds=(1,), variants=("mha",), read_test=False))
        assert "The runs differ in more than component set and learning rate" in words(tmp_path)

    def test_damage_is_said_not_fatal(self, sweep, tmp_path):
        folder = tmp_path / "copy"
        shutil.copytree(sweep, folder)
        one, two = sorted((folder / "cells").iterdir())[:2]
        (one / "result.json").write_text("{")
        (two / "metrics.jsonl").write_text('{"step": 1}\nrubbish\n{"step": 2}\n')
        (folder / "measurement.parquet").write_bytes(b"PAR1")
        (folder / "bounds.csv").write_text("")
        (folder / "foreign").write_text("x")
        text = words(folder)
        assert "1 of 84 cells failed" in text
        assert "measurement.parquet is no measurement" in text
        assert "bounds.csv is no table" in text

    def test_missing_columns_of_tables_are_named(self, sweep, tmp_path):
        folder = tmp_path / "copy"
        shutil.copytree(sweep, folder)
        pd.DataFrame({"role": ["mha"], "block": [0], "bound": [2.0]}).to_parquet(folder / "bounds.parquet")
        assert "bounds.parquet holds no bounds: it has no column component, max." in words(folder)

    def test_different_versions_and_weights(self, tmp_path):
        planned = synthetic.cells(seeds=(0,), variants=("mha",), rates=(0.1, 0.3))
        made = synthetic.store(tmp_path, planned, records=False)
        for i, cell in enumerate(planned):
            about = {"versions": {"torch": f"2.{i}"}, "fingerprint": str(i) * 16}
            synthetic.finish(made, synthetic.record(cell, environment=about))
        text = words(tmp_path)
        assert "Cells differ in versions" in text
        assert "bundled: cells were trained from different weights under this name." in text


class TestOtherFolders:
    def test_tuning_run(self, tmp_path):
        text = words(synthetic.tuned(tmp_path))
        assert "On the images of digits: which components to train of bundled?" in text
        assert re.search(
            r"Training mha \(32\.6% of the parameters\) gets 9\d\.\d% of 500 test images right \(95 %", text
        )
        assert "linear probing, 70.0% (66.0% to 74.0%)" in text
        assert "Plasticity's order of roles (mha > fc1 > ln1) is not the race's" in text
        assert "at the edge of its grid" in text

    def test_measurements(self, tmp_path, no_scripts):
        synthetic.measurement().save(tmp_path / "measurement.parquet")
        page = report(tmp_path / "measurement.parquet")
        assert page == tmp_path / "measurement.report.html"
        assert "plasticity mha 1.3 &gt; fc1 1.2" in page.read_text()
        synthetic.measurement(target="pet").save(tmp_path / "measurement-pet.json")
        material = read(tmp_path)
        assert [label for label, _ in material.labelled] == [
            "bundled: fashion-sample against pet, insitu",
            "bundled: fashion-sample against digits, insitu",
        ]
        assert material.components["model"].nunique() == 2

    def test_bounds_and_probes_beside_a_measurement(self, tmp_path):
        frame = synthetic.measurement().frame.assign(kind="certified", reason=None, slack=3.0)
        frame = frame.assign(mean=frame["plasticity"], bound=9.0, layer=frame["component"], n=500, c=1.0)
        frame.loc[frame["role"] == "mha", ["kind", "bound", "reason"]] = ["none", None, "q/k norms are not covered."]
        frame.to_parquet(tmp_path / "bounds.parquet")
        frame.assign(accuracy=0.6, ci_low=0.55, ci_high=0.65).to_csv(tmp_path / "probe-layers.csv", index=False)
        text = words(tmp_path)
        assert "No bound: q/k norms are not covered." in text
        names = [f.name for s in sections(read(tmp_path), ()) for f in s.figures]
        assert names == ["bounds", "probe-by-depth"]


def test_thousands_of_cells(tmp_path, monkeypatch, no_scripts):
    """Pages aggregate: 1,232 runs of 11 data sets fit, although none is left out of the numbers."""
    names = [f"set{i}" for i in range(11)]
    planned = synthetic.cells(data=names, seeds=(0, 1, 2, 3))
    records = tuple(synthetic.record(c) for c in planned)
    (tmp_path / "cells").mkdir()
    monkeypatch.setattr("pliant.reporting.material._cells", lambda path, problems: (records, {"done": len(records)}))
    page = report(tmp_path)
    assert page.stat().st_size < 2_500_000
    text = page.read_text()
    assert "600 of 1232 rows are shown here" in text
    assert len(json.loads(re.search(r'id="specs">(.*?)</script>', text)[1])) < 100


class TestEscaping:
    def test_json_in_scripts(self):
        assert "<" not in embedded({"a": "</script><!--"})
        assert json.loads(embedded({"a": "</script>\u2028&"})) == {"a": "</script>\u2028&"}

    def test_names_of_everything(self, tmp_path, no_scripts):
        page = report(hostile(tmp_path))
        text = page.read_text()
        assert "<script>alert" not in text
        assert "&lt;script&gt;alert(1)&lt;/script&gt;" in text


def hostile(folder):
    """A store in which every name that a user gives is a script."""
    folder = folder / EVIL.replace("/", "∕")
    planned = synthetic.cells(
        data=(f"folder:{EVIL}", "folder:b"), variants=("mha", "fc1", "ln1"), seeds=(0,), rates=(0.1, 0.3), model=EVIL
    )
    made = synthetic.store(folder, planned, records=False)
    for cell in planned:
        synthetic.finish(made, synthetic.record(cell, notes=(EVIL,), environment={"device": EVIL}))
    synthetic.measurement(model=EVIL, target=EVIL).save(folder / f"measurement-{EVIL.replace('/', '∕')}.parquet")
    return folder


@pytest.fixture(scope="module")
def browser():
    with Browser() as browser:
        yield browser


@pytest.fixture(scope="module")
def page(sweep):
    return report(sweep)


@pytest.mark.skipif(chromium() is None, reason="needs Chromium (Debian packages chromium, chromium-driver)")
class TestBrowser:
    @pytest.mark.parametrize("dark", [False, True])
    @pytest.mark.parametrize("width", [400, 1400])
    def test_readable_without_complaints(self, browser, page, width, dark):
        seconds = browser.open(page, width=width, dark=dark)
        state = browser.run("({...document.documentElement.dataset})")
        assert state == {"theme": "dark" if dark else "light", "charts": "12", "drawn": "12", "errors": "[]"}
        assert browser.complaints == []
        assert seconds < 20
        assert browser.run("document.documentElement.scrollWidth") == width, "the page does not scroll sideways"
        drawn = browser.run(
            "[...document.querySelectorAll('.chart svg.marks')].map(s => s.getBoundingClientRect().width)"
        )
        assert len(drawn) == 12
        assert all(250 < w <= width for w in drawn)
        assert browser.run("parseFloat(getComputedStyle(document.body).fontSize)") >= 16
        background = browser.run("getComputedStyle(document.body).backgroundColor")
        assert background == ("rgb(21, 24, 30)" if dark else "rgb(255, 255, 255)")
        inked = browser.run("document.querySelector('.chart svg.marks text').getAttribute('fill')")
        assert inked == ("#a4adbb" if dark else "#5a6270")

    def test_tables_sort_by_number_then_back(self, browser, page):
        browser.open(page, width=1400)
        column = "[...document.querySelectorAll('#table-results tbody tr')].map(r => r.cells[2].textContent)"
        click = "document.querySelectorAll('#table-results th button')[2].click()"
        browser.run(click)
        rising = [int(t.replace(",", "")) for t in browser.run(column)]
        assert rising == sorted(synthetic.PARAMETERS.values())
        browser.run(click)
        assert [int(t.replace(",", "")) for t in browser.run(column)] == rising[::-1]
        assert (
            browser.run("document.querySelectorAll('#table-results th')[2].getAttribute('aria-sort')") == "descending"
        )

    def test_theme_can_be_changed(self, browser, page):
        browser.open(page, width=1400)
        browser.run("document.getElementById('theme').click()")
        assert browser.run("document.documentElement.dataset.theme") == "dark"
        browser.run(
            "new Promise(done => { const wait = () => document.documentElement.dataset.drawn === '12' ? done() : "
            "setTimeout(wait, 20); wait(); })"
        )
        assert browser.complaints == []

    def test_names_are_text(self, browser, tmp_path):
        browser.open(report(hostile(tmp_path)), width=1400)
        assert browser.complaints == []
        assert browser.run("document.querySelector('h1').textContent").startswith("<script>")
        assert browser.run("document.querySelectorAll('script:not([type])').length") == 2
        assert browser.run("document.documentElement.dataset.errors") == "[]"


@pytest.mark.skipif(chromium() is None, reason="needs Chromium (Debian packages chromium, chromium-driver)")
def test_one_chart_as_a_page_of_its_own(browser, tmp_path):
    figure = draw_plasticity_by_role(plasticity_by_role(synthetic.measurement(model=EVIL).frame.assign(model=EVIL)))
    (path,) = figure.save(tmp_path, ["html"])
    browser.open(path, width=800)
    assert browser.complaints == []
    assert browser.run("document.querySelectorAll('.chart svg.marks').length") == 1
    assert browser.run("document.querySelector('h4').textContent") == EVIL
    assert browser.run("document.querySelectorAll('nav').length") == 0


def test_the_published_table_gives_the_published_statistics(tmp_path):
    """Records with the paper's accuracies, through the whole path from a store to tables (arXiv 2602.06883)."""
    path = synthetic.Path(__file__).parents[1] / "reference" / "paper_table.csv"
    published = pd.read_csv(path, comment="#").set_index("dataset")
    sizes = {"mha": 28_348_416, "fc1": 28_348_416, "fc2": 28_320_768, "ln2": 18_432, "ln1": 18_432, "full": 85_798_656}
    planned = synthetic.cells(data=tuple(published.index), variants=tuple(sizes), seeds=(0,), rates=(0.01,))
    made = synthetic.store(tmp_path, planned, records=False)
    for cell in planned:
        correct = round(float(published.loc[cell.data, cell.variant]) * 100)
        test = synthetic.Score.from_counts(10_000, correct)
        found = synthetic.record(cell, test=test, trained_parameters=sizes[cell.variant])
        synthetic.finish(made, found)
    measured = synthetic.measurement()
    order = {"mha": 5.0, "fc1": 4.0, "fc2": 3.0, "ln2": 2.0, "ln1": 1.0}
    measured.by_role["plasticity"] = measured.by_role["role"].map(order)
    measured.save(tmp_path / "measurement.parquet")
    (series,) = analyse(read(tmp_path))
    assert series.comparison.friedman.n == 11
    means = dict(series.comparison.means)
    assert {v: round(100 * m, 2) for v, m in means.items()} == {
        "full": 90.85, "mha": 90.75, "fc1": 90.68, "fc2": 90.31, "ln2": 89.93, "ln1": 89.82,
    }  # fmt: skip
    spearman = {a.criterion: round(a.mean, 3) for a in series.comparison.spearman}
    assert spearman == {"plasticity (insitu)": 0.484, "number of parameters": 0.484, "random": 0.0}
    alone = series.alone
    assert alone.components == ("fc1", "fc2", "ln1", "ln2", "mha")
    assert round(alone.friedman.p, 4) == 0.0081
    assert round(alone.families.friedman.p, 3) == 0.245
    test, holm = alone.pairwise.of("mha", "ln1")
    assert (round(test.wilcoxon_p, 4), round(holm, 3)) == (0.0029, 0.029)
    assert round(alone.pairwise.of("mha", "fc1")[0].wilcoxon_p, 2) == 0.75
    shown = {t.name: t.rows for s in sections(read(tmp_path), [series]) for t in s.tables}
    assert any(row[:2] == ["ln1", "mha"] and "0.0029" in row and "0.029" in row for row in shown["pairs-alone"])
