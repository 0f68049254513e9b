"""What is found about a data set: the rows of an audit, and the reasons why a folder is refused."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from pliant.errors import DataError

Severity = Literal["error", "warning", "note"]

SEVERITIES: tuple[Severity, ...] = ("error", "warning", "note")
"""Error: training refuses or gives a wrong figure; warning: look at it; note: good to know."""

LISTED = 20
"""Findings that an error message names; `audit` names all."""


@dataclass(frozen=True)
class Finding:
    """One thing that was found.

    Attributes:
        kind: what it is, such as "empty-class"; the same word for all of its kind.
        severity: error, warning or note.
        where: the path, class or split that it is about.
        detail: what is wrong there and, for an error, what to do.
    """

    kind: str
    severity: Severity
    where: str
    detail: str

    def __str__(self) -> str:
        """Write it as a message does."""
        return f"{self.where}: {self.detail}"


def refuse(name: str, findings: Sequence[Finding]) -> None:
    """Refuse data with findings that are errors, all of them in one message.

    Raises:
        DataError: there is an error among the findings.
    """
    errors = [f for f in findings if f.severity == "error"]
    if len(errors) == 1:
        raise DataError(str(errors[0]))
    if errors:
        listed = "\n".join(f"  {f}" for f in errors[:LISTED])
        more = f"\n  and {len(errors) - LISTED} more" if len(errors) > LISTED else ""
        raise DataError(f"{name} cannot be used as it is, for {len(errors)} reasons:\n{listed}{more}")


def notes(findings: Sequence[Finding]) -> tuple[str, ...]:
    """Write the findings that are no errors as sentences for the user."""
    return tuple(str(f) for f in findings if f.severity != "error")
