import copy
import math

import pytest
import torch
from torch import nn

from families import SAMPLES, Sample
from pliant.components import find_components
from pliant.errors import AnatomyError, TrainingError, UnknownNameError
from pliant.terms import ALWAYS_TRAINED, BLOCK_ROLES, ROLES
from pliant.tuning import Selection, select
from tuning.tiny_cells import changed, state, vit

SETS = [*((role,) for role in BLOCK_ROLES), ("mha", "fc1"), (), ROLES]


def first(output: object) -> torch.Tensor:
    """What a model of whatever family returns first."""
    if isinstance(output, torch.Tensor):
        return output
    return output[0] if isinstance(output, tuple | dict) else next(iter(vars(output).values()))


def backward(model: nn.Module, *, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    loss = first(model(torch.randn(4, 3, 8, 8, generator=generator))).square().mean()
    torch.autograd.backward(loss)
    return loss


@pytest.mark.parametrize("sample", SAMPLES, ids=lambda s: s.id)
def test_exactly_the_chosen_roles_are_trainable_in_every_family(sample: Sample):
    model = sample.model()
    anatomy = find_components(model)
    for roles in (("mha",), ("ln2", "fc2"), ("emb",)):
        with select(anatomy, roles) as selection:
            expected = anatomy.parameters({*roles, *(r for r in ALWAYS_TRAINED if r in anatomy.roles)})
            assert {n for n, p in model.named_parameters() if p.requires_grad} == set(expected)
            assert set(selection.parameters) == set(expected)
            assert selection.trained_parameters == sum(p.numel() for p in expected.values())
            frame = selection.frame
            assert frame["trained_parameters"].sum() == selection.trained_parameters
            assert set(frame.loc[frame["trained_tensors"] > 0, "role"]) <= {*roles, *ALWAYS_TRAINED}


@pytest.mark.parametrize("roles", SETS, ids="+".join)
def test_frozen_modules_stay_in_evaluation_and_come_back(roles: tuple[str, ...]):
    model = vit(hidden_dropout_prob=0.5, attention_probs_dropout_prob=0.5)
    model.vit.layers[0].train()
    modes = {n: m.training for n, m in model.named_modules()}
    kinds = {n: type(m) for n, m in model.named_modules()}
    model.vit.embeddings.cls_token.requires_grad_(False)
    with select(find_components(model), roles) as selection:
        model.train()
        model.vit.layers[1].mlp.train()
        for name, module in model.named_modules():
            has_chosen = any(p is q for p in module.parameters() for q in selection.parameters.values())
            if list(module.parameters()):
                assert module.training == has_chosen, name
            assert isinstance(module, kinds[name])
            assert type(module).__name__ == kinds[name].__name__
        dropouts = {n: m.training for n, m in model.named_modules() if isinstance(m, nn.Dropout)}
        assert dropouts
        assert all(dropouts.values()) == (roles == ROLES)
        model.eval()
        assert not any(m.training for m in model.modules())
    assert {n: m.training for n, m in model.named_modules()} == modes
    assert {n: type(m) for n, m in model.named_modules()} == kinds
    assert [n for n, p in model.named_parameters() if not p.requires_grad] == ["vit.embeddings.cls_token"]


def test_mode_cannot_be_assigned_to_frozen_modules():
    model = vit()
    with select(find_components(model), "mha"):
        model.vit.layers[0].mlp.fc1.training = True
        assert not model.vit.layers[0].mlp.fc1.training
        assert copy.deepcopy(model).vit.layers[0].mlp.train().training is False


def test_restored_after_an_exception():
    model = vit().train()

    def interrupted() -> None:
        with select(find_components(model), "ln1"):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert all(m.training for m in model.modules())
    assert all(p.requires_grad for p in model.parameters())


def test_dropout_follows_the_part_that_it_sits_in():
    class Part(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(2, 2)
            self.dropout = nn.Dropout()

    from pliant.tuning.modes import modules_to_train

    model = nn.Sequential(Part(), Part(), nn.Dropout())
    active = modules_to_train(model, model[0].parameters())
    assert model[0].dropout in active
    assert model[1].dropout not in active
    assert model[2] not in active
    assert model[2] in modules_to_train(model, model.parameters())
    assert model[0].dropout not in modules_to_train(model, [model[0].linear.bias])


class Normed(nn.Module):
    """A ViT with batch norms outside the components, whose statistics would move in training mode."""

    def __init__(self) -> None:
        super().__init__()
        self.vit = vit()
        self.before = nn.BatchNorm2d(3)

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        return self.vit(self.before(values)).logits


def test_running_statistics_of_frozen_parts_do_not_move():
    model = Normed()
    before = state(model)
    with select(find_components(model), "mha") as selection:
        model.train()
        backward(model)
        torch.optim.SGD(selection.parameters.values(), lr=0.1).step()
        end = selection.verify_end()
    assert changed(before, model) <= set(selection.parameters)
    assert end.frozen_unchanged == len(before) - len(selection.parameters)
    with select(find_components(model), "full") as selection:
        assert set(selection.buffers) == {"before.running_mean", "before.running_var", "before.num_batches_tracked"}


def test_a_norm_with_statistics_stays_in_evaluation_while_half_of_it_is_frozen():
    model = Normed()
    anatomy = find_components(model)
    with Selection(anatomy, {"before.bias": model.before.bias}, name="a bias"):
        model.train()
        backward(model)
        assert not model.before.training
        assert int(model.before.num_batches_tracked) == 0


@pytest.mark.parametrize(
    ("roles", "error", "message"),
    [
        ("mhaa", UnknownNameError, r"unknown component 'mhaa'\. Did you mean 'mha'"),
        ("layerscale", AnatomyError, r"no parameters of role layerscale\. It has .*mha.*: choose among these"),
        ("mha+other", AnatomyError, r"no parameters of role other\."),
    ],
)
def test_a_choice_that_matches_nothing_is_refused(roles: str, error: type[Exception], message: str):
    model = vit()
    with pytest.raises(error, match=message):
        select(find_components(model), roles)
    assert all(p.requires_grad for p in model.parameters())


def test_wrapped_models_are_refused():
    model = vit()
    with pytest.raises(TrainingError, match=r"wrapped already \(DataParallel\)"):
        select(find_components(nn.DataParallel(model)), "mha")


def test_a_model_inside_a_distributed_wrapper_is_refused(tmp_path):
    model = vit()
    torch.distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    try:
        wrapper = nn.parallel.DistributedDataParallel(model)
        with pytest.raises(TrainingError, match=r"wrapped already \(DistributedDataParallel\)"):
            select(find_components(wrapper.module), "mha")
    finally:
        torch.distributed.destroy_process_group()


@pytest.mark.parametrize("roles", SETS, ids="+".join)
def test_gradients_are_verified(roles: tuple[str, ...]):
    model = vit()
    with select(find_components(model), roles) as selection:
        assert not selection.verified
        backward(model)
        selection.verify_gradients()
        assert selection.verified


def test_a_cut_backward_path_is_found():
    model = vit()
    layer = model.vit.layers[0].mlp
    layer.register_forward_hook(lambda module, args, output: output.detach())
    with select(find_components(model), "fc1") as selection:
        backward(model)
        with pytest.raises(TrainingError, match=r"2 of 8 .*layers\.0\.mlp\.fc1\.weight: no gradient.*nothing was"):
            selection.verify_gradients()


def test_a_later_reset_of_requires_grad_is_found():
    model = vit()
    with select(find_components(model), "mha") as selection:
        model.vit.layers[1].attention.requires_grad_(False)
        backward(model)
        with pytest.raises(TrainingError, match=r"8 of 20 .*no gradient"):
            selection.verify_gradients()


@pytest.mark.parametrize(("value", "message"), [(0.0, "gradient zero"), (math.nan, "gradient with nan")])
def test_zero_and_non_finite_gradients_are_found(value: float, message: str):
    model = vit()
    with select(find_components(model), "ln2") as selection:
        backward(model)
        model.vit.layers[0].layernorm_after.weight.grad.mul_(value)
        with pytest.raises(TrainingError, match=rf"1 of .*layers\.0\.layernorm_after\.weight: {message}"):
            selection.verify_gradients()
        assert not selection.verified


def test_key_biases_may_have_a_zero_gradient_but_not_none():
    model = vit()
    bias = model.vit.layers[0].attention.k_proj.bias
    with select(find_components(model), "mha") as selection:
        assert selection.inert == {f"vit.layers.{i}.attention.k_proj.bias" for i in (0, 1)}
        backward(model)
        bias.grad.zero_()
        model.vit.layers[1].attention.k_proj.bias.grad = None
        with pytest.raises(TrainingError, match=r"1 of 20 .*layers\.1\.attention\.k_proj\.bias: no gradient"):
            selection.verify_gradients()


@pytest.mark.parametrize("sample", SAMPLES, ids=lambda s: s.id)
def test_no_inert_bias_of_any_family_has_a_gradient_beyond_rounding(sample: Sample):
    model = sample.model().double()
    anatomy = find_components(model)
    with select(anatomy, "mha") as selection:
        inputs = sample.inputs(4)
        torch.autograd.backward(first(model(inputs.double() if sample.size else inputs)).square().sum())
        for name, p in selection.parameters.items():
            key_bias = name in selection.inert
            assert p.grad is None or key_bias == (p.grad.abs().max().item() < 1e-9), name


def test_unused_tensors_are_taken_out_by_proof():
    model = vit()
    model.register_parameter("spare", nn.Parameter(torch.ones(3)))
    model.vit.embeddings.mask_token = nn.Parameter(torch.ones(1, 1, 16))
    values = torch.randn(2, 3, 8, 8)
    before = state(model)
    with select(find_components(model), "full") as selection:
        found = selection.exclude_unused(lambda: model(values).logits)
        assert set(found) == {"spare", "vit.embeddings.mask_token"} == set(selection.unused)
        assert not changed(before, model)
        backward(model)
        selection.verify_gradients()
        torch.optim.SGD(selection.parameters.values(), lr=0.1).step()
        assert selection.verify_end().frozen_unchanged == 2


def test_a_cut_path_is_no_proof():
    class Detached(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.vit = vit()
            self.gain = nn.Parameter(torch.ones(4))

        def forward(self, values: torch.Tensor) -> torch.Tensor:
            return self.vit(values).logits * self.gain.detach()

    model = Detached()
    with select(find_components(model), "full") as selection:
        assert selection.exclude_unused(lambda: model(torch.randn(2, 3, 8, 8))) == ()
        backward(model)
        with pytest.raises(TrainingError, match=r"1 of .*gain: no gradient"):
            selection.verify_gradients()


def test_an_unused_part_of_a_block_is_no_excuse():
    model = vit()
    model.vit.layers[0].attention.spare = nn.Parameter(torch.ones(3))
    with select(find_components(model), "mha") as selection:
        assert selection.exclude_unused(lambda: model(torch.randn(2, 3, 8, 8)).logits) == ()
        backward(model)
        with pytest.raises(TrainingError, match=r"attention\.spare: no gradient"):
            selection.verify_gradients()


def test_a_frozen_tensor_that_moves_is_found():
    model = vit()
    with select(find_components(model), "mha") as selection:
        with torch.no_grad():
            for p in selection.parameters.values():
                p.add_(1)
            model.vit.layers[0].mlp.fc1.bias[0] += 1e-7
        with pytest.raises(TrainingError, match=r"1 frozen tensors moved .*vit\.layers\.0\.mlp\.fc1\.bias"):
            selection.verify_end()


def test_a_chosen_tensor_that_stays_is_found():
    model = vit()
    with select(find_components(model), "mha") as selection:
        with torch.no_grad():
            for name, p in selection.parameters.items():
                if "layers.1" not in name:
                    p.add_(1)
        with pytest.raises(TrainingError, match=r"7 of 20 chosen tensors \(mha\) did not move"):
            selection.verify_end()
        assert selection.verify_end(moved=False).trained_moved == 12
