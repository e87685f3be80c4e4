"""Why a gang waits, does not fit or is ill-formed, and what would help: what all causes and relaxations have.

The causes of one subject are a module of `causes`, and those of constraints lie with the constraints. A cause
is shown to the owners of the pods or of the cluster in words, and to programs as its type and its fields.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass, fields
from typing import Any

from muster.domain.printable import printable
from muster.domain.words import in_bytes

_HUMP = re.compile(r"(?<=[a-z])(?=[A-Z])")


@dataclass(frozen=True, slots=True)
class Cause(ABC):
    """Say in words why a gang waits. Fields have the numbers: users see both."""

    @abstractmethod
    def __str__(self) -> str:
        """Return the cause as a clause: no capital, no full stop."""

    @property
    @abstractmethod
    def advice(self) -> str:
        """Return the general advice against it, as a sentence."""

    @property
    def advice_if_empty(self) -> str:
        """Return the advice if another cause of the gang also holds on empty nodes."""
        return self.advice

    @property
    def stays(self) -> bool:
        """Return whether it stays whatever other pods end, and whatever members come.

        Then its sentence says "even if nothing else ran". A gang with such a cause gets no backfill
        reservation.
        """
        return bool(getattr(self, "even_empty", False))


class Relaxation(ABC):
    """A change that would help a gang that does not fit. Each relaxation was tried before it is reported."""

    __slots__ = ()

    @abstractmethod
    def __str__(self) -> str:
        """Return the change as a noun phrase, without capital and full stop."""


def kinds_of(base: type) -> dict[str, type]:
    """Return the concrete classes with this base, by name, of all modules that are imported."""
    below: list[type] = base.__subclasses__()
    for kind in below:  # it grows meanwhile
        below += kind.__subclasses__()
    bases = {parent.__name__ for kind in below for parent in kind.__bases__}
    # `slots` makes each class twice, and the second one is used.
    return {kind.__name__: kind for kind in below if kind.__name__ not in bases}


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
    """Return causes as they are shown. If the planner has tried relaxations, these say more."""
    listed = tuple(causes)
    even_empty = any(getattr(cause, "even_empty", False) for cause in listed)
    return tuple(
        CauseView(
            type(cause).__name__,
            _sentence(str(cause)),
            printable(cause.advice_if_empty if even_empty else cause.advice),
            cause_json(cause),
        )
        for cause in listed
    )


def _sentence(clause: str) -> str:
    end = "" if clause.endswith("?") else "."
    return printable(f"{clause[:1].upper()}{clause[1:]}{end}")


def cause_type(kind: type) -> str:
    """Return the name of a type of cause, as users see it: "no-such-domain"."""
    return _HUMP.sub("-", kind.__name__).lower()


def cause_json(cause: Cause) -> dict[str, Any]:
    """Return a cause with its type and its fields. `unit` belongs to numbers of one resource, and `units` to
    numbers of several resources, in their order."""
    body: dict[str, Any] = {"type": cause_type(type(cause))}
    body |= {field.name: _as_list(getattr(cause, field.name)) for field in fields(cause)}
    if "resource" in body:
        body["unit"] = _unit(body["resource"])
    if "resources" in body:
        body["units"] = [_unit(resource) for resource, _ in body["resources"]]
    return body


def _unit(resource: str) -> str:
    if resource == "cpu":
        return "cpu_milli"
    return "bytes" if in_bytes(resource) else "count"


def _as_list(value: object) -> object:
    return [_as_list(item) for item in value] if isinstance(value, tuple) else value
