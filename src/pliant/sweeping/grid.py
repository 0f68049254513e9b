"""Recipe → cells."""

from collections.abc import Iterator, Mapping
from typing import Any

from pliant.errors import ConfigError, PliantError
from pliant.runs.config import CellConfig
from pliant.sweeping.recipe import Override, Recipe, matches


def cells(recipe: Recipe, *, changes: Mapping[str, Any] | None = None) -> tuple[CellConfig, ...]:
    """Spell a recipe out: every combination of its axes, in their order, the first axis slowest.

    Everything that can be wrong with a recipe is found here, before anything runs.

    Args:
        recipe: the recipe.
        changes: fields given from outside, as for `Recipe.changed` (fewer steps, other data, some of the seeds). The
            recipe as it is written must be valid on its own.

    Raises:
        ConfigError: a cell is not valid (a learning rate of 0, an unknown component, `lora_rank` without LoRA, ...),
            two cells are one, an override fits no cell, or axes depend on each other in a circle.
    """
    written = _spelled_out(recipe)
    _check_overrides_apply(recipe)
    return _spelled_out(recipe.changed(changes)) if changes else written


def _spelled_out(recipe: Recipe) -> tuple[CellConfig, ...]:
    made: dict[str, tuple[CellConfig, Mapping[str, Any]]] = {}
    for point in _points(recipe):
        fields = {**recipe.base, **point}
        for override in recipe.overrides:
            if override.fits({**recipe.base, **point}):
                fields |= override.set
        try:
            cell = CellConfig(**fields)
        except PliantError as error:
            raise ConfigError(f"recipe {recipe.name!r}, cell ({_shown(point)}): {error}") from None
        if cell.id in made:
            raise ConfigError(
                f"recipe {recipe.name!r}: two cells are one and the same run: ({_shown(made[cell.id][1])}) and "
                f"({_shown(point)})"
            )
        made[cell.id] = (cell, point)
    return tuple(cell for cell, _ in made.values())


def _points(recipe: Recipe) -> Iterator[dict[str, Any]]:
    """Walk through the grid: the values that the axes take, one dictionary a cell."""
    order = _order(recipe)

    def walk(depth: int, point: dict[str, Any]) -> Iterator[dict[str, Any]]:
        if depth == len(order):
            yield {axis: point[axis] for axis in recipe.all_axes if axis in point}
            return
        values = _values(recipe, order[depth], point)
        if values is None:  # an axis of an override that does not apply here
            yield from walk(depth + 1, point)
        for value in values or ():
            yield from walk(depth + 1, {**point, order[depth]: value})

    return walk(0, {})


def _values(recipe: Recipe, axis: str, point: Mapping[str, Any]) -> tuple[Any, ...] | None:
    fitting = [o.axes[axis] for o in recipe.overrides if axis in o.axes and o.fits({**recipe.base, **point})]
    return fitting[-1] if fitting else recipe.axes.get(axis)


def _order(recipe: Recipe) -> tuple[str, ...]:
    """Order the axes as they are written, but each after those that its values depend on."""
    needs = {axis: _needs(recipe, axis) for axis in recipe.all_axes}
    order: list[str] = []
    while len(order) < len(needs):
        ready = [axis for axis in needs if axis not in order and needs[axis] <= set(order)]
        if not ready:
            circle = sorted(set(needs) - set(order))
            raise ConfigError(f"recipe {recipe.name!r}: the axes {', '.join(circle)} depend on each other in a circle")
        order.append(ready[0])
    return tuple(order)


def _needs(recipe: Recipe, axis: str) -> set[str]:
    deciding = (override.when for override in recipe.overrides if axis in override.axes)
    return {key for when in deciding for key in when if key in recipe.all_axes}


def _check_overrides_apply(recipe: Recipe) -> None:
    """Refuse an override, or one of its values, that fits no cell: as a rule it is misspelled."""
    points = [{**recipe.base, **point} for point in _points(recipe)]
    for number, override in enumerate(recipe.overrides, start=1):
        for key, values in override.when.items():
            for value in values:
                if not any(_decides(override, key, value, point) for point in points):
                    seen = dict.fromkeys(str(point.get(key, CellConfig.model_fields[key].default)) for point in points)
                    raise ConfigError(
                        f"recipe {recipe.name!r}, override {number} (when {override}): {key} = {value!r} fits no cell. "
                        f"{key} is {', '.join(seen)}"
                    )


def _decides(override: Override, key: str, value: Any, point: Mapping[str, Any]) -> bool:
    return override.fits(point) and matches(value, point, key)


def _shown(point: Mapping[str, Any]) -> str:
    return ", ".join(f"{axis}: {value}" for axis, value in point.items()) or "the only one"
