"""Limit the members of a role on single nodes for reasons that the planner does not model, as volumes to
attach.
"""

from __future__ import annotations

from collections.abc import Iterator
from types import MappingProxyType

import numpy as np

from muster.domain.node_limits import RoomTooSmall
from muster.domain.request import Request
from muster.placement.cluster.columns import LARGEST
from muster.placement.gang.constraints.constraint import Findings, OfRoles, role_of
from muster.placement.gang.existing import ExistingMembers
from muster.placement.gang.rules import Rules


class _Room(OfRoles):
    field, nothing, order, binds = "room", MappingProxyType[str, int]({}), 60, False

    def add(self, rules: Rules, request: Request, existing: ExistingMembers) -> None:
        """Limit all blocks of a role together, because they share its room."""
        for name in dict.fromkeys(rules.blocks.roles[block].name for block in rules.active):
            blocks = rules.blocks_of([name])
            room, row = rules.blocks.roles[blocks[0]].room, rules.view.row
            known = {row[node]: most for node, most in room.items() if node in row}
            if known:
                most = np.full(len(rules.view.names), LARGEST, np.int64)
                most[list(known)] = list(known.values())
                rules.at_most(blocks, most)

    def causes(self, findings: Findings, role: str, what: str) -> Iterator[RoomTooSmall]:
        """Yield how many members the nodes that admit the role can hold, as far as known."""
        asking = role_of(findings.request, role)
        members = len(asking.members)
        room = sum(min(asking.room.get(node, members), members) for node in findings.admitting(asking))
        yield RoomTooSmall(role, min(room, members), members, *findings.fit(), findings.even_empty)


ROOM = _Room()
