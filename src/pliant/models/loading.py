"""From a name to a model: the one function that the rest of pliant loads models with."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pliant.errors import ModelError
from pliant.models.checkpoint import build, build_random, read_config
from pliant.models.hub import fetch
from pliant.models.loaded import Loaded, fingerprint
from pliant.models.names import resolve
from pliant.models.preprocessing import first_line, has_tokenizer, read_preprocessing
from pliant.models.quiet import quiet
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
        folder, origin = source.folder, str(source.folder)
    else:
        folder, commit = fetch(source.repo, source.revision)
        origin = f"{source.repo}@{commit}"
    config = read_config(folder)
    builder = build_random if source.random else build
    built = builder(folder, config, classes=classes, seed=seed)
    notes = list(built.notes)
    tokenizer = None
    if built.model.main_input_name == "pixel_values":
        found = read_preprocessing(folder, config) if preprocessing is None else (preprocessing, ())
        if found is None and source.random:
            found = _default_preprocessing(config), ("no preprocessor_config.json: values are mapped to [-1, 1]",)
        if found is None:
            raise ModelError(
                f"{folder} does not say what it expects of an image: preprocessor_config.json is missing. "
                "Copy that file from where the weights come from, or pass "
                "load(..., preprocessing=pliant.Preprocessing(...)) in Python; a guess would silently cost accuracy."
            )
        preprocessing, more = found
        notes += more
    else:
        preprocessing = None
        tokenizer = _tokenizer(folder)
    return Loaded(
        model=built.model,
        name=name,
        source=origin,
        preprocessing=preprocessing,
        tokenizer=tokenizer,
        fingerprint=fingerprint(built.model),
        notes=tuple(notes),
    )


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
