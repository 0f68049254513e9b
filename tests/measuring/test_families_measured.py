"""Both conventions and every way to form pairs, on every family, against the slow float64 reference."""

import pytest
import torch

from families import SAMPLES, Sample
from measuring.slow_rates import Rates, slow_rates
from pliant.measuring import Measurement, measure
from pliant.terms import BLOCK_ROLES

SOURCE, TARGET = 3, 4


def agrees(found: Measurement, reference: Rates, pick: torch.Tensor) -> None:
    frame = found.frame.set_index(["role", "block"])
    assert set(frame.index) == set(reference)
    for key, rates in reference.items():
        chosen = rates[pick]
        row = frame.loc[key]
        assert row.n_pairs == len(chosen)
        assert row.plasticity == pytest.approx(chosen.mean().item(), rel=1e-5), key
        assert row["max"] == pytest.approx(chosen.max().item(), rel=1e-5), key


@pytest.mark.parametrize("convention", ["insitu", "shared"])
@pytest.mark.parametrize("sample", SAMPLES, ids=lambda s: s.id)
def test_agrees_with_the_slow_reference(sample: Sample, convention: str) -> None:
    model, items = sample.model(), sample.inputs(SOURCE + TARGET)
    source, target = items[:SOURCE], items[SOURCE:]
    reference = slow_rates(sample, model, items, convention=convention)
    every = torch.zeros(len(items), len(items), dtype=torch.bool)
    every[:SOURCE, SOURCE:] = True
    agrees(measure(model, source, target, convention=convention, pairs="all"), reference, every)
    within = torch.ones_like(every).triu(1)
    agrees(measure(model, items, convention=convention), reference, within)
    matched = torch.zeros_like(every)
    matched[range(SOURCE), range(SOURCE, 2 * SOURCE)] = True
    found = measure(model, source, target[:SOURCE], convention=convention, pairs="matched")
    agrees(found, reference, matched)
    assert tuple(found.by_role["role"]) == BLOCK_ROLES
