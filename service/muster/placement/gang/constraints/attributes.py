"""Give each member of a role GPUs that agree on attributes of their devices (`matchAttribute`)."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from muster.domain.constraints import DropConstraint
from muster.domain.node_limits import AttributesDiffer
from muster.domain.request import Request
from muster.placement.gang.constraints.constraint import Findings, OfRoles, role_of
from muster.placement.gang.existing import ExistingMembers
from muster.placement.gang.rules import Rules


class _Attributes(OfRoles):
    field, nothing, order = "match_attributes", (), 25

    def add(self, rules: Rules, request: Request, existing: ExistingMembers) -> None:
        """Keep each member inside one group of its node. See `cluster.attributes`."""
        view = rules.view
        has_groups = np.array([bool(shape.topology.groups) for shape in view.shapes], bool)
        for block in rules.active:
            if rules.blocks.roles[block].match_attributes:
                rules.domain_unit[block] = 1
                rules.refused[block] |= ~has_groups[view.shape]

    def causes(self, findings: Findings, role: str, what: str) -> Iterator[AttributesDiffer]:
        """Yield that too few GPUs agree."""
        asking = role_of(findings.request, role)
        fit, needed = findings.fit()
        nodes, even_empty = findings.agreeing(asking), findings.even_empty
        yield AttributesDiffer(role, asking.match_attributes, asking.gpus, nodes, fit, needed, even_empty)

    def relaxations(self, findings: Findings, role: str, what: str) -> Iterator[DropConstraint]:
        """Yield that the constraint is dropped, if the gang fits without it."""
        if findings.works(self.without(findings.request, role, what)):
            named = " and ".join(role_of(findings.request, role).match_attributes)
            yield DropConstraint(f"matchAttribute {named}")


ATTRIBUTES = _Attributes()
