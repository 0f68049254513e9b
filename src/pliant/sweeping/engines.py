"""The engines there are, by name. A further one is one more entry here; the tests run over all of them."""

from collections.abc import Callable

from pliant.errors import UnknownNameError
from pliant.sweeping.engine import Engine, Settings
from pliant.sweeping.local import local_engine
from pliant.sweeping.ray import ray_engine
from pliant.terms import nearest

ENGINES: dict[str, Callable[[Settings], Engine]] = {"local": local_engine, "ray": ray_engine}


def check_engine(name: str) -> None:
    """Refuse a name that no engine has.

    Raises:
        UnknownNameError: names the nearest, and all.
    """
    if name not in ENGINES:
        raise UnknownNameError.among("engine", name, ENGINES, nearest(name, ENGINES))


def make_engine(name: str, settings: Settings) -> Engine:
    """Make an engine.

    Raises:
        UnknownNameError: there is none of that name.
        ConfigError: it cannot run with these settings here.
        MissingExtraError: it needs a library that is not installed.
    """
    check_engine(name)
    return ENGINES[name](settings)
