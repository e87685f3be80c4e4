"""All that binds the members of a gang besides its scope: a module for each constraint.

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
"""In the order in which causes and relaxations name them. Explanations do without the last ones first."""


def constraints_of(request: Request) -> Iterator[tuple[Constraint, str, str]]:
    """Yield what a request asks for as (constraint, role, what), in the order of CONSTRAINTS."""
    return ((each, role, what) for each in CONSTRAINTS for role, what in each.asked(request))
