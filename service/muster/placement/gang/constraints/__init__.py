"""List the constraints on the places of members, besides the gang's own scope.

The modules of this folder enter them: the list is all objects of type `Constraint` there. So one file adds a
constraint to the planner. The verifier has its own code, in placement/verify.
"""

from __future__ import annotations

from collections.abc import Iterator
from importlib import import_module
from pkgutil import iter_modules

from muster.domain.request import Request
from muster.placement.cluster.columns import Columns
from muster.placement.gang.blocks import Blocks
from muster.placement.gang.constraints.constraint import Constraint
from muster.placement.gang.rules import Rules
from muster.placement.gang.running import RunningMembers


def _constraints_in_folder() -> Iterator[Constraint]:
    for module in iter_modules(__path__):
        defined = vars(import_module(f"{__name__}.{module.name}")).values()
        yield from (constraint for constraint in defined if isinstance(constraint, Constraint))


CONSTRAINTS = tuple(sorted(set(_constraints_in_folder()), key=lambda constraint: constraint.order))
"""Causes and relaxations name constraints in this order. Explanations try to drop the last one first."""


def constraints_of(request: Request) -> Iterator[tuple[Constraint, str, str]]:
    """Yield the constraints of a request as (constraint, role, key), in the order of CONSTRAINTS."""
    return (
        (constraint, role, key) for constraint in CONSTRAINTS for role, key in constraint.keys_in(request)
    )


def rules_of(columns: Columns, request: Request, blocks: Blocks, running: RunningMembers) -> Rules:
    """Return the rules of a request."""
    rules = Rules.of(columns, blocks)
    for constraint in CONSTRAINTS:
        constraint.add(rules, request, running)
    rules.set_node_rules(running)
    return rules
