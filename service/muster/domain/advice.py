"""Causes as they are shown to those who own the pods or the cluster.

The planner's relaxations say more of what would help, where it has tried some: they come first.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from muster.domain.printable import printable
from muster.domain.reasons import Cause


@dataclass(frozen=True, slots=True)
class CauseView:
    """A cause as it is shown: its kind, what blocks the gang, with numbers, and what would help."""

    kind: str
    says: str
    helps: str


def explained(causes: Iterable[Cause]) -> tuple[CauseView, ...]:
    """Return causes as they are shown."""
    return tuple(
        CauseView(type(cause).__name__, _sentence(str(cause)), printable(cause.advice)) for cause in causes
    )


def _sentence(clause: str) -> str:
    end = "" if clause.endswith("?") else "."
    return printable(f"{clause[:1].upper()}{clause[1:]}{end}")
