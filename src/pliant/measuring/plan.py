"""What a measurement does: convention, pairs, roles, and how the items are cut into passes."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal, get_args

from pliant.components import Anatomy, Component
from pliant.errors import ConfigError, UnknownNameError
from pliant.numerics.estimate import Design
from pliant.terms import BLOCK_ROLES, CONVENTIONS, PAIR_MODES, Convention, PairMode, Role, nearest

Precision = Literal["float32", "bfloat16", "float16"]
"""What the model computes in; rates of change are always taken in float32 or better."""

Pass = tuple[range, range | None]
"""Positions of the source items of a pass, and of its target items; None if pairs are formed within one set."""


@dataclass(frozen=True)
class Plan:
    """Everything that a measurement depends on beside the model and the data.

    Attributes:
        convention, pairs: as in `measure`.
        batch_size: source items, and target items, of one pass.
        roles: which components of each block.
        design: how pairs are formed, given whether there are two sides.
        until: relative standard error of every role's mean at which no further pass is taken; None takes all passes.
        per_head: whether each attention head is measured as well.
        precision: what the model computes in.
    """

    convention: Convention
    pairs: PairMode
    batch_size: int
    roles: tuple[Role, ...]
    design: Design
    until: float | None = None
    per_head: bool = False
    precision: Precision = "float32"


def plan_of(
    convention: str,
    pairs: str,
    batch_size: int,
    roles: Sequence[str],
    *,
    two: bool,
    until: float | None = None,
    per_head: bool = False,
    precision: str = "float32",
) -> Plan:
    """Check the arguments of a measurement and put them together; `two` says whether both sides are given.

    Raises:
        UnknownNameError: a convention, way to form pairs, role or precision that does not exist.
        ConfigError: values that do not fit together.
    """
    known = (("convention", convention, CONVENTIONS), ("pairs", pairs, PAIR_MODES))
    for kind, got, names in (*known, ("precision", precision, get_args(Precision))):
        if got not in names:
            raise UnknownNameError.among(kind, got, names, nearest(got, names))
    if unknown := [r for r in roles if r not in BLOCK_ROLES]:
        raise UnknownNameError.among("component to measure", unknown[0], BLOCK_ROLES, nearest(unknown[0], BLOCK_ROLES))
    if not roles:
        raise ConfigError(f"no components to measure; expected some of {', '.join(BLOCK_ROLES)}.")
    if not isinstance(batch_size, int):
        raise ConfigError(f"batch_size is {batch_size!r}; expected a whole number")
    if batch_size < (1 if pairs == "matched" else 2):
        raise ConfigError(f"batch_size is {batch_size}; pairs are formed within a pass, so it must be at least 2.")
    if pairs == "matched" and not two:
        raise ConfigError(
            "matched pairs (x_i, y_i) need both source and target; got one set. Pass both, or pairs='all'."
        )
    if until is not None and not (isinstance(until, int | float) and math.isfinite(until) and 0 < until < 1):
        raise ConfigError(f"until is {until!r}; expected a relative standard error such as 0.02 for 2 %")
    if per_head and "mha" not in roles:
        raise ConfigError(f"per_head needs 'mha' among the roles, got {', '.join(roles)}")
    return Plan(
        convention="shared" if convention == "shared" else "insitu",
        pairs="matched" if pairs == "matched" else "all",
        batch_size=batch_size,
        roles=tuple(r for r in BLOCK_ROLES if r in roles),
        design="matched" if pairs == "matched" else "two-sample" if two else "one-sample",
        until=until,
        per_head=per_head,
        precision=next(p for p in get_args(Precision) if p == precision),
    )


def measured(anatomy: Anatomy, plan: Plan) -> tuple[Component, ...]:
    """Return the components that a plan measures, in the order of a forward pass."""
    return tuple(c for c in anatomy.components if c.role in plan.roles and c.block is not None)


def passes(source: int, target: int | None, plan: Plan) -> list[Pass]:
    """Cut the items into passes of at most `batch_size` a side, as even as can be: no item is left without a pair.

    >>> plan = Plan("insitu", "all", 32, ("mha",), "two-sample")
    >>> [(len(x), len(y)) for x, y in passes(50, 64, plan)]
    [(25, 32), (25, 32)]

    With so few items on one side that some pass would have none, the other side's surplus is not used: to use it, items
    would have to be counted twice.
    """
    if plan.design == "matched":
        source = target = min(source, source if target is None else target)
    count = math.ceil(max(source, target or 0) / plan.batch_size)
    if target is None:  # a pass needs two items of the one set
        count = min(count, max(1, source // 2))
        return [(part, None) for part in _even(source, count)]
    count = min(count, source, target)
    most = count * plan.batch_size
    return list(zip(_even(min(source, most), count), _even(min(target, most), count), strict=True))


def _even(total: int, parts: int) -> list[range]:
    """Cut `total` positions into parts whose lengths differ by at most one."""
    bounds = [total * k // parts for k in range(parts + 1)]
    return [range(a, b) for a, b in pairwise(bounds)]
