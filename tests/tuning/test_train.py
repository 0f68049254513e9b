import math
import os
import socket
from dataclasses import replace
from pathlib import Path

import numpy as np
import psutil
import pytest
import torch

from families import SAMPLES, Sample
from pliant.components import find_components
from pliant.data import ImageData, ImageSet
from pliant.errors import ConfigError, DataError, ModelError, TrainingError
from pliant.models import Loaded, from_module
from pliant.runs import CellConfig, Record
from pliant.terms import BLOCK_ROLES, Preprocessing
from pliant.tuning import Selection, batches, train
from pliant.tuning.classifier import renew_classifier
from pliant.tuning.evaluate import Evaluation
from pliant.tuning.train import _Run
from pliant.tuning.trainer import CellTrainer
from tuning.tiny_cells import CLASSES, cell, changed, data, exit_of, images, in_child, loaded, state


def run(fields: dict[str, object] | CellConfig, *, model: object = None, **options: object) -> Record:
    found = fields if isinstance(fields, CellConfig) else cell(**fields)
    return train(found, model or loaded(), data(), device="cpu", **options)


@pytest.mark.parametrize("components", [*BLOCK_ROLES, "mha+fc1", "head", "full"])
def test_only_what_is_chosen_moves(components: str):
    model = loaded()
    before = state(model.model)
    record = run({"components": components}, model=model)
    anatomy = find_components(model.model)
    roles = {"full": anatomy.roles}.get(components, (*components.split("+"), "final_norm", "head"))
    expected = set(anatomy.parameters(roles))
    assert set(record.trained_names) == expected
    assert changed(before, model.model) <= expected
    inert = {n for n in expected if n.endswith("k_proj.bias")}
    assert expected - inert <= changed(before, model.model)
    assert record.trained_parameters == anatomy.count(roles)
    assert record.total_parameters == sum(p.numel() for p in model.model.parameters())
    assert record.frozen_tensors_unchanged == len(before) - len(expected)
    assert record.trained_tensors_moved >= len(expected - inert)
    assert record.dtype == "float32"
    assert record.status == "done"
    assert record.n_train, record.n_validation == (40, 30)
    assert record.test.n == 50


def test_the_model_comes_back_as_it_was_found():
    model = loaded()
    model.model.vit.embeddings.requires_grad_(False)
    model.model.vit.layers[0].train()
    modes = [m.training for m in model.model.modules()]
    attributes = {k: set(vars(m)) for k, m in model.model.named_modules()}
    before, config = state(model.model), model.model.config.to_dict()
    required = [p.requires_grad for p in model.model.parameters()]
    random = torch.get_rng_state()
    run({"components": "full"}, model=model, keep=False)
    assert changed(before, model.model) == set()
    assert [m.training for m in model.model.modules()] == modes
    assert [p.requires_grad for p in model.model.parameters()] == required
    assert {k: set(vars(m)) for k, m in model.model.named_modules()} == attributes
    assert model.model.config.to_dict() == config
    assert torch.equal(torch.get_rng_state(), random)
    assert all(p.grad is None for p in model.model.parameters())


def test_the_model_comes_back_after_an_exception():
    model = loaded()
    before = state(model.model)

    def interrupt(step: int, steps: int, point: object) -> None:
        if step == 4:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run({}, model=model, progress=interrupt)
    assert changed(before, model.model) == set()
    assert not any(m.training for m in model.model.modules())
    assert all(p.requires_grad for p in model.model.parameters())


def test_the_same_cell_gives_the_same_record_alone_or_after_others():
    first = run({"components": "full"})
    model = loaded()
    run({"components": "ln1", "seed": 7}, model=model, keep=False)
    torch.manual_seed(99)
    second = run({"components": "full"}, model=model)
    assert second.outcome() == first.outcome()


@pytest.mark.parametrize(
    "fields",
    [{"seed": 1}, {"learning_rate": 0.01}, {"augmentation": "flip-crop"}, {"batch_size": 4}, {"optimizer": "adamw"}],
)
def test_what_the_cell_says_matters(fields: dict[str, object]):
    assert run(fields).curve != run({}).curve


def test_dropout_acts_in_wholly_trained_parts_and_is_repeatable():
    dropped = {"hidden_dropout_prob": 0.5, "attention_probs_dropout_prob": 0.5}
    full = [run({"components": "full"}, model=loaded(**dropped)).curve for _ in range(2)]
    assert full[0] == full[1] != run({"components": "full"}).curve
    assert run({"components": "head"}, model=loaded(**dropped)).curve == run({"components": "head"}).curve


def test_training_learns():
    record = run({"steps": 60, "eval_every": 20, "components": "full", "learning_rate": 0.05})
    assert record.test.accuracy > 0.9
    assert record.curve[-1].train_loss < record.curve[0].train_loss
    assert record.test.macro_accuracy > 0.9


def test_evaluations_are_at_the_stated_steps_and_at_the_end():
    seen = []
    record = run({"steps": 8}, progress=lambda step, steps, point: seen.append((step, steps, point)))
    assert [p.step for p in record.curve] == [3, 6, 8]
    assert [s for s, _, _ in seen] == list(range(1, 9))
    assert [p for _, _, p in seen if p is not None] == list(record.curve)


def test_the_best_checkpoint_is_the_earliest_of_the_highest(monkeypatch: pytest.MonkeyPatch):

    right = iter([4, 7, 7, 6])
    weights, sizes = [], []

    def scripted(self: object, images: object) -> Evaluation:
        sizes.append(len(images))
        if len(images) == 50:
            return Evaluation(1.0, ((50, 20),))
        weights.append({n: p.detach().clone() for n, p in self.selection.parameters.items()})
        return Evaluation(1.0, ((30, next(right)),))

    monkeypatch.setattr(_Run, "_evaluate", scripted)
    model = loaded()
    record = run({"steps": 12}, model=model)
    assert record.best_step == 6
    assert record.validation_accuracy == 7 / 30
    assert all(torch.equal(model.model.get_parameter(n), w) for n, w in weights[1].items())
    assert sizes == [30, 30, 30, 30, 50]


def test_accuracy_is_over_the_whole_set(monkeypatch: pytest.MonkeyPatch):
    whole = run({})
    monkeypatch.setattr(batches, "EVALUATION_BATCH", 7)
    parts = run({})
    assert parts.test == whole.test
    for a, b in zip(parts.curve, whole.curve, strict=True):
        assert a.validation_accuracy == b.validation_accuracy
        assert a.validation_loss == pytest.approx(b.validation_loss, rel=1e-6)


def test_accumulation_is_the_same_as_one_large_batch():
    whole = run({"components": "full", "batch_size": 8})
    parts = run({"components": "full", "batch_size": 2, "accumulation": 4})
    assert parts.curve[-1].train_loss == pytest.approx(whole.curve[-1].train_loss, rel=1e-5)
    assert parts.curve[-1].validation_loss == pytest.approx(whole.curve[-1].validation_loss, rel=1e-5)


def test_the_classifier_is_the_one_that_the_seed_says():
    models = [loaded(seed=1), loaded(seed=2)]
    heads = []
    for model, seed in zip(models * 2, (5, 5, 6, 6), strict=True):
        renew_classifier(find_components(model.model), classes=len(CLASSES), seed=seed)
        heads.append(model.model.classifier.weight.clone())
    assert torch.equal(heads[0], heads[1])
    assert torch.equal(heads[2], heads[3])
    assert not torch.equal(heads[0], heads[2])
    assert heads[0].abs().max() <= 0.04


def test_divergence_ends_the_run_with_a_record():
    model = loaded()
    record = run(
        {"components": "full", "learning_rate": 1e4, "clip_norm": None, "steps": 30, "eval_every": 1}, model=model
    )
    assert record.status == "diverged"
    assert 1 < record.diverged_at < 30
    assert all(torch.isfinite(p).all() for p in model.model.parameters())
    if record.best_step is not None:
        assert record.best_step < record.diverged_at
        assert record.test is not None


def test_divergence_before_the_first_evaluation_leaves_the_model_untouched():
    model = loaded()
    fields = {"components": "full", "learning_rate": 1e30, "clip_norm": None, "steps": 30, "eval_every": 30}
    record = run(fields, model=model)
    assert record.status == "diverged"
    assert (record.best_step, record.test, record.validation_accuracy, record.curve) == (None, None, None, ())
    assert all(torch.isfinite(p).all() for p in model.model.parameters())


def test_divergence_is_told_by_the_step_of_the_loss(monkeypatch: pytest.MonkeyPatch):
    original = CellTrainer.compute_loss
    calls = []

    def broken(self: CellTrainer, *arguments: object, **named: object) -> torch.Tensor:
        calls.append(1)
        loss = original(self, *arguments, **named)
        return loss * math.nan if len(calls) == 5 else loss

    monkeypatch.setattr(CellTrainer, "compute_loss", broken)
    record = run({"steps": 9})
    assert (record.status, record.diverged_at, record.best_step) == ("diverged", 5, 3)
    assert [p.step for p in record.curve] == [3]
    assert record.test is not None


def test_a_validation_loss_that_is_not_finite_is_divergence(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(
        CellTrainer, "_clip_grad_norm", lambda self, model: model.classifier.weight.grad.fill_(math.inf)
    )
    monkeypatch.setattr(Selection, "verify_gradients", lambda self, final=True: None)
    record = run({"steps": 3, "eval_every": 1})
    assert (record.status, record.diverged_at, record.best_step) == ("diverged", 1, None)
    assert math.isnan(record.curve[0].validation_loss)


def test_a_run_whose_gradients_fail_is_an_error_and_leaves_the_model_as_it_was():
    model = loaded()
    model.model.vit.layers[0].mlp.register_forward_hook(lambda module, args, output: output.detach())
    before = state(model.model)
    with pytest.raises(TrainingError, match=r"4 of 12 chosen tensors \(fc1\+fc2\) do not train"):
        run({"components": "fc1+fc2"}, model=model)
    assert changed(before, model.model) == set()


def test_a_cell_for_choosing_does_not_read_the_test_images():
    record = run({"read_test": False})
    assert record.status == "done"
    assert record.test is None


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"precision": "float16"}, r"float16 needs a CUDA device, got cpu"),
        ({"image_size": 16}, r"image_size=16, but tiny was loaded for 8x8; load it with image_size=16"),
        ({"model_fingerprint": "0" * 16}, r"fingerprint 0{16}, but tiny .* weights under that name have changed"),
    ],
)
def test_a_cell_that_does_not_fit_is_refused(fields: dict[str, object], message: str):
    with pytest.raises(ConfigError, match=message):
        run(fields)


def test_other_devices_are_refused():
    with pytest.raises(ConfigError, match=r"device='tpu'; expected auto, cpu, cuda or mps"):
        train(cell(), loaded(), data(), device="tpu")


def test_models_that_cannot_be_trained_are_refused():
    half = loaded()
    half.model.vit.half()
    with pytest.raises(ModelError, match=r"tiny has 38 tensors that are not float32.*call model\.float\(\)"):
        run({}, model=half)
    with pytest.raises(
        ModelError, match=r"classifier with 7 outputs, but the data have 4 classes.*classes=data\.classes"
    ):
        run({}, model=loaded(num_labels=7))
    backbone = from_module(loaded().model.vit, preprocessing=loaded().preprocessing)
    with pytest.raises(ModelError, match=r"no classifier, but the data have 4 classes"):
        run({}, model=backbone)
    with pytest.raises(ModelError, match=r"does not say what it expects of images"):
        run({}, model=from_module(loaded().model))


def test_data_without_a_split_are_refused():
    whole = data()
    with pytest.raises(DataError, match=r"made has no test images"):
        train(cell(), loaded(), replace(whole, test=whole.test.subset([])), device="cpu")


def test_bfloat16_computes_in_it_and_trains_float32():
    record = run({"components": "full", "precision": "bfloat16"})
    assert record.dtype == "float32"
    assert record.status == "done"
    assert record.curve != run({"components": "full"}).curve


def test_trainer_says_nothing(capfd: pytest.CaptureFixture[str]):
    run({})
    captured = capfd.readouterr()
    assert captured.out == captured.err == ""


def classifier_of(sample: Sample) -> tuple[Loaded, ImageData] | None:
    """A family's sample with images for the classes that its classifier has; None if it has no classifier."""
    model = sample.model()
    heads = [n.rpartition(".")[0] for c in find_components(model).of("head") for n in c.parameters]
    linear = [m for n, m in model.named_modules() if n in heads and isinstance(m, torch.nn.Linear)]
    if not sample.size or not linear:
        return None
    names = tuple(f"class {i}" for i in range(linear[-1].out_features))
    sets = []
    for seed in range(3):
        made = images(3 * len(names), seed=seed, size=sample.size)
        sets.append(ImageSet(made.images, np.arange(len(made)) % len(names), names, made.origins))
    size = Preprocessing(sample.size, sample.size, None, "bilinear", (0.5,) * 3, (0.5,) * 3, "made for tests")
    return from_module(model, preprocessing=size), ImageData("made", names, *sets)


@pytest.mark.parametrize("fields", [{"components": "full"}, {"components": "mha"}, {"method": "norms"}], ids=str)
@pytest.mark.parametrize("sample", [s for s in SAMPLES if classifier_of(s)], ids=lambda s: s.id)
def test_every_family_with_a_classifier_trains(sample: Sample, fields: dict[str, object]):
    model, sets = classifier_of(sample)
    before = state(model.model)
    record = train(cell(**fields, steps=3), model, sets, device="cpu")
    assert record.status == "done"
    moved = changed(before, model.model)
    assert moved <= set(record.trained_names)
    assert all(n.endswith("bias") for n in set(record.trained_names) - moved)
    parameters = dict(model.model.named_parameters())
    assert record.frozen_tensors_unchanged >= len(parameters) - len(record.trained_names)


def test_what_the_output_does_not_depend_on_is_noted():
    sample = next(s for s in SAMPLES if s.id == "transformers_DINOv2/classifier")
    model, sets = classifier_of(sample)
    record = train(cell(components="emb"), model, sets, device="cpu", keep=False)
    assert "dinov2.embeddings.mask_token" not in record.trained_names
    assert "not trained, since the output does not depend on them: dinov2.embeddings.mask_token" in record.notes


@pytest.mark.skipif(not hasattr(os, "fork"), reason="two processes are started by fork")
def test_a_cell_means_the_same_on_two_processes(tmp_path: Path):
    """Data parallel: shares of every batch, gradients averaged, counts summed; one cell after another on one model."""
    variants = ({"components": "mha"}, {"components": "full"}, {"method": "lora"})
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]

    def work(rank: int) -> None:
        os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2"}
        os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
        model = loaded()
        before = state(model.model)
        for fields in variants:
            record = run(fields, model=model, keep=False)
            (tmp_path / f"{record.cell.variant}.{rank}").write_text(record.to_json())
        assert not changed(before, model.model)

    children = [in_child(lambda rank=rank: work(rank)) for rank in range(2)]
    assert [exit_of(child) for child in children] == [0, 0]
    for fields in variants:
        alone = run(fields)
        both = [Record.from_json((tmp_path / f"{alone.cell.variant}.{rank}").read_text()) for rank in range(2)]
        assert both[0].outcome() == both[1].outcome()
        assert both[0].environment["processes"] == 2
        assert (both[0].test, both[0].best_step) == (alone.test, alone.best_step)
        for a, b in zip(both[0].curve, alone.curve, strict=True):
            assert a.train_loss == pytest.approx(b.train_loss, rel=1e-5)
            assert a.validation_loss == pytest.approx(b.validation_loss, rel=1e-5)


def test_memory_of_a_run_is_counted_from_its_own_start():
    ballast = torch.ones(60_000_000)
    del ballast
    record = run({})
    assert record.peak_memory_bytes < psutil.Process().memory_info().rss + 100 * 2**20


def test_denormal_numbers_are_zero_while_training_and_as_before_afterwards():
    def tiny() -> float:
        return float(torch.full((1,), 1e-39) * 0.5)

    seen: list[float] = []
    for before in (False, True):
        torch.set_flush_denormal(before)
        try:
            train(cell(), loaded(), data(), device="cpu", progress=lambda *_: seen.append(tiny()))
            assert (tiny() == 0.0) == before
        finally:
            torch.set_flush_denormal(False)
    assert set(seen) == {0.0}
