"""`text:FILE`: pieces of a text of equal length, as token ids; nothing is padded."""

from pathlib import Path
from typing import Any

import torch
from jaxtyping import Int64
from torch import Tensor

from pliant.errors import ConfigError, DataError
from pliant.models import Loaded

TEXT_PREFIX = "text:"

DEFAULT_LENGTH = 128
"""Tokens of a piece of text, unless the model takes fewer."""

_BYTES = 256


def text_tokens(name: str, loaded: Loaded, *, length: int | None = None) -> Int64[Tensor, "pieces tokens"]:
    """Cut a text into pieces of equal length; what is left over at its end is not used.

    Tokens are those of the model's tokenizer, without special tokens; bytes where it has none.

    Args:
        name: `text:` and the path of a file in UTF-8.
        loaded: the language model.
        length: tokens of a piece.

    Raises:
        DataError: there is no such file, it is no text, or too short.
        ConfigError: the model takes no text, no such length, or no bytes.
    """
    path = Path(name.removeprefix(TEXT_PREFIX)).expanduser()
    if getattr(loaded.model, "main_input_name", "input_ids") != "input_ids":
        raise ConfigError(f"{name}: {loaded.name} takes {loaded.model.main_input_name}, not text; name a set of images")
    most = _longest(loaded)
    length = min(DEFAULT_LENGTH, most or DEFAULT_LENGTH) if length is None else length
    if length < 1 or (most is not None and length > most):
        raise ConfigError(f"length is {length}; {loaded.name} takes 1 to {most} tokens")
    ids = torch.tensor(_ids(path, loaded), dtype=torch.int64)
    if (pieces := len(ids) // length) < 1:
        raise DataError(
            f"{path} has {len(ids)} tokens, fewer than the {length} of one piece; give more text or a length"
        )
    return ids[: pieces * length].view(pieces, length)


def _ids(path: Path, loaded: Loaded) -> list[int]:
    try:
        raw = path.read_bytes()
    except OSError as error:
        raise DataError(f"{path} cannot be read ({error.strerror}); expected text:FILE with a text file") from error
    if loaded.tokenizer is None:
        if (words := _vocabulary(loaded.model)) is not None and words < _BYTES:
            raise ConfigError(f"{loaded.name} has no tokenizer, and its {words} words are too few to take bytes (256)")
        return list(raw)
    try:
        text = raw.decode("utf-8")
    except UnicodeDecodeError as error:
        raise DataError(f"{path} is no text in UTF-8 (byte {error.start}); convert it first") from error
    return [int(i) for i in loaded.tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"]]


def _longest(loaded: Loaded) -> int | None:
    config: Any = getattr(loaded.model, "config", None)
    for name in ("max_position_embeddings", "n_positions"):
        value = getattr(config, name, None)
        if isinstance(value, int):
            return value
    return None


def _vocabulary(model: Any) -> int | None:
    words = getattr(getattr(model, "config", None), "vocab_size", None)
    return words if isinstance(words, int) else None
