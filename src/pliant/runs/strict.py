"""The base of every configuration and record: strict, frozen, and with errors that a reader can act on."""

import json
import math
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Self

from pydantic import BaseModel, BeforeValidator, ConfigDict, PlainSerializer, ValidationError

from pliant.errors import ConfigError, PliantError
from pliant.terms import nearest

ABBREVIATIONS = {
    "lr": "learning_rate",
    "lrs": "learning_rate",
    "wd": "weight_decay",
    "bs": "batch_size",
    "dataset": "data",
    "epochs": "steps",
    "rank": "lora_rank",
    "targets": "lora_targets",
}
"""What people write for a key, too far from its name for a comparison of letters to find it."""

NON_FINITE = {"NaN": float("nan"), "Infinity": float("inf"), "-Infinity": float("-inf")}


def _from_text(value: object) -> object:
    return NON_FINITE.get(value, value) if isinstance(value, str) else value


def plain(value: Any) -> Any:
    """Return a value that JSON can hold: NaN and infinities become the strings of `NON_FINITE`."""
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else ("Infinity" if value > 0 else "-Infinity")
    return value


Real = Annotated[float, BeforeValidator(_from_text), PlainSerializer(plain, when_used="json")]
"""A float that may be NaN or infinite. JSON has no word for these: they are written as the strings of `NON_FINITE`."""


def _as_tuple(value: object) -> object:
    return tuple(value) if isinstance(value, list) else value


FromList: Callable[[object], object] | BeforeValidator = BeforeValidator(_as_tuple)
"""Lets a strict tuple be given as a list, which is all that JSON and YAML have."""


def suggest(key: str, known: Mapping[str, object] | set[str]) -> list[str]:
    """Return the known keys that `key` may stand for, best first."""
    meant = ABBREVIATIONS.get(key.lower())
    return [meant] if meant is not None and meant in known else nearest(key, known)


def unknown_key(key: str, known: Mapping[str, object] | set[str], *, where: str = "") -> str:
    """Say that a key is unknown, the nearest known one first."""
    near = suggest(key, known)
    hint = f" Did you mean {' or '.join(repr(n) for n in near)}?" if near else ""
    return f"unknown key {key!r}{where}.{hint} Known: {', '.join(known)}."


class Strict(BaseModel):
    """A frozen value: unknown keys and wrong types are errors, each named, before anything runs.

    Numbers are not read from text, and nothing is rounded: `steps="100"` and `steps=100.5` are both refused.
    Construction raises `failure` (a `PliantError`), never pydantic's own error.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, protected_namespaces=(), allow_inf_nan=True)

    failure: ClassVar[type[PliantError]] = ConfigError

    if not TYPE_CHECKING:  # the type checker keeps the signature that is made from the fields

        def __init__(self, **fields: Any) -> None:
            """Check the fields and build the value.

            Raises:
                PliantError: (of the class's kind, `failure`) a key is unknown, missing, or has a value that cannot be.
            """
            try:
                super().__init__(**fields)
            except ValidationError as error:
                raise self.failure(explain(error, type(self))) from None

    @classmethod
    def from_json(cls, text: str | bytes) -> Self:
        """Read what `to_json` wrote.

        Raises:
            PliantError: (of the class's kind, `failure`) the text is no JSON object, or a value in it is not valid.
        """
        try:
            fields = json.loads(text)
        except ValueError as error:  # UnicodeDecodeError too
            raise cls.failure(f"{cls.__name__}: this is not JSON ({error})") from None
        if not isinstance(fields, dict):
            raise cls.failure(f"{cls.__name__}: expected a JSON object, got {type(fields).__name__}")
        return cls(**fields)

    def to_json(self) -> str:
        """Write every field as JSON, indented, so that two of them can be compared by eye or by `diff`.

        Raises:
            PliantError: (of the class's kind, `failure`) a number that has to be finite is not.
        """
        try:
            return json.dumps(self.model_dump(mode="json"), indent=1, allow_nan=False) + "\n"
        except ValueError as error:
            raise self.failure(f"{type(self).__name__}: cannot be written as JSON ({error})") from None


def explain(error: ValidationError, model: type[BaseModel]) -> str:
    """Turn pydantic's findings into one message: what was got, what was expected."""
    lines = [_finding(dict(finding), model) for finding in error.errors(include_url=False)]
    return lines[0] if len(lines) == 1 else "\n  ".join([f"{len(lines)} mistakes:", *lines])


def _finding(finding: Mapping[str, Any], model: type[BaseModel]) -> str:
    place = ".".join(str(part) for part in finding["loc"])
    if finding["type"] == "extra_forbidden" and len(finding["loc"]) == 1:
        return unknown_key(str(finding["loc"][0]), model.model_fields)
    if finding["type"] == "missing":
        return f"{place} is missing: it has no default"
    reason = str(finding["ctx"]["error"]) if finding["type"] == "value_error" else finding["msg"]
    if not place:
        return reason
    shown = repr(finding["input"])
    return f"{place} = {shown if len(shown) <= 80 else shown[:77] + '...'}: {reason[0].lower()}{reason[1:]}"
