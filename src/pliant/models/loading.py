"""From a name to a model: the one function that the rest of pliant loads models with."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from transformers import PreTrainedModel

from pliant.errors import ConfigError, ModelError
from pliant.models.checkpoint import build, build_random, read_config
from pliant.models.hub import fetch
from pliant.models.loaded import Loaded, fingerprint
from pliant.models.names import near_names, resolve
from pliant.models.preprocessing import first_line, has_tokenizer, read_preprocessing
from pliant.models.quiet import quiet
from pliant.models.resizing import check_size, resize_model, resize_preprocessing
from pliant.terms import Preprocessing


def load(
    name: str,
    *,
    classes: Sequence[str] | None = None,
    image_size: int | None = None,
    seed: int = 0,
    preprocessing: Preprocessing | None = None,
) -> Loaded:
    """Load a model by name, on the CPU, in float32 and evaluation mode, with its own preprocessing.

    Args:
        name: `bundled`; a folder in transformers' or timm's format; a hub id, `ORGANISATION/NAME` or
            `ORGANISATION/NAME@REVISION`; or `random:` and a folder, for that folder's architecture with random weights.
        classes: names of the classes of a new classifier; the checkpoint's own, if any, is dropped.
            None loads what the checkpoint's configuration states, with its classifier or as a backbone.
        image_size: side in pixels of the images that the model is to be used with; the checkpoint's own if None.
            Position embeddings are interpolated with the model's own method.
        seed: of the new classifier, and of random weights.
        preprocessing: replaces the checkpoint's own; needed where it has none.

    Raises:
        ModelNotFoundError: the name leads to no weights; the message says what was tried.
        ModelError: what was found cannot be used, or its tensors do not fit its configuration.
        ConfigError: `image_size` or `classes` cannot be.
    """
    source = resolve(name)
    if source.folder is not None:
        folder = source.folder
        origin = f"random weights (seed {seed}) from {folder / 'config.json'}" if source.random else str(folder)
    else:
        folder, commit = fetch(source.repo, source.revision, hint=near_names(name))
        origin = f"{source.repo}@{commit}"
    config = read_config(folder)
    model, notes = (build_random if source.random else build)(folder, config, classes=classes, seed=seed)
    if model.main_input_name == "pixel_values":
        preprocessing, more = _preprocessing(folder, config, given=preprocessing, random=source.random)
        model, preprocessing = _sized(model, preprocessing, image_size)
        notes += more
    elif image_size is not None:
        raise ConfigError(f"{name} takes no images, so an image size means nothing to it.")
    images = model.main_input_name == "pixel_values"
    return Loaded(
        model=model,
        name=name,
        source=origin,
        preprocessing=preprocessing if images else None,
        tokenizer=None if images else _tokenizer(folder),
        fingerprint=fingerprint(model),
        notes=notes,
    )


def _preprocessing(
    folder: Path, config: Any, *, given: Preprocessing | None, random: bool
) -> tuple[Preprocessing, tuple[str, ...]]:
    """Preprocessing and notes: the user's, else the checkpoint's, else (random weights only) a default."""
    if given is not None:
        return given, ()
    found = read_preprocessing(folder, config)
    if found is not None:
        return found
    if random:
        return _default_preprocessing(config), ("no preprocessor_config.json: pixel values are mapped to [-1, 1]",)
    raise ModelError(
        f"{folder} does not say what it expects of an image: preprocessor_config.json is missing. "
        "Copy that file from where the weights come from, or, in Python, pass "
        "load(..., preprocessing=pliant.terms.Preprocessing(...)); a guess would silently cost accuracy."
    )


def _sized(
    model: PreTrainedModel, preprocessing: Preprocessing, image_size: int | None
) -> tuple[PreTrainedModel, Preprocessing]:
    """Bring model and preprocessing to the size asked for, or see that their own agree."""
    if image_size is None:
        check_size(model, preprocessing)
        return model, preprocessing
    return resize_model(model, image_size), resize_preprocessing(preprocessing, image_size)


def _default_preprocessing(config: Any) -> Preprocessing:
    """What random weights are fed with if their folder does not say: the configured size, values in [-1, 1]."""
    size = getattr(config, "image_size", None) or 224
    height, width = size if isinstance(size, list | tuple) else (size, size)
    half = (0.5, 0.5, 0.5)
    return Preprocessing(height, width, None, "bilinear", half, half, "default for random weights")


def _tokenizer(folder: Path) -> Any | None:
    if not has_tokenizer(folder):
        return None
    from transformers import AutoTokenizer

    try:
        with quiet():
            return AutoTokenizer.from_pretrained(str(folder), local_files_only=True, trust_remote_code=False)
    except (OSError, ValueError, KeyError, TypeError, ImportError) as error:
        raise ModelError(f"the tokenizer in {folder} cannot be loaded: {first_line(error)}") from error
