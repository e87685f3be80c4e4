"""Clusters and gangs, drawn as text, and below drawn at random for the properties.

    rack r1: a[8 = 4+4, free 0011 1111]  b[8, free 1111 1111]
    zone z1 rack r2: c[v100-8x-gputopology-document, cpu 4]  d[8 pcie, cordoned]

In the brackets: the GPUs first: "8" one NVLink domain of 8, "8 = 4+4" islands, "8 pcie" no NVLink,
"8 unknown" no matrix, "0" none, or a file of local-cluster/topologies. Then: "free" bits, GPU 0 first;
"cpu" cores; "unindexed" GPUs taken without an index; "cordoned"; "clique x"; any label as key=value.
A line may leave out zone and rack; other words before the colon are labels of their own ("block b1:").

    3 x 4 GPU 2 cpu + 1 x 0 GPU, scope rack, prefer nvlink-domain node, min 2
    8 x 1 GPU within rack by 4 node by 2 nvlink-domain, max rack=6 node=4, running w-8@a/01 w-9@b

"within" is the scope of a role, "by" its segments, widest first. Running members have the GPUs after the
slash, one digit each; that they are taken is drawn in the cluster.
"""

from __future__ import annotations

import re
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import NamedTuple

from hypothesis import strategies as st

from local_cluster.topology import parse_topology
from muster.domain.decision import MemberPlacement, Placed
from muster.domain.levels import DEFAULT_LEVELS, Level
from muster.domain.node import Node, Resources, Usage
from muster.domain.request import (
    GangId,
    MaxPer,
    Member,
    NodeRules,
    Request,
    Role,
    Running,
    Segment,
    SelectorTerm,
)
from muster.domain.snapshot import Snapshot
from muster.domain.topology import GpuTopology, Link, bits, mask_of
from tests.placement import naive

RESOURCE = "nvidia.com/gpu"
TOPOLOGIES = Path(__file__).parents[2] / "local-cluster" / "topologies"
ROLES = "wxyz"
LABELS = {"zone": "topology.kubernetes.io/zone", "rack": "topology.kubernetes.io/rack"}


@cache
def matrix(name: str) -> GpuTopology:
    """A matrix that `nvidia-smi topo -m` printed, by the name of its file."""
    links = parse_topology(name, (TOPOLOGIES / f"{name}.txt").read_text()).links
    return GpuTopology(
        tuple(tuple(None if kind == "X" else Link.of_kind(kind) for kind in row) for row in links)
    )


def islands(sizes: list[int], inside: str = "NV12", between: str = "SYS") -> GpuTopology:
    """Islands of these sizes, fully connected inside."""
    owner = [i for i, size in enumerate(sizes) for _ in range(size)]
    return GpuTopology(
        tuple(
            tuple(
                None if i == j else Link.of_kind(inside if owner[i] == owner[j] else between)
                for j in range(len(owner))
            )
            for i in range(len(owner))
        )
    )


def cluster(drawing: str, levels: tuple[Level, ...] = DEFAULT_LEVELS) -> Snapshot:
    """The snapshot that a drawing shows."""
    nodes: list[Node] = []
    usages: list[Usage] = []
    for line in filter(str.strip, drawing.splitlines()):
        head, _, drawn = line.partition(":")
        words = head.split()
        labels = {LABELS.get(key, key): part for key, part in zip(words[::2], words[1::2], strict=True)}
        for name, inside in re.findall(r"(\S+?)\[(.*?)\]", drawn):
            node, taken = _node(name, [part.strip() for part in inside.split(",")], labels)
            nodes.append(node)
            usages += taken
    return Snapshot.of(nodes, usages, levels)


def _node(name: str, parts: list[str], labels: dict[str, str]) -> tuple[Node, list[Usage]]:
    topology = _topology(parts[0])
    labels, cores, cordoned, usages = dict(labels), 1000.0, False, []
    for part in parts[1:]:
        word, _, rest = part.partition(" ")
        if word == "free":
            free = rest.replace(" ", "")
            taken = sum(1 << i for i, bit in enumerate(free) if bit == "0")
            usages.append(Usage(f"{name}-taken", name, Resources(pods=0), gpus=taken))
        elif word == "unindexed":
            usages.append(Usage(f"{name}-other", name, Resources(pods=0), unindexed_gpus=int(rest)))
        elif word == "cpu":
            cores = float(rest)
        elif word == "clique":
            labels["nvidia.com/gpu.clique"] = rest
        elif word == "cordoned":
            cordoned = True
        else:
            key, _, value = part.partition("=")
            labels[key] = value
    offers = frozenset({RESOURCE}) if topology.gpu_count else frozenset()
    resources = Resources(int(cores * 1000), 2**40, 110)
    return Node(name, resources, topology, offers, labels, unschedulable=cordoned), usages


def _topology(text: str) -> GpuTopology:
    if re.search("[a-z0-9]-[a-z0-9]", text):
        return matrix(text)
    count, _, rest = text.partition(" ")
    if rest.startswith("="):
        return islands([int(size) for size in rest[1:].split("+")])
    if rest == "pcie":
        return islands([1] * int(count))
    return GpuTopology.unknown(int(count)) if rest == "unknown" else islands([int(count)])


def gang(drawing: str) -> Request:
    """The request that a drawing shows: roles w, x, y …, members w-0, w-1 …"""
    first, *options = [part.strip() for part in drawing.split(",")]
    roles = []
    for name, text in zip(ROLES, first.split("+"), strict=False):
        words = text.split()
        count, gpus = int(words[0]), int(words[2])
        cores = float(words[words.index("cpu") - 1]) if "cpu" in words else 0
        terms = tuple(SelectorTerm(w.split("=")[0], "In", (w.split("=")[1],)) for w in words if "=" in w)
        members = tuple(Member(f"{name}{i}", f"{name}-{i}") for i in range(count))
        within = words[words.index("within") + 1] if "within" in words else None
        by = [i for i, word in enumerate(words) if word == "by"]
        segments = tuple(Segment(int(words[i + 1]), words[i + 2]) for i in by)
        resource, rules = RESOURCE if gpus else "", NodeRules(terms)
        resources = Resources(int(cores * 1000))
        roles.append(Role(name, members, resources, gpus, resource, rules, within, segments))
    said = {option.split()[0]: option.split()[1:] for option in options}
    return Request(
        GangId("default", "test", "gang"),
        tuple(roles),
        int(said["min"][0]) if "min" in said else sum(len(role.members) for role in roles),
        said["scope"][0] if "scope" in said else None,
        tuple(said.get("prefer", ())),
        tuple(MaxPer(scope, int(cap)) for scope, cap in (rule.split("=") for rule in said.get("max", ()))),
        tuple(_running(text) for text in said.get("running", ())),
    )


def _running(text: str) -> Running:
    """ "w-8@a/01": member w-8 of role w on node a, with GPUs 0 and 1."""
    name, _, where = text.partition("@")
    node, _, gpus = where.partition("/")
    return Running(
        Member(name.replace("-", ""), name), name[0], node, mask_of([int(digit) for digit in gpus])
    )


def plan(snapshot: Snapshot, request: Request, places: str) -> Placed:
    """The plan that puts members so ("w-0@a/01 w-1@b"), allowed or not; all that it claims is true."""
    spots = [_running(text) for text in places.split()]
    return naive.plan(
        snapshot,
        request,
        tuple(
            MemberPlacement(s.member.uid, s.member.name, s.role, s.node, tuple(bits(s.gpus))) for s in spots
        ),
    )


# --- at random -----------------------------------------------------------------------------------------

KINDS = ["NV1", "NV2", "PIX", "SYS"]
BLOCKS = (DEFAULT_LEVELS[0], Level("block", ("example.com/block", "example.com/pod")), DEFAULT_LEVELS[1])
"""A level between zone and rack, with two labels that may name its parts."""


@st.composite
def topologies(draw: st.DrawFn) -> GpuTopology:
    shape = draw(st.sampled_from(["islands", "links", "unknown"]))
    count = draw(st.integers(1, 4))
    if shape == "unknown":
        return GpuTopology.unknown(count)
    if shape == "islands":
        return islands(draw(st.sampled_from([[4], [2, 2], [3, 1], [1, 1], [2]])))
    kinds = {(i, j): draw(st.sampled_from(KINDS)) for j in range(count) for i in range(j)}
    return GpuTopology(
        tuple(
            tuple(None if i == j else Link.of_kind(kinds[min(i, j), max(i, j)]) for j in range(count))
            for i in range(count)
        )
    )


@st.composite
def clusters(draw: st.DrawFn, levels: tuple[Level, ...] = DEFAULT_LEVELS, roomy: bool = False) -> Snapshot:
    """One to four nodes of one to four GPUs, some taken; `roomy` ones have more of all."""
    shared = islands(draw(st.sampled_from([[4], [2, 2]]))) if roomy else draw(topologies())
    crowd = draw(st.sampled_from([0, 5])) if roomy else 15
    nodes, usages = [], []
    racks = draw(st.sampled_from([(None,), ("r1", "r2"), ("r1", "r2", None)][roomy:]))
    zones = draw(st.sampled_from([(None,), (None,), ("z1", "z2"), ("z1", None)]))
    for name in "abcd"[: draw(st.integers(1 + roomy, 4))]:
        topology = draw(st.one_of(st.just(shared), topologies()))
        labels = {"pool": draw(st.sampled_from("pq"))}
        if rack := draw(st.sampled_from(racks)):
            labels[LABELS["rack"]] = rack
        if zone := draw(st.sampled_from(zones)):
            labels[LABELS["zone"]] = zone
        if levels == BLOCKS and (block := draw(st.sampled_from(["b1", "b1", "b2", "b2", None]))):
            labels[draw(st.sampled_from(BLOCKS[1].labels))] = block
        if draw(st.integers(0, 4)) == 0:
            labels["nvidia.com/gpu.clique"] = draw(st.sampled_from(["k1", "k2"]))
        cordoned = draw(st.integers(0, 9)) == 0
        resources = Resources(draw(st.integers(1 + 2 * roomy, 5)) * 1000, 2**40, 110)
        nodes.append(Node(name, resources, topology, frozenset({RESOURCE}), labels, unschedulable=cordoned))
        everything = (1 << topology.gpu_count) - 1
        taken = draw(st.integers(0, everything)) & draw(st.integers(0, 15)) & crowd
        usages.append(Usage(f"{name}-taken", name, Resources(pods=0), gpus=taken))
    return Snapshot.of(nodes, usages, levels)


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


FEATURES = ("levels", "ranks", "role scope", "segments", "max per", "running", "unknown running")
"""What a gang may ask for beyond the plain, and a cluster have. "unknown running": on GPUs nobody knows."""


class World(NamedTuple):
    """A cluster and a gang."""

    snapshot: Snapshot
    request: Request

    def __repr__(self) -> str:
        """Short enough to be read in a failure; nearly in the language above."""
        lines, request = [""], self.request
        for name, state in self.snapshot.nodes.items():
            node, topology = state.node, state.node.topology
            free = "".join("01"[state.free_gpus >> i & 1] for i in range(topology.gpu_count))
            kinds = " ".join(
                f"{i}-{j}:{link.kind}"
                for j in range(topology.gpu_count)
                for i in range(j)
                if (link := topology.links[i][j]) and link.kind != "SYS"
            )
            said = [
                f"free {free}",
                f"cpu {state.free.cpu_milli / 1000:g}",
                kinds,
                *map("=".join, node.labels.items()),
            ]
            said += ["cordoned"] * node.unschedulable + [f"unindexed {state.unindexed_gpus}"]
            lines.append(f"{name}[{topology.gpu_count}, {', '.join(filter(None, said))}]")
        for role in request.roles:
            names = ", ".join(m.name if m.rank is None else f"{m.name} (rank {m.rank})" for m in role.members)
            cpu, by = role.resources.cpu_milli / 1000, [(s.size, s.scope) for s in role.segments]
            pools = "".join(f" {term.key}={'/'.join(term.values)}" for term in role.rules.required)
            lines.append(f"{role.gpus} GPU {cpu:g} cpu{pools} within {role.required_scope} by {by}: {names}")
        stay = [f"{r.member.name} (rank {r.member.rank})@{r.node}/{r.gpus:b}" for r in request.running]
        lines.append(f"running {stay}, max {[(rule.scope, rule.members) for rule in request.max_per]}")
        lines.append(
            f"scope {request.required_scope}, prefer {request.preferred_scopes}, min {request.min_member}"
        )
        return "\n".join(lines)


@st.composite
def worlds(draw: st.DrawFn, *features: str) -> World:
    """A cluster and a gang with all of these features in them."""
    levels = BLOCKS if "levels" in features else DEFAULT_LEVELS
    light = draw(st.integers(0, 3)) > 0 and features != ()  # else little would fit with many rules at once
    snapshot, request = draw(clusters(levels, roomy=light)), draw(gangs())
    if light:
        roles = tuple(replace(role, gpus=min(role.gpus, 1)) for role in request.roles)
        request = replace(request, roles=roles, required_scope=None)
    scopes = [*(level.scope for level in snapshot.levels), "node", "nvlink-domain"]
    if "segments" in features:
        first, *others = request.roles
        longer = draw(_longer(first, 6 - sum(len(role.members) for role in others)))
        request = replace(request, roles=(longer, *others))
    roles = request.roles
    if "ranks" in features:
        roles = tuple(replace(role, members=draw(_ranked(role.members))) for role in roles)
    if "role scope" in features:
        some = st.sampled_from([None, *scopes, *scopes])
        roles = tuple(replace(role, required_scope=draw(some)) for role in roles)
    if "segments" in features:
        roles = tuple(replace(role, segments=draw(_segments(scopes))) for role in roles)
    least = min(request.min_member, request.size)
    request = replace(request, roles=roles, min_member=least)
    if "max per" in features:
        rules = st.builds(MaxPer, st.sampled_from(scopes), st.integers(1, 3))
        chosen = draw(st.lists(rules, min_size=1, max_size=2, unique_by=lambda rule: rule.scope))
        request = replace(request, max_per=tuple(chosen))
    world = World(snapshot, request)
    for feature in ("running", "unknown running"):
        if feature in features:
            world = draw(_with_running(world, known=feature == "running"))
    return world


@st.composite
def _longer(draw: st.DrawFn, role: Role, most: int) -> Role:
    """Small members, and enough of them for several segments."""
    names = [f"{role.name}-{i}" for i in range(draw(st.integers(2, most)))]
    members = tuple(Member(name.replace("-", ""), name) for name in names)
    gpus = min(role.gpus, draw(st.sampled_from([1, 1, 1, 2])))
    return replace(role, members=members, resources=Resources(), gpus=gpus)


@st.composite
def _ranked(draw: st.DrawFn, members: tuple[Member, ...]) -> tuple[Member, ...]:
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
    chosen = draw(st.permutations(range(len(scopes))))[: len(sizes)]
    return tuple(Segment(size, scopes[i]) for size, i in zip(sizes, sorted(chosen), strict=True))


@st.composite
def _with_running(draw: st.DrawFn, world: World, known: bool) -> World:
    """Some members more that run already, on GPUs that were free, and break no rule among themselves."""
    for i in range(draw(st.integers(1, 3))):
        snapshot, request = world
        role = draw(st.sampled_from(request.roles))
        member = Member(f"{role.name}{i}-old", f"{role.name}-{i}-old", draw(st.sampled_from([None, 0, 1, 2])))
        state = snapshot.nodes[draw(st.sampled_from(sorted(snapshot.nodes)))]
        if state.free_gpu_count < role.gpus:
            continue
        gpus = mask_of(draw(st.permutations(list(bits(state.free_gpus))))[: role.gpus]) if known else 0
        unindexed = 0 if known else role.gpus
        usage = Usage(member.uid, state.node.name, role.resources, gpus, unindexed)
        stay = (*request.running, Running(member, role.name, state.node.name, gpus))
        more = World(snapshot.taking([usage]), replace(request, running=stay))
        if naive.Rules(*more).stay():
            world = more
    return world
