"""A hub id becomes a folder in the local cache, or one clear error in a few seconds."""

import re
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import huggingface_hub
from huggingface_hub import HfApi, ModelInfo, snapshot_download, try_to_load_from_cache
from huggingface_hub.errors import (
    GatedRepoError,
    HfHubHTTPError,
    HFValidationError,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)

from pliant.errors import ModelNotFoundError
from pliant.models.preprocessing import first_line

REQUEST_SECONDS = 8
"""For one request to answer."""

DEADLINE_SECONDS = 12
"""For the hub to answer at all. Looking up a name and trying each of its addresses in turn come on top of a request."""

_SMALL_FILES = re.compile(
    r"(config|preprocessor_config|processor_config|adapter_config|tokenizer|tokenizer_config|special_tokens_map"
    r"|added_tokens|vocab)\.json|vocab\.txt|merges\.txt|(spiece|tokenizer|sentencepiece\.bpe)\.model"
)
_WEIGHTS = (
    re.compile(r"model\.safetensors"),
    re.compile(r"model\.safetensors\.index\.json|model-\d+-of-\d+\.safetensors"),
    re.compile(r"pytorch_model\.bin"),
    re.compile(r"pytorch_model\.bin\.index\.json|pytorch_model-\d+-of-\d+\.bin"),
)
"""Ways of storing weights, best first; the first that a repository has is fetched, the others are not."""

T = TypeVar("T")


def fetch(repo: str, revision: str | None, *, hint: str = "") -> tuple[Path, str]:
    """Return a local folder with the files of a hub model that pliant needs, and the commit that they are of.

    Online, the hub is asked once which commit and files there are; what is not in the cache is downloaded. Offline
    (`HF_HUB_OFFLINE=1`), or if the hub does not answer, the cached copy is used.

    Args:
        repo: ORGANISATION/NAME.
        revision: branch, tag or commit; the main one if None.
        hint: a sentence for the message if nothing is found.

    Raises:
        ModelNotFoundError: there is no copy and the hub cannot be reached, or does not have the model, or not for you.
    """
    if huggingface_hub.constants.HF_HUB_OFFLINE:
        return _cached(repo, revision, "HF_HUB_OFFLINE is set, so the hub was not asked", hint, None)
    try:
        info = _within(DEADLINE_SECONDS, lambda: HfApi().model_info(repo, revision=revision, timeout=REQUEST_SECONDS))
    except GatedRepoError as error:
        reason = "its owner gives access on request: ask for it on the model's page, then log in with `hf auth login`"
        return _cached(repo, revision, f"the hub refused access to it; {reason}", hint, error)
    except RevisionNotFoundError as error:
        raise ModelNotFoundError(f"model {repo!r} is on the hub, but it has no revision {revision!r}.") from error
    except HFValidationError as error:
        raise ModelNotFoundError(f"{repo!r} is no folder, and cannot be a hub id: {first_line(error)}{hint}") from error
    except RepositoryNotFoundError as error:
        raise ModelNotFoundError(
            f"unknown model {repo!r}: there is no such folder, and the hub has no public model of that name. "
            f"Check the spelling; if it is private, log in with `hf auth login`.{hint}"
        ) from error
    except HfHubHTTPError as error:
        code = error.response.status_code
        reason = "check your login (`hf auth whoami`)" if code in (401, 403) else "try again later"
        return _cached(repo, revision, f"the hub answered with status {code}; {reason}", hint, error)
    except Exception as error:  # the transport errors of the hub's client come from another package in each release
        reason = f"the hub could not be reached ({first_line(error)}); check the connection"
        return _cached(repo, revision, reason, hint, error)
    folder = _download(repo, revision, info)
    return folder, folder.name


def _cached(repo: str, revision: str | None, reason: str, hint: str, cause: Exception | None) -> tuple[Path, str]:
    """Find the copy in the cache; `reason` says why it takes a copy."""
    config = try_to_load_from_cache(repo, "config.json", revision=revision)
    if isinstance(config, str):
        folder = Path(config).parent
        if any(pattern.fullmatch(file.name) for file in folder.iterdir() for pattern in _WEIGHTS):
            return folder, folder.name
        reason += f"; the copy in {folder} has no weights"
    else:
        reason += f"; it is not in the cache {huggingface_hub.constants.HF_HUB_CACHE}"
    at = f" at revision {revision!r}" if revision else ""
    raise ModelNotFoundError(
        f"model {repo!r}{at} cannot be had: there is no such folder here; {reason}.{hint} "
        "Without network give 'bundled' or a model folder."
    ) from cause


def _download(repo: str, revision: str | None, info: ModelInfo) -> Path:
    """Bring the files that pliant needs into the cache, if they are not there."""
    names = [s.rfilename for s in info.siblings or ()]
    small = [n for n in names if _SMALL_FILES.fullmatch(n)]
    choices = ([n for n in names if pattern.fullmatch(n)] for pattern in _WEIGHTS)
    weights = next((found for found in choices if found), [])
    if "config.json" not in small or not (weights or "adapter_config.json" in small):
        lacking = "no config.json" if "config.json" not in small else "no weights in safetensors or torch format"
        raise ModelNotFoundError(
            f"{repo!r} is on the hub but holds {lacking} (it has {', '.join(names[:8]) or 'no files'})."
        )
    cached = [try_to_load_from_cache(repo, name, revision=info.sha) for name in (*small, *weights)]
    if all(isinstance(path, str) for path in cached):
        return Path(str(cached[0])).parent
    try:
        # By the revision's name, not by its commit: only so does the cache remember which commit the name stands for.
        return Path(snapshot_download(repo, revision=revision, allow_patterns=[*small, *weights]))
    except Exception as error:  # as above
        raise ModelNotFoundError(
            f"the download of {repo!r} from the hub broke off: {first_line(error)}. Start again to resume it."
        ) from error


def _within(seconds: float, call: Callable[[], T]) -> T:
    """Run a call that may hang in the operating system (name resolution), but wait for it no longer than so."""
    result: list[T] = []
    failure: list[BaseException] = []

    def run() -> None:
        try:
            result.append(call())
        except BaseException as error:  # raised again in the waiting thread
            failure.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(seconds)
    if failure:
        raise failure[0]
    if not result:
        raise TimeoutError(f"no answer within {seconds:g} s")
    return result[0]
