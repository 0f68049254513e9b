"""A trained model becomes a folder that is known to come back: written, reloaded, compared, then renamed into place."""

import copy
import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from transformers import PreTrainedModel

from pliant.errors import ConfigError, ModelError
from pliant.models.checkpoint import build, read_config
from pliant.models.loaded import check_float32, fingerprint
from pliant.models.preprocessing import read_json, read_preprocessing, timm_entries, write_preprocessing
from pliant.models.quiet import quiet
from pliant.terms import Preprocessing

MARK = "pliant.json"
"""Written beside the weights, with the names of all files; a folder with nothing else in it may be replaced."""

TOLERANCE = 1e-6
"""Largest difference of two logits, relative to the largest logit, that still counts as the same (float32, CPU)."""


def save(model: nn.Module, folder: str | Path, *, preprocessing: Preprocessing, overwrite: bool = False) -> Path:
    """Write a model in transformers' format, and return only if it comes back with the same logits.

    Everything is written into a temporary folder beside `folder`, loaded again from there (the way
    `AutoModelForImageClassification.from_pretrained` does), compared on a fixed batch, and only then renamed.
    The model is left as it was: device, train or eval mode of each part, gradients, random state.

    Args:
        model: a transformers model with float32 weights.
        folder: to be written. One that `save` wrote before is replaced, any other with something in it is not.
        preprocessing: what the model expects of an image; saved with it.
        overwrite: replace `folder`, whatever is in it.

    Raises:
        ModelError: the model is of a kind that cannot be saved so, or it did not come back as it was.
        ConfigError: `folder` holds something else.
    """
    folder = Path(folder).expanduser().resolve()
    if not isinstance(model, PreTrainedModel):
        raise ModelError(
            f"{type(model).__name__} is no transformers model, so it cannot be saved in their format. "
            "A peft model: merge_and_unload() first. Others: torch.save(model.state_dict(), ...)."
        )
    if getattr(model, "_hf_peft_config_loaded", False):
        raise ModelError(f"{type(model).__name__} carries adapters; merge them into its weights first, then save.")
    check_float32(model, type(model).__name__, "Convert it with .float(), then save.")
    _check_replaceable(folder, overwrite=overwrite)
    folder.parent.mkdir(parents=True, exist_ok=True)
    temporary = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", suffix=".tmp", dir=folder.parent))
    try:
        _write(model, temporary, preprocessing)
        _compare(model, temporary, preprocessing)
        _finish(temporary, folder)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    return folder


def _check_replaceable(folder: Path, *, overwrite: bool) -> None:
    if folder.exists() and not folder.is_dir():
        raise ConfigError(f"{folder} is a file; a model is saved as a folder. Choose another place.")
    if overwrite or not folder.is_dir():
        return
    foreign = {p.name for p in folder.iterdir()}
    if (folder / MARK).is_file():
        foreign -= {MARK, *read_json(folder / MARK).get("files", ())}
    if not foreign:
        return
    found = ", ".join(sorted(foreign)[:4])
    raise ConfigError(
        f"{folder} holds something else than a model saved by pliant ({found}); "
        "it is left alone. Choose another folder, or pass overwrite=True."
    )


def _write(model: PreTrainedModel, folder: Path, preprocessing: Preprocessing) -> None:
    with quiet():
        model.save_pretrained(str(folder), save_peft_format=False)
    if model.config.model_type == "timm_wrapper":
        # transformers reads the preprocessing of timm models from their configuration.
        file = folder / "config.json"
        content = json.loads(file.read_text(encoding="utf-8"))
        content["pretrained_cfg"] = {**content.get("pretrained_cfg", {}), **timm_entries(preprocessing)}
        file.write_text(json.dumps(content, indent=2, sort_keys=True) + "\n", encoding="utf-8")
    else:
        write_preprocessing(preprocessing, folder)
    mark = {
        "fingerprint": fingerprint(model),
        "model": type(model).__name__,
        "pliant": version("pliant"),
        "files": sorted(file.name for file in folder.iterdir()),
    }
    (folder / MARK).write_text(json.dumps(mark, indent=2) + "\n", encoding="utf-8")


def _compare(model: PreTrainedModel, folder: Path, preprocessing: Preprocessing) -> None:
    """Load the folder as a user would and hold it against the model."""
    config = read_config(folder)
    try:
        back, _ = build(folder, config, classes=None, seed=0)
    except ModelError as error:
        reason = str(error).replace(str(folder), "what was written")
        raise ModelError(f"not saved: {type(model).__name__} does not come back: {reason}") from error
    if type(back) is not type(model):
        raise ModelError(f"not saved: {type(model).__name__} comes back as {type(back).__name__}.")
    if fingerprint(back) != fingerprint(model):
        raise ModelError(f"not saved: the weights of {type(model).__name__} come back changed.")
    again = read_preprocessing(folder, config)
    if again is None or _values(again[0]) != _values(preprocessing):
        raise ModelError(f"not saved: the preprocessing comes back as {again and again[0]} instead of {preprocessing}.")
    generator = torch.Generator().manual_seed(0)
    shape = (2, int(getattr(config, "num_channels", 3)), preprocessing.height, preprocessing.width)
    images = torch.randn(shape, generator=generator)
    ours, theirs = _output(_on_cpu(model), images), _output(back, images)
    difference = float((ours - theirs).abs().max())
    # Not "difference > ...": that would let NaN pass.
    if not difference <= TOLERANCE * max(1.0, float(ours.abs().max())):
        raise ModelError(f"not saved: the reloaded model's outputs differ by {difference:.2g} from the model's.")


def _values(preprocessing: Preprocessing) -> tuple[Any, ...]:
    p = preprocessing
    return p.height, p.width, p.resize, p.interpolation, p.mean, p.std


def _on_cpu(model: PreTrainedModel) -> PreTrainedModel:
    devices = {p.device.type for p in model.parameters()}
    return model if devices == {"cpu"} else copy.deepcopy(model).cpu()


@torch.no_grad()
def _output(model: PreTrainedModel, images: Float[Tensor, "batch channels height width"]) -> Float[Tensor, "batch ..."]:
    with _evaluation(model):
        result = model(pixel_values=images)
    logits = getattr(result, "logits", None)
    output: Tensor = result.last_hidden_state if logits is None else logits
    return output


@contextmanager
def _evaluation(model: nn.Module) -> Iterator[None]:
    """Evaluation mode for the block; each part's own mode again after it, set directly: `train` may be overridden."""
    modes = [(module, module.training) for module in model.modules()]
    try:
        for module, _ in modes:
            module.training = False
        yield
    finally:
        for module, training in modes:
            module.training = training


def _finish(temporary: Path, folder: Path) -> None:
    """Put the written folder where it belongs: contents on disk first, then the name."""
    for file in sorted(temporary.iterdir()):
        with file.open("rb") as handle:
            os.fsync(handle.fileno())
    temporary.chmod(0o777 & ~_umask())
    if folder.exists():
        old = temporary.with_suffix(".old")
        os.replace(folder, old)
        try:
            os.replace(temporary, folder)
        except BaseException:
            os.replace(old, folder)
            raise
        shutil.rmtree(old)
    else:
        os.replace(temporary, folder)
    parent = os.open(folder.parent, os.O_RDONLY)
    try:
        os.fsync(parent)
    finally:
        os.close(parent)


def _umask() -> int:
    current = os.umask(0)
    os.umask(current)
    return current
