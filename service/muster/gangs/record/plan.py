"""A decision of the planner that holds capacity."""

from __future__ import annotations

from dataclasses import dataclass

from muster.domain.decision import MemberPlacement, Placed
from muster.domain.node import Usage
from muster.domain.pod import Batch, Pod
from muster.domain.request import Request
from muster.gangs.messages.calls import FilterAnswer


@dataclass(slots=True)
class Plan:
    """A decision that holds capacity.

    Answers to the shim are stored, so that the same question gets the same answer.
    """

    generation: int
    request: Request
    placed: Placed
    pods: dict[str, Pod]
    order: tuple[str, ...]
    """UIDs of the members, in the order of the verdict."""
    batch: Batch
    trace_id: str = ""
    annotations: tuple[dict[str, str], ...] | None = None
    """Annotations of each member's Binding in that order, without their time; None if a member has moved
    since."""
    filter_answer: FilterAnswer | None = None

    @property
    def places(self) -> dict[str, MemberPlacement]:
        """Return UID → place of each member."""
        return {member.uid: member for member in self.placed.members}

    @property
    def with_devices(self) -> int:
        """Return how many members get devices of a DRA driver."""
        return sum(map(bool, self.filter_answer.devices)) if self.filter_answer is not None else 0

    @property
    def members(self) -> tuple[tuple[str, str], ...]:
        """Return (name, UID) of the members, in the order of the verdict."""
        return tuple((self.pods[uid].name, uid) for uid in self.order)


def usages(decision: Placed, pods: dict[str, Pod]) -> tuple[Usage, ...]:
    """Return what a plan takes, member by member."""
    member_usages = []
    for member in decision.members:
        mask = sum(1 << gpu for gpu in set(member.gpus))
        member_usages.append(
            Usage(member.uid, member.node, pods[member.uid].resources, gpus=mask, units=member.units)
        )
    return tuple(member_usages)
