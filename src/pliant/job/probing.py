"""Linear probing by name: the door of `pliant.probe` and `pliant probe`."""

from typing import Any

from torch import nn

from pliant.components import find_components
from pliant.data import ImageData, cache_folder, load
from pliant.measuring.subject import opened, pick_device
from pliant.models import Loaded
from pliant.talk import Silent, Talk
from pliant.tuning import ProbeResult
from pliant.tuning import probe as probe_loaded


def probe(
    model: str | nn.Module | Loaded = "bundled",
    data: Any = "digits",
    *,
    train: int | None = None,
    validation: int | None = None,
    test: int | None = None,
    layer: str = "last",
    pooling: str = "mean",
    seed: int = 0,
    device: str = "auto",
    cache: bool = True,
    talk: Talk | None = None,
) -> ProbeResult:
    """Fit a linear classifier on a pretrained model's frozen features; the line that tuning has to beat.

    Args:
        model: a name (`bundled`, folder, hub id), a loaded model, or any vision model with known preprocessing.
        data: a name, a data set object, or loaded `ImageData`.
        train: at most so many training images; `validation` and `test` likewise.
        validation: see there.
        test: see there.
        layer: `last` block's output; `blocks`: every block's output; `all`: also every component's of every block.
        pooling: `mean` over all tokens, or `cls`, the class token.
        seed: of the splits.
        device: `auto`, `cpu`, `cuda` or `mps`.
        cache: keep features on disk, in the folder PLIANT_CACHE (see README), and read them from there the next time.
        talk: is told what happens; by default nobody is.

    Raises:
        UnknownNameError, DataError, ModelError: names and data that lead nowhere.
        ConfigError: an unknown layer or pooling, or the class token of a model that has none.
        MeasurementError: features that are not finite.
    """
    talk = talk or Silent()
    where = pick_device(device)
    if not isinstance(data, ImageData):
        with talk.bar("Reading the data") as bar:
            data = load(data, train=train, validation=validation, test=test, seed=seed, progress=bar)
    data.require_splits()
    loaded = opened(model)
    options: dict[str, Any] = {"layer": layer, "pooling": pooling, "device": where}
    if cache:
        options["cache"] = cache_folder() / "features"
    with talk.bar("Linear probe") as bar:
        return probe_loaded(loaded, data, anatomy=find_components(loaded.model), progress=bar, **options)
