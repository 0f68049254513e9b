"""Data sets of the hub, through the datasets library: from its cache, or downloaded because the user named them."""

import re
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

from pliant.data.listing import Listing, Request
from pliant.data.objects import listing_of
from pliant.errors import DataError, PliantError

REQUEST_SECONDS = 8.0
"""For one request to answer."""

DEADLINE_SECONDS = 12.0
"""For the hub to answer at all; resolving its name can hang for longer than a request may take."""

REPOSITORY = re.compile(r"[\w.-]+(/[\w.-]+)?")

T = TypeVar("T")


def hub(argument: str | None, request: Request) -> Listing:
    """List a data set of the hub: `hub:ORG/NAME` or `hub:ORG/NAME:CONFIG`."""
    repository, _, config = (argument or "").partition(":")
    return listing_of(fetch(repository, config or None), f"hub:{argument}")


def fetch(repository: str, config: str | None = None) -> Any:
    """Return a data set of the hub with all its splits, undecoded; no code of the repository is run.

    The hub is asked once whether it has the data set. If it does not answer, the copy in the cache serves.

    Raises:
        DataError: the name is none, the hub does not have it or cannot be reached and no copy is in the cache.
    """
    import datasets
    import huggingface_hub

    name = f"hub:{repository}" + (f":{config}" if config else "")
    if not REPOSITORY.fullmatch(repository):
        raise DataError(f"got {name!r}; expected hub:ORG/NAME or hub:ORG/NAME:CONFIG")
    if Path(repository).exists():
        raise DataError(f"{name}: there is also a local {repository}, which datasets would load instead; rename it")
    if datasets.config.HF_HUB_OFFLINE:
        return _cached(name, repository, config, "HF_HUB_OFFLINE is set, so the hub was not asked", None)
    api = huggingface_hub.HfApi()
    try:
        _within(DEADLINE_SECONDS, lambda: api.dataset_info(repository, timeout=REQUEST_SECONDS))
    except huggingface_hub.errors.GatedRepoError as error:
        raise DataError(f"{name}: its owner gives access on request; ask on its page, then `hf auth login`") from error
    except huggingface_hub.errors.RepositoryNotFoundError as error:
        raise DataError(
            f"{name}: the hub has no public data set of that name; check the spelling, or log in with `hf auth login`"
        ) from error
    except Exception as error:  # the transport errors of the hub's client come from another package in each release
        return _cached(name, repository, config, f"the hub could not be reached ({_line(error)})", error)
    try:
        return datasets.load_dataset(repository, config)
    except Exception as error:  # each builder has errors of its own
        raise DataError(f"{name} cannot be loaded: {_line(error)}") from error


def _cached(name: str, repository: str, config: str | None, reason: str, cause: Exception | None) -> Any:
    """Load from the cache, without a request and without talk."""
    import datasets

    try:
        with _offline(), _quiet():
            return datasets.load_dataset(repository, config)
    except PliantError:
        raise
    except Exception as error:  # as above
        raise DataError(
            f"{name} cannot be had: {reason}, and it is not in the cache {datasets.config.HF_DATASETS_CACHE}. "
            "Check the connection, or give local data: digits, fashion-mnist, folder:PATH"
        ) from (cause or error)


@contextmanager
def _offline() -> Iterator[None]:
    """Keep the datasets library from requests inside the block."""
    import datasets

    before = datasets.config.HF_HUB_OFFLINE
    datasets.config.HF_HUB_OFFLINE = True
    try:
        yield
    finally:
        datasets.config.HF_HUB_OFFLINE = before


@contextmanager
def _quiet() -> Iterator[None]:
    """Hold back the datasets library's log lines inside the block."""
    import datasets

    before = datasets.logging.get_verbosity()
    datasets.logging.set_verbosity(datasets.logging.CRITICAL)
    try:
        yield
    finally:
        datasets.logging.set_verbosity(before)


def _within(seconds: float, call: Callable[[], T]) -> T:
    """Run a call that may hang in the operating system, but wait for it no longer than so."""
    results: list[T] = []
    failures: list[Exception] = []

    def run() -> None:
        try:
            results.append(call())
        except Exception as error:  # raised again in the waiting thread
            failures.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(seconds)
    if failures:
        raise failures[0]
    if not results:
        raise TimeoutError(f"no answer within {seconds:g} s")
    return results[0]


def _line(error: BaseException) -> str:
    """Return the first line of an error's message, or its class name."""
    return str(error).strip().split("\n", 1)[0] or type(error).__name__
