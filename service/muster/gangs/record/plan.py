"""A decision of the planner that holds capacity, and what such a plan stands on."""

from __future__ import annotations

from dataclasses import dataclass, replace

from muster.domain.decision import MemberPlacement, Placed
from muster.domain.levels import FABRIC, NVLINK
from muster.domain.node import Node, Usage
from muster.domain.pod import Batch, Pod
from muster.domain.policies import Policies
from muster.domain.request import Request
from muster.gangs.messages.calls import FilterAnswer
from muster.placement.verify.admission import tolerates


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


def is_same_for(request: Request, policies: Policies, before: Node, after: Node | None) -> bool:
    """Return whether nothing changed that a plan of the request stands on, but for what the node offers."""
    if after is None:
        return False
    same_otherwise = replace(
        before,
        labels=after.labels,
        taints=after.taints,
        allocatable=after.allocatable,
        machine=after.machine,
        hands_out=after.hands_out,
        problems=after.problems,
    )
    if same_otherwise != after:
        return False
    if before.taints != after.taints and any(tolerates(after, role) for role in request.roles):
        return False
    read = _labels_read(request, policies) if before.labels != after.labels else ()
    return all(before.labels.get(key) == after.labels.get(key) for key in read)


def _labels_read(request: Request, policies: Policies) -> frozenset[str]:
    """Return the keys of node labels that decide where this request may be placed."""
    keys = labels_of_domains(policies)
    keys.update(request.preferred_scopes)
    keys.update(limit.scope for limit in request.per_scope)
    keys.update(subgroup.scope for subgroup in request.subgroups)
    keys.update(scope for preference in request.role_preferences for scope in preference.scopes)
    keys.update(constraint.topology_key for constraint in request.constraints)
    for role in request.roles:
        keys.update(segment.scope for segment in role.segments)
        keys.update(term.key for terms in (role.rules.required, *role.rules.any_of) for term in terms)
    required_scopes = (request.required_scope, *(role.required_scope for role in request.roles))
    return frozenset(keys.union(filter(None, required_scopes)))


def labels_of_domains(policies: Policies) -> set[str]:
    """Return the keys of node labels that name domains of levels."""
    keys = {FABRIC, *(key for level in (*policies.levels, NVLINK) for key in level.labels)}
    return keys.union(*policies.naming.trees)
