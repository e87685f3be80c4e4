"""The bases of all causes and relaxations: why a gang waits, does not fit or is ill-formed, and what helps.

Each module of `causes` has the causes of one subject. Causes of constraints are in `constraints`. Users see a
cause as a sentence, and programs see its type and fields.
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
    """The reason why a gang waits, as a sentence. Its fields have the numbers. Users see both."""

    @abstractmethod
    def __str__(self) -> str:
        """Return the cause as a clause, without capital letter and full stop."""

    @property
    @abstractmethod
    def advice(self) -> str:
        """Return the general advice against it, as a sentence."""

    @property
    def advice_if_empty(self) -> str:
        """Return the advice for a gang with another cause that also holds on empty nodes."""
        return self.advice

    @property
    def stays(self) -> bool:
        """Return whether the cause stays even if all other pods end and more members come. Then its sentence
        says "even if nothing else ran", and the gang gets no backfill reservation."""
        return bool(getattr(self, "even_empty", False))


class Relaxation(ABC):
    """A change that would help a gang that does not fit. Each relaxation was tried before it is reported."""

    __slots__ = ()

    @abstractmethod
    def __str__(self) -> str:
        """Return the change as a noun phrase, without capital letter and full stop."""


def kinds_of(base: type) -> dict[str, type]:
    """Return name → concrete class with this base, in all imported modules."""
    subclasses: list[type] = base.__subclasses__()
    for kind in subclasses:  # the list grows in the loop
        subclasses += kind.__subclasses__()
    bases = {parent.__name__ for kind in subclasses for parent in kind.__bases__}
    # `slots` creates each class twice, and the second class is used.
    return {kind.__name__: kind for kind in subclasses if kind.__name__ not in bases}


@dataclass(frozen=True, slots=True)
class CauseView:
    """A cause as it is shown: its kind, the reason with numbers, and the advice. `cause` is its type and
    fields, as in the answer of `muster place -o json`."""

    kind: str
    says: str
    helps: str
    cause: dict[str, Any]


def cause_views(causes: Iterable[Cause]) -> tuple[CauseView, ...]:
    """Return causes as they are shown, each with its general advice."""
    causes = tuple(causes)
    even_empty = any(getattr(cause, "even_empty", False) for cause in causes)
    return tuple(
        CauseView(
            type(cause).__name__,
            _sentence(str(cause)),
            printable(cause.advice_if_empty if even_empty else cause.advice),
            cause_json(cause),
        )
        for cause in causes
    )


def _sentence(clause: str) -> str:
    """Return the clause as a sentence. A name such as podgroup/ns/train keeps its first letter."""
    end = "" if clause.endswith("?") else "."
    first = clause[:1] if "/" in clause.partition(" ")[0] else clause[:1].upper()
    return printable(f"{first}{clause[1:]}{end}")


def cause_type(kind: type) -> str:
    """Return the name of a type of cause for users, such as "no-such-domain"."""
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
