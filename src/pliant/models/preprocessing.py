"""Image processors of transformers and timm, read into and written from `terms.Preprocessing`."""

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from transformers import AutoImageProcessor, BitImageProcessor, ViTImageProcessor

from pliant.errors import ModelError
from pliant.models.quiet import quiet
from pliant.terms import Preprocessing

PROCESSOR_FILES = ("preprocessor_config.json", "processor_config.json")

INTERPOLATIONS: dict[int, str] = {0: "nearest", 1: "lanczos", 2: "bilinear", 3: "bicubic"}
"""Pillow's numbers, which processors are saved with."""

_NUMBERS = {name: number for number, name in INTERPOLATIONS.items()}


def read_preprocessing(folder: Path, config: Any) -> tuple[Preprocessing, tuple[str, ...]] | None:
    """Read what a checkpoint expects of an image, and notes on what could not be taken over exactly.

    None if the folder does not say. A timm checkpoint says it in its configuration, as transformers reads it too.

    Raises:
        ModelError: the folder says something that pliant cannot do, such as another scale than 1/255.
    """
    timm_config = getattr(config, "pretrained_cfg", None)
    if timm_config:
        return _from_timm(timm_config, folder / "config.json")
    found = next((folder / f for f in PROCESSOR_FILES if (folder / f).is_file()), None)
    return None if found is None else _from_processor(found, config)


def _from_processor(file: Path, config: Any) -> tuple[Preprocessing, tuple[str, ...]] | None:
    try:
        with quiet():
            processor = AutoImageProcessor.from_pretrained(
                str(file.parent), local_files_only=True, trust_remote_code=False
            )
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        if file.name != PROCESSOR_FILES[0]:
            return None  # the processor of a text model
        raise ModelError(f"{file} cannot be read as an image processor: {first_line(error)}") from error
    height, width, resize, notes = _geometry(processor, file, config)
    scale = getattr(processor, "rescale_factor", 1 / 255)
    if not processor.do_rescale or not math.isclose(scale, 1 / 255, rel_tol=1e-6):
        got = scale if processor.do_rescale else "no rescaling"
        raise ModelError(f"{file} asks for pixel values scaled by {got}; pliant scales by 1/255 only.")
    normalize = bool(processor.do_normalize)
    return Preprocessing(
        height=height,
        width=width,
        resize=resize,
        interpolation=_interpolation(getattr(processor, "resample", None), file),
        mean=_triple(processor.image_mean if normalize else 0.0, file),
        std=_triple(processor.image_std if normalize else 1.0, file),
        origin=f"{file.name} of {file.parent}",
    ), notes


def _geometry(processor: Any, file: Path, config: Any) -> tuple[int, int, int | None, tuple[str, ...]]:
    """Height, width, resize and notes, from the many ways of writing them."""
    size = _plain(getattr(processor, "size", None))
    crop = _plain(getattr(processor, "crop_size", None)) if getattr(processor, "do_center_crop", False) else {}
    if not getattr(processor, "do_resize", True):
        size = crop = _square(getattr(config, "image_size", None))
    shortest, height, width = size.get("shortest_edge"), size.get("height"), size.get("width")
    if shortest and crop:
        return crop["height"], crop["width"], shortest, ()
    if shortest:
        # Without a crop the size depends on the image; a batch and a fixed number of tokens need one, so crop.
        return shortest, shortest, shortest, (f"{file} resizes without a crop; pliant crops the centre square.",)
    if height and width and crop and (crop["height"], crop["width"]) != (height, width):
        note = (
            f"{file} squeezes each image to {height}x{width} before the centre crop; "
            "pliant keeps the aspect ratio there (equal for square images)."
        )
        return crop["height"], crop["width"], min(height, width), (note,)
    if height and width:
        return height, width, None, ()
    raise ModelError(f"{file} gives no image size that pliant understands: {size or 'none'}.")


def _from_timm(entries: Mapping[str, Any], file: Path) -> tuple[Preprocessing, tuple[str, ...]]:
    from timm.data import resolve_data_config

    data = resolve_data_config(dict(entries), model=None, verbose=False)
    _, height, width = data["input_size"]
    notes: tuple[str, ...] = ()
    resize: int | None = math.floor(min(height, width) / data["crop_pct"])
    if data["crop_mode"] == "squash" and resize == min(height, width):
        resize = None
    elif data["crop_mode"] != "center":
        notes = (f"{file} asks for the crop mode {data['crop_mode']!r}; pliant crops the centre instead.",)
    return Preprocessing(
        height=height,
        width=width,
        resize=resize,
        interpolation=_interpolation(data["interpolation"], file),
        mean=_triple(data["mean"], file),
        std=_triple(data["std"], file),
        origin=f"pretrained_cfg in {file.name} of {file.parent}",
    ), notes


def write_preprocessing(preprocessing: Preprocessing, folder: Path) -> None:
    """Write the file that `AutoImageProcessor.from_pretrained(folder)` reads."""
    size = {"height": preprocessing.height, "width": preprocessing.width}
    common = {
        "resample": _NUMBERS[preprocessing.interpolation],
        "do_convert_rgb": True,
        "image_mean": list(preprocessing.mean),
        "image_std": list(preprocessing.std),
    }
    if preprocessing.resize is None:
        processor = ViTImageProcessor(size=size, **common)
    else:
        processor = BitImageProcessor(
            size={"shortest_edge": preprocessing.resize}, do_center_crop=True, crop_size=size, **common
        )
    with quiet():
        processor.save_pretrained(str(folder))


def timm_entries(preprocessing: Preprocessing) -> dict[str, Any]:
    """Write preprocessing the way timm's `pretrained_cfg` holds it."""
    side = min(preprocessing.height, preprocessing.width)
    return {
        "input_size": [3, preprocessing.height, preprocessing.width],
        "interpolation": preprocessing.interpolation,
        "crop_mode": "squash" if preprocessing.resize is None else "center",
        "crop_pct": 1.0 if preprocessing.resize is None else _crop_share(side, preprocessing.resize),
        "mean": list(preprocessing.mean),
        "std": list(preprocessing.std),
    }


def _crop_share(side: int, resize: int) -> float:
    """Return the shortest decimal share that timm turns back into `resize` by floor(side / share)."""
    for digits in range(1, 8):
        share = round(side / resize, digits)
        if share > 0 and math.floor(side / share) == resize:
            return share
    return side / (resize + 0.5)


def _interpolation(value: Any, file: Path) -> str:
    if value is None:
        return "bilinear"
    name = INTERPOLATIONS.get(int(value)) if isinstance(value, int) else str(getattr(value, "value", value))
    if name not in _NUMBERS:
        raise ModelError(f"{file} asks for the interpolation {value!r}; pliant knows {', '.join(sorted(_NUMBERS))}.")
    return name


def _triple(value: Any, file: Path) -> tuple[float, float, float]:
    values = [float(v) for v in (value if isinstance(value, list | tuple) else [value])]
    if len(values) == 1:
        values *= 3
    if len(values) != 3:
        raise ModelError(f"{file} normalises {len(values)} channels; pliant works with three (RGB).")
    return values[0], values[1], values[2]


def _plain(size: Any) -> dict[str, int]:
    """Turn a size (a number, a mapping, transformers' SizeDict) into a mapping without empty entries."""
    if isinstance(size, int):
        return {"height": size, "width": size}
    entries = size.items() if isinstance(size, Mapping) else vars(size).items() if size is not None else ()
    return {key: int(value) for key, value in entries if value is not None}


def _square(size: Any) -> dict[str, int]:
    if size is None:
        return {}
    height, width = size if isinstance(size, list | tuple) else (size, size)
    return {"height": int(height), "width": int(width)}


def first_line(error: BaseException) -> str:
    """Return the first line of an error's message, or its class name if it has none."""
    return str(error).strip().split("\n", 1)[0] or type(error).__name__


def has_tokenizer(folder: Path) -> bool:
    """Whether the folder holds files of a tokenizer."""
    known = ("tokenizer.json", "tokenizer_config.json", "vocab.json", "vocab.txt", "spiece.model", "tokenizer.model")
    return any((folder / name).is_file() for name in known)


def read_json(file: Path) -> dict[str, Any]:
    """Read a JSON object, with the file's name in the message if it is none."""
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, json.JSONDecodeError) as error:
        raise ModelError(f"{file} cannot be read as JSON: {first_line(error)}") from error
    if not isinstance(content, dict):
        raise ModelError(f"{file} holds no JSON object, so it is no model configuration.")
    return content
