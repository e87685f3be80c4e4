"""Check which members are placed, and that each member gets GPUs that match what it asks for.

No member may be placed twice. Enough members must be placed: of each role, the first ones by rank.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace

from muster.domain.decision import Placed
from muster.domain.node import Node
from muster.domain.quorums import Leaf, Quorum
from muster.domain.request import Member, Request, Role
from muster.domain.snapshot import NodeState, Snapshot


def check_members(request: Request, plan: Placed) -> list[str]:
    """Return the errors in the set of placed members, and in what each member gets."""
    wrong = []
    asks = [(role, _gpu_counts(role), role.slice.units if role.slice else 0) for role in request.roles]
    expected = {member.uid: (member.name, *ask) for ask in asks for member in ask[0].members}
    placed_uids: set[str] = set()
    for member in plan.members:
        if member.uid in placed_uids:
            wrong.append(f"member {member.name} is placed twice")
        placed_uids.add(member.uid)
        if member.uid not in expected:
            wrong.append(f"member {member.name} is not of the gang")
            continue
        name, role, gpu_counts, units = expected[member.uid]
        if (member.name, member.role) != (name, role.name):
            wrong.append(f"member {name} of role {role.name} is called {member.name} of role {member.role}")
        if len(member.gpus) not in gpu_counts:
            numbers = " or ".join(map(str, sorted(gpu_counts)))
            wrong.append(f"member {name} asks for {numbers} GPUs and gets {len(member.gpus)}")
        if member.units != units:
            wrong.append(f"member {name} asks for {units} units of a GPU and gets {member.units}")
    if len(placed_uids) < min(request.min_member, request.size):
        wrong.append(f"{len(placed_uids)} members are placed, at least {request.min_member} must be")
    if not placed_uids:
        wrong.append("no member is placed")
    for role in request.roles if len(placed_uids) < request.size else ():
        order = [member.uid in placed_uids for member in sort_by_rank(role.members)]
        if order != sorted(order, reverse=True):
            wrong.append(f"role {role.name} leaves out others than its last ranks")
    wrong += _check_subgroups(request, plan)
    if plan.gang != request.gang:
        wrong.append(f"the plan is of gang {plan.gang}, not of {request.gang}")
    return wrong


def _gpu_counts(role: Role) -> set[int]:
    """Return how many GPUs a member of the role may get: a number for each subrequest."""
    gpus = role.slice.gpus if role.slice else role.gpus
    return {subrequest.gpus for subrequest in role.subrequests} or {gpus}


def _check_subgroups(request: Request, plan: Placed) -> list[str]:
    """Return the errors in the choice of subgroups, if the gang starts with some of them."""
    if request.quorum is None:
        return []
    starts, wrong = _check_start(request.quorum, Counter(member.role for member in plan.members))
    return wrong if starts else ["fewer subgroups start than the gang needs", *wrong]


def _check_start(part: Quorum | Leaf, members_by_role: Mapping[str, int]) -> tuple[bool, list[str]]:
    """Return whether a subgroup starts with these members by role, and the errors in it."""
    if isinstance(part, Leaf):
        members = sum(members_by_role.get(role, 0) for role in part.roles)
        in_part = (members + part.begun) % part.unit if members > part.back else 0
        torn = [f"{members} members are not whole replicas of {part.unit}"] if in_part else []
        if 0 <= part.max_members < members:
            torn.append(f"{members} members start, and only {part.max_members} have all of their replica")
        return members >= part.min_members and not torn, torn
    below = [(inner, *_check_start(inner, members_by_role)) for inner in part.parts]
    wrong = [sentence for *_, sentences in below for sentence in sentences]
    with_members = [starts for inner, starts, _ in below if members_by_role.keys() & _roles_of(inner)]
    if not all(with_members):
        wrong.append("a subgroup that does not start has members")
    if part.only and len(with_members) > part.min_parts:
        wrong.append(f"{len(with_members)} subgroups start, {part.min_parts} are asked for")
    return sum(starts for _, starts, _ in below) >= part.min_parts, wrong


def _roles_of(part: Quorum | Leaf) -> frozenset[str]:
    if isinstance(part, Leaf):
        return part.roles
    return frozenset[str]().union(*map(_roles_of, part.parts))


def check_attributes(snapshot: Snapshot, request: Request, plan: Placed) -> list[str]:
    """Return a sentence for each member whose GPUs do not agree on an attribute that its role names.

    Also return a sentence for each member that may get GPUs of several Fabric Manager partitions: the node
    may not start such a member.
    """
    roles = {role.name: role for role in request.roles}
    wrong = []
    for member in plan.members:
        node, role = snapshot.nodes[member.node].node, roles.get(member.role)
        if role is None or not (role.match_attributes or node.partitions):
            continue
        for attribute in role.match_attributes:
            groups = node.attribute_groups.get(attribute, ())
            if not any(all(group >> gpu & 1 for gpu in member.gpus) for group in groups):
                wrong.append(f"the GPUs of member {member.name} do not agree on {attribute}")
        if not role.slice and not starts_with(node, len(member.gpus), role):
            wrong.append(f"the GPUs of member {member.name} need not be one partition of node {member.node}")
    return wrong


def starts_with(node: Node, gpus: int, role: Role) -> bool:
    """Return whether a member with this number of GPUs starts on the node, whichever of them it gets."""
    partitions = {(gpus, attribute) for attribute in ("", *role.match_attributes)}
    is_one = bool(partitions & {*node.partitions}) and not role.several_claims
    return gpus < 2 or not node.partitions or is_one


def sort_by_rank(members: Sequence[Member]) -> list[Member]:
    """Return members by rank. Members without a rank come last. Between equal ranks the natural order of
    names decides.
    """
    ranks = Counter(member.rank for member in members)

    def key(member: Member) -> tuple[object, ...]:
        pieces = re.split(r"(\d+)", member.name) if ranks[member.rank] > 1 else ()
        natural = [(0, int(p), p) if p.isdecimal() else (1, 0, p) for p in pieces if p]
        return (member.rank is None, member.rank or 0, natural, member.uid)

    return sorted(members, key=key)


def check_proof(plan: Placed) -> list[str]:
    """Return a sentence if the claims about the proof contradict each other."""
    if plan.optimal and (plan.gap is not None or plan.truncated):
        return ["the plan is called optimal, but has a gap or was cut short"]
    return []


def check_matching(request: Request, plan: Placed) -> list[str]:
    """Return a sentence for each member whose GPUs match none of the role's subrequests."""
    allowed = {
        role.name: [(sub.gpus, sub.matching) for sub in role.subrequests] or [(role.gpus, role.matching)]
        for role in request.roles
        if role.matching or role.subrequests
    }
    wrong = []
    for member in plan.members if allowed else ():
        choices = allowed.get(member.role, [])
        of_this_size = [matching for count, matching in choices if count == len(member.gpus)]
        unmatched = [
            [gpu for gpu in member.gpus if not matching.get(member.node, -1) >> gpu & 1]
            for matching in of_this_size or [{}]
        ]
        if all(unmatched):
            gpus = ", ".join(map(str, unmatched[-1]))
            wrong.append(f"GPUs {gpus} of node {member.node} do not match what member {member.name} asks for")
    return wrong


def mark_unusable_gpus(request: Request, snapshot: Snapshot) -> Snapshot:
    """Return the cluster in which the gang's values are counted: GPUs that no member may have are unhealthy.

    If a node can serve roles that match different GPUs, all its GPUs are unhealthy. While a role still has
    subrequests to choose from, the cluster stays as it is.
    """
    roles = [role for role in request.roles if (role.gpus or role.slice) and role.members]
    if any(role.subrequests for role in roles) or not any(role.matching for role in roles):
        return snapshot
    nodes = {}
    for name, state in snapshot.nodes.items():
        all_gpus = (1 << state.node.topology.gpu_count) - 1
        served = [role for role in roles if _offers_gpus(state, role)]
        if not served:
            nodes[name] = state
            continue
        # Members may have a tainted GPU only if their role names the GPU.
        masks = {role.matching.get(name, ~state.node.tainted) & all_gpus for role in served}
        allowed = masks.pop() if len(masks) == 1 else 0
        is_changed = allowed != all_gpus & ~state.node.tainted
        nodes[name] = _with_only_gpus(state, allowed) if is_changed else state
    return replace(snapshot, nodes=nodes)


def _offers_gpus(state: NodeState, role: Role) -> bool:
    """Return whether the node offers the GPUs or the shares that the role asks for, by their resource."""
    if role.gpus > 1 and state.node.partitions and not starts_with(state.node, role.gpus, role):
        return False
    shares = state.node.memory_resources if state.node.gpu_memory else ()
    return role.slice.resource in shares if role.slice else role.gpu_resource in state.node.gpu_resources


def _with_only_gpus(state: NodeState, allowed: int) -> NodeState:
    """Return the state of the node as if it had only these GPUs. The GPUs' taints do not count."""
    sound = ~state.node.unhealthy | state.node.tainted
    bad = ((1 << state.node.topology.gpu_count) - 1) & ~(sound & allowed)
    free = (state.free_gpus | state.tainted) & allowed
    node = replace(state.node, unhealthy=bad, tainted=0)
    memory = tuple(0 if bad >> gpu & 1 else units for gpu, units in enumerate(state.memory))
    return replace(state, node=node, free_gpus=free, tainted=0, memory=memory)
