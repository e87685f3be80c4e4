"""replica_count: every role has its members placed; where the gang may be partial, as many as are counted."""

from __future__ import annotations

from muster.placement.model.problem import Pattern
from muster.placement.model.variables import Variables

NAME = "replica_count"


def add(variables: Variables) -> None:
    for role, placed in enumerate(variables.placed):

        def members(pattern: Pattern, role: int = role) -> int:
            return pattern.counts[role]

        hosted = variables.total(members)
        rule = hosted == placed if variables.problem.exact else hosted >= placed
        variables.model.add(rule).with_name(f"{NAME}/{role}")
