"""Check that nodes admit the members, and that nodes and their GPUs have room for the plan."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import chain, pairwise
from operator import le

from muster.domain.decision import MemberPlacement, Placed
from muster.domain.node import Node, Resources, TaintEffect
from muster.domain.request import Request, Role, SelectorTerm
from muster.domain.snapshot import NodeState, Snapshot
from muster.placement.verify.parts import Groups, Spot, Spots


def check_admission(snapshot: Snapshot, request: Request, plan: Placed) -> list[str]:
    """Return a sentence for each role and node of the plan where the node does not admit the role."""
    roles = {role.name: role for role in request.roles}
    pairs = {(m.role, m.node) for m in plan.members if m.role in roles}
    reasons = ((role, name, _refusal_of(snapshot.nodes[name].node, roles[role])) for role, name in pairs)
    refused = sorted(refusal for refusal in reasons if refusal[2])
    return [f"node {name} does not admit role {role}: {reason}" for role, name, reason in refused]


def _refusal_of(node: Node, role: Role) -> str:
    """Return the reason for which the node does not admit the role, "" if it does."""
    shares = node.memory_resources if node.gpu_memory else frozenset()
    if role.gpus and role.gpu_resource not in node.gpu_resources:
        return f"it does not offer {role.gpu_resource}"
    if role.slice and role.slice.resource not in shares:
        return f"it does not offer {role.slice.resource}"
    if not node.ready:
        return "not ready"
    taint = untolerated_taint(node, role)
    if (
        node.unschedulable
        and not taint
        and not _is_tolerated(role, "node.kubernetes.io/unschedulable", "", "NoSchedule")
    ):
        taint = "taint node.kubernetes.io/unschedulable"
    return taint or unmet_selector(node, role)


def untolerated_taint(node: Node, role: Role) -> str:
    """Return the first taint of the node that the role does not tolerate, "" if the role tolerates all."""
    for taint in node.taints:
        is_hard = taint.effect != TaintEffect.PREFER_NO_SCHEDULE
        if is_hard and not _is_tolerated(role, taint.key, taint.value, taint.effect):
            return f"taint {taint.key}"
    return ""


def _is_tolerated(role: Role, key: str, value: str, effect: str) -> bool:
    for t in role.rules.tolerations:
        same_key = t.key == key or (t.key == "" and t.operator == "Exists")
        same_value = t.operator == "Exists" or (t.operator in ("", "Equal") and t.value == value)
        if same_key and same_value and t.effect in ("", effect):
            return True
    return False


def unmet_selector(node: Node, role: Role) -> str:
    """Return which of the role's node selectors or affinity the node does not meet, "" if it meets all."""
    for term in role.rules.required:
        if not _meets(term, node):
            return f"selector on {term.key}"
    if role.rules.any_of and not any(
        terms and all(_meets(term, node) for term in terms) for terms in role.rules.any_of
    ):
        return "affinity"
    return ""


def _meets(term: SelectorTerm, node: Node) -> bool:
    labels = {**node.labels, "metadata.name": node.name}
    has = term.key in labels
    if term.operator in ("Exists", "DoesNotExist"):
        return has == (term.operator == "Exists")
    if term.operator in ("In", "NotIn"):
        return (has and labels[term.key] in term.values) == (term.operator == "In")
    numbers = [labels.get(term.key, ""), *term.values]
    if len(numbers) != 2 or not all(text.lstrip("+-").isdigit() and text.isascii() for text in numbers):
        return False
    try:
        of_node, of_term = map(int, numbers)
    except ValueError:
        return False
    return {"Gt": of_node > of_term, "Lt": of_node < of_term}.get(term.operator, False)


def check_capacities(request: Request, groups: Groups, new_spots: Spots) -> list[str]:
    """Return the errors in what the plan takes of each node: its resources and its GPUs."""
    wrong = []
    asks = {role.name: role.resources for role in request.roles}
    totals: dict[tuple[str, ...], Resources] = {}
    unsorted = _unsorted_indices(chain.from_iterable(groups.values()))
    for name, members in groups.items():
        spot, roles = new_spots[name], tuple([member.role for member in members])
        if roles not in totals:
            totals[roles] = sum([asks[role] for role in roles if role in asks], Resources(pods=0))
        wrong += _check_resources(name, spot.state.free, totals[roles])
        if unsorted:
            wrong += [f"the GPUs of member {m.name} do not rise" for m in members if m.gpus in unsorted]
        if not _all_free(spot, members):
            wrong += _check_gpus(spot.state, members)
    return wrong


def _unsorted_indices(members: Iterable[MemberPlacement]) -> set[tuple[int, ...]]:
    """Return the GPU indices of members that are not in ascending order."""
    indices = {member.gpus for member in members}
    return {gpus for gpus in indices if any(gpu >= following for gpu, following in pairwise(gpus))}


def _check_resources(name: str, free: Resources, total: Resources) -> list[str]:
    """Return a sentence for each resource if the plan takes more than the node has free."""
    totals = total.cpu_milli, total.memory_bytes, total.pods
    free_amounts = free.cpu_milli, free.memory_bytes, free.pods
    if not total.others and all(map(le, totals, free_amounts)):
        return []
    amounts = list(zip(("cpu", "memory", "pods"), totals, free_amounts, strict=True))
    amounts += [(resource, amount, free.other_amount(resource)) for resource, amount in total.others]
    return [
        f"node {name} has {free_amount} of {resource} free, the plan takes {amount}"
        for resource, amount, free_amount in amounts
        if amount > 0 and amount > free_amount
    ]


def _all_free(spot: Spot, members: Sequence[MemberPlacement]) -> bool:
    """Return whether each member has free GPUs of its own. This is a quick test that most nodes pass."""
    gpus, state = sum([len(member.gpus) for member in members]), spot.state
    fits = gpus == spot.gpus.bit_count() <= state.free_gpu_count and not spot.gpus & ~state.free_gpus
    return fits and not any(member.units for member in members)


def _check_gpus(state: NodeState, members: Sequence[MemberPlacement]) -> list[str]:
    """Return the errors in the GPUs of one node.

    Each GPU must go to one member whole, or to several members for which it has the memory.
    """
    wrong, name = [], state.node.name
    whole_gpus: set[int] = set()
    shared: Counter[int] = Counter()
    for member in members:
        for gpu in member.gpus:
            if gpu in whole_gpus or (not member.units and gpu in shared):
                wrong.append(f"GPU {gpu} of node {name} is given twice")
            if member.units:
                shared[gpu] += member.units
                continue
            if gpu < 0 or not state.free_gpus >> gpu & 1:
                wrong.append(f"GPU {gpu} of node {name} is not free")
            whole_gpus.add(gpu)
    room = max(0, state.free_gpus.bit_count() - state.unindexed_gpus)
    if len(whole_gpus) > room:
        wrong.append(f"node {name} has {room} GPUs free, the plan takes {len(whole_gpus)}")
    memory = state.free_memory
    for gpu, units in sorted(shared.items()):
        units_left = memory[gpu] if 0 <= gpu < len(memory) else 0
        if units > units_left:
            wrong.append(f"GPU {gpu} of node {name} has {units_left} units left, the plan takes {units}")
    return wrong
