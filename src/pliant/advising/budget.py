"""A budget on what is trained, and the candidates that it leaves."""

import re
from dataclasses import dataclass

from pliant.components import Anatomy
from pliant.errors import ConfigError
from pliant.terms import ALWAYS_TRAINED, Role, components_name

CANDIDATES: tuple[str, ...] = ("mha", "fc1", "fc2", "ln1", "ln2", "full")
"""The component sets that a race compares by default."""

_FACTORS = {"": 1.0, "k": 1e3, "m": 1e6, "b": 1e9}


@dataclass(frozen=True)
class Candidate:
    """A component set that may be trained.

    Attributes:
        components: its name, as `parse_components` reads it.
        roles: what it is made of.
        parameters: trained parameters, those of the final norm and the new classifier included.
    """

    components: str
    roles: tuple[Role, ...]
    parameters: int


@dataclass(frozen=True)
class Budget:
    """At most so many trained parameters, in all or as a share of the model's.

    >>> Budget.parse("10%"), Budget.parse("2M"), Budget.parse("38400")
    (Budget(share=0.1, count=None), Budget(share=None, count=2000000), Budget(share=None, count=38400))
    """

    share: float | None
    count: int | None

    @classmethod
    def parse(cls, text: str) -> "Budget":
        """Read `10%` (of all parameters) or a number of parameters such as `2M`, `500k`, `38400`.

        Raises:
            ConfigError: anything else, or a budget of nothing.
        """
        match = re.fullmatch(r"\s*([0-9][0-9_]*\.?[0-9]*)\s*(%|[kKmMbB]?)\s*", text)
        value = float(match[1].replace("_", "")) if match else 0.0
        if match is None or value <= 0 or (match[2] == "%" and value > 100):
            raise ConfigError(
                f"got the budget {text!r}; expected a share of the parameters such as 10%, or a number of them such as "
                "2M or 500k."
            )
        if match[2] == "%":
            return cls(value / 100, None)
        return cls(None, int(value * _FACTORS[match[2].lower()]))

    def limit(self, total: int) -> int:
        """Return the largest allowed number of trained parameters of a model that has `total`."""
        return self.count if self.count is not None else int((self.share or 0.0) * total)


def candidate(anatomy: Anatomy, roles: tuple[Role, ...]) -> Candidate:
    """Count what a component set trains."""
    return Candidate(components_name(roles), roles, anatomy.count({*roles, *ALWAYS_TRAINED}))


def within(candidates: tuple[Candidate, ...], budget: Budget | None, *, total: int) -> tuple[Candidate, ...]:
    """Return the candidates that a budget leaves.

    Raises:
        ConfigError: it leaves none.
    """
    if budget is None:
        return candidates
    limit = budget.limit(total)
    left = tuple(c for c in candidates if c.parameters <= limit)
    if not left:
        smallest = min(candidates, key=lambda c: c.parameters)
        raise ConfigError(
            f"the budget of {limit:,} trained parameters leaves no component set; the smallest, {smallest.components}, "
            f"trains {smallest.parameters:,} with the final norm and the new classifier. Raise the budget, or train "
            "the classifier alone with --components head."
        )
    return left
