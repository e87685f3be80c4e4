"""Other places where a gang could have gone, each with the first level of the objective that differs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from muster.domain.decision import MemberPlacement
from muster.domain.printable import printable
from muster.domain.request import GangId, Request, Scope
from muster.domain.words import counted_noun, plural

NOTE = "Computed against the cluster as it is now, without the gang itself."
AS_DECIDED = "Computed against the cluster as the gang found it."

Value = int | float | str | None

SCOPE_NOUNS = {Scope.NVLINK_DOMAIN.value: "NVLink domain"}
"""The noun for a domain of a scope, if it differs from the scope's own word."""


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
        """Return the gang of the question."""
        return self.request.gang


@dataclass(frozen=True, slots=True)
class Alternative:
    """The best place that was found in one domain.

    `says` is the comparison with the gang's place in words. `level` is the first level that differs; "" if no
    level does. `value` and `chosen` are its values in the domain and at the gang's place. If `proven`, no
    better place exists in the domain. `free_gpus`: free GPUs on nodes of the domain that admit the gang.
    `most_on_a_node`: the largest number of them on one node.
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
    says: str


@dataclass(frozen=True, slots=True)
class Alternatives:
    """Places other than `domain` where the gang could go, the best first, as they are shown.

    `left_out`: number of domains that were not tried. `shut`: number of domains in which no node admits the
    gang. `late`: the time was over before all domains were tried. `others`: a sentence with these facts.
    `note` names the state of the cluster for which the places were computed. `why_not`: why no place is
    known; "" if places are known.
    """

    domain: str
    scope: str
    tried: tuple[Alternative, ...]
    left_out: int
    shut: int
    late: bool
    others: str
    note: str
    why_not: str


def not_known(why: str) -> Alternatives:
    """Return the answer without places, with the reason why no alternative is known."""
    return Alternatives("", "", (), 0, 0, late=False, others="", note=NOTE, why_not=why)


def fewer_fit(fit: int, size: int, free_gpus: int, most_on_a_node: int) -> str:
    """Return the clause for a domain into which only `fit` of `size` members fit."""
    free = f"{counted_noun('GPU', free_gpus)} {'is' if free_gpus == 1 else 'are'} free there"
    if most_on_a_node < free_gpus:
        free += f", at most {most_on_a_node} on one node"
    return f"{f'only {fit}' if fit else 'none'} of {size} members fit; {free}"


def others_in_words(scope: str, left_out: int, shut: int, late: bool) -> str:
    """Return a sentence that says how many domains are not listed, and why; "" if all are listed."""
    noun = printable(SCOPE_NOUNS.get(scope, scope))
    parts = []
    if left_out:
        because = " because the time was over" if late else ""
        was = "was" if left_out == 1 else "were"
        parts.append(f"{left_out} more {plural(noun, left_out)} {was} not tried{because}")
    if shut:
        have, do = ("has", "does") if shut == 1 else ("have", "do")
        whose = f"{do} not admit" if scope == Scope.NODE else f"{have} no node that admits"
        parts.append(f"{shut} {plural(noun, shut)} {whose} the gang")
    return "; ".join(parts)


def domains_in_words(scope: str, names: Sequence[str]) -> str:
    """Return "rack r1", "racks r1 and r2", "3 racks"."""
    scope = SCOPE_NOUNS.get(scope, scope)
    if len(names) == 1:
        return f"{scope} {names[0]}"
    if len(names) == 2:
        return f"{plural(scope, 2)} {names[0]} and {names[1]}"
    return counted_noun(scope, len(names))
