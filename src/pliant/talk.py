"""How a long job tells what it does: sentences, tables and progress, to whoever listens."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Protocol

import pandas as pd


class Talk(Protocol):
    """Someone who listens to a job. The command line prints; a program may log, or keep silent."""

    def say(self, text: str) -> None:
        """Take one sentence."""

    def table(self, title: str, frame: pd.DataFrame, *, note: str = "") -> None:
        """Take a table; `note` says how its numbers were obtained."""

    def bar(self, label: str) -> AbstractContextManager[Callable[[int, int], None]]:
        """Open a progress bar; what is yielded is called with done and total."""


class Silent:
    """Listens to nothing."""

    def say(self, text: str) -> None:
        """Ignore it."""

    def table(self, title: str, frame: pd.DataFrame, *, note: str = "") -> None:
        """Ignore it."""

    @contextmanager
    def bar(self, label: str) -> Iterator[Callable[[int, int], None]]:
        """Yield a function that does nothing."""
        yield lambda done, total: None
