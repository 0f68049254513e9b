"""What a model name means: the bundled model, a folder, a hub id, or random weights asked for by name."""

import re
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path

from pliant.errors import ModelNotFoundError
from pliant.terms import nearest

BUNDLED = "bundled"
RANDOM_PREFIX = "random:"

HUB_EXAMPLES = (
    "google/vit-base-patch16-224-in21k",
    "facebook/dinov2-small",
    "timm/vit_base_patch16_224.orig_in21k",
    "openai-community/gpt2",
)
"""Shown when a name leads nowhere; any other hub id is as good."""

_HUB_ID = re.compile(r"(?P<repo>[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*)(?:@(?P<revision>[\w./-]+))?")


@dataclass(frozen=True)
class Source:
    """Where a name leads.

    Attributes:
        folder: with the configuration and the weights; None for what is on a hub.
        repo, revision: of a hub id; empty for a folder. Without a revision the hub's main one is meant.
        random: weights are to be drawn, not read.
    """

    folder: Path | None
    repo: str = ""
    revision: str | None = None
    random: bool = False


def resolve(name: str) -> Source:
    """Say what a model name means, without loading or fetching anything.

    Raises:
        ModelNotFoundError: it means nothing; the message says what was tried and what is near.
    """
    if name.startswith(RANDOM_PREFIX):
        path = Path(name.removeprefix(RANDOM_PREFIX)).expanduser()
        folder = path.parent if path.name == "config.json" else path
        if name == f"{RANDOM_PREFIX}{BUNDLED}":
            folder = bundled_folder()
        if not (folder / "config.json").is_file():
            raise ModelNotFoundError(
                f"{name!r}: there is no {folder / 'config.json'} to build a model with random weights from."
            )
        return Source(folder, random=True)
    if name == BUNDLED:
        return Source(bundled_folder())
    path = Path(name).expanduser()
    if name and path.is_dir():
        return Source(path)
    if path.is_file():
        raise ModelNotFoundError(
            f"{name!r} is a file; give the folder that holds config.json and the weights: {path.parent}."
        )
    match = _HUB_ID.fullmatch(name)
    if match and not _looks_like_path(name):
        return Source(None, repo=match["repo"], revision=match["revision"])
    raise ModelNotFoundError(_unknown(name, path))


def bundled_folder() -> Path:
    """Return the folder of the model that comes with pliant."""
    folder = Path(str(files("pliant") / "assets" / "bundled"))
    if not (folder / "config.json").is_file():
        raise ModelNotFoundError(f"the bundled model is not at {folder}; the installation of pliant is incomplete.")
    return folder


def _looks_like_path(name: str) -> bool:
    return name.startswith((".", "/", "~", "\\")) or name.endswith("/")


def _unknown(name: str, path: Path) -> str:
    tried = f"unknown model {name!r}: it is not {BUNDLED!r}, there is no folder {path}"
    form = "" if _looks_like_path(name) else ", and a hub id has the form ORGANISATION/NAME"
    return f"{tried}{form}.{near_names(name)} Known: {BUNDLED!r}; a model folder; a hub id such as {HUB_EXAMPLES[1]!r}."


def near_names(name: str) -> str:
    """Return a sentence with the nearest names that lead somewhere, or nothing if none is near.

    >>> near_names("bundeld"), near_names("gpt2")
    (" Did you mean 'bundled'?", " Did you mean 'openai-community/gpt2'?")
    """
    if name.partition("@")[0] in HUB_EXAMPLES:
        return ""
    short = {repo.partition("/")[2]: repo for repo in HUB_EXAMPLES}
    known = [BUNDLED, *short, *HUB_EXAMPLES, *_model_folders(Path(name).expanduser().parent)]
    near = dict.fromkeys(short.get(n, n) for n in nearest(name, known))
    return f" Did you mean {' or '.join(repr(n) for n in near if n != name)}?" if set(near) - {name} else ""


def _model_folders(parent: Path) -> list[str]:
    """Folders beside a path that hold a model, as the user would write them."""
    if not parent.is_dir():
        return []
    return [str(config.parent) for config in sorted(parent.glob("*/config.json"))[:200]]
