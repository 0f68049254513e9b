"""A tiny model, a tiny data set and short cells: what the tests of training share."""

import os
import signal
import traceback
import warnings
from collections.abc import Callable

import numpy as np
import torch
from transformers import ViTConfig, ViTForImageClassification

from pliant.data import ImageData, ImageSet
from pliant.data.sets import ArrayImages
from pliant.models import Loaded, from_module
from pliant.runs import CellConfig
from pliant.terms import Preprocessing

CLASSES = ("dark", "left", "right", "light")
PREPROCESSING = Preprocessing(8, 8, None, "bilinear", (0.5, 0.5, 0.5), (0.5, 0.5, 0.5), "made for tests")


def vit(*, seed: int = 0, **options: object) -> ViTForImageClassification:
    """A ViT of two blocks with four classes."""
    sizes = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        config = ViTConfig(**{**sizes, "image_size": 8, "patch_size": 4, "num_labels": len(CLASSES), **options})
        return ViTForImageClassification(config).eval()


def loaded(*, seed: int = 0, **options: object) -> Loaded:
    """The tiny model with what belongs to it."""
    return from_module(vit(seed=seed, **options), name="tiny", preprocessing=PREPROCESSING)


def images(count: int, *, seed: int, size: int = 8) -> ImageSet:
    """Noise with a class that a model can learn: which half of the image is light."""
    generator = np.random.default_rng(seed)
    labels = np.arange(count) % len(CLASSES)
    pixels = generator.integers(0, 100, (count, size, size, 3))
    pixels[np.isin(labels, (1, 3)), :, : size // 2] += 100
    pixels[np.isin(labels, (2, 3)), :, size // 2 :] += 100
    origins = [f"made[{i}]" for i in range(count)]
    return ImageSet(ArrayImages(pixels.astype(np.uint8)), labels.astype(np.int64), CLASSES, origins)


def data(*, train: int = 40, validation: int = 30, test: int = 50) -> ImageData:
    """Three splits of those images."""
    sets = (images(n, seed=i) for i, n in enumerate((train, validation, test)))
    return ImageData("made", CLASSES, *sets)


def cell(**fields: object) -> CellConfig:
    """A cell of a few steps."""
    return CellConfig(**{"learning_rate": 0.1, "steps": 6, "eval_every": 3, "batch_size": 8, **fields})


def state(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    """Copies of all tensors of a model."""
    return {name: t.clone() for name, t in [*model.named_parameters(), *model.named_buffers()]}


def changed(before: dict[str, torch.Tensor], model: torch.nn.Module) -> set[str]:
    """Names of the tensors that differ from before."""
    return {name for name, t in state(model).items() if not torch.equal(t, before[name])}


def in_child(work: Callable[[], None]) -> int:
    """Run something in a forked process, which is quick since everything is imported; return the process's id.

    The child exits with 0 if `work` returns, with 1 if it raises, and dies after two minutes in any case.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of forking beside threads; the child uses none of theirs
        child = os.fork()
    if child:
        return child
    try:
        signal.alarm(120)
        work()
        os._exit(0)
    except BaseException:
        traceback.print_exc()
        os._exit(1)


def exit_of(child: int) -> int:
    """Wait for a process; return its exit status, or minus the number of the signal that killed it."""
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
