import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression
from torch.nn import functional

from pliant.advising.energy import energy_by_role, gradient_energy
from pliant.components import find_components
from pliant.data import load, pixel_values
from pliant.errors import MeasurementError, ModelError
from pliant.models import fingerprint
from pliant.terms import Preprocessing

HALF = (0.5, 0.5, 0.5)
SMALL = Preprocessing(16, 16, None, "bilinear", HALF, HALF, "test")


@pytest.fixture(scope="module")
def digits():
    return load("digits", train=40).train


def reference(model, images) -> dict[str, float]:
    """The same in one batch, in float64, with autograd.grad and a head written down from sklearn's fit."""
    wide = {name: p.detach().double() for name, p in model.named_parameters()}
    values = pixel_values(list(images), SMALL).double()
    labels = torch.from_numpy(images.labels)
    model = model.double()
    with torch.no_grad():
        features = model.vit(values).last_hidden_state[:, 0].float().numpy()
    mean, std = features.mean(0), features.std(0)
    fitted = LogisticRegression(max_iter=1000).fit((features - mean) / std, images.labels)
    wide["classifier.weight"] = torch.from_numpy(fitted.coef_ / std).double()
    wide["classifier.bias"] = torch.from_numpy(fitted.intercept_ - (fitted.coef_ / std) @ mean).double()
    leaves = {name: t.clone().requires_grad_() for name, t in wide.items()}
    logits = torch.func.functional_call(model, leaves, (values,)).logits
    loss = functional.cross_entropy(logits, labels)
    gradients = torch.autograd.grad(loss, list(leaves.values()))
    model.float()
    return {name: float(g.square().sum()) for name, g in zip(leaves, gradients, strict=True)}


def test_energy_equals_a_float64_reference_and_leaves_the_model_alone(tiny_vit, digits):
    anatomy = find_components(tiny_vit)
    before = fingerprint(tiny_vit), [p.requires_grad for p in tiny_vit.parameters()]
    tiny_vit.train()
    found = gradient_energy(anatomy, digits, SMALL, batch_size=16).set_index("component")
    assert tiny_vit.training
    tiny_vit.eval()
    assert (fingerprint(tiny_vit), [p.requires_grad for p in tiny_vit.parameters()]) == before
    assert all(p.grad is None for p in tiny_vit.parameters())
    expected = reference(tiny_vit, digits)
    for component in anatomy.components:
        value = sum(expected[name] for name in component.parameters)
        if component.role != "head":  # there the gradient is what the fit leaves: nearly nothing
            assert found.loc[component.id, "energy"] == pytest.approx(value, rel=2e-3), component.id


def test_batches_do_not_matter(tiny_vit, digits):
    anatomy = find_components(tiny_vit)
    one, many = (energy_by_role(gradient_energy(anatomy, digits, SMALL, batch_size=b)) for b in (40, 7))
    assert one == pytest.approx(many, rel=1e-4)
    assert set(one) == set(anatomy.roles)


def test_a_model_without_a_classifier_is_refused(tiny_vit, digits):
    with pytest.raises(ModelError, match="the data have 10 classes"):
        gradient_energy(find_components(tiny_vit.vit), digits, SMALL)


def test_values_that_are_not_finite_are_named(tiny_vit, digits):
    with torch.no_grad():
        tiny_vit.vit.layers[1].mlp.fc1.weight[0, 0] = np.inf
    with pytest.raises(MeasurementError, match="features that the classifier gets are not finite"):
        gradient_energy(find_components(tiny_vit), digits, SMALL)
