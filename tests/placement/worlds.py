"""Clusters and gangs at random, for the properties."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

from hypothesis import strategies as st

from muster.domain.constraints import (
    NODE,
    Affinity,
    AntiAffinity,
    PeerConstraint,
    PerScope,
    Subgroup,
    TopologySpread,
)
from muster.domain.levels import DEFAULT_LEVELS, NVLINK, FabricLevel, Naming
from muster.domain.node import Node, Resources, Taint, TaintEffect, Usage
from muster.domain.quorums import Leaf, Quorum
from muster.domain.request import (
    GangId,
    Member,
    NodeRules,
    PolicyTerm,
    Request,
    Role,
    RolePreference,
    RunningMember,
    Segment,
    SelectorTerm,
    Slice,
    Subrequest,
    Toleration,
    TypicalRequest,
)
from muster.domain.snapshot import NodeState, Snapshot
from muster.domain.topology import GpuTopology, Link, bits, mask_of
from tests.placement import naive
from tests.placement.constraints import TESTED
from tests.placement.drawings import LABELS, RACK, RESOURCE, ZONE, islands
from tests.placement.policy_parts import POLICY_PARTS

KINDS = ["NV1", "NV2", "PIX", "SYS", ""]
"""Of links; "" for one that is not known."""
PCIE_KINDS = ["PIX", "PXB", "PHB", "NODE", "SYS", "PCIE", "NV1"]
"""Of links that were measured, all equally fast: the sockets alone tell sets apart."""
BLOCKS = (ZONE, FabricLevel("block", ("example.com/block", "example.com/pod")), RACK)
"""A level between zone and rack, with two labels that may name its parts."""
TREE = (LABELS["zone"], "example.com/row", "example.com/seat")
"""The labels of a Topology of KAI, widest first."""
PAIRS = st.sampled_from([(Segment(2, "node"),), (Segment(2, "node"),), (Segment(2, "nvlink-domain"),)])


@st.composite
def topologies(draw: st.DrawFn) -> GpuTopology:
    shape = draw(st.sampled_from(["islands", "links", "measured", "unknown"]))
    count = draw(st.integers(1, 4))
    if shape == "unknown":
        return GpuTopology.unknown(count)
    if shape == "islands":
        return islands(draw(st.sampled_from([[4], [2, 2], [3, 1], [1, 1], [2]])))
    kinds = {
        (i, j): draw(st.sampled_from(PCIE_KINDS if shape == "measured" else KINDS))
        for j in range(count)
        for i in range(j)
    }
    return GpuTopology(
        tuple(
            tuple(
                _link(kind, shape == "measured") if (kind := kinds.get((min(i, j), max(i, j)))) else None
                for j in range(count)
            )
            for i in range(count)
        )
    )


def _link(kind: str, measured: bool) -> Link:
    return Link(kind, 12.0) if measured else Link.of_kind(kind)


@st.composite
def clusters(
    draw: st.DrawFn,
    levels: tuple[FabricLevel, ...] = DEFAULT_LEVELS,
    roomy: bool = False,
    paths: bool = False,
) -> Snapshot:
    """One to four nodes of one to four GPUs, some taken; `roomy` ones have more of all. With `paths` racks
    of one name lie in two zones, and a Topology has rows and seats in the zones."""
    shared = islands(draw(st.sampled_from([[4], [2, 2]]))) if roomy else draw(topologies())
    crowd = draw(st.sampled_from([0, 5])) if roomy else 15
    nodes, usages = [], []
    racks = draw(st.sampled_from([(None,), ("r1", "r2"), ("r1", "r2", None)][roomy:]))
    zones = draw(st.sampled_from([(None,), (None,), ("z1", "z2"), ("z1", None)]))
    if paths:
        racks, zones = ("r1", "r1", "r2", None), ("z1", "z2", "z2", None)
    for name in "abcd"[: draw(st.integers(1 + roomy, 4))]:
        topology = draw(st.one_of(st.just(shared), topologies()))
        labels = {"pool": draw(st.sampled_from("pq"))}
        if rack := draw(st.sampled_from(racks)):
            labels[LABELS["rack"]] = rack
        if zone := draw(st.sampled_from(zones)):
            labels[LABELS["zone"]] = zone
        for key in TREE[1:] if paths else ():
            if place := draw(st.sampled_from(["t1", "t1", "t2", None])):
                labels[key] = place
        if levels == BLOCKS and (block := draw(st.sampled_from(["b1", "b1", "b2", "b2", None]))):
            labels[draw(st.sampled_from(BLOCKS[1].labels))] = block
        if draw(st.integers(0, 4)) == 0:
            labels[draw(st.sampled_from(NVLINK.labels))] = draw(st.sampled_from(["k1", "k1", "k2"]))
        cordoned = draw(st.integers(0, 9)) == 0
        resources = Resources(draw(st.integers(1 + 2 * roomy, 5)) * 1000, 2**40, 110)
        nodes.append(Node(name, resources, topology, frozenset({RESOURCE}), labels, unschedulable=cordoned))
        everything = (1 << topology.gpu_count) - 1
        taken_gpus = draw(st.integers(0, everything)) & draw(st.integers(0, 15)) & crowd
        usages.append(Usage(f"{name}-taken", name, Resources(pods=0), gpus=taken_gpus))
    unique = draw(st.sampled_from([(), (), (), ("rack",), ("nvlink-domain", "block")]))
    return Snapshot.of(
        nodes, usages, levels, naming=Naming(() if paths else unique, (TREE,) if paths else ())
    )


@st.composite
def gangs(draw: st.DrawFn) -> Request:
    """Plain ones: one or two roles, scopes, some with fewer that must fit than there are."""
    roles = []
    for name in "wx"[: draw(st.sampled_from([1, 1, 2]))]:
        size, gpus, cpu = (
            draw(st.integers(1, 3)),
            draw(st.sampled_from([1, 1, 2, 3, 0])),
            draw(st.integers(0, 2)),
        )
        rules = (
            NodeRules((SelectorTerm("pool", "In", ("p",)),)) if draw(st.integers(0, 4)) == 0 else NodeRules()
        )
        members = tuple(Member(f"{name}{i}", f"{name}-{i}") for i in range(size))
        roles.append(Role(name, members, Resources(cpu * 1000), gpus, RESOURCE if gpus else "", rules))
    size = sum(len(role.members) for role in roles)
    scopes = ["gpu", "nvlink-domain", "node", "rack", "zone"]
    required = draw(st.sampled_from([None, None, *scopes[1:]]))
    preferred = draw(st.sampled_from([(), (), ("nvlink-domain", "node"), ("node", "rack"), ("rack", "zone")]))
    least = draw(st.sampled_from([size, size, max(1, size - 1), 1]))
    return Request(GangId("default", "test", "gang"), tuple(roles), least, required, preferred)


GIB = 2**30
FEATURES = (
    "levels",
    "ranks",
    "role scope",
    "segments",
    "pairs",
    "max per",
    "running",
    "unknown running",
    "slices",
    "terms",
    "typical",
    "anti-affinity",
    "affinity",
    "skew",
    "room",
    "scores",
    "least",
    "subgroups",
    "paths",
    "inside",
    "one node",
    "role preferences",
    "quorum",
    "elastic",
    "matching",
    "subrequests",
    "idle",
    "rails",
)
"""What a gang may ask for beyond the plain, and a cluster have. "unknown running": on GPUs of unknown index.
"slices": GPUs are shared. "anti-affinity", "affinity", "skew": constraints between pods. "room": nodes
hold few members. "scores": preferences of kube-scheduler, by node. "least": few must fit, and a crowd of a
further role fits nowhere. "pairs": each role is in segments of two inside nodes. "subgroups": several roles
lie in one part of a scope.
"typical": the cluster says what usually comes. "paths": equal names under different parents. "inside": the
scopes of roles are nodes and what lies inside them. "one node": so is the gang's required scope.
"quorum": some of several subgroups are enough. "elastic": roles have minimums, and replicas of several
members. "matching": claims match some GPUs of nodes.
"subrequests": claims have several ways, for different numbers of GPUs. "idle": some members and some nodes
have no GPUs. "rails": GPUs lie on network rails."""


class World(NamedTuple):
    """A cluster and a gang."""

    snapshot: Snapshot
    request: Request

    def __repr__(self) -> str:
        """Short enough to be read in a failure; nearly in the language above."""
        lines, request = ["", f"{self.snapshot.naming}"], self.request
        for name, state in self.snapshot.nodes.items():
            node, topology = state.node, state.node.topology
            free = "".join("01"[state.free_gpus >> i & 1] for i in range(topology.gpu_count))
            kinds = " ".join(
                f"{i}-{j}:{link.kind}"
                for j in range(topology.gpu_count)
                for i in range(j)
                if (link := topology.links[i][j]) and link.kind != "SYS"
            )
            details = [
                f"free {free}",
                f"cpu {state.free.cpu_milli / 1000:g}",
                kinds,
                *map("=".join, node.labels.items()),
            ]
            details += [f"tainted {node.tainted:b}"] * bool(node.tainted)
            details += [f"taint {taint.key}" for taint in node.taints]
            details += ["cordoned"] * node.unschedulable + [f"unindexed {state.unindexed_gpus}"]
            if node.gpu_memory:
                of, free_units = (" ".join(map(str, units)) for units in (node.gpu_memory, state.free_memory))
                details += [
                    f"mem {of}",
                    f"left {free_units}",
                    "spread" * node.spreads_slices,
                    "share" * (not node.gpu_resources),
                ]
            lines.append(f"{name}[{topology.gpu_count}, {', '.join(filter(None, details))}]")
        for role in request.roles:
            names = ", ".join(m.name if m.rank is None else f"{m.name} (rank {m.rank})" for m in role.members)
            cpu, by = role.resources.cpu_milli / 1000, [(s.size, s.scope) for s in role.segments]
            pools = "".join(f" {term.key}={'/'.join(term.values)}" for term in role.rules.required)
            gpus = role.slice or f"{role.gpus} GPU"
            lines.append(f"{gpus} {cpu:g} cpu{pools} within {role.required_scope} by {by}: {names}")
        stay = [f"{r.member.name} (rank {r.member.rank})@{r.node}/{r.gpus:b}" for r in request.running]
        lines += [str(kind) for kind in self.snapshot.typical]
        lines += [str(rule) for rule in (*request.constraints, *request.subgroups, *request.role_preferences)]
        lines += [f"room of {role.name}: {dict(role.room)}" for role in request.roles if role.room]
        lines += [f"matching {role.name}: {dict(role.matching)}" for role in request.roles if role.matching]
        lines += [
            f"subrequests {role.name}: {role.subrequests}" for role in request.roles if role.subrequests
        ]
        lines += [f"scores of {role.name}: {dict(role.scores)}" for role in request.roles if role.scores]
        lines.append(f"terms {[(term.topology, term.strategy) for term in request.terms]}")
        numbers = [(rule.annotation, rule.scope, rule.members) for rule in request.per_scope]
        lines.append(f"running {stay}, {numbers}, {request.quorum}")
        lines.append(
            f"scope {request.required_scope}, prefer {request.preferred_scopes}, min {request.min_member}"
        )
        return "\n".join(lines)


@st.composite
def worlds(draw: st.DrawFn, *features: str) -> World:
    """A cluster and a gang with all of these features in them."""
    levels = BLOCKS if "levels" in features else DEFAULT_LEVELS
    light = draw(st.integers(0, 3)) > 0 and features != ()  # else little would fit with many rules at once
    snapshot, request = draw(_without_rules(levels, features, light))
    scopes = [*(level.scope for level in snapshot.levels), "node", "nvlink-domain"]
    scopes = ["zone", *TREE[1:], "rack", "node"] if "paths" in features else scopes
    if {"segments", "pairs"}.intersection(features):
        first, *other_roles = request.roles
        longer = draw(_longer(first, 6 - sum(len(role.members) for role in other_roles)))
        request = replace(request, roles=(longer, *other_roles))
    roles = request.roles
    if "ranks" in features:
        roles = tuple(replace(role, members=draw(_with_ranks(role.members))) for role in roles)
    if {"role scope", "inside"}.intersection(features):
        inside = ["gpu", "gpu", "nvlink-domain", "node"]
        role_scopes = st.sampled_from(
            [None, *(inside if "inside" in features else [*scopes, *scopes, "gpu"])]
        )
        roles = tuple(replace(role, required_scope=draw(role_scopes)) for role in roles)
    if {"segments", "pairs"}.intersection(features):
        segments = PAIRS if "pairs" in features else _segments([*scopes, "gpu"])
        roles = tuple(replace(role, segments=draw(segments)) for role in roles)
    least = min(request.min_member, request.size)
    if "least" in features:
        crowd = tuple(Member(f"z{i}", f"z-{i}") for i in range(draw(st.integers(12, 30))))
        roles = tuple(draw(st.permutations([*roles, Role("z", crowd, Resources(), 5, RESOURCE)])))
        least = draw(st.integers(1, 2))
    narrow = st.sampled_from(["gpu", "nvlink-domain", "node"])
    required = draw(narrow if "one node" in features else st.just(request.required_scope))
    request = replace(request, roles=roles, min_member=least, required_scope=required)
    request = replace(request, per_scope=draw(_per_scope(features, scopes)))
    world = World(snapshot, request)
    if "terms" in features:
        world = draw(_with_terms(world))
    if "slices" in features:
        world = draw(_with_slices(world))
    if "typical" in features:
        packing = (TypicalRequest(2, 1, 500), *draw(st.lists(_typical_requests(), max_size=4)))
        world = World(replace(world.snapshot, typical=packing), world.request)
    world = draw(_between_pods(world, [*features], scopes))
    if {"quorum", "elastic"}.intersection(features):
        with_quorum = _elastic if "elastic" in features else _with_quorum
        world = World(world.snapshot, draw(with_quorum(world.request)))
    if "rails" in features:
        world = World(draw(_on_rails(world.snapshot)), world.request)
    for feature in ("running", "unknown running"):
        if feature in features:
            world = draw(_with_running(world, indices_known=feature == "running"))
    return world


@st.composite
def _on_rails(draw: st.DrawFn, snapshot: Snapshot) -> Snapshot:
    """Rails of the GPUs, or none, node by node. Most of a node's GPUs lie on rails of their own."""
    states = {}
    for name, state in snapshot.nodes.items():
        topology = state.node.topology
        rails = st.permutations(range(topology.gpu_count)).map(tuple)
        rails |= st.tuples(*[st.integers(0, 2)] * topology.gpu_count) | st.just(())
        rails |= st.just(tuple(range(topology.gpu_count)))
        node = replace(state.node, rails=draw(rails))
        states[name] = replace(state, node=node)
    return replace(snapshot, nodes=states)


@st.composite
def _without_rules(
    draw: st.DrawFn, levels: tuple[FabricLevel, ...], features: tuple[str, ...], light: bool
) -> World:
    """A cluster and a gang without any rules yet."""
    snapshot, request = draw(clusters(levels, light, "paths" in features)), draw(gangs())
    if light:
        roles = tuple(replace(role, gpus=min(role.gpus, 1)) for role in request.roles)
        request = replace(request, roles=roles, required_scope=None)
    return draw(_idle(snapshot, request)) if "idle" in features else World(snapshot, request)


@st.composite
def _idle(draw: st.DrawFn, snapshot: Snapshot, request: Request) -> World:
    """Some nodes have no GPUs, some little cpu left. A role has no GPUs, now and then all have none."""
    states = {}
    for name, state in snapshot.nodes.items():
        allocatable = replace(state.node.allocatable, memory_bytes=8 * GIB)
        node, half_cores = replace(state.node, allocatable=allocatable), draw(st.sampled_from([0, 0, 1, 2]))
        free = replace(allocatable, cpu_milli=max(0, allocatable.cpu_milli - 500 * half_cores))
        if draw(st.integers(0, 2)) == 0:
            without = replace(node, topology=GpuTopology.unknown(0))
            states[name] = replace(state, node=without, free=free, free_gpus=0)
        else:
            states[name] = replace(state, node=node, free=free)
    roles = list(request.roles)
    if len(roles) == 1 and draw(st.integers(0, 3)):
        roles.append(replace(roles[0], name="x", members=(Member("x0", "x-0"), Member("x1", "x-1"))))
    resources = Resources(draw(st.integers(0, 3)) * 500, draw(st.sampled_from([0, 0, GIB, GIB // 2])))
    roles[-1] = replace(roles[-1], gpus=0, gpu_resource="", resources=resources)
    size = sum(len(role.members) for role in roles)
    least = draw(st.sampled_from([size, size, 1]))
    return World(replace(snapshot, nodes=states), replace(request, roles=tuple(roles), min_member=least))


@st.composite
def _with_matching(draw: st.DrawFn, world: World) -> World:
    """Roles match the same GPUs of most nodes, some of them, and now and then others on one node. Some GPUs
    have taints."""
    states = {}
    for name, state in world.snapshot.nodes.items():
        tainted = draw(st.integers(0, (1 << state.node.topology.gpu_count) - 1)) & draw(st.integers(0, 15))
        tainted = tainted if draw(st.booleans()) else 0
        node = replace(state.node, unhealthy=tainted, tainted=tainted)
        free = state.free_gpus & ~tainted
        memory = tuple(0 if tainted >> gpu & 1 else units for gpu, units in enumerate(state.memory))
        tainted_state = replace(state, node=node, free_gpus=free, memory=memory)
        states[name] = replace(tainted_state, tainted=state.free_gpus & tainted)
    world = World(replace(world.snapshot, nodes=states), world.request)
    shared = {
        name: draw(st.integers(0, (1 << state.node.topology.gpu_count) - 1))
        for name, state in world.snapshot.nodes.items()
        if draw(st.integers(0, 2))
    }
    roles = []
    for role in world.request.roles:
        matching = dict(shared)
        if draw(st.integers(0, 5)) == 0:
            matching[draw(st.sampled_from(sorted(world.snapshot.nodes)))] = draw(st.integers(0, 15))
        roles.append(replace(role, matching=matching))
    return World(world.snapshot, replace(world.request, roles=tuple(roles)))


@st.composite
def _elastic(draw: st.DrawFn, request: Request) -> Request:
    """Each role needs some of its members, and may come in replicas of two or three. One replica may have
    begun. The gang may need more members than its roles."""
    leaves = []
    for role in request.roles:
        unit = draw(st.sampled_from([1, 1, 2, 3]))
        least = draw(st.integers(0, len(role.members)))
        begun = draw(st.integers(0, unit - 1))
        back = draw(st.integers(0, 2)) if unit > 1 and draw(st.booleans()) else 0
        most = draw(st.integers(-1, len(role.members))) if unit > 1 and draw(st.booleans()) else -1
        leaf = Leaf(frozenset({role.name}), least, unit, -back % unit if back else begun, back, most)
        leaves.append(leaf)
    roles = tuple(draw(st.permutations(request.roles)))
    least = draw(st.integers(1, request.size))
    return replace(request, roles=roles, min_member=least, quorum=Quorum(len(leaves), tuple(leaves)))


@st.composite
def _with_quorum(draw: st.DrawFn, request: Request) -> Request:
    """Two to four roles, each a leaf, or two of them one; in a tree of one level or two."""
    roles = [*request.roles]
    for name in "stuv"[: draw(st.integers(max(0, 2 - len(roles)), 2))]:
        few = sum(len(role.members) for role in roles) > 4  # else trying everything takes minutes
        crowd = tuple(
            Member(f"{name}{i}", f"{name}-{i}") for i in range(1 if few else draw(st.integers(1, 2)))
        )
        gpus = draw(st.sampled_from([0, 1, 1, 2, 5]))
        roles.append(Role(name, crowd, Resources(), gpus, RESOURCE if gpus else ""))
    parts: list[Quorum | Leaf] = []
    for role in roles:
        leaf = Leaf(frozenset({role.name}), draw(st.integers(0, len(role.members) + 1)))
        last = parts[-1] if parts else None
        if isinstance(last, Leaf) and draw(st.integers(0, 4)) == 0:
            parts[-1] = Leaf(last.roles | leaf.roles, last.min_members + draw(st.integers(0, 1)))
        else:
            parts.append(leaf)
    if len(parts) > 2 and draw(st.booleans()):
        cut = draw(st.integers(1, len(parts) - 1))
        inner = Quorum(draw(st.integers(1, cut)), tuple(parts[:cut]), draw(st.booleans()))
        parts = [inner, *parts[cut:]]
    if len(roles) > 1 and draw(st.booleans()):
        roles.reverse()
    quorum = Quorum(draw(st.integers(1, len(parts))), tuple(parts), draw(st.integers(0, 3)) == 0)
    return replace(request, roles=tuple(roles), min_member=1, quorum=quorum)


@st.composite
def _per_scope(draw: st.DrawFn, features: tuple[str, ...], scopes: list[str]) -> tuple[PerScope, ...]:
    """One or two numbers by scope for each such constraint that is among the features."""
    per_scope: list[PerScope] = []
    for kind_tested in TESTED:
        if kind_tested.feature in features:
            allowed = [scope for scope in scopes if scope not in kind_tested.kind.not_by]
            rules = st.builds(kind_tested.kind, st.sampled_from(allowed), kind_tested.numbers)
            per_scope += draw(st.lists(rules, min_size=1, max_size=2, unique_by=lambda rule: rule.scope))
    return tuple(per_scope)


@st.composite
def _between_pods(draw: st.DrawFn, world: World, features: list[str], scopes: list[str]) -> World:
    """Subgroups, constraints between pods, room and GPUs that match, where these are among the features."""
    if "subgroups" in features:
        world = World(world.snapshot, draw(_with_subgroups(world.request, scopes, "least" in features)))
    if "role preferences" in features:
        names = st.frozensets(st.sampled_from([role.name for role in world.request.roles]), min_size=1)
        listed = st.lists(st.sampled_from([*scopes, "gpu"]), min_size=1, max_size=2, unique=True).map(tuple)
        scopes_and_roles = draw(st.lists(st.tuples(listed, names), min_size=1, max_size=2))
        preferences = tuple(RolePreference(f"p{i}", *pair) for i, pair in enumerate(scopes_and_roles))
        world = World(world.snapshot, replace(world.request, role_preferences=preferences))
    if {"anti-affinity", "affinity", "skew"}.intersection(features):
        world = draw(_with_constraints(world, features))
    if "room" in features:
        nodes = sorted(world.snapshot.nodes)
        rooms = st.dictionaries(st.sampled_from([*nodes, "gone"]), st.integers(0, 2), min_size=1)
        roles = tuple(replace(role, room=draw(rooms)) for role in world.request.roles)
        world = World(world.snapshot, replace(world.request, roles=roles))
    if "scores" in features:
        points = st.dictionaries(
            st.sampled_from(sorted(world.snapshot.nodes)), st.integers(0, 100), min_size=1
        )
        first, *other_roles = world.request.roles
        roles = (replace(first, scores=draw(points)), *other_roles)
        if draw(st.booleans()):
            roles = tuple(replace(role, scores=draw(points)) for role in roles)
        world = World(world.snapshot, replace(world.request, roles=roles))
    if "subrequests" in features:
        world = World(world.snapshot, draw(_with_subrequests(world)))
    return draw(_with_matching(world)) if "matching" in features else world


@st.composite
def _with_subrequests(draw: st.DrawFn, world: World) -> Request:
    """Roles with GPUs have up to three subrequests, for different numbers of them. Each matches the same GPUs
    for all roles."""
    shared = [
        {
            name: draw(st.integers(0, (1 << state.node.topology.gpu_count) - 1))
            for name, state in world.snapshot.nodes.items()
            if draw(st.integers(0, 2)) == 0
        }
        for _ in range(3)
    ]
    roles = []
    for role in world.request.roles:
        counts = draw(st.lists(st.integers(1, 4), max_size=3, unique=True)) if role.gpus else []
        subrequests = tuple(Subrequest(shared[rank], count, rank + 1) for rank, count in enumerate(counts))
        roles.append(replace(role, gpus=min(counts, default=role.gpus), subrequests=subrequests))
    return replace(world.request, roles=tuple(roles))


@st.composite
def _with_subgroups(draw: st.DrawFn, request: Request, scopes: list[str], few: bool) -> Request:
    """Three roles, and one level or two that some of them must share; `few`: one member or two may do."""
    roles = [*request.roles]
    for name in "xyz"[len(roles) - 1 :]:
        crowd = tuple(Member(f"{name}{i}", f"{name}-{i}") for i in range(draw(st.integers(1, 2))))
        roles.append(Role(name, crowd, Resources(), 1, RESOURCE))
    roles = roles[:3]
    names = [role.name for role in roles]
    groups = st.frozensets(st.sampled_from(names), min_size=2)
    drawn_groups = draw(
        st.lists(st.tuples(st.sampled_from([*scopes, "gpu"]), groups), min_size=1, max_size=2)
    )
    rules = tuple(Subgroup(f"s{i}", scope, group) for i, (scope, group) in enumerate(drawn_groups))
    size = sum(len(role.members) for role in roles)
    least = draw(st.integers(1, 2) if few else st.sampled_from([size, size, max(1, size - 1), 1]))
    return replace(request, roles=tuple(roles), min_member=least, subgroups=rules)


HOSTNAME, DISK = "kubernetes.io/hostname", "disk"


@st.composite
def _with_constraints(draw: st.DrawFn, world: World, kinds: list[str]) -> World:
    """One or two constraints of these kinds, by labels that some nodes lack, and some taints."""
    states = {}
    for name, state in world.snapshot.nodes.items():
        labels = dict(state.node.labels)
        if draw(st.integers(0, 7)):
            labels[HOSTNAME] = name
        if draw(st.integers(0, 5)):
            labels[DISK] = draw(st.sampled_from(["d1", "d2", ""]))
        taints = (Taint("busy", "", TaintEffect.NO_SCHEDULE),) if draw(st.integers(0, 5)) == 0 else ()
        states[name] = replace(state, node=replace(state.node, labels=labels, taints=taints))
    roles = []
    for role in world.request.roles:
        tolerations = (Toleration(operator="Exists"),) if draw(st.integers(0, 3)) == 0 else ()
        resources = replace(role.resources, cpu_milli=role.resources.cpu_milli // 2)
        rules = replace(role.rules, tolerations=tolerations)
        roles.append(replace(role, rules=rules, resources=resources))
    names = [role.name for role in roles]
    some_roles = st.frozensets(st.sampled_from(names), min_size=1)
    keys = st.sampled_from([NODE, HOSTNAME, LABELS["rack"], LABELS["zone"], DISK, DISK])
    nodes = st.sampled_from(sorted(states))
    few_nodes = st.one_of(st.just(frozenset[str]()), st.frozensets(nodes, max_size=2))
    other_roles = st.one_of(some_roles, some_roles, st.just(frozenset[str]()))
    strategies: dict[str, st.SearchStrategy[PeerConstraint]] = {
        "anti-affinity": st.builds(AntiAffinity, st.just("apart"), keys, some_roles, other_roles, few_nodes),
        "affinity": st.builds(Affinity, st.just("near"), keys, some_roles, other_roles, few_nodes),
        "skew": st.builds(
            TopologySpread,
            st.just("even"),
            keys,
            st.integers(1, 2),
            some_roles,
            other_roles,
            st.one_of(st.just({}), st.dictionaries(nodes, st.integers(0, 3), max_size=2)),
            st.sampled_from([1, 1, 2, 3]),
            st.sampled_from([frozenset[str](), frozenset({DISK})]),
            st.booleans(),
            st.booleans(),
        ),
    }
    drawn = [draw(strategies[kind]) for kind in kinds if kind in strategies]
    if len(drawn) == 1 and draw(st.booleans()):
        drawn += [draw(strategies[kind]) for kind in kinds if kind in strategies]
    constraints = tuple(replace(rule, name=f"{rule.name} {i}") for i, rule in enumerate(drawn))
    snapshot = replace(world.snapshot, nodes=states)
    return World(snapshot, replace(world.request, roles=tuple(roles), constraints=constraints))


@st.composite
def _with_slices(draw: st.DrawFn, world: World) -> World:
    """Nodes that serve slices, whole GPUs or both, GPUs of several sizes, some used in part, some unhealthy;
    and at least one role that asks for slices."""
    snapshot, request = world
    states = {}
    for name, state in snapshot.nodes.items():
        if draw(st.integers(0, 4)) == 0:
            states[name] = state
            continue
        count = state.node.topology.gpu_count
        sizes = (
            st.just([8] * count)
            if draw(st.booleans())
            else st.lists(st.sampled_from([4, 8, 6]), min_size=count, max_size=count)
        )
        node = replace(
            state.node,
            gpu_memory=tuple(draw(sizes)),
            spreads_slices=draw(st.integers(0, 3)) == 0,
            unhealthy=draw(st.sampled_from([0, 0, 0, 1, 2])) & ((1 << count) - 1),
            gpu_resources=draw(st.sampled_from([state.node.gpu_resources, frozenset()])),
        )
        taken_gpus = ((1 << count) - 1) & ~state.free_gpus
        usages = [Usage(f"{name}-taken", name, Resources(pods=0), gpus=taken_gpus)]
        for gpu in range(count):
            units = draw(st.sampled_from([0, 0, 1, 2, 3, 5]))
            if units and not taken_gpus >> gpu & 1 and units <= node.gpu_memory[gpu]:
                usages.append(Usage(f"{name}-{gpu}", name, Resources(pods=0), gpus=1 << gpu, units=units))
        if draw(st.integers(0, 5)) == 0:
            usages.append(
                Usage(
                    f"{name}-other",
                    name,
                    Resources(pods=0),
                    unindexed_gpus=1,
                    units=draw(st.sampled_from([0, 2])),
                )
            )
        states[name] = NodeState.of(node, usages)
    roles = []
    for i, role in enumerate(request.roles):
        if i == 0 or draw(st.booleans()):
            part = Slice(draw(st.sampled_from([1, 2, 2, 3, 4, 6])), draw(st.sampled_from([1, 1, 1, 1, 2])))
            roles.append(replace(role, gpus=0, gpu_resource="", slice=part))
        else:
            roles.append(replace(role, gpus=min(role.gpus, 1)))
    if draw(st.booleans()):
        roles.reverse()
    return World(replace(snapshot, nodes=states), replace(request, roles=tuple(roles)))


@st.composite
def _with_terms(draw: st.DrawFn, world: World) -> World:
    """Policies, and nodes with and without an NVSwitch."""
    topologies, strategies = (
        st.sampled_from(["nvlink", *POLICY_PARTS, "nvswitch"]),
        ["pack", "prefer", "spread"],
    )
    terms = st.builds(PolicyTerm, topologies, st.sampled_from(strategies))
    drawn_terms = draw(st.lists(terms, min_size=1, max_size=2, unique_by=lambda term: term.topology))
    states = {}
    for name, state in world.snapshot.nodes.items():
        label = {"nvidia.com/nvswitch.present": draw(st.sampled_from(["true", "false"]))}
        states[name] = replace(state, node=replace(state.node, labels={**state.node.labels, **label}))
    return World(replace(world.snapshot, nodes=states), replace(world.request, terms=tuple(drawn_terms)))


@st.composite
def _typical_requests(draw: st.DrawFn) -> TypicalRequest:
    """Of whole GPUs or slices, some that accept half of the nodes alone."""
    return TypicalRequest(
        draw(st.sampled_from([1, 2, 3.5, 7])),
        draw(st.sampled_from([1, 1, 2, 3, 4])),
        draw(st.sampled_from([0, 500, 1000, 2500])),
        draw(st.sampled_from([0, 0, 1, 3, 4])),
        draw(st.sampled_from([(), (), (("pool", ("q",)),)])),
    )


@st.composite
def _longer(draw: st.DrawFn, role: Role, most: int) -> Role:
    """Small members, and enough of them for several segments."""
    names = [f"{role.name}-{i}" for i in range(draw(st.integers(2, most)))]
    members = tuple(Member(name.replace("-", ""), name) for name in names)
    gpus = min(role.gpus, draw(st.sampled_from([1, 1, 1, 2])))
    return replace(role, members=members, resources=Resources(), gpus=gpus)


@st.composite
def _with_ranks(draw: st.DrawFn, members: tuple[Member, ...]) -> tuple[Member, ...]:
    """Ranks that say otherwise than the names; now and then one has none."""
    ranks = draw(st.permutations(range(len(members))))
    bare = draw(st.sampled_from([None, None, *range(len(members))]))
    return tuple(
        replace(member, rank=None if rank == bare else rank)
        for member, rank in zip(members, ranks, strict=True)
    )


@st.composite
def _segments(draw: st.DrawFn, scopes: list[str]) -> tuple[Segment, ...]:
    """One level or two, nested, the wider scope first."""
    sizes = draw(st.sampled_from([(2,), (3,), (1,), (2, 1), (4, 2), (2, 2), (6, 3)]))
    scope_indices = draw(st.permutations(range(len(scopes))))[: len(sizes)]
    return tuple(Segment(size, scopes[i]) for size, i in zip(sizes, sorted(scope_indices), strict=True))


@st.composite
def _with_running(draw: st.DrawFn, world: World, indices_known: bool) -> World:
    """Some members more that run already, on GPUs that were free, and break no rule among themselves.

    Now and then no member waits of the role that one has.
    """
    for i in range(draw(st.integers(1, 3))):
        snapshot, request = world
        role = draw(st.sampled_from(request.roles))
        member = Member(f"{role.name}{i}-old", f"{role.name}-{i}-old", draw(st.sampled_from([None, 0, 1, 2])))
        state = snapshot.nodes[draw(st.sampled_from(sorted(snapshot.nodes)))]
        units, count = (role.slice.units, role.slice.gpus) if role.slice else (0, role.gpus)
        open_gpus = (
            [gpu for gpu, free_units in enumerate(state.free_memory) if free_units >= units]
            if units
            else list(bits(state.free_gpus))
        )
        if min(len(open_gpus), 9 if units else state.free_gpu_count) < count:
            continue
        gpus = mask_of(draw(st.permutations(open_gpus))[:count]) if indices_known else 0
        usage = Usage(
            member.uid,
            state.node.name,
            role.resources,
            gpus,
            0 if indices_known else count,
            units if count else 0,
        )
        name = role.name if draw(st.integers(0, 3)) else "started"
        stay = (*request.running, RunningMember(member, name, state.node.name, gpus, usage))
        more = World(snapshot.with_usages([usage]), replace(request, running=stay))
        if naive.Rules(*more).stay():
            world = more
    return world
