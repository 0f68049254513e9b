"""What is measured: a model by name, as loaded, or as an object, and its components."""

import torch
from torch import nn

from pliant.components import Anatomy, Family, find_components
from pliant.errors import ConfigError
from pliant.models import Loaded, from_module, load


def opened(model: str | nn.Module | Loaded) -> Loaded:
    """Load a model if it is a name; wrap it if it is a bare module."""
    if isinstance(model, str):
        return load(model)
    return model if isinstance(model, Loaded) else from_module(model)


def anatomy(model: str | nn.Module | Loaded, *, family: Family | None = None) -> Anatomy:
    """Take a model apart into its components; every parameter belongs to exactly one.

    Args:
        model: a name (`bundled`, folder, hub id), a loaded model, or any module with transformer blocks.
        family: where the parts are, for a model of a kind that is not in the table.

    Raises:
        AnatomyError: the blocks are not found; the message says what was tried and how to write a family row.
        ModelNotFoundError: the name leads to no weights.
    """
    return find_components(opened(model).model, family=family)


def pick_device(name: str) -> str:
    """Turn `auto` into the fastest device there is; check that another one exists.

    Raises:
        ConfigError: the device does not exist here.
    """
    if name == "auto":
        return "cuda" if torch.cuda.is_available() else "mps" if torch.backends.mps.is_available() else "cpu"
    try:
        torch.empty(0, device=name)
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        raise ConfigError(
            f"device {name!r} cannot be used here ({str(error).splitlines()[0]}); try auto or cpu"
        ) from None
    return name
