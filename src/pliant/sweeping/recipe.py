"""A recipe: a grid of cells in a few readable lines of YAML, strict in every key.

    name: example
    description: Two component sets; the larger data set gets its own learning rates and more steps.
    base: {steps: 1000, eval_every: 100}              # what all cells share
    axes:                                             # every combination of these is a cell
      data: [cifar10, domainnet-clipart, domainnet-sketch]
      components: [mha, fc1]
      learning_rate: [1e-3, 1e-2]
    overrides:                                        # the last one that applies wins
      - when: {data: domainnet-*}                     # a value, a pattern, or a list of them
        set: {steps: 2000}                            # instead of the base's
        axes: {learning_rate: [1e-2, 1e-1]}           # instead of the axis's values

Keys are those of `CellConfig`. An axis that only an override names exists only where that override applies (`lora_rank`
where `method` is `lora`). Conditions look at base, axes and defaults, never at what another override sets.
"""

import re
from collections.abc import Iterable, Mapping
from fnmatch import fnmatchcase
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Annotated, Any, Literal, Self

import yaml
from pydantic import BeforeValidator, Field, field_validator, model_validator

from pliant.errors import ConfigError, PliantError, UnknownNameError
from pliant.runs.config import CellConfig
from pliant.runs.strict import FromList, Strict, unknown_key
from pliant.terms import nearest


def _listed(value: object) -> object:
    """Read a condition: one value stands for a list of one."""
    if not isinstance(value, dict):
        return value
    return {key: tuple(one) if isinstance(one, list | tuple) else (one,) for key, one in value.items()}


def _axes(value: object) -> object:
    """Read axes, each a list; a single value is refused: it belongs to the base."""
    if not isinstance(value, dict):
        return value
    for key, values in value.items():
        if not isinstance(values, list | tuple):
            raise ValueError(f"axis {key!r} must be a list, got {values!r}: a single value belongs under base or set")
        if not values:
            raise ValueError(f"axis {key!r} has no values: the grid would be empty")
        if any(value in values[:at] for at, value in enumerate(values)):
            raise ValueError(f"axis {key!r} has a value twice: {list(values)}")
    return {key: tuple(values) for key, values in value.items()}


Fields = dict[str, Any]
Condition = Annotated[dict[str, tuple[Any, ...]], BeforeValidator(_listed), Field(min_length=1)]
Axes = Annotated[dict[str, tuple[Any, ...]], BeforeValidator(_axes)]


class Override(Strict):
    """What is different for some cells.

    Attributes:
        when: for each key the values, or shell patterns, that it applies to; all keys must fit.
        set: fields with another value there.
        axes: axes with other values there.
    """

    when: Condition
    set: Fields = Field(default_factory=dict)
    axes: Axes = Field(default_factory=dict)

    @model_validator(mode="after")
    def _says_something(self) -> Self:
        if not self.set and not self.axes:
            raise ValueError(f"the override when {self} has neither set nor axes: it changes nothing")
        return self

    def fits(self, fields: Mapping[str, Any]) -> bool:
        """Whether it applies to a cell of which these fields are known; fields that are not have their default."""
        return all(any(matches(value, fields, key) for value in values) for key, values in self.when.items())

    def __str__(self) -> str:
        """Show the condition, as in messages."""
        return ", ".join(f"{key}: {' or '.join(map(str, values))}" for key, values in self.when.items())


def matches(value: Any, fields: Mapping[str, Any], key: str) -> bool:
    """Whether a field is this value or fits this pattern; without the field, whether its default does."""
    found = fields[key] if key in fields else CellConfig.model_fields[key].default
    if isinstance(value, str) and isinstance(found, str):
        return fnmatchcase(found, value)
    return found is value or (found == value and not isinstance(found, bool) and not isinstance(value, bool))


class Recipe(Strict):
    """A sweep before it is spelled out; `cells` spells it out.

    Attributes:
        name: a word for it.
        description: what it is for.
        device: where it has to run; `auto` runs anywhere. No part of the cells: results are the same cell's.
        base: fields that all cells share.
        axes: fields that vary, each with its values.
        overrides: exceptions; a later one wins over an earlier one.

    Raises:
        ConfigError: a key is unknown (the nearest is named), an axis is empty or repeats a value, a field is both
            base and axis, or an override sets what is an axis.
    """

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")]
    description: str = ""
    device: Literal["auto", "cpu", "cuda", "mps"] = "auto"
    base: Fields = Field(default_factory=dict)
    axes: Axes = Field(default_factory=dict)
    overrides: Annotated[tuple[Override, ...], FromList] = ()

    @field_validator("overrides", mode="before")
    @classmethod
    def _overrides(cls, value: object) -> object:
        if not isinstance(value, list | tuple):
            return value
        made = []
        for number, one in enumerate(value, start=1):
            try:
                made.append(Override(**one) if isinstance(one, dict) else one)
            except PliantError as error:
                raise ValueError(f"override {number}: {error}") from None
        return tuple(made)

    @model_validator(mode="after")
    def _keys(self) -> Self:
        places = {"base": self.base, "axes": self.axes}
        for number, override in enumerate(self.overrides, start=1):
            places |= {f"override {number}, {part}": getattr(override, part) for part in ("when", "set", "axes")}
        for place, fields in places.items():
            for key in fields:
                if key not in CellConfig.model_fields:
                    raise ValueError(unknown_key(str(key), CellConfig.model_fields, where=f" in {place}"))
        if both := sorted(set(self.base) & set(self.axes)):
            raise ValueError(f"{', '.join(both)}: both in base and an axis. Take it out of one of them")
        for number, override in enumerate(self.overrides, start=1):
            if axes := sorted(set(override.set) & set(self.all_axes)):
                raise ValueError(f"override {number} sets {', '.join(axes)}, which is an axis: give it under axes")
        return self

    @property
    def all_axes(self) -> tuple[str, ...]:
        """Names of the axes, those of overrides included."""
        return tuple(dict.fromkeys([*self.axes, *(axis for override in self.overrides for axis in override.axes)]))

    def changed(self, changes: Mapping[str, Any]) -> "Recipe":
        """Return the recipe with some fields given from outside, for all cells, whatever base and overrides say.

        Args:
            changes: field to value, or to a list of values, which makes it an axis.

        Raises:
            ConfigError: a key is unknown, or a list is empty.
        """
        lists = {key: tuple(value) if isinstance(value, list | tuple) else (value,) for key, value in changes.items()}

        def others(fields: Mapping[str, Any]) -> dict[str, Any]:
            return {key: value for key, value in fields.items() if key not in lists}

        left = [override for override in self.overrides if {*override.set, *override.axes} - set(lists)]
        return Recipe(
            name=self.name,
            description=self.description,
            device=self.device,
            base=others(self.base),
            axes={**self.axes, **lists},  # an axis keeps its place
            overrides=tuple(Override(when=o.when, set=others(o.set), axes=others(o.axes)) for o in left),
        )


def recipe_names() -> tuple[str, ...]:
    """Names of the recipes that come with pliant."""
    return tuple(sorted(file.name.removesuffix(".yaml") for file in _folder().iterdir() if file.name.endswith(".yaml")))


def load_recipe(source: str | Path) -> Recipe:
    """Read a recipe that comes with pliant, by name, or a YAML file.

    Raises:
        UnknownNameError: there is no such recipe, and no such file.
        ConfigError: the file is missing, is no YAML, or is no valid recipe.
    """
    text, path = str(source), Path(source)
    if text in recipe_names():
        return read_recipe((_folder() / f"{text}.yaml").read_text(encoding="utf-8"), where=f"recipe {text!r}")
    if path.suffix not in (".yaml", ".yml") and not path.is_file():
        names = recipe_names()
        raise UnknownNameError.among("recipe", text, [*names, "or a path to a .yaml file"], nearest(text, names))
    try:
        content = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"the recipe {path} cannot be read: {error}") from None
    return read_recipe(content, where=str(path))


def read_recipe(text: str, *, where: str = "recipe") -> Recipe:
    """Read a recipe from YAML.

    Args:
        text: the YAML.
        where: what to call it in messages.

    Raises:
        ConfigError: it is no YAML, or no valid recipe.
    """
    try:
        fields = yaml.load(text, Loader=_Loader)  # a SafeLoader
        if not isinstance(fields, dict):
            raise ConfigError(f"expected keys and values, got {type(fields).__name__}")
        return Recipe(**{str(key): value for key, value in fields.items()})
    except (yaml.YAMLError, ConfigError) as error:
        raise ConfigError(f"{where}: {error}") from None


def read_changes(texts: Iterable[str]) -> dict[str, list[Any]]:
    """Read `key=value` or `key=value,value` as given on a command line, for `Recipe.changed`.

    >>> read_changes(["steps=20", "learning_rate=1e-3,3e-3", "data=folder:/my/images"])
    {'steps': [20], 'learning_rate': [0.001, 0.003], 'data': ['folder:/my/images']}

    Raises:
        ConfigError: no `=`, an unknown key, or a value that cannot be read.
    """
    changes: dict[str, list[Any]] = {}
    for text in texts:
        key, equals, values = text.partition("=")
        if not equals:
            raise ConfigError(f"expected key=value, got {text!r}")
        if key.strip() not in CellConfig.model_fields:
            raise ConfigError(unknown_key(key.strip(), CellConfig.model_fields))
        try:
            changes[key.strip()] = yaml.load(f"[{values}]", Loader=_Loader)
        except yaml.YAMLError as error:
            raise ConfigError(f"the value of {text!r} cannot be read: {error}") from None
    return changes


def _folder() -> Traversable:
    return files("pliant") / "assets" / "recipes"


class _Loader(yaml.SafeLoader):
    """YAML as people write it: `1e-3` is a number (YAML 1.1 has it as text), and no key is given twice."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        """Build a mapping; refuse a key that is there twice, of which YAML would silently keep the last."""
        keys = [self.construct_object(key, deep=True) for key, _ in node.value]
        for at, key in enumerate(keys):
            if key in keys[:at]:
                raise yaml.constructor.ConstructorError(
                    None, None, f"the key {key!r} is given twice", node.value[at][0].start_mark
                )
        return super().construct_mapping(node, deep=deep)


_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float", re.compile(r"^[-+]?[0-9]+(\.[0-9]*)?[eE][-+]?[0-9]+$"), list("-+0123456789")
)
