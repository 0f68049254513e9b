"""The errors that pliant raises. Each message says what was got, what was expected, and what to do."""

from collections.abc import Iterable, Sequence


class PliantError(Exception):
    """Base of every error that pliant raises on purpose; the command line prints it as one message."""


class UnknownNameError(PliantError, LookupError):
    """A name (component, model, data set, recipe key) that nothing is known by."""

    @classmethod
    def among(cls, kind: str, got: str, known: Iterable[str], near: Sequence[str] = ()) -> "UnknownNameError":
        """Build the message: what was got, the nearest known names first, then all of them."""
        hint = f" Did you mean {' or '.join(repr(n) for n in near)}?" if near else ""
        return cls(f"unknown {kind} {got!r}.{hint} Known: {', '.join(known)}.")


class ConfigError(PliantError, ValueError):
    """A configuration or an argument with a value that cannot be meant."""


class DataError(PliantError, ValueError):
    """Data that cannot be used as they are; names the folder or file."""


class ModelError(PliantError, ValueError):
    """A model or checkpoint that cannot be used as it is."""


class ModelNotFoundError(ModelError, FileNotFoundError):
    """A model name that leads to no weights here; says what was tried."""


class AnatomyError(PliantError, LookupError):
    """The components of a model cannot be found, or not every parameter is accounted for."""


class MeasurementError(PliantError, ArithmeticError):
    """A measurement that would be wrong or empty: non-finite activations, no distinct pair."""


class TrainingError(PliantError, RuntimeError):
    """A training run that must not go on: a chosen tensor without gradient, a frozen one that moved."""


class DivergedError(TrainingError):
    """The loss stopped being finite."""


class StoreError(PliantError, OSError):
    """A store of runs that cannot be read or written."""


class MissingExtraError(PliantError, ImportError):
    """A feature whose optional dependency is not installed; says how to install it."""
