import pytest

from pliant.advising.budget import CANDIDATES, Budget, Candidate, candidate, within
from pliant.components import find_components
from pliant.errors import ConfigError
from pliant.terms import parse_components


@pytest.mark.parametrize(
    ("text", "total", "limit"),
    [
        ("10%", 1000, 100),
        ("0.5%", 1000, 5),
        ("100%", 7, 7),
        ("2M", 5, 2_000_000),
        ("1.5k", 5, 1500),
        ("38_400", 1, 38400),
    ],
)
def test_budgets_are_shares_or_counts(text: str, total: int, limit: int):
    assert Budget.parse(text).limit(total) == limit


@pytest.mark.parametrize("text", ["", "ten", "0", "0%", "101%", "-5%", "5 %%", "1e6", "M"])
def test_other_budgets_are_refused(text: str):
    with pytest.raises(ConfigError, match="expected a share of the parameters such as 10%"):
        Budget.parse(text)


def test_a_budget_leaves_what_fits():
    sets = tuple(Candidate(name, parse_components(name), n) for name, n in (("mha", 50), ("ln1", 3), ("full", 100)))
    assert [c.components for c in within(sets, Budget.parse("50%"), total=100)] == ["mha", "ln1"]
    assert within(sets, None, total=100) == sets
    with pytest.raises(ConfigError, match="leaves no component set; the smallest, ln1, trains 3"):
        within(sets, Budget.parse("2"), total=100)


def test_candidates_count_final_norm_and_classifier(tiny_vit):
    anatomy = find_components(tiny_vit)
    sizes = {name: p.numel() for name, p in tiny_vit.named_parameters()}
    always = sum(n for name, n in sizes.items() if name.startswith(("vit.layernorm.", "classifier.")))
    for name in CANDIDATES:
        found = candidate(anatomy, parse_components(name))
        if name == "full":
            assert found.parameters == sum(sizes.values())
        else:
            assert found.parameters == always + anatomy.count(found.roles)
            assert anatomy.count(found.roles) > 0
