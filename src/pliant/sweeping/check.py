"""What is looked at before a sweep runs: names, data, models, component sets, device; and what would be trained."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pliant.errors import AnatomyError, ConfigError, DataError, ModelNotFoundError
from pliant.runs import CellConfig
from pliant.terms import ALWAYS_TRAINED

if TYPE_CHECKING:  # torch is imported when it is needed
    from pliant.components import Anatomy
    from pliant.models import Loaded


@dataclass(frozen=True)
class Parameters:
    """What a cell trains, counted without training.

    Attributes:
        trained: number of trained weights.
        total: of the model with its classifier.
    """

    trained: int
    total: int


@dataclass(frozen=True)
class DataSize:
    """A data set, listed but not decoded."""

    classes: tuple[str, ...]
    train: int
    validation: int
    test: int


def data_key(cell: CellConfig) -> tuple[object, ...]:
    """Return what says which images a cell has."""
    return (cell.data, cell.train, cell.validation, cell.test, cell.data_seed)


def check_device(device: str, *, recipe: str) -> None:
    """Refuse a device that is not there.

    Raises:
        ConfigError: says so, and that the recipe asks for it.
    """
    from pliant.measuring.subject import pick_device

    try:
        pick_device(device)
    except ConfigError as error:
        raise ConfigError(f"recipe {recipe!r} is to run on {device!r}: {error}. --device cpu runs it without") from None


def list_data(cells: Iterable[CellConfig], *, elsewhere: bool = False) -> dict[tuple[object, ...], DataSize]:
    """List every data set of the cells; nothing is decoded.

    Args:
        cells: the cells.
        elsewhere: the cells run on other machines, which may have data sets that this one has not: these are left out.

    Raises:
        UnknownNameError: a name that nothing is known by.
        DataError: data sets that are not here, or cannot be used: all of them, by name.
    """
    from pliant.data.listing import Request
    from pliant.data.sources import find_source, list_images, split

    by_key = {data_key(cell): cell for cell in cells}
    for cell in by_key.values():
        find_source(cell.data)
    found, missing = {}, []
    for key, cell in by_key.items():
        request = Request(cell.train, cell.validation, cell.test, cell.data_seed)
        try:
            data = split(list_images(cell.data, request), request)
            data.require_splits()
        except DataError as error:
            missing.append(f"{cell.data}: {error}")
            continue
        found[key] = DataSize(data.classes, len(data.train), len(data.validation), len(data.test))
    if missing and not elsewhere:
        more = "" if len(missing) == len(by_key) else ". To run the others: --set data=NAME,NAME"
        raise DataError("\n".join([f"{len(missing)} of {len(by_key)} data sets cannot be used{more}", *missing]))
    return found


def check_models(cells: Sequence[CellConfig], *, elsewhere: bool = False) -> None:
    """Find every model of the cells, and in it every component set.

    Args:
        cells: the cells.
        elsewhere: the cells run on other machines, which may have models that this one has not.

    Raises:
        ModelError: a model is not here, or cannot be used.
        AnatomyError: a component set that its family lacks.
    """
    try:
        count_parameters(cells, {data_key(cell): ("one", "another") for cell in cells})
    except ModelNotFoundError:
        if not elsewhere:
            raise


def count_parameters(
    cells: Sequence[CellConfig], classes: Mapping[tuple[object, ...], tuple[str, ...]]
) -> dict[CellConfig, Parameters]:
    """Count in each cell's model what the cell trains.

    Args:
        cells: the cells.
        classes: of each data set, by `data_key`.

    Raises:
        ModelError: a model is not here, or cannot be used.
        AnatomyError: a component set that its family lacks.
    """
    from pliant.components import find_components
    from pliant.models import load

    groups: dict[tuple[str, int | None, tuple[str, ...]], list[CellConfig]] = {}
    for cell in cells:
        groups.setdefault((cell.model, cell.image_size, classes[data_key(cell)]), []).append(cell)
    counts: dict[CellConfig, Parameters] = {}
    for (model, image_size, names), own in groups.items():
        loaded = load(model, classes=names, image_size=image_size)
        anatomy = find_components(loaded.model)
        total = sum(parameter.numel() for parameter in loaded.model.parameters())
        variants = {cell.variant: cell for cell in own}
        trained = {variant: _trained(cell, loaded, anatomy) for variant, cell in variants.items()}
        counts |= {cell: Parameters(trained[cell.variant], total) for cell in own}
    return counts


def _trained(cell: CellConfig, loaded: "Loaded", anatomy: "Anatomy") -> int:
    """Count what one cell trains. For component sets that takes no look at the weights."""
    from pliant.tuning.baselines import footprint

    present = set(anatomy.roles)
    if cell.method == "components" and (cell.components == "full" or set(cell.roles) <= present):
        return anatomy.count({*cell.roles, *ALWAYS_TRAINED} & present)
    try:
        return footprint(cell, loaded, anatomy=anatomy).parameters
    except AnatomyError as error:
        raise AnatomyError(f"{cell.variant!r} cannot be trained in {cell.model}: {error}") from None
