"""Features of frozen layers, pooled over tokens: computed once for a set of images, and kept on disk for later runs.

What is on disk is believed only after a look: it must be whole, and the features of a few images are computed anew and
must agree. So the name of a file need not say everything that features depend on (hooks, the code of the model).
"""

import hashlib
import io
import json
import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from pliant.components import Anatomy, Component
from pliant.data import ImageSet
from pliant.errors import ConfigError, MeasurementError, StoreError
from pliant.measuring.capture import first_tensor, listening, observing
from pliant.measuring.subject import pick_device
from pliant.models import fingerprint
from pliant.runs.atomic import write_atomically
from pliant.terms import BLOCK_ROLES, Preprocessing
from pliant.tuning.batches import evaluation_batches

Pooling = Literal["mean", "cls"]
Layers = Literal["last", "blocks", "all"]

LOOKED_AT = 4
"""Images whose features are computed anew before those on disk are believed."""

TOLERANCE = 1e-4
"""Largest difference between a feature on disk and computed anew, in units of its standard deviation over images (what
a probe sees of it); rounding, a tenth of that of its size, is allowed beside it."""

SUFFIX = ".features"
"""Ending of a layer's file: the SHA-256 of an array in NumPy's format, and the array."""

DIGEST_BYTES = 32

MOST_BYTES = 4 << 30
"""Size that all features on disk may have together; the longest unused give way."""


class Features:
    """Pooled features of a model's layers."""

    def __init__(self, anatomy: Anatomy, layer: Layers, pooling: Pooling, *, cache: Path | None = None) -> None:
        """Choose the layers.

        Args:
            anatomy: of the model.
            layer: `last` block's output; `blocks`: every block's; `all`: also every component's of every block.
            pooling: `mean` over all tokens, or `cls`, the class token.
            cache: folder where features are looked for and kept; None computes them every time.

        Raises:
            ConfigError: an unknown layer or pooling, or the class token of a model that has none.
        """
        if layer not in ("last", "blocks", "all"):
            raise ConfigError(f"got layer={layer!r}; expected 'last', 'blocks' or 'all'")
        _check_pooling(anatomy, pooling)
        self.anatomy = anatomy
        self.pooling = pooling
        self.cache = cache
        self.reused = 0
        self._model_key = "" if cache is None else _model_key(anatomy)
        depth = len(anatomy.blocks)
        self.blocks = {f"block{i:02d}": anatomy.blocks[i] for i in (range(depth) if layer != "last" else [depth - 1])}
        inside = [c for c in anatomy.components if c.role in BLOCK_ROLES and c.modules]
        self.components: list[Component] = inside if layer == "all" else []
        self.layers = sorted([*self.blocks, *(c.id for c in self.components)], key=_depth)

    def of(
        self,
        images: ImageSet,
        preprocessing: Preprocessing,
        device: torch.device,
        *,
        progress: Callable[[int], None] | None = None,
    ) -> dict[str, Float[np.ndarray, "images _"]]:
        """Return the features of a whole set by layer, from disk if they are there; `reused` counts such images.

        Args:
            images: in order.
            preprocessing: turns them into pixel values.
            device: that the model is on.
            progress: called with the number of images done.

        Raises:
            MeasurementError: a layer gives no tensor of tokens.
        """
        if self.cache is None:
            return self._compute(images, preprocessing, device, progress=progress)
        folder = self.cache / self._key(images, preprocessing, device)
        kept = _read(folder, self.layers, len(images))
        if kept is not None and self._agrees(kept, images, preprocessing, device):
            self.reused += len(images)
            if progress is not None:
                progress(len(images))
            return kept
        found = self._compute(images, preprocessing, device, progress=progress)
        with suppress(OSError, StoreError):  # a convenience: where there is no room, they are computed again next time
            _write(folder, found, most=MOST_BYTES)
        return found

    def _key(self, images: ImageSet, preprocessing: Preprocessing, device: torch.device) -> str:
        """Name what features depend on: model (not its classifier), preprocessing, pooling, device, pixels."""
        applied = {name: value for name, value in asdict(preprocessing).items() if name != "origin"}
        what = [self._model_key, self.pooling, applied, device.type]
        digest = hashlib.sha256(json.dumps(what, sort_keys=True).encode())
        for image in images:
            digest.update(f"{image.shape}".encode())
            digest.update(np.ascontiguousarray(image).data)
        return digest.hexdigest()[:32]

    def _agrees(
        self,
        kept: Mapping[str, Float[np.ndarray, "images _"]],
        images: ImageSet,
        preprocessing: Preprocessing,
        device: torch.device,
    ) -> bool:
        """Compute the features of a few images anew and compare."""
        some = np.unique(np.linspace(0, len(images) - 1, LOOKED_AT).astype(int))
        for layer, fresh in self._compute(images.subset(some), preprocessing, device, progress=None).items():
            stored = kept[layer][some]
            if stored.shape != fresh.shape:
                return False
            allowed = TOLERANCE * (kept[layer].std(axis=0) + 0.1 * np.abs(fresh))
            if not (np.abs(stored - fresh) <= allowed).all():
                return False
        return True

    def _compute(
        self,
        images: ImageSet,
        preprocessing: Preprocessing,
        device: torch.device,
        *,
        progress: Callable[[int], None] | None,
    ) -> dict[str, Float[np.ndarray, "images _"]]:
        parts: dict[str, list[np.ndarray]] = {name: [] for name in self.layers}
        done = 0
        for values, _ in evaluation_batches(images, preprocessing):
            for name, pooled in self._pass(values.to(device)).items():
                parts[name].append(pooled.float().cpu().numpy())
            done += len(values)
            if progress is not None:
                progress(done)
        return {name: np.concatenate(found) for name, found in parts.items()}

    def _pass(self, values: Float[Tensor, "batch 3 height width"]) -> dict[str, Float[Tensor, "batch _"]]:
        seen: dict[str, Tensor] = {}

        def keep(name: str) -> Callable[..., None]:
            return lambda module, args, output: seen.update({name: self._pooled(output, name, len(values))})

        def listen(component: Component, given: Tensor, output: Tensor) -> None:
            seen[component.id] = self._pooled(output, component.id, len(values))

        with ExitStack() as stack:
            for name, path in self.blocks.items():
                handle = self.anatomy.module(path).register_forward_hook(keep(name))
                stack.callback(handle.remove)
            if self.components:
                watch = stack.enter_context(listening(self.anatomy, self.components, listen, batch=len(values)))
            self.anatomy.model(values)
            if self.components:
                watch.check()
        if missing := set(self.layers) - set(seen):
            raise MeasurementError(f"these layers gave no output in a forward pass: {', '.join(sorted(missing))}")
        return seen

    def _pooled(self, output: Any, name: str, batch: int) -> Float[Tensor, "{batch} _"]:
        tokens = first_tensor(output, where=name)
        if tokens.ndim < 3 or len(tokens) != batch:
            raise MeasurementError(
                f"{name} gave a tensor of shape {tuple(tokens.shape)}; expected ({batch}, tokens, width)"
            )
        tokens = tokens.flatten(1, -2)
        return tokens[:, 0] if self.pooling == "cls" else tokens.mean(dim=1)


def _depth(layer: str) -> tuple[str, int]:
    """Sort a block's components by their order in it, and its output after them."""
    block, _, role = layer.partition(".")
    return block, list(BLOCK_ROLES).index(role) if role in BLOCK_ROLES else len(BLOCK_ROLES)


def _check_pooling(anatomy: Anatomy, pooling: str) -> None:
    if pooling not in ("mean", "cls"):
        raise ConfigError(f"got pooling={pooling!r}; expected 'mean' or 'cls'")
    embeddings = [p.rpartition(".")[2] for c in anatomy.of("emb") for p in c.parameters]
    if pooling == "cls" and not {"cls_token", "class_token", "class_embedding"} & set(embeddings):
        raise ConfigError(f"{type(anatomy.model).__name__} has no class token; use pooling='mean'")


@contextmanager
def on_device(anatomy: Anatomy, device: str) -> Iterator[torch.device]:
    """Move the model, in evaluation mode, and back."""
    where = torch.device(pick_device(device))
    was = next(anatomy.model.parameters()).device
    try:
        anatomy.model.to(where)
        with observing(anatomy.model):
            yield where
    finally:
        anatomy.model.to(was)


def _model_key(anatomy: Anatomy) -> str:
    """Name a model's weights and blocks; its classifier is not part of it, which features do not pass."""
    head = {name for component in anatomy.of("head") for name in component.parameters}
    weights = fingerprint(anatomy.model, without=head)
    blocks = "\n".join(repr(anatomy.module(path)) for path in anatomy.blocks)
    return f"{weights} {type(anatomy.model).__qualname__}\n{blocks}"


def _read(folder: Path, layers: list[str], images: int) -> dict[str, Float[np.ndarray, "{images} _"]] | None:
    """Read the features of all layers; None if one is missing or is not what was written."""
    found = {}
    for layer in layers:
        try:
            content = (folder / f"{layer}{SUFFIX}").read_bytes()
            digest, stored = content[:DIGEST_BYTES], content[DIGEST_BYTES:]
            if hashlib.sha256(stored).digest() != digest:
                return None
            array = np.load(io.BytesIO(stored), allow_pickle=False)
        except (OSError, ValueError, EOFError):
            return None
        if array.dtype != np.float32 or array.ndim != 2 or len(array) != images:
            return None
        found[layer] = array
    with suppress(OSError):
        os.utime(folder)  # it is in use
    return found


def _write(folder: Path, features: Mapping[str, Float[np.ndarray, "images _"]], *, most: int) -> None:
    """Keep features, if they leave at least half of the free space to others, in place of the longest unused.

    Raises:
        OSError: they cannot be written.
    """
    folder.mkdir(parents=True, exist_ok=True)
    needed = sum(array.nbytes for array in features.values())
    _forget(folder.parent, most=most - needed, but=folder)
    if needed > min(most, shutil.disk_usage(folder).free // 2):
        return
    for layer, array in features.items():
        stored = io.BytesIO()
        np.save(stored, array, allow_pickle=False)
        content = stored.getvalue()
        write_atomically(folder / f"{layer}{SUFFIX}", hashlib.sha256(content).digest() + content, durable=False)


def _forget(cache: Path, *, most: int, but: Path) -> None:
    """Remove the longest unused folders until the rest has at most so many bytes."""
    folders = [f for f in cache.iterdir() if f.is_dir() and f != but]
    sizes = {f: sum(file.stat().st_size for file in f.iterdir()) for f in folders}
    total = sum(sizes.values())
    for folder in sorted(folders, key=lambda f: f.stat().st_mtime):
        if total <= most:
            return
        shutil.rmtree(folder, ignore_errors=True)
        total -= sizes[folder]
