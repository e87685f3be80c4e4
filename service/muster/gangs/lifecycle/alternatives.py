"""Ask where else a gang could have gone: its request and the cluster, both as if the gang had no place yet.

This module changes no gang. People ask the question, and no decision waits for the answer.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

from muster.domain.alternatives import Question
from muster.domain.decision import MemberPlacement
from muster.domain.node import Usage
from muster.domain.request import Request
from muster.domain.snapshot import Snapshot
from muster.domain.topology import bits
from muster.gangs.capacity import requests
from muster.gangs.lifecycle.state import State
from muster.gangs.record.gang import Gang
from muster.gangs.reporting.places import AskAlternatives
from muster.placement.cluster.matching import request_of_plan

NO_PLACE = "The gang has no place now."
UNINDEXED = "It is not known which GPUs its pods have."
_NODE_GONE = "A node of the gang is gone."


def ask(state: State, gang: Gang) -> AskAlternatives | str:
    """Return the question for a planner, or a sentence that says why there is none."""
    places = {pod.uid: usage for pod in gang.group.members if (usage := state.ledger.usage(pod.uid))}
    if not places:
        return NO_PLACE
    if any(usage.unindexed_gpus for usage in places.values()):
        return UNINDEXED
    if any(usage.node not in state.ledger.nodes for usage in places.values()):
        return _NODE_GONE
    unplaced = tuple(replace(pod, node="") for pod in gang.group.members if pod.uid in places)
    group = replace(gang.group, bound=(), unbound=unplaced, followers=())
    request = state.in_tree.answers(gang.key).refine(requests.request(group, state.ledger))
    excluded = state.excluded_nodes(gang, request.roles, unplaced)
    snapshot = state.backfill.snapshot_for(gang, state.ledger.snapshot_without(places.keys()))
    members = tuple(_members(request, places))
    return AskAlternatives(
        gang.key, snapshot, Question(_as_placed(snapshot, request, members), members), excluded
    )


def _as_placed(snapshot: Snapshot, request: Request, members: tuple[MemberPlacement, ...]) -> Request:
    """Return the request with the number of GPUs that each member has, if the member's claims leave the
    number open."""
    gpus = {member.role: len(member.gpus) for member in members}
    pairs = zip(request.roles, request_of_plan(snapshot, request, members).roles, strict=True)
    roles = [
        role
        if not role.gpu_counts
        else replace(planned_role, gpus=gpus.get(role.name, planned_role.gpus), subrequests=())
        for role, planned_role in pairs
    ]
    return replace(request, roles=tuple(roles))


def _members(request: Request, places: Mapping[str, Usage]) -> Iterator[MemberPlacement]:
    """Yield where the members are, role by role."""
    for role in request.roles:
        for member in role.members:
            usage = places[member.uid]
            gpus = tuple(bits(usage.gpus))
            yield MemberPlacement(member.uid, member.name, role.name, usage.node, gpus, usage.units)
