"""The judge of every plan: counts it again with the simplest means. It knows no solver and no planner.

Imports nothing of muster but muster.domain (import-linter holds it), so that an error in the planner's view
of the cluster is not repeated here.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from itertools import pairwise, permutations

from muster.domain.decision import MemberPlacement, Placed
from muster.domain.node import Node, Resources, TaintEffect
from muster.domain.request import Request, Role, SelectorTerm
from muster.domain.snapshot import NodeState, Snapshot
from muster.domain.topology import GpuTopology

MAX_RING_BY_FORCE = 8
"""Rings over more GPUs are not counted again, unless all links are equal: 7! orders are enough."""

MAX_PLANNED_GPUS = 16
"""The planner claims no links on nodes with more GPUs."""


def verify(snapshot: Snapshot, request: Request, placed: Placed) -> tuple[str, ...]:
    """What is wrong with the plan, one sentence each; () when it is good.

    `snapshot` is the cluster without the plan.
    """
    unknown = [m.node for m in placed.members if m.node not in snapshot.nodes]
    if unknown:
        return tuple(f"node {name} is not in the cluster" for name in sorted(set(unknown)))
    return (
        *_members(request, placed),
        *_capacities(snapshot, request, placed),
        *_rules(snapshot, request, placed),
        *_scopes(snapshot, request, placed),
        *_claims(snapshot, placed),
    )


def _members(request: Request, placed: Placed) -> list[str]:
    wrong = []
    expected = {m.uid: (m.name, role) for role in request.roles for m in role.members}
    seen: set[str] = set()
    for member in placed.members:
        if member.uid in seen:
            wrong.append(f"member {member.name} is placed twice")
        seen.add(member.uid)
        if member.uid not in expected:
            wrong.append(f"member {member.name} is not of the gang")
            continue
        name, role = expected[member.uid]
        if (member.name, member.role) != (name, role.name):
            wrong.append(f"member {name} of role {role.name} is called {member.name} of role {member.role}")
        if len(member.gpus) != role.gpus:
            wrong.append(f"member {name} asks for {role.gpus} GPUs and gets {len(member.gpus)}")
    if len(seen) < min(request.min_member, request.size):
        wrong.append(f"{len(seen)} members are placed, at least {request.min_member} must be")
    if not seen:
        wrong.append("no member is placed")
    if placed.gang != request.gang:
        wrong.append(f"the plan is of gang {placed.gang}, not of {request.gang}")
    return wrong


def _capacities(snapshot: Snapshot, request: Request, placed: Placed) -> list[str]:
    wrong = []
    asks = {role.name: role.resources for role in request.roles}
    for name, members in _by_node(placed).items():
        state = snapshot.nodes[name]
        total = Resources(pods=0)
        for member in members:
            total += asks.get(member.role, Resources())
        for what, asked, free in (
            ("cpu", total.cpu_milli, state.free.cpu_milli),
            ("memory", total.memory_bytes, state.free.memory_bytes),
            ("pods", total.pods, state.free.pods),
        ):
            if asked > 0 and asked > free:
                wrong.append(f"node {name} has {free} of {what} free, the plan takes {asked}")
        taken: set[int] = set()
        for member in members:
            for gpu in member.gpus:
                if gpu in taken:
                    wrong.append(f"GPU {gpu} of node {name} is given twice")
                if gpu < 0 or not (state.free_gpus >> gpu) & 1:
                    wrong.append(f"GPU {gpu} of node {name} is not free")
                taken.add(gpu)
            if list(member.gpus) != sorted(set(member.gpus)):
                wrong.append(f"the GPUs of member {member.name} do not rise")
        room = max(0, bin(state.free_gpus).count("1") - state.unindexed_gpus)
        if len(taken) > room:
            wrong.append(f"node {name} has {room} GPUs free, the plan takes {len(taken)}")
    return wrong


def _rules(snapshot: Snapshot, request: Request, placed: Placed) -> list[str]:
    roles = {role.name: role for role in request.roles}
    pairs = sorted({(m.role, m.node) for m in placed.members if m.role in roles})
    return [
        f"node {name} does not admit role {role}: {why}"
        for role, name in pairs
        if (why := _refused(snapshot.nodes[name].node, roles[role]))
    ]


def _refused(node: Node, role: Role) -> str:
    if role.gpus and role.gpu_resource not in node.gpu_resources:
        return f"it does not offer {role.gpu_resource}"
    if not node.ready:
        return "not ready"
    taints = [(t.key, t.value, t.effect) for t in node.taints if t.effect != TaintEffect.PREFER_NO_SCHEDULE]
    if node.unschedulable:
        taints.append(("node.kubernetes.io/unschedulable", "", "NoSchedule"))
    for key, value, effect in taints:
        for t in role.rules.tolerations:
            same_key = t.key == key or (t.key == "" and t.operator == "Exists")
            same_value = t.operator == "Exists" or (t.operator in ("", "Equal") and t.value == value)
            if same_key and same_value and t.effect in ("", effect):
                break
        else:
            return f"taint {key}"
    for term in role.rules.required:
        if not _holds(term, node):
            return f"selector on {term.key}"
    if role.rules.any_of and not any(
        terms and all(_holds(term, node) for term in terms) for terms in role.rules.any_of
    ):
        return "affinity"
    return ""


def _holds(term: SelectorTerm, node: Node) -> bool:
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
        left, right = map(int, numbers)
    except ValueError:
        return False
    return {"Gt": left > right, "Lt": left < right}.get(term.operator, False)


def _scopes(snapshot: Snapshot, request: Request, placed: Placed) -> list[str]:
    wrong = []
    reached = placed.scope_reached
    preferred = placed.objective.preferred_reached
    for what, scope in (("required", request.required_scope), ("preferred", preferred), ("reached", reached)):
        if scope is None:
            continue
        common = _common(snapshot, placed, scope)
        if not common:
            wrong.append(f"no one {scope} holds all members, although it is {what}")
        if what == "reached" and common and placed.domain.removeprefix(f"{scope} ") not in common:
            wrong.append(f"the members do not lie in {placed.domain}")
    if reached is None and placed.domain:
        wrong.append(f"no scope is reached, but the plan lies in {placed.domain}")
    return wrong


def _common(snapshot: Snapshot, placed: Placed, scope: str) -> set[str]:
    """The parts of the scope that hold every member."""
    per_member = [_parts(snapshot.nodes[member.node], member, scope) for member in placed.members]
    return set.intersection(*per_member) if per_member else set()


def _parts(state: NodeState, member: MemberPlacement, scope: str) -> set[str]:
    """The parts of the scope that hold this member; one without GPUs lies in each of its node's."""
    node, gpus = state.node, set(member.gpus)
    if scope == "node":
        return {node.name}
    if scope == "gpu":
        found = [{i} for i in range(node.topology.gpu_count)] if not state.unindexed_gpus else []
        return {f"{node.name}/{min(part)}" for part in found if gpus <= part}
    if scope == "nvlink-domain":
        return {name for name, part in _domains(state).items() if gpus <= part}
    label = {"rack": "topology.kubernetes.io/rack", "zone": "topology.kubernetes.io/zone"}.get(scope, scope)
    value = node.labels.get(label, "")
    return {value} if value else set()


def _domains(state: NodeState) -> dict[str, set[int]]:
    """NVLink domains of the node that can be promised: name → GPUs."""
    node = state.node
    everything = set(range(node.topology.gpu_count))
    for label in ("gpu.topology/nvlink-domain", "nvidia.com/gpu.clique"):
        if node.labels.get(label) and everything:
            return {node.labels[label]: everything}
    found: dict[str, set[int]] = {}
    left = set(everything)
    while left:
        island = {min(left)}
        while grown := {
            j for i in island for j in left - island if (link := node.topology.links[i][j]) and link.is_fabric
        }:
            island |= grown
        found[f"{node.name}/{len(found)}"] = island
        left -= island
    return {} if state.unindexed_gpus and len(found) > 1 else found


def _claims(snapshot: Snapshot, placed: Placed) -> list[str]:
    """The links that the objective claims, counted again by trying every ring."""
    weakest: list[float] = []
    total, counted = 0.0, True
    for name, members in _by_node(placed).items():
        state = snapshot.nodes[name]
        gpus = sorted({gpu for member in members for gpu in member.gpus})
        if len(gpus) < 2 or not 0 <= gpus[0] <= gpus[-1] < state.node.topology.gpu_count:
            continue
        if state.unindexed_gpus or state.node.topology.gpu_count > MAX_PLANNED_GPUS:
            ring: tuple[float, float] | None = (0.0, 0.0)
        else:
            ring = _best_ring(state.node.topology, tuple(gpus))
        counted &= ring is not None
        weakest.append(ring[0] if ring else 0.0)
        total += ring[1] if ring else 0.0
    slowest = min(weakest, default=0.0) or None
    wrong = _crossings(snapshot, placed)
    if placed.optimal and (placed.gap is not None or placed.truncated):
        wrong.append("the plan is called optimal, but has a gap or was cut short")
    if not counted:
        return wrong
    if slowest != placed.objective.weakest_link_gb_per_s:
        wrong.append(f"the weakest link is {slowest}, not {placed.objective.weakest_link_gb_per_s} GB/s")
    if abs(total - placed.objective.ring_gb_per_s) > 1e-6 * max(1.0, total):
        wrong.append(f"the rings sum up to {total}, not {placed.objective.ring_gb_per_s} GB/s")
    return wrong


def _crossings(snapshot: Snapshot, placed: Placed) -> list[str]:
    """The parts that the objective claims are touched. Nodes without the label are a part each."""
    wrong = []
    for scope, claimed in placed.objective.crossings:
        label = {
            "zone": "topology.kubernetes.io/zone",
            "rack": "topology.kubernetes.io/rack",
            "node": "kubernetes.io/hostname",
        }.get(scope)
        if label is None:
            continue
        labels = {m.node: snapshot.nodes[m.node].node.labels.get(label) for m in placed.members}
        parts = {
            ("", name) if scope == "node" or not value else (value, "") for name, value in labels.items()
        }
        if len(parts) != claimed:
            wrong.append(f"{len(parts)} {scope}s are touched, not {claimed}")
    return wrong


@lru_cache(maxsize=4096)
def _best_ring(topology: GpuTopology, gpus: tuple[int, ...]) -> tuple[float, float] | None:
    """Weakest link and sum of the best ring, GB/s; None where there are too many rings to try."""
    speed = {(i, j): link.gb_per_s if (link := topology.links[i][j]) else 0.0 for i in gpus for j in gpus}
    values = {value for (i, j), value in speed.items() if i != j}
    if len(values) == 1:
        value = values.pop()
        return value, value * len(gpus)
    if len(gpus) > MAX_RING_BY_FORCE:
        return None
    first, *others = gpus
    best = (-1.0, -1.0)
    for order in permutations(others):
        if len(order) > 1 and order[0] > order[-1]:
            continue  # the same ring the other way round
        ring = (first, *order, first)
        links = [speed[a, b] for a, b in pairwise(ring)]
        best = max(best, (min(links), sum(links)))
    return best


def _by_node(placed: Placed) -> Mapping[str, list[MemberPlacement]]:
    found: dict[str, list[MemberPlacement]] = {}
    for member in placed.members:
        found.setdefault(member.node, []).append(member)
    return found
