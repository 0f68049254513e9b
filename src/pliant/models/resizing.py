"""Another image size than the checkpoint's: position embeddings are interpolated once, with the model's own method."""

import copy
import inspect
import warnings
from dataclasses import replace
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from transformers import PreTrainedModel

from pliant.errors import ConfigError, ModelError
from pliant.models.quiet import own_randomness, quiet
from pliant.terms import Preprocessing


def resize_model(model: PreTrainedModel, image_size: int) -> PreTrainedModel:
    """Return the model for square images of `image_size` pixels; its configuration says so, so that it saves as it is.

    A model that takes the new size anyway (DINOv2 and BEiT interpolate in each pass, rotary models need nothing) comes
    back unchanged. The others get position embeddings interpolated by the model's own method, as parameters.

    Raises:
        ConfigError: the size is not a whole number of patches.
        ModelError: the architecture is bound to its size.
    """
    _check_multiple(image_size, patch_size(model))
    if getattr(model, "timm_model", None) is not None:
        _resize_timm(model, image_size)
    elif not takes_size(model, image_size, image_size):
        model = _rebuild(model, image_size)
    if not takes_size(model, image_size, image_size):
        raise ModelError(
            f"{type(model).__name__} does not take images of {image_size}x{image_size}; keep its own size."
        )
    return model


def resize_preprocessing(preprocessing: Preprocessing, image_size: int) -> Preprocessing:
    """Preprocess for square images of `image_size`; the share of the image that the centre crop keeps stays the same.

    >>> half = (0.5, 0.5, 0.5)
    >>> p = resize_preprocessing(Preprocessing(224, 224, 256, "bicubic", half, half, "example"), 98)
    >>> p.height, p.width, p.resize, p.origin
    (98, 98, 112, 'example, for images of 98x98')
    """
    resize = preprocessing.resize
    if resize is not None:
        resize = round(resize * image_size / min(preprocessing.height, preprocessing.width))
    origin = f"{preprocessing.origin}, for images of {image_size}x{image_size}"
    return replace(preprocessing, height=image_size, width=image_size, resize=resize, origin=origin)


def patch_size(model: PreTrainedModel) -> int:
    """Pixels along the side of a patch; 1 for a model that does not say."""
    wrapped = getattr(model, "timm_model", None)
    config = getattr(model.config, "vision_config", None) or model.config
    sizes = (
        getattr(getattr(wrapped, "patch_embed", None), "patch_size", None) or getattr(config, "patch_size", None) or 1
    )
    return int(max(sizes)) if isinstance(sizes, list | tuple) else int(sizes)


def takes_size(model: PreTrainedModel, height: int, width: int) -> bool:
    """Whether a pass over an image of this size goes through."""
    config = getattr(model.config, "vision_config", None) or model.config
    image = torch.zeros(1, int(getattr(config, "num_channels", 3) or 3), height, width)
    try:
        with torch.no_grad(), own_randomness(0):
            model(pixel_values=image)
    except (ValueError, RuntimeError, AssertionError, IndexError):
        return False
    return True


def check_size(model: PreTrainedModel, preprocessing: Preprocessing) -> None:
    """Refuse preprocessing whose images the model does not take, before any are read."""
    size = preprocessing.height, preprocessing.width
    if size != model_size(model) and not takes_size(model, *size):
        raise ModelError(
            f"the preprocessing ({preprocessing.origin}) gives images of {size[0]}x{size[1]}, "
            f"which {type(model).__name__} does not take. Give an image size, to adapt both."
        )


def model_size(model: PreTrainedModel) -> tuple[int, int] | None:
    """Height and width of the images that a model is configured for, if it says."""
    wrapped = getattr(model, "timm_model", None)
    config = getattr(model.config, "vision_config", None) or model.config
    size = getattr(getattr(wrapped, "patch_embed", None), "img_size", None) or getattr(config, "image_size", None)
    if size is None:
        return None
    height, width = size if isinstance(size, list | tuple) else (size, size)
    return int(height), int(width)


def _check_multiple(image_size: int, patch: int) -> None:
    if image_size > 0 and image_size % patch == 0:
        return
    below = image_size // patch * patch
    valid = [size for size in (below, below + patch) if size > 0] if image_size > 0 else [patch]
    raise ConfigError(
        f"image size {image_size} is not a whole number of patches of {patch} pixels; "
        f"nearest valid: {' or '.join(str(v) for v in valid)}."
    )


def _resize_timm(model: Any, image_size: int) -> None:
    timm_model = model.timm_model
    if not hasattr(timm_model, "set_input_size"):
        if takes_size(model, image_size, image_size):
            return
        raise ModelError(f"timm's {model.config.architecture} is bound to its image size; keep its own size.")
    arguments: dict[str, Any] = {}
    if "window_size" in inspect.signature(timm_model.set_input_size).parameters:
        # Without it timm chooses new windows by the image's size, and the tables of the pretrained ones would not fit.
        windows = [
            tuple(m.window_size) for m in timm_model.modules() if isinstance(getattr(m, "window_size", 0), tuple)
        ]
        arguments["window_size"] = max(windows, default=None)
    with warnings.catch_warnings():  # timm's interpolation of relative tables uses indexing that torch has deprecated
        warnings.simplefilter("ignore")
        timm_model.set_input_size(img_size=(image_size, image_size), **arguments)
    model.config.model_args = {**(model.config.model_args or {}), "img_size": [image_size, image_size]}
    _check_rebuilds(model)


def _check_rebuilds(model: PreTrainedModel) -> None:
    """See that the changed configuration describes the changed model, so that what is saved can be loaded."""
    with quiet(), own_randomness(0):
        again = type(model)._from_config(copy.deepcopy(model.config), dtype=torch.float32)
    shapes = {name: tensor.shape for name, tensor in again.state_dict().items()}
    if shapes != {name: tensor.shape for name, tensor in model.state_dict().items()}:
        raise ModelError(f"{model.config.architecture} cannot be rebuilt at another image size; keep its own size.")


def _rebuild(model: PreTrainedModel, image_size: int) -> PreTrainedModel:
    """Build the same model for another size, and fill it with the tensors of this one."""
    config = copy.deepcopy(model.config)
    vision = getattr(config, "vision_config", None) or config
    if not hasattr(vision, "image_size"):
        raise ModelError(f"{type(model).__name__} is bound to its image size; keep its own size.")
    vision.image_size = image_size
    extra = {"add_pooling_layer": False} if getattr(model, "pooler", model) is None else {}
    with quiet(), own_randomness(0):
        bigger = type(model)._from_config(config, dtype=torch.float32, **extra).eval()
    old, new = model.state_dict(), bigger.state_dict()
    changed = [name for name in new if name not in old or old[name].shape != new[name].shape]
    for name in changed:
        owner = model.get_submodule(_embeddings_of(model, name))
        old[name] = _interpolated(owner, new[name], image_size)
    bigger.load_state_dict(old, strict=True)
    return bigger


def _embeddings_of(model: nn.Module, parameter: str) -> str:
    """Name the module around a position embedding that knows how to interpolate it."""
    name = parameter
    while "." in name:
        name = name.rpartition(".")[0]
        if hasattr(model.get_submodule(name), "interpolate_pos_encoding"):
            return name
    raise ModelError(
        f"{type(model).__name__} is bound to its image size by {parameter}, which it cannot interpolate; "
        "keep its own size."
    )


@torch.no_grad()
def _interpolated(embeddings: Any, like: Float[Tensor, "..."], image_size: int) -> Float[Tensor, "..."]:
    tokens = torch.zeros(1, like.shape[-2], like.shape[-1])
    table: Tensor = embeddings.interpolate_pos_encoding(tokens, image_size, image_size)
    if table.numel() != like.numel():
        raise ModelError(f"{type(embeddings).__name__} gives {tuple(table.shape)} where {tuple(like.shape)} is needed.")
    return table.reshape(like.shape).clone()
