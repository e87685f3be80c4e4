"""Causes as they are shown to the owners of the pods or of the cluster. If the planner has tried relaxations,
these say more, so they come first."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from muster.domain.cause_json import cause_json
from muster.domain.causes.out_of_place import RunningElsewhere
from muster.domain.printable import printable
from muster.domain.reasons import Cause


@dataclass(frozen=True, slots=True)
class CauseView:
    """A cause as it is shown: its kind, what blocks the gang, with numbers, and what would help.

    `cause` is its type and its fields, as in the answer of `muster place -o json`.
    """

    kind: str
    says: str
    helps: str
    cause: dict[str, Any]


def explained(causes: Iterable[Cause]) -> tuple[CauseView, ...]:
    """Return causes as they are shown."""
    listed = tuple(causes)
    even_empty = any(getattr(cause, "even_empty", False) for cause in listed)
    return tuple(
        CauseView(
            type(cause).__name__,
            _sentence(str(cause)),
            printable(_advice(cause, even_empty)),
            cause_json(cause),
        )
        for cause in listed
    )


def _advice(cause: Cause, even_empty: bool) -> str:
    """Return what helps. `even_empty`: another cause of the gang holds on empty nodes too."""
    if even_empty and isinstance(cause, RunningElsewhere):
        return cause.advice_if_empty
    return cause.advice


def _sentence(clause: str) -> str:
    end = "" if clause.endswith("?") else "."
    return printable(f"{clause[:1].upper()}{clause[1:]}{end}")
