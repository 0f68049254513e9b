import math
import sys

import pytest
import torch
from torch.nn.functional import cross_entropy

from pliant.components import find_components
from pliant.data import pixel_values
from pliant.runs.config import CellConfig
from pliant.tuning import select, train
from pliant.tuning.batches import Order
from pliant.tuning.classifier import renew_classifier
from pliant.tuning.recipe import OPTIMIZERS, describe, make_optimizer
from pliant.tuning.trainer import Watch
from tuning.tiny_cells import CLASSES, PREPROCESSING, cell, data, loaded, vit


class Spy(Watch):
    """Keeps what the real optimizer holds, step by step."""

    optimizer: torch.optim.Optimizer
    rates: list[float]

    def on_train_begin(self, args, state, control, **more):
        super().on_train_begin(args, state, control, **more)
        Spy.optimizer = self.trainer.optimizer
        Spy.groups = [{k: v for k, v in g.items() if k != "params"} for g in self.trainer.optimizer.param_groups]
        Spy.held = {id(p) for g in self.trainer.optimizer.param_groups for p in g["params"]}
        Spy.trained = {id(p) for p in self.trainer.selection.parameters.values()}
        Spy.clip = self.trainer.args.max_grad_norm
        Spy.rates, Spy.norms, Spy.before_clip = [], [], []

    def on_pre_optimizer_step(self, args, state, control, **more):
        super().on_pre_optimizer_step(args, state, control, **more)
        Spy.rates.append(self.trainer.optimizer.param_groups[0]["lr"])
        gradients = [p.grad for p in self.trainer.selection.parameters.values()]
        Spy.norms.append(torch.nn.utils.get_total_norm(gradients).item())
        Spy.before_clip.append(self.trainer.gradient_norm)


@pytest.fixture
def spy(monkeypatch: pytest.MonkeyPatch) -> type[Spy]:
    # The package's name `train` is the function; the module has to be looked up.
    monkeypatch.setattr(sys.modules["pliant.tuning.train"], "Watch", Spy)
    return Spy


def test_sgd_really_has_momentum_and_no_frozen_tensor(spy: type[Spy]):
    record = train(cell(momentum=0.8, weight_decay=0.0), loaded(), data(), device="cpu")
    assert spy.held == spy.trained
    assert [g["momentum"] for g in spy.groups] == [0.8]
    assert [g["weight_decay"] for g in spy.groups] == [0.0]
    described = record.environment["optimizer"]
    assert described == [
        {"optimizer": "SGD", "tensors": 20, "parameters": record.trained_parameters, "lr": 0.1, "momentum": 0.8}
        | {"roles": ["mha", "final_norm", "head"], "fused": True}
    ]


def test_momentum_matters():
    runs = [train(cell(momentum=m), loaded(), data(), device="cpu").curve for m in (0.0, 0.9)]
    assert runs[0] != runs[1]


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_weight_decay_acts_on_matrices_of_components_only(name: str):
    model = vit()
    config = CellConfig(learning_rate=0.1, steps=5, eval_every=5, optimizer=name, weight_decay=0.05)
    with select(find_components(model), "full") as selection:
        decayed, plain = make_optimizer(config, selection).param_groups
        names = {id(p): n for n, p in model.named_parameters()}
        for group, expected in ((decayed, 0.05), (plain, 0.0)):
            assert group["weight_decay"] == expected
        decayed_names = {names[id(p)] for p in decayed["params"]}
        assert decayed_names == {
            n
            for n in selection.parameters
            if n.endswith("weight") and ("attention" in n or "mlp" in n or "classifier" in n)
        }
        assert len(decayed["params"]) + len(plain["params"]) == len(selection.parameters)
        described = describe(make_optimizer(config, selection), selection)
        assert described[0]["roles"] == ["mha", "fc1", "fc2", "head"]


def test_frozen_tensors_feel_no_weight_decay():
    model = loaded()
    frozen = model.model.vit.layers[0].mlp.fc1.weight.clone()
    train(cell(weight_decay=0.5, components="mha"), model, data(), device="cpu")
    assert torch.equal(model.model.vit.layers[0].mlp.fc1.weight, frozen)


def test_the_rate_warms_up_linearly_and_falls_as_a_cosine(spy: type[Spy]):
    train(cell(steps=12, eval_every=12, warmup_steps=4), loaded(), data(), device="cpu")
    expected = [0.1 * s / 4 for s in range(4)] + [0.05 * (1 + math.cos(math.pi * s / 8)) for s in range(8)]
    assert spy.rates == pytest.approx(expected, abs=1e-12)


def test_gradients_are_clipped(spy: type[Spy]):
    train(cell(clip_norm=0.01), loaded(), data(), device="cpu")
    assert max(spy.norms) <= 0.01 * 1.0001
    assert all(norm > 0.01 for norm in spy.before_clip)


def test_gradients_are_not_clipped_without_a_bound(spy: type[Spy]):
    train(cell(clip_norm=None), loaded(), data(), device="cpu")
    assert max(spy.norms) > 0.3
    assert spy.before_clip == [None] * 6


def test_training_equals_a_plain_loop():
    """The slow reference: the same batches, by hand, without Trainer."""
    config = cell(components="mha", warmup_steps=2, steps=10, eval_every=10)
    model, sets = loaded(), data()
    reference = loaded().model
    anatomy = find_components(reference)
    renew_classifier(anatomy, classes=len(CLASSES), seed=config.seed)
    names = list(anatomy.parameters(("mha", "final_norm", "head")))
    parameters = [reference.get_parameter(n) for n in names]
    velocity = [torch.zeros_like(p) for p in parameters]
    order = Order(len(sets.train), 8, seed=config.seed)
    for step in range(10):
        rate = 0.1 * step / 2 if step < 2 else 0.05 * (1 + math.cos(math.pi * (step - 2) / 8))
        chosen = order(step)
        values = pixel_values([sets.train[i] for i in chosen.tolist()], PREPROCESSING)
        loss = cross_entropy(reference(values).logits, torch.from_numpy(sets.train.labels[chosen]))
        gradients = torch.autograd.grad(loss, parameters)
        norm = math.sqrt(sum(float(g.double().square().sum()) for g in gradients))
        factor = min(1.0, 1.0 / (norm + 1e-6))
        with torch.no_grad():
            for p, v, g in zip(parameters, velocity, gradients, strict=True):
                v.mul_(0.9).add_(g * factor)
                p.sub_(rate * v)
    record = train(config, model, sets, device="cpu")
    assert record.best_step == 10
    for name in names:
        assert torch.allclose(model.model.get_parameter(name), reference.get_parameter(name), atol=1e-5), name
