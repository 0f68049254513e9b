import math

import pandas as pd
import pytest

from pliant.reporting.tables import Column, columns, table, write


def made(**values: object):
    frame = pd.DataFrame(
        {"name": ["mha", "fc1"], "share": [0.5, None], "p": [0.00001, 0.03], "unused": [None, None], **values}
    )
    shown = columns(name=("trained", "text"), share=("test", "percent"), p=("p", "p"), unused=("unused", "number"))
    return table("results", "Results", frame, shown, note="Made up: 50% & more.")


def test_rows_as_text_and_empty_columns_left_out():
    assert [c.name for c in made().columns] == ["name", "share", "p"]
    assert made().rows == [["mha", "50.0 %", "< 0.0001"], ["fc1", "–", "0.030"]]


def test_markdown():
    assert made(name=["a|b", "<script>*x*"]).markdown().splitlines() == [
        "**Results**",
        "",
        "| trained | test | p |",
        "|---|---:|---:|",
        "| a\\|b | 50.0 % | &lt; 0.0001 |",
        "| &lt;script&gt;\\*x\\* | – | 0.030 |",
        "",
        "Made up: 50% &amp; more.",
    ]


def test_latex_escapes_what_latex_would_read():
    text = made(name=["a_b & c", "\\input{x}"]).latex()
    assert r"a\_b \& c & 50.0 \% & \textless{} 0.0001 \\" in text
    assert r"\textbackslash{}input\{x\} & -- & 0.030 \\" in text
    assert r"\caption{Results. Made up: 50\% \& more.}" in text
    assert r"\begin{tabular}{lrr}" in text
    assert text.count("{") == text.count("}")


def test_files(tmp_path):
    written = made().save(tmp_path / "report")
    assert [p.name for p in written] == ["results.md", "results.tex", "results.csv"]
    assert pd.read_csv(written[2])["share"].tolist()[0] == 0.5


@pytest.mark.parametrize(
    ("value", "kind", "text"),
    [
        (math.nan, "percent", "–"),
        (pd.NA, "count", "–"),
        (None, "text", "–"),
        (0.0, "number", "0"),
        (1.23456, "number", "1.235"),
        (0.00005, "p", "< 0.0001"),
        (1.0, "p", "1.000"),
        (3e-4, "rate", "0.0003"),
        (False, "yes", "no"),
        (0.00123, "points", "0.12"),
    ],
)
def test_values(value, kind, text):
    assert write(value, kind) == text


def test_columns_are_written_as_pairs():
    assert columns(a=("A, s", "number")) == (Column("a", "A, s", "number"),)
