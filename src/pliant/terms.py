"""Roles, conventions, ids and the axis legend: the words that every other module shares.

Axis names in shapes: `batch` images, `tokens` per image (n), `dim` features per token (d), `heads` (H),
`head_dim` features per head (k = d/H), `hidden` features of the feed-forward part, `pairs` of items.
"""

import difflib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal, get_args

from pliant.errors import UnknownNameError

Role = Literal["emb", "ln1", "mha", "ln2", "fc1", "fc2", "layerscale", "final_norm", "head", "other"]
Convention = Literal["shared", "insitu"]
PairMode = Literal["all", "matched"]

ROLES: tuple[Role, ...] = get_args(Role)
"""Every parameter of a model belongs to exactly one of these."""

BLOCK_ROLES: tuple[Role, ...] = ("ln1", "mha", "ln2", "fc1", "fc2")
"""The components of one transformer block that plasticity and bounds are defined for (docs/plasticity.md)."""

CONVENTIONS: tuple[Convention, ...] = get_args(Convention)
PAIR_MODES: tuple[PairMode, ...] = get_args(PairMode)

ALWAYS_TRAINED: tuple[Role, ...] = ("final_norm", "head")
"""The new classifier and the final norm are trained with every component set (arXiv 2602.06883)."""

SETS: dict[str, tuple[Role, ...]] = {"full": ROLES, "head": ()}
"""Named component sets beside the roles themselves; `head` trains nothing but what is always trained."""


def component_id(role: Role, block: int | None) -> str:
    """Name a component as tables and messages do.

    >>> component_id("mha", 3), component_id("final_norm", None)
    ('block03.mha', 'final_norm')
    """
    return role if block is None else f"block{block:02d}.{role}"


def nearest(name: str, known: Iterable[str], *, count: int = 3) -> list[str]:
    """Return the known names closest to `name`, best first; all of them if none is close."""
    names = sorted(known)
    folded = {n.lower(): n for n in names}
    close = difflib.get_close_matches(str(name).lower(), list(folded), n=count, cutoff=0.5)
    return [folded[c] for c in close]


def parse_components(text: str | Sequence[str]) -> tuple[Role, ...]:
    """Read a component set: roles joined by `+`, or `full`, or `head`; in canonical order, without repeats.

    The roles in `ALWAYS_TRAINED` are trained with every set and are not part of the answer, except under `full`.

    >>> parse_components("fc1+mha")
    ('mha', 'fc1')
    >>> parse_components("head")
    ()

    Raises:
        UnknownNameError: a part is no role and no named set.
    """
    parts = [p.strip() for p in (text.split("+") if isinstance(text, str) else text)]
    chosen: set[Role] = set()
    for part in parts:
        if part in SETS:
            chosen.update(SETS[part])
        elif part in ROLES:
            chosen.add(part)
        else:
            known = list(dict.fromkeys([*BLOCK_ROLES, *SETS, *ROLES]))
            raise UnknownNameError.among("component", part, known, nearest(part, known))
    if len(chosen) == len(ROLES):
        return ROLES
    return tuple(r for r in ROLES if r in chosen and r not in ALWAYS_TRAINED)


def components_name(roles: Sequence[Role]) -> str:
    """Write a component set the way `parse_components` reads it.

    >>> components_name(("mha", "fc1")), components_name(()), components_name(ROLES)
    ('mha+fc1', 'head', 'full')
    """
    if tuple(roles) == ROLES:
        return "full"
    return "+".join(roles) if roles else "head"


@dataclass(frozen=True)
class Preprocessing:
    """What a checkpoint expects of an image, as plain values: resize, centre crop, scale to [0, 1], normalise.

    Attributes:
        height, width: pixels of what the model is given.
        resize: length in pixels that the shorter side is resized to before the centre crop;
            None resizes straight to (height, width), ignoring the aspect ratio.
        interpolation: "bicubic", "bilinear", "nearest" or "lanczos".
        mean, std: per channel, of values in [0, 1].
        origin: where these values come from, for printing ("preprocessor_config.json of ...").
    """

    height: int
    width: int
    resize: int | None
    interpolation: str
    mean: tuple[float, float, float]
    std: tuple[float, float, float]
    origin: str
