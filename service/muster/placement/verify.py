"""The judge of every plan: counts it again with the simplest means. It knows no solver and no planner.

Imports nothing of muster but muster.domain (import-linter holds it), so that an error in the planner's view
of the cluster is not repeated here.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import cache, lru_cache
from itertools import pairwise, permutations, repeat
from operator import attrgetter, contains
from typing import NamedTuple

from muster.domain.decision import MemberPlacement, Placed
from muster.domain.levels import Level
from muster.domain.node import Node, TaintEffect
from muster.domain.request import Member, Request, Role, SelectorTerm
from muster.domain.snapshot import NodeState, Snapshot
from muster.domain.topology import GpuTopology

MAX_RING_BY_FORCE = 8
"""Rings over more GPUs are not counted again, unless all links are equal: 7! orders are enough."""

MAX_PLANNED_GPUS = 16
"""The planner claims no links on nodes with more GPUs."""

_MB_PER_GB = 1000
"""Links count in whole MB/s, as the objective says."""

_TYPICAL_GPUS = (1, 2, 4, 8)
"""Whole GPUs of the requests that damage is measured by, each of equal weight."""

_TYPICAL_PARTS = (1, 2, 4)
"""GPU memory over so much: the slices that damage is measured by, each of equal weight."""


class _Spot(NamedTuple):
    """Where a member lies, placed or running, or all members on one node. `gpus` is a bit mask; `known` is
    false where a running member has GPUs of unknown index."""

    role: str
    state: NodeState
    gpus: int
    known: bool = True


_Spots = Mapping[str, _Spot]
"""By the members' uids, or by nodes' names."""


def verify(snapshot: Snapshot, request: Request, placed: Placed) -> tuple[str, ...]:
    """What is wrong with the plan, one sentence each; () when it is good.

    `snapshot` is the cluster without the plan. What running members break without it is not the plan's fault:
    roles, segments and parts are judged where it puts a member.
    """
    unknown = [m.node for m in placed.members if m.node not in snapshot.nodes]
    if unknown:
        return tuple(f"node {name} is not in the cluster" for name in sorted(set(unknown)))
    fabric = _Fabric(snapshot.levels)
    new, old = _placed(snapshot, placed), _running(snapshot, request)
    touched = _by_node(new.values())
    everyone = _by_node([*touched.values(), *old.values()])
    return (
        *_members(request, placed),
        *_capacities(snapshot, request, placed),
        *_rules(snapshot, request, placed),
        *_scopes(fabric, request, placed, everyone),
        *_role_scopes(fabric, request, new, old),
        *_segments(fabric, request, new, old),
        *_max_per(fabric, request, new, old),
        *_objective(fabric, snapshot, request, placed, everyone),
        *_damage(placed, touched),
        *_links(placed, [everyone[name] for name in touched]),
    )


def _placed(snapshot: Snapshot, placed: Placed) -> _Spots:
    """Indices that a node does not have are left out: `_capacities` reports them."""
    found = {}
    for member in placed.members:
        state, mask = snapshot.nodes[member.node], 0
        for gpu in member.gpus:
            if 0 <= gpu < state.node.topology.gpu_count:
                mask |= 1 << gpu
        found[member.uid] = _Spot(member.role, state, mask)
    return found


def _running(snapshot: Snapshot, request: Request) -> _Spots:
    """Those on nodes that are gone count for nothing."""
    asks = {role.name: role.gpus or role.slice for role in request.roles}
    found = {}
    for r in request.running:
        if r.node in snapshot.nodes:
            known = r.gpus > 0 or not asks.get(r.role)
            found[r.member.uid] = _Spot(r.role, snapshot.nodes[r.node], r.gpus, known)
    return found


def _by_node(spots: Iterable[_Spot]) -> _Spots:
    """One spot a node for all of these."""
    found: dict[str, _Spot] = {}
    for spot in spots:
        name = spot.state.node.name
        one = found.get(name)
        found[name] = _Spot("", spot.state, spot.gpus | one.gpus, spot.known and one.known) if one else spot
    return found


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
        gpus = role.slice.gpus if role.slice else role.gpus
        if len(member.gpus) != gpus:
            wrong.append(f"member {name} asks for {gpus} GPUs and gets {len(member.gpus)}")
        units = role.slice.units if role.slice else 0
        if member.units != units:
            wrong.append(f"member {name} asks for {units} units of a GPU and gets {member.units}")
    if len(seen) < min(request.min_member, request.size):
        wrong.append(f"{len(seen)} members are placed, at least {request.min_member} must be")
    if not seen:
        wrong.append("no member is placed")
    for role in request.roles if len(seen) < request.size else ():
        order = [member.uid in seen for member in _in_rank_order(role.members)]
        if order != sorted(order, reverse=True):
            wrong.append(f"role {role.name} leaves out others than its last ranks")
    if placed.gang != request.gang:
        wrong.append(f"the plan is of gang {placed.gang}, not of {request.gang}")
    return wrong


def _in_rank_order(members: Sequence[Member]) -> list[Member]:
    """By rank, those without one last; names decide between equal ranks, worker-2 before worker-10."""
    ranks = Counter(member.rank for member in members)

    def key(member: Member) -> tuple[object, ...]:
        pieces = re.split(r"(\d+)", member.name) if ranks[member.rank] > 1 else ()
        natural = [(0, int(p), p) if p.isdecimal() else (1, 0, p) for p in pieces if p]
        return (member.rank is None, member.rank or 0, natural, member.uid)

    return sorted(members, key=key)


def _capacities(snapshot: Snapshot, request: Request, placed: Placed) -> list[str]:
    wrong = []
    asks = {role.name: role.resources for role in request.roles}
    by_node: dict[str, list[MemberPlacement]] = {}
    for member in placed.members:
        by_node.setdefault(member.node, []).append(member)
    for name, members in by_node.items():
        state = snapshot.nodes[name]
        each = [asks[member.role] for member in members if member.role in asks]
        for what, asked, free in (
            ("cpu", sum([r.cpu_milli for r in each]), state.free.cpu_milli),
            ("memory", sum([r.memory_bytes for r in each]), state.free.memory_bytes),
            ("pods", sum([r.pods for r in each]), state.free.pods),
        ):
            if asked > 0 and asked > free:
                wrong.append(f"node {name} has {free} of {what} free, the plan takes {asked}")
        wrong += [
            f"the GPUs of member {member.name} do not rise"
            for member in members
            if any(gpu >= following for gpu, following in pairwise(member.gpus))
        ]
        wrong += _gpus(state, members)
    return wrong


def _gpus(state: NodeState, members: Iterable[MemberPlacement]) -> list[str]:
    """Each GPU goes to one member whole, or to several that find their units on it."""
    wrong, name = [], state.node.name
    taken: set[int] = set()
    shared: Counter[int] = Counter()
    for member in members:
        for gpu in member.gpus:
            if gpu in taken or (not member.units and gpu in shared):
                wrong.append(f"GPU {gpu} of node {name} is given twice")
            if member.units:
                shared[gpu] += member.units
                continue
            if gpu < 0 or not state.free_gpus >> gpu & 1:
                wrong.append(f"GPU {gpu} of node {name} is not free")
            taken.add(gpu)
    room = max(0, state.free_gpus.bit_count() - state.unindexed_gpus)
    if len(taken) > room:
        wrong.append(f"node {name} has {room} GPUs free, the plan takes {len(taken)}")
    memory = state.free_memory
    for gpu, units in sorted(shared.items()):
        left = memory[gpu] if 0 <= gpu < len(memory) else 0
        if units > left:
            wrong.append(f"GPU {gpu} of node {name} has {left} units left, the plan takes {units}")
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
    if (role.gpus and role.gpu_resource not in node.gpu_resources) or (role.slice and not node.gpu_memory):
        return f"it does not offer {role.gpu_resource or 'memory of its GPUs'}"
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


def _scopes(fabric: _Fabric, request: Request, placed: Placed, everyone: _Spots) -> list[str]:
    """The required scope, and whether the preferred and the narrowest one are those that are claimed."""
    wrong, spots = [], everyone.values()
    if request.required_scope is not None and not fabric.common(spots, request.required_scope):
        wrong.append(f"no one {request.required_scope} holds all members, although it is required")
    claimed = placed.objective.preferred_reached
    preferred = next((scope for scope in request.preferred_scopes if fabric.common(spots, scope)), None)
    if claimed != preferred:
        wrong.append(f"the preferred scope that holds all members is {preferred}, not {claimed}")
    reached = placed.scope_reached
    if reached is not None and placed.domain not in {
        f"{reached} {part}" for part in fabric.common(spots, reached)
    }:
        wrong.append(f"the members do not lie in {reached}, {placed.domain}")
    if reached is None and placed.domain:
        wrong.append(f"no scope is reached, but the plan lies in {placed.domain}")
    narrow = ["nvlink-domain", "node", *(level.scope for level in reversed(fabric.levels))]
    if any(spot.gpus for spot in spots):
        narrow.insert(0, "gpu")
    if reached is not None:  # a label key that is no level may be wider or narrower than any level
        narrow = narrow[: narrow.index(reached if reached in narrow else "node")]
    wrong += [
        f"one {scope} holds all members, not only {reached}"
        for scope in narrow
        if fabric.common(spots, scope)
    ]
    return wrong


def _role_scopes(fabric: _Fabric, request: Request, new: _Spots, old: _Spots) -> list[str]:
    wrong = []
    for role in request.roles:
        if role.required_scope is None or not any(spot.role == role.name for spot in new.values()):
            continue
        spots = [spot for spot in (*new.values(), *old.values()) if spot.role == role.name]
        if not fabric.common(spots, role.required_scope):
            wrong.append(f"no one {role.required_scope} holds all members of role {role.name}")
    return wrong


def _segments(fabric: _Fabric, request: Request, new: _Spots, old: _Spots) -> list[str]:
    """Who is left out of the plan keeps the position that its rank gives it, and lies nowhere."""
    wrong = []
    for role in request.roles:
        if not role.segments:
            continue
        stay = [r.member for r in request.running if r.role == role.name and r.member.uid in old]
        order = [member.uid for member in _in_rank_order([*role.members, *stay])]
        for segment in role.segments:
            for start in range(0, len(order), segment.size):
                uids = order[start : start + segment.size]
                placed = [new[uid] for uid in uids if uid in new]
                spots = [*placed, *(old[uid] for uid in uids if uid in old)]
                if placed and not fabric.common(spots, segment.scope):
                    last = start + len(uids) - 1
                    wrong.append(
                        f"no one {segment.scope} holds members {start} to {last} by rank of role {role.name}"
                    )
    return wrong


def _max_per(fabric: _Fabric, request: Request, new: _Spots, old: _Spots) -> list[str]:
    wrong = []
    for rule in request.max_per:
        if rule.scope == "gpu":
            continue  # a GPU holds one member as it is
        mine, others = (fabric.count(spots.values(), rule.scope) for spots in (new, old))
        wrong += [
            f"{count + others[part]} members lie in {rule.scope} {''.join(part)}, at most {rule.members} may"
            for part, count in sorted(mine.items())
            if count + others[part] > rule.members
        ]
    return wrong


_Part = tuple[str, str]
"""The name of a part, "" and the node's (or GPU's) name where that is a part of its own."""


class _Fabric:
    """In which parts of the scopes things lie; what was found for a node is kept, for one verdict."""

    def __init__(self, levels: tuple[Level, ...]) -> None:
        self.levels = levels
        self._labels = {level.scope: level.labels for level in levels}
        self._known: dict[tuple[str, str], Mapping[str, int]] = {}

    def common(self, spots: Iterable[_Spot], scope: str) -> set[str]:
        """The parts of the scope that hold all of these."""
        common: set[str] | None = None
        for spot in spots:
            inside = self._holding(spot, scope)
            common = inside if common is None else common & inside
            if not common:
                break
        return common or set()

    def count(self, spots: Iterable[_Spot], scope: str) -> Counter[_Part]:
        """How many of these lie in each part of the scope, or touch it."""
        return Counter(part for spot in spots for part in self.touched(spot, scope))

    def touched(self, spot: _Spot, scope: str) -> set[_Part]:
        """The parts of the scope that count as touched: a node without the label is one, and so is each GPU
        where no NVLink domain can be promised."""
        parts, name = self._parts(spot.state, scope), spot.state.node.name
        if scope != "nvlink-domain":
            return {(part, "") for part in parts} or {("", name)}
        if not spot.known and len(parts) == 1:
            return {(part, "") for part in parts}
        if parts:
            return {(part, "") for part, mask in parts.items() if spot.gpus & mask}
        return {("", f"{name}/gpu{i}") for i in range(spot.gpus.bit_length()) if spot.gpus >> i & 1}

    def _holding(self, spot: _Spot, scope: str) -> set[str]:
        """The parts of the scope that hold the spot; one without GPUs lies in each of its node's, one with
        GPUs of unknown index only where the node is one NVLink domain."""
        if not spot.known and scope in ("gpu", "nvlink-domain") and len(_domains(spot.state)) != 1:
            return set()
        return {part for part, mask in self._parts(spot.state, scope).items() if not spot.gpus & ~mask}

    def _parts(self, state: NodeState, scope: str) -> Mapping[str, int]:
        """Parts of the scope that the node lies in: name → mask of its GPUs there."""
        key = scope, state.node.name
        found = self._known.get(key)
        if found is None:
            found = self._known[key] = self._look(state, scope)
        return found

    def _look(self, state: NodeState, scope: str) -> Mapping[str, int]:
        node = state.node
        if scope == "nvlink-domain":
            return _domains(state)
        if scope == "gpu":  # none can be promised where some of the free ones are not
            count = 0 if state.unindexed_gpus else node.topology.gpu_count
            return {f"{node.name}/{i}": 1 << i for i in range(count)}
        if scope == "node":
            return {node.name: -1}
        for key in self._labels.get(scope, (scope,)):
            if value := node.labels.get(key):
                return {value: -1}
        return {}


def _domains(state: NodeState) -> Mapping[str, int]:
    """NVLink domains of the node that can be promised: name → mask of its GPUs there."""
    node = state.node
    if wide := _wide(node):
        return {wide: (1 << node.topology.gpu_count) - 1}
    islands = node.topology.islands
    if state.unindexed_gpus and len(islands) > 1:
        return {}
    return {f"{node.name}/{i}": mask for i, mask in enumerate(islands)}


def _wide(node: Node) -> str:
    """The NVLink domain that labels name, which may span nodes."""
    if not node.topology.gpu_count:
        return ""
    return node.labels.get("gpu.topology/nvlink-domain") or node.labels.get("nvidia.com/gpu.clique") or ""


def _objective(
    fabric: _Fabric, snapshot: Snapshot, request: Request, placed: Placed, everyone: _Spots
) -> list[str]:
    """The crossings, and what is said of the proof."""
    wrong, claimed = [], placed.objective.crossings
    crossings = tuple(
        (scope, len({part for spot in everyone.values() for part in fabric.touched(spot, scope)}))
        for scope in _crossing_scopes(snapshot, request, everyone)
    )
    if crossings != claimed:
        counted, said = (", ".join(f"{scope} {n}" for scope, n in each) for each in (crossings, claimed))
        wrong.append(f"the parts touched are {counted}, not {said}")
    if placed.optimal and (placed.gap is not None or placed.truncated):
        wrong.append("the plan is called optimal, but has a gap or was cut short")
    return wrong


def _crossing_scopes(snapshot: Snapshot, request: Request, everyone: _Spots) -> list[str]:
    """Levels that any node of the cluster carries a label of, nodes, and NVLink domains if GPUs are asked."""
    scopes, near = [], [spot.state.node.labels for spot in everyone.values()]
    far: list[Mapping[str, str]] = []
    for level in snapshot.levels:
        if not _carried(near, level):  # the one question to all nodes, and seldom asked
            far = far or [*map(attrgetter("node.labels"), snapshot.nodes.values())]
            if not _carried(far, level):
                continue
        scopes.append(level.scope)
    scopes.append("node")
    if any(role.gpus or role.slice for role in request.roles if role.members):
        scopes.append("nvlink-domain")
    return scopes


def _carried(nodes: Sequence[Mapping[str, str]], level: Level) -> bool:
    """Whether any of these labels say in which part of the level a node lies."""
    return any(
        any(map(contains, nodes, repeat(key))) and any(labels.get(key) for labels in nodes)
        for key in level.labels
    )


def _damage(placed: Placed, touched: _Spots) -> list[str]:
    """F after − F before, over the nodes that the plan touches."""
    damage = 0
    for name, (_, state, gpus, _) in touched.items():
        if state.node.gpu_memory:
            members = [member for member in placed.members if member.node == name]
            damage += _spoilt(state, state.free_gpus & ~gpus, members) - _spoilt(state, state.free_gpus, [])
    for _, state, gpus, _ in touched.values():
        for pool in _pools(state):
            before, after = (state.free_gpus & pool).bit_count(), (state.free_gpus & ~gpus & pool).bit_count()
            damage += _wasted(after - state.unindexed_gpus) - _wasted(before - state.unindexed_gpus)
    claimed = placed.objective.damage
    return [f"the damage is {damage}, not {claimed}"] if damage != claimed else []


def _spoilt(state: NodeState, free: int, members: Iterable[MemberPlacement]) -> int:
    """F of the GPUs that are used in part, once these members have theirs, and `free` are wholly free."""
    node, total = state.node, 0
    for gpu, (every, left) in enumerate(zip(node.gpu_memory, state.free_memory, strict=True)):
        if free >> gpu & 1 or node.spread or not every:
            continue
        rest = left - sum(member.units or left for member in members if gpu in member.gpus)
        useless = sum(rest * parts < every for parts in _TYPICAL_PARTS)
        total += 1000 * rest * useless // (len(_TYPICAL_PARTS) * every)
        total += 1000 * rest // every if node.gpu_resources else 0
    return total


def _pools(state: NodeState) -> tuple[int, ...]:
    """Where a typical request must find its GPUs: in one island where there is NVLink, else on the node."""
    topology = state.node.topology
    if state.node.gpu_memory and not state.node.gpu_resources:
        return ()
    if state.unindexed_gpus or _wide(state.node) or len(topology.islands) == topology.gpu_count:
        return (-1,)
    return topology.islands


@cache
def _wasted(free: int) -> int:
    """F of one pool with so many free GPUs: those that typical requests can't use, GPU-thousandths."""
    return sum(max(0, free) * 1000 // len(_TYPICAL_GPUS) for gpus in _TYPICAL_GPUS if gpus > free)


def _links(placed: Placed, spots: list[_Spot]) -> list[str]:
    """The rings over the gang's GPUs, placed and running, on the nodes that the plan touches."""
    wrong = []
    rings = [_ring(spot) for spot in spots if spot.gpus.bit_count() > 1]
    if None in rings:
        return []
    weakest = min((ring[0] for ring in rings if ring), default=0) / _MB_PER_GB or None
    total = sum(ring[1] for ring in rings if ring) / _MB_PER_GB
    claimed = placed.objective
    if weakest != claimed.weakest_link_gb_per_s:
        wrong.append(f"the weakest link is {weakest}, not {claimed.weakest_link_gb_per_s} GB/s")
    if total != claimed.ring_gb_per_s:
        wrong.append(f"the rings sum up to {total}, not {claimed.ring_gb_per_s} GB/s")
    return wrong


def _ring(spot: _Spot) -> tuple[int, int] | None:
    """Weakest link and sum of the best ring over the GPUs of the spot, MB/s; None where it is not counted."""
    topology = spot.state.node.topology
    if spot.state.unindexed_gpus or topology.gpu_count > MAX_PLANNED_GPUS:
        return 0, 0
    return _best_ring(topology, spot.gpus)


@lru_cache(maxsize=4096)
def _best_ring(topology: GpuTopology, mask: int) -> tuple[int, int] | None:
    """By trying every ring; None where there are too many."""
    gpus = [gpu for gpu in range(topology.gpu_count) if mask >> gpu & 1]
    speed = {
        (i, j): round(link.gb_per_s * _MB_PER_GB) if (link := topology.links[i][j]) else 0
        for i, j in permutations(gpus, 2)
    }
    values = set(speed.values())
    if len(values) == 1:
        value = values.pop()
        return value, value * len(gpus)
    if len(gpus) > MAX_RING_BY_FORCE:
        return None
    first, *others = gpus
    best = (-1, -1)
    for order in permutations(others):
        if order[0] > order[-1]:
            continue  # the same ring the other way round
        links = [speed[a, b] for a, b in pairwise((first, *order, first))]
        best = max(best, (min(links), sum(links)))
    return best
