import pytest

from pliant.advising.criteria import CRITERIA, Evidence, agreement, order
from pliant.terms import BLOCK_ROLES

EVIDENCE = Evidence(
    plasticity={"ln1": 1.0, "mha": 5.0, "ln2": 2.0, "fc1": 4.0, "fc2": 3.0},
    energy={"ln1": 0.1, "mha": 80.0, "ln2": 0.2, "fc1": 30.0, "fc2": 60.0, "emb": 7.0},
    parameters={"ln1": 10, "mha": 1000, "ln2": 10, "fc1": 1000, "fc2": 990, "head": 5},
)
OUTCOME = {"mha": 0.9, "fc2": 0.8, "fc1": 0.7, "ln2": 0.6, "ln1": 0.5}


@pytest.mark.parametrize("name", list(CRITERIA))
def test_every_criterion_scores_the_roles_of_a_block_and_no_others(name: str):
    scores = CRITERIA[name].scores(EVIDENCE)
    assert set(scores) == set(BLOCK_ROLES)
    assert CRITERIA[name].scores(EVIDENCE) == scores
    assert CRITERIA[name].about


def test_agreement_with_the_outcome():
    table = agreement(EVIDENCE, OUTCOME | {"full": 0.95}).set_index("criterion")
    assert table.loc["gradient energy", "order"] == "mha > fc2 > fc1 > ln2 > ln1"
    assert table.loc["gradient energy", "same"]
    assert table.loc["gradient energy", "spearman"] == pytest.approx(1.0)
    assert table.loc["gradient energy", "p"] == pytest.approx(2 / 120)  # of 120 orders, this one and its reverse
    assert table.loc["plasticity", "spearman"] == pytest.approx(0.9)  # one swap of neighbours: 1 - 6·2/(5·24)
    assert not table.loc["plasticity", "same"]
    assert (table["n"] == 5).all()
    assert set(table.index[table["control"]]) == {"parameters", "random"}


def test_too_few_roles_have_no_correlation():
    table = agreement(EVIDENCE, {"mha": 0.9, "fc1": 0.8})
    assert table["spearman"].isna().all()
    assert (table["n"] == 2).all()


def test_order_is_from_high_to_low():
    assert order({"a": 1.0, "b": 3.0, "c": 2.0}) == ("b", "c", "a")
