"""What is measured: a model by name, as loaded, or as an object, and its components."""

import os
from os import PathLike

import torch
from torch import nn

from pliant.components import Anatomy, Family, find_components
from pliant.errors import ConfigError, ModelError
from pliant.models import Loaded, from_module, load


def opened(model: str | PathLike[str] | nn.Module | Loaded) -> Loaded:
    """Load a model if it is a name or a folder; wrap it if it is a bare module.

    Raises:
        ModelError: it is none of these.
    """
    if isinstance(model, str | PathLike):
        return load(os.fspath(model))
    if isinstance(model, nn.Module):
        return from_module(model)
    if not isinstance(model, Loaded):
        raise ModelError(
            f"got {type(model).__name__} as a model; expected a name (bundled, a folder, a hub id), a torch module, or "
            "what pliant.models.load returns"
        )
    return model


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
