import pytest
import timm
import torch
import transformers
from safetensors.torch import load_file
from torch import nn

from families import SAMPLES, Sample
from pliant.components import find_components
from pliant.errors import AnatomyError, TrainingError
from pliant.models import from_module
from pliant.runs import CellConfig
from pliant.runs.config import LORA_TARGETS
from pliant.tuning import train
from pliant.tuning.baselines import BASELINES, METHODS, footprint
from pliant.tuning.batches import evaluation_batches
from pliant.tuning.delta import delta_bytes, save_delta
from pliant.tuning.lora import lora, resolve_targets
from tuning.tiny_cells import PREPROCESSING, cell, changed, data, loaded, state

LORA = cell(method="lora", lora_rank=2)


def of_baseline(name: str, **more: object) -> CellConfig:
    return cell(**BASELINES[name].fields, **more)


def first(output: object) -> torch.Tensor:
    """What a model of whatever family returns first."""
    if isinstance(output, torch.Tensor):
        return output
    return output[0] if isinstance(output, tuple | dict) else next(iter(vars(output).values()))


def callable_projections(sample: Sample) -> bool:
    """Whether attention calls its projections as linear maps; LoRA is refused where it does not."""
    anatomy = find_components(sample.model())
    attentions = [anatomy.module(name) for c in anatomy.of("mha") for name in c.modules]
    bare = any(isinstance(m, nn.MultiheadAttention) for m in attentions)
    return not bare and not any(getattr(m, "q_bias", None) is not None for m in attentions)


def test_every_method_of_a_cell_is_registered():
    assert set(METHODS) == set(CellConfig.model_fields["method"].annotation.__args__)
    assert all(b.about and b.name == name for name, b in BASELINES.items())


@pytest.mark.parametrize("name", BASELINES)
def test_every_baseline_trains_reports_and_gives_the_model_back(name: str, tmp_path):
    model = loaded()
    before, names = state(model.model), list(dict(model.model.named_modules()))
    config = of_baseline(name, steps=20, eval_every=10)
    planned = footprint(config, model)
    assert changed(before, model.model) == set()
    record = train(config, model, data(), device="cpu", keep=False)
    assert changed(before, model.model) == set()
    assert list(dict(model.model.named_modules())) == names
    assert not hasattr(model.model, "peft_config")
    assert record.status == "done"
    assert record.trained_parameters == planned.parameters
    assert record.total_parameters == planned.total == sum(p.numel() for p in model.model.parameters())
    assert record.saved_bytes == planned.saved_bytes
    assert len(record.trained_names) == planned.tensors
    assert set(planned.modules) <= {*names, "vit.embeddings"}
    assert record.trained_tensors_moved + sum("key bias" in n for n in record.notes) * 2 >= planned.tensors
    assert record.curve[-1].train_loss < record.curve[0].train_loss


@pytest.mark.parametrize("name", BASELINES)
def test_what_a_baseline_trained_stays_in_the_model(name: str):
    model, sets = loaded(), data()
    config = of_baseline(name, steps=10, eval_every=10)
    record = train(config, model, sets, device="cpu")
    values = torch.cat([v for v, _ in evaluation_batches(sets.validation, PREPROCESSING)])
    with torch.no_grad():
        right = (model.model(values).logits.argmax(1) == torch.from_numpy(sets.validation.labels)).float().mean()
    assert right.item() == pytest.approx(record.validation_accuracy)


def test_counts_are_those_of_the_paper():
    # ViT-B/16 without its weights: only the shapes count.
    with torch.device("meta"):
        model = transformers.ViTForImageClassification(transformers.ViTConfig(num_labels=100))
    anatomy = find_components(model)
    adapted = resolve_targets(anatomy, ("q", "v"))
    assert sum(16 * sum(model.get_submodule(a.module).weight.shape) for a in adapted) == 589_824
    norms = [m for m in model.modules() if isinstance(m, nn.LayerNorm)]
    assert sum(p.numel() for m in norms for p in m.parameters()) == 38_400
    assert anatomy.count(("mha",)) == 28_348_416
    assert anatomy.count(("fc1",)) == 28_348_416
    assert anatomy.count(("fc2",)) == 28_320_768


def test_norms_and_biases_are_all_of_them():
    model = loaded()
    anatomy = find_components(model.model)
    heads = set(anatomy.parameters(("head",)))
    for method, kind in (("bitfit", "bias"), ("norms", "layernorm")):
        prepared = METHODS[method](anatomy, cell(method=method))
        prepared.selection.restore()
        expected = {n for n, _ in model.model.named_parameters() if kind in n or n in heads}
        assert set(prepared.selection.parameters) == expected


@pytest.mark.parametrize("sample", [s for s in SAMPLES if callable_projections(s)], ids=lambda s: s.id)
@pytest.mark.parametrize("targets", [("q", "v"), LORA_TARGETS])
def test_merged_equals_unmerged_in_every_family(sample: Sample, targets: tuple[str, ...]):
    model = sample.model()
    if not find_components(model).of("head"):
        model.classifier = nn.Linear(2, 2)  # a selection always trains one
    anatomy = find_components(model)
    if any(len(c.modules) > 1 for c in anatomy.of("fc1")):
        targets = tuple(t for t in targets if t != "fc1")
    inputs = sample.inputs(3)

    def output() -> torch.Tensor:
        torch.manual_seed(0)  # masked autoencoders draw a mask
        return first(model(inputs)).detach()

    before, plain = state(model), output()
    required = [p.requires_grad for p in model.parameters()]
    touched = {a.module for a in resolve_targets(anatomy, targets)}
    selection, finish = lora(anatomy, cell(method="lora", lora_rank=3, lora_targets=targets))
    assert torch.allclose(output(), plain, atol=1e-5)
    with torch.no_grad():
        for name, p in selection.parameters.items():
            if "lora_B" in name:
                p.normal_(std=0.1)
    unmerged = output()
    assert not torch.allclose(unmerged, plain, atol=1e-4)
    assert selection.frame["trained_parameters"].sum() == selection.trained_parameters
    selection.restore()
    finish(True)
    assert torch.allclose(output(), unmerged, atol=1e-5, rtol=1e-5)
    assert [p.requires_grad for p in model.parameters()] == required
    assert changed(before, model) == {f"{name}.weight" for name in touched}


def test_removed_without_merging_the_weights_are_untouched():
    model = loaded().model
    before = state(model)
    selection, finish = lora(find_components(model), LORA)
    with torch.no_grad():
        for name, p in selection.parameters.items():
            if "lora" in name:
                p.add_(1)
    selection.restore()
    finish(False)
    assert changed(before, model) == set()


def test_lora_starts_from_its_seed():
    def matrices(seed: int) -> list[torch.Tensor]:
        torch.manual_seed(torch.initial_seed() + 1)
        selection, finish = lora(find_components(loaded().model), cell(method="lora", seed=seed))
        found = [p.detach().clone() for n, p in selection.parameters.items() if "lora_A" in n]
        selection.restore()
        finish(False)
        return found

    assert all(torch.equal(a, b) for a, b in zip(matrices(1), matrices(1), strict=True))
    assert not torch.equal(matrices(1)[0], matrices(2)[0])


def test_lora_dropout_acts_although_its_map_is_frozen():
    model = loaded().model
    selection, finish = lora(find_components(model), cell(method="lora", lora_dropout=0.5))
    model.train()
    active = [n for n, m in model.named_modules() if isinstance(m, nn.Dropout) and m.training]
    assert len(active) == 4
    assert all("lora_dropout" in n for n in active)
    selection.restore()
    finish(False)


def test_first_matrices_get_their_gradient_in_the_second_step_also_after_a_warm_up():
    for more in ({}, {"warmup_steps": 3}):
        record = train(of_baseline("lora", lora_rank=2, **more), loaded(), data(), device="cpu")
        assert record.trained_tensors_moved >= 9
        assert len(record.trained_names) == 10


def test_a_run_of_one_step_is_too_short_for_the_first_matrices():
    record = train(of_baseline("lora", steps=1, eval_every=1), loaded(), data(), device="cpu")
    assert record.trained_tensors_moved == 6


def test_matrices_that_never_get_a_gradient_are_found():
    model = loaded()
    model.model.vit.layers[0].attention.register_forward_hook(lambda m, args, out: (out[0].detach(), *out[1:]))
    with pytest.raises(TrainingError, match=r"of 10 chosen tensors \(lora-r16-q\+v\) do not train: .*no gradient"):
        train(of_baseline("lora"), model, data(), device="cpu")
    assert not [n for n, _ in model.model.named_parameters() if "lora" in n]


def test_packed_maps_are_told():
    module = timm.create_model("vit_tiny_patch16_224", img_size=32, embed_dim=16, depth=2, num_heads=2, num_classes=4)
    selection, finish = lora(find_components(module), LORA)
    selection.restore()
    finish(False)
    assert selection.notes == ("LoRA on q and v: 2 maps such as blocks.0.attn.qkv compute q and k and v at once",)


@pytest.mark.parametrize("sample", [s for s in SAMPLES if not callable_projections(s)], ids=lambda s: s.id)
def test_targets_that_are_not_called_are_refused(sample: Sample):
    with pytest.raises(AnatomyError, match=r"block00\.mha: .* does not call its projections as linear maps"):
        footprint(LORA, from_module(sample.model()))


def test_targets_that_do_not_exist_are_refused():
    gated = next(s for s in SAMPLES if s.id.startswith("transformers_LLaMA"))
    with pytest.raises(AnatomyError, match=r"LoRA on fc1 matches no map of \w+; it has q, k, v, o, fc2"):
        footprint(cell(method="lora", lora_targets=("fc1", "q")), from_module(gated.model()))


def test_a_method_that_matches_nothing_is_refused():
    model = loaded()
    for module in model.model.modules():
        if "Norm" in type(module).__name__:
            module.__class__ = type("Other", (nn.LayerNorm,), {})
    with pytest.raises(AnatomyError, match=r"norms matches no tensor .* outside its classifier; train a component set"):
        footprint(cell(method="norms"), model)


@pytest.mark.parametrize("shapes", [{}, {"a": (3, 4), "b.c": (5,)}, {"x": (2, 3, 4), "ä": (1,), "empty": (0, 3)}])
def test_the_size_of_the_file_is_known_before_it_is_written(tmp_path, shapes: dict[str, tuple[int, ...]]):
    tensors = {name: torch.randn(shape) for name, shape in shapes.items()} | {"n": torch.tensor(3)}
    path = save_delta(tensors, tmp_path / "trained.safetensors")
    assert path.stat().st_size == delta_bytes(tensors)
    back = load_file(path)
    assert all(torch.equal(back[name], t) for name, t in tensors.items())
