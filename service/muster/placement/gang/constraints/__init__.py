"""List the constraints on the places of members, besides the gang's own scope. Each is a module.

The verifier has its own code for each, in placement/verify.
"""

from __future__ import annotations

from collections.abc import Iterator

from muster.domain.request import Request
from muster.placement.gang.constraints.between_pods import BETWEEN_PODS
from muster.placement.gang.constraints.constraint import Constraint
from muster.placement.gang.constraints.max_per import MAX_PER
from muster.placement.gang.constraints.role_scope import ROLE_SCOPE
from muster.placement.gang.constraints.room import ROOM
from muster.placement.gang.constraints.segments import SEGMENTS
from muster.placement.gang.constraints.subgroup import SUBGROUP

CONSTRAINTS: tuple[Constraint, ...] = (ROLE_SCOPE, SEGMENTS, SUBGROUP, MAX_PER, BETWEEN_PODS, ROOM)
"""Causes and relaxations name constraints in this order. Explanations try to drop the last one first."""


def constraints_of(request: Request) -> Iterator[tuple[Constraint, str, str]]:
    """Yield what a request asks for as (constraint, role, what), in the order of CONSTRAINTS."""
    return ((each, role, what) for each in CONSTRAINTS for role, what in each.asked(request))
