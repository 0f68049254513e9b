"""Attention head by head: the output of each before the output projection."""

import numpy as np
import pytest
import torch

from families import SAMPLES, Sample, sample
from pliant.components import find_components
from pliant.components.attention import attention_weights
from pliant.errors import ConfigError
from pliant.measuring import measure
from pliant.measuring.capture import listening, observing, run
from pliant.measuring.structure import weights_of
from pliant.numerics.kernels import attention_heads

both = pytest.mark.parametrize("convention", ["insitu", "shared"])


@both
@pytest.mark.parametrize("sample", SAMPLES, ids=lambda s: s.id)
def test_every_family_has_heads(sample: Sample, convention: str) -> None:
    model = sample.model()
    found = measure(model, sample.inputs(3), convention=convention, per_head=True)
    anatomy = find_components(model)
    counts = {c.block: attention_weights(anatomy, c).heads for c in anatomy.of("mha") if c.block is not None}
    assert found.heads is not None
    assert [(b, len(g)) for b, g in found.heads.groupby("block")] == sorted(counts.items())
    assert list(found.heads["component"][:2]) == ["block00.mha.head00", "block00.mha.head01"]
    assert (found.heads["n_pairs"] == 3).all()
    plain = measure(model, sample.inputs(3), convention=convention)
    assert plain.heads is None
    np.testing.assert_allclose(found.frame["plasticity"], plain.frame["plasticity"], rtol=1e-6)


@both
@pytest.mark.parametrize("name", ["timm VisionTransformer", "torchvision VisionTransformer", "transformers BERT"])
def test_rates_of_heads(name: str, convention: str) -> None:
    """Against heads computed from the weights, on the input that attention really gets (in-situ) or on the tokens."""
    chosen = sample(name)
    model, items = chosen.model(), chosen.inputs(4)
    anatomy = find_components(model)
    found = measure(model, items, convention=convention, per_head=True, roles=("mha",)).heads
    assert found is not None
    inputs = {}
    with (
        observing(model),
        listening(anatomy, anatomy.of("mha"), lambda c, x, y: inputs.setdefault(c.block, x), batch=4),
    ):
        run(model, items)
    first = torch.empty(0)
    if convention == "shared":
        handle = model.get_submodule(anatomy.blocks[0]).register_forward_pre_hook(
            lambda m, args, kwargs: inputs.__setitem__("tokens", (*args, *kwargs.values())[0]), with_kwargs=True
        )
        with observing(model):
            run(model, items)
        handle.remove()
        first = inputs["tokens"]
    for component in anatomy.of("mha"):
        x = first if convention == "shared" else inputs[component.block]
        weights = weights_of(anatomy, component)
        assert weights is not None
        with torch.no_grad():
            heads = attention_heads(weights, x).double().unflatten(-1, (weights.heads, -1))
        i, j = torch.triu_indices(4, 4, 1)
        between = (x[i].double() - x[j].double()).flatten(1).norm(dim=1)
        rates = (heads[i] - heads[j]).square().sum((1, 3)).sqrt() / between[:, None]
        of_block = found[found["block"] == component.block]
        np.testing.assert_allclose(of_block["plasticity"], rates.mean(0), rtol=1e-5)
        np.testing.assert_allclose(of_block["max"], rates.amax(0), rtol=1e-5)


def test_heads_need_attention() -> None:
    chosen = sample("timm VisionTransformer")
    with pytest.raises(ConfigError, match="per_head needs 'mha' among the roles, got fc1"):
        measure(chosen.model(), chosen.inputs(3), roles=("fc1",), per_head=True)
