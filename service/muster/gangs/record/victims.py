"""The question for the cheapest victims of a refused gang, and its answer: what users read of it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from muster.domain.clearing_words import ClearingJson
from muster.domain.request import GangId, Request

_NO_GANG = GangId("", "", "")


@dataclass(frozen=True, slots=True)
class VictimsQuestion:
    """What decides about the victims of a refused gang. Gangs with equal questions share the answer.

    `request` is for the members that must start. `priority` is the lowest priority of the gang's waiting
    members. `excluded` is as in `Solve`. `same_for_all` has no names of the gang or its members, and `ranks`
    has the ranks of these members by role. `reserved_for` is the key of the gang whose reservation the gang
    must not use, "" for none.
    """

    request: Request = field(compare=False)
    priority: int
    excluded: Mapping[str, Mapping[str, str]] = field(hash=False)
    same_for_all: Request
    ranks: tuple[tuple[int | None, ...], ...]
    reserved_for: str = ""

    @classmethod
    def of(
        cls,
        request: Request,
        priorities: Iterable[int],
        excluded: Mapping[str, Mapping[str, str]],
        reserved_for: str = "",
    ) -> VictimsQuestion:
        """Return the question for a request, with the priorities of the gang's waiting members."""
        roles = tuple(replace(role, members=()) for role in request.roles)
        ranks = tuple(tuple(member.rank for member in role.members) for role in request.roles)
        same_for_all = replace(request, gang=_NO_GANG, roles=roles, created=0.0)
        return cls(request, min(priorities), excluded, same_for_all, ranks, reserved_for)


@dataclass(frozen=True, slots=True)
class VictimsAnswer:
    """What users read about victims. `facts` are None if it was not decided whose end would help.

    `units` are the keys of the victims: with the end of one of them the answer is out of date. `found_at` is
    in seconds of the inputs' clock.
    """

    question: VictimsQuestion
    facts: ClearingJson | None
    units: tuple[str, ...]
    found_at: float
