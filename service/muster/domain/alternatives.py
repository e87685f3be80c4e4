"""Where else a gang could have gone, and the first level at which each of these places is not as good."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any, TypedDict

from muster.domain.decision import MemberPlacement
from muster.domain.printable import printable
from muster.domain.request import GangId, Request, Scope
from muster.domain.words import counted, plural

NOTE = "Computed against the cluster as it is now, without the gang itself."
AS_DECIDED = "Computed against the cluster as the gang found it."

Value = int | float | str | None

SCOPE_NOUNS = {Scope.NVLINK_DOMAIN.value: "NVLink domain"}
"""What a domain of a scope is called, if it is not the scope's own word."""


class Than(StrEnum):
    """How an alternative compares with the gang's place. `FEWER`: not all members fit there."""

    WORSE = "worse"
    EQUAL = "equal"
    BETTER = "better"
    FEWER = "fewer"


@dataclass(frozen=True, slots=True)
class Question:
    """A gang's request with all its members, and the place of each member."""

    request: Request
    members: tuple[MemberPlacement, ...]

    @property
    def gang(self) -> GangId:
        """Return whose alternatives these are."""
        return self.request.gang


@dataclass(frozen=True, slots=True)
class Alternative:
    """The best that was found in one domain.

    `level` is the first one that differs, "" if none does. `value` and `chosen` are its values there and at
    the gang's place. `proven`: nothing better exists in the domain. `free_gpus`: GPUs that are free there, on
    nodes that admit the gang, and `most_on_a_node` on one of these.
    """

    domain: str
    members: int
    of: int
    than: Than
    level: str
    value: Value
    chosen: Value
    proven: bool
    free_gpus: int
    most_on_a_node: int
    differs: str = ""
    """The comparison at `level` in words: "2 racks instead of 1"."""

    def __str__(self) -> str:
        proviso = "" if self.proven else "as far as was searched: "
        match self.than:
            case Than.EQUAL:
                return f"{proviso}as good at each level"
            case Than.FEWER:
                fit = f"only {self.members}" if self.members else "none"
                return f"{proviso}{fit} of {self.of} members fit; {self._free()}"
        better = "better now: " if self.than is Than.BETTER else ""
        return f"{proviso}{better}{self.differs}"

    def _free(self) -> str:
        free = f"{counted('GPU', self.free_gpus)} {'is' if self.free_gpus == 1 else 'are'} free there"
        most = self.most_on_a_node
        return f"{free}, at most {most} on one node" if most < self.free_gpus else free


@dataclass(frozen=True, slots=True)
class Alternatives:
    """The alternatives of a gang's place `domain`, the best first.

    `left_out` counts the other domains of the scope that were not tried. `shut` counts those in which no node
    admits the gang. `late`: the time was over before all were tried.
    """

    gang: GangId
    domain: str
    scope: str
    tried: tuple[Alternative, ...]
    left_out: int
    shut: int
    late: bool


class AlternativeView(TypedDict):
    """One alternative, as data. `says` is the comparison in words."""

    domain: str
    members: int
    of: int
    than: str
    level: str
    value: Value
    chosen: Value
    proven: bool
    free_gpus: int
    most_on_a_node: int
    says: str


class AlternativesView(TypedDict):
    """Where else the gang could go, as data.

    `others` says in words how many domains are not listed, and why. `why_not`: why nothing is known, "" if it
    is.
    """

    domain: str
    scope: str
    tried: list[AlternativeView]
    left_out: int
    shut: int
    late: bool
    others: str
    note: str
    why_not: str


def view(alternatives: Alternatives, note: str = NOTE) -> AlternativesView:
    """Return the alternatives as data. Names from the cluster are made printable.

    `note` says against which cluster they were computed.
    """
    return AlternativesView(
        domain=printable(alternatives.domain),
        scope=printable(alternatives.scope),
        tried=[_view(alternative) for alternative in alternatives.tried],
        left_out=alternatives.left_out,
        shut=alternatives.shut,
        late=alternatives.late,
        others=_rest_in_words(alternatives),
        note=note,
        why_not="",
    )


def _view(alternative: Alternative) -> AlternativeView:
    body: Any = asdict(alternative)
    del body["differs"]
    body |= {"domain": printable(alternative.domain), "than": alternative.than.value}
    view: AlternativeView = body | {"says": printable(str(alternative))}
    return view


def not_known(why: str) -> AlternativesView:
    """Return that the alternatives are not known, and why."""
    nothing = Alternatives(GangId("", "", ""), "", "", (), 0, 0, late=False)
    return {**view(nothing), "why_not": why}


def _rest_in_words(alternatives: Alternatives) -> str:
    """Return how many other domains there are that are not listed; "" if none."""
    left_out, shut = alternatives.left_out, alternatives.shut
    scope = printable(SCOPE_NOUNS.get(alternatives.scope, alternatives.scope))
    parts = []
    if left_out:
        because = " because the time was over" if alternatives.late else ""
        parts.append(f"{left_out} more {plural(scope, left_out)} {_was(left_out)} not tried{because}")
    if shut:
        have, do = ("has", "does") if shut == 1 else ("have", "do")
        whose = f"{do} not admit" if alternatives.scope == Scope.NODE else f"{have} no node that admits"
        parts.append(f"{shut} {plural(scope, shut)} {whose} the gang")
    return "; ".join(parts)


def _was(count: int) -> str:
    return "was" if count == 1 else "were"


def domains_of(scope: str, names: Sequence[str]) -> str:
    """Return "rack r1", "racks r1 and r2", "3 racks"."""
    scope = SCOPE_NOUNS.get(scope, scope)
    if len(names) == 1:
        return f"{scope} {names[0]}"
    return f"{plural(scope, 2)} {names[0]} and {names[1]}" if len(names) == 2 else counted(scope, len(names))
