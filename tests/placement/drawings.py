"""Clusters and gangs, drawn as text; worlds.py draws them at random.

    rack r1: a[8 = 4+4, free 0011 1111]  b[8, free 1111 1111]
    zone z1 rack r2: c[v100-8x-gputopology-document, cpu 4]  d[8 pcie, cordoned]

In the brackets: the GPUs first: "8" one NVLink domain of 8, "8 = 4+4" islands, "8 pcie" no NVLink,
"8 unknown" no matrix, "0" none, or a file of local_cluster/topologies. Then: "free" bits, GPU 0 first;
"cpu" cores; "unindexed" GPUs taken without an index; "cordoned"; "clique x"; any label as key=value.
"mem 16 16 8" is what each GPU offers in slices, "left 16 3 0" what others left of that; "share": none of
them is given whole; "spread"; "unhealthy 0 2". A line may leave out zone and rack; other words before the
colon are labels of their own ("block b1:").

    3 x 4 GPU 2 cpu + 1 x 0 GPU, scope rack, prefer nvlink-domain node, min 2
    8 x 1 GPU within rack by 4 node by 2 nvlink-domain, max rack=6 node=4, running w-8@a/01 w-9@b
    4 x 1 GPU + 2 x 1 GPU + 1 x 0 GPU, share rack=w+x
    3 x 4 GiB 1 cpu + 2 x 8 GiB on 2 GPUs + 1 x 1 GPU, terms numa:pack nvlink:spread

"within" is the scope of a role, "by" its segments, widest first, "share" a scope of several roles. "max" is a
number by scope, as the other words in tests/placement/constraints. Running members have the GPUs after the
slash, one digit each; that they are taken is drawn in the cluster.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

from local_cluster.topology import parse_topology
from muster.domain.constraints import Subgroup
from muster.domain.decision import MemberPlacement, Placed
from muster.domain.levels import DEFAULT_LEVELS, FabricLevel
from muster.domain.node import Node, Resources, Usage
from muster.domain.request import (
    GangId,
    Member,
    NodeRules,
    PolicyTerm,
    Request,
    Role,
    RunningMember,
    Segment,
    SelectorTerm,
    Slice,
)
from muster.domain.snapshot import Snapshot
from muster.domain.topology import GpuTopology, Link, bits, mask_of
from tests.placement import naive
from tests.placement.constraints import TESTED

RESOURCE = "nvidia.com/gpu"
TOPOLOGIES = Path(__file__).parents[2] / "local_cluster" / "topologies"
ROLES = "wxyz"
LABELS = {"zone": "topology.kubernetes.io/zone", "rack": "topology.kubernetes.io/rack"}
ZONE, RACK = (FabricLevel(scope, (label,)) for scope, label in LABELS.items())


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


def cluster(drawing: str, levels: tuple[FabricLevel, ...] = DEFAULT_LEVELS) -> Snapshot:
    """The snapshot that a drawing shows."""
    nodes: list[Node] = []
    usages: list[Usage] = []
    for line in filter(str.strip, drawing.splitlines()):
        head, _, drawn = line.partition(":")
        words = head.split()
        labels = {LABELS.get(key, key): part for key, part in zip(words[::2], words[1::2], strict=True)}
        for name, inside in re.findall(r"(\S+?)\[(.*?)\]", drawn):
            node, node_usages = _node(name, [part.strip() for part in inside.split(",")], labels)
            nodes.append(node)
            usages += node_usages
    return Snapshot.of(nodes, usages, levels)


FACTS: dict[str, Callable[[str], dict[str, Any]]] = {
    "cordoned": lambda _: {"unschedulable": True},
    "mem": lambda argument: {"gpu_memory": tuple(map(int, argument.split()))},
    "spread": lambda _: {"spreads_slices": True},
    "unhealthy": lambda argument: {"unhealthy": mask_of([int(gpu) for gpu in argument.split()])},
    "share": lambda _: {"gpu_resources": frozenset()},
}
"""Words that give a field of the node."""


def _node(name: str, parts: list[str], labels: dict[str, str]) -> tuple[Node, list[Usage]]:
    topology = _topology(parts[0])
    labels, cores, usages = dict(labels), 1000.0, []
    facts: dict[str, Any] = {}
    for part in parts[1:]:
        word, _, argument = part.partition(" ")
        if word == "free":
            free = argument.replace(" ", "")
            taken_mask = sum(1 << i for i, bit in enumerate(free) if bit == "0")
            usages.append(Usage(f"{name}-taken", name, Resources(pods=0), gpus=taken_mask))
        elif word == "unindexed":
            usages.append(Usage(f"{name}-other", name, Resources(pods=0), unindexed_gpus=int(argument)))
        elif word == "cpu":
            cores = float(argument)
        elif word == "clique":
            labels["nvidia.com/gpu.clique"] = argument
        elif word in FACTS:
            facts |= FACTS[word](argument)
        elif word == "left":
            for gpu, (every, units_left) in enumerate(
                zip(facts["gpu_memory"], map(int, argument.split()), strict=True)
            ):
                if units_left < every:
                    usage = Usage(
                        f"{name}-{gpu}", name, Resources(pods=0), gpus=1 << gpu, units=every - units_left
                    )
                    usages.append(usage)
        else:
            key, _, value = part.partition("=")
            labels[key] = value
    offers = frozenset({RESOURCE}) if topology.gpu_count else frozenset()
    resources = Resources(int(cores * 1000), 2**40, 110)
    return Node(name, resources, topology, **{"gpu_resources": offers, "labels": labels, **facts}), usages


def _topology(text: str) -> GpuTopology:
    if re.search("[a-z0-9]-[a-z0-9]", text):
        return matrix(text)
    count, _, shape = text.partition(" ")
    if shape.startswith("="):
        return islands([int(size) for size in shape[1:].split("+")])
    if shape == "pcie":
        return islands([1] * int(count))
    return GpuTopology.unknown(int(count)) if shape == "unknown" else islands([int(count)])


def gang(drawing: str) -> Request:
    """The request that a drawing shows: roles w, x, y …, members w-0, w-1 …"""
    first, *options = [part.strip() for part in drawing.split(",")]
    roles = []
    for name, text in zip(ROLES, first.split("+"), strict=False):
        words = text.split()
        count, gpus = int(words[0]), int(words[2])
        part = None
        if words[3] == "GiB":
            part = Slice(gpus, int(words[words.index("on") + 1]) if "on" in words else 1)
            gpus = 0
        cores = float(words[words.index("cpu") - 1]) if "cpu" in words else 0
        terms = tuple(SelectorTerm(w.split("=")[0], "In", (w.split("=")[1],)) for w in words if "=" in w)
        members = tuple(Member(f"{name}{i}", f"{name}-{i}") for i in range(count))
        within = words[words.index("within") + 1] if "within" in words else None
        by = [i for i, word in enumerate(words) if word == "by"]
        segments = tuple(Segment(int(words[i + 1]), words[i + 2]) for i in by)
        resource, rules = RESOURCE if gpus else "", NodeRules(terms)
        resources = Resources(int(cores * 1000))
        roles.append(Role(name, members, resources, gpus, resource, rules, within, segments, part))
    arguments = {option.split()[0]: option.split()[1:] for option in options}
    return Request(
        GangId("default", "test", "gang"),
        tuple(roles),
        int(arguments["min"][0]) if "min" in arguments else sum(len(role.members) for role in roles),
        arguments["scope"][0] if "scope" in arguments else None,
        tuple(arguments.get("prefer", ())),
        tuple(
            tested_kind.kind(scope, int(members))
            for tested_kind in TESTED
            for scope, members in (rule.split("=") for rule in arguments.get(tested_kind.word, ()))
        ),
        tuple(_running_member(text) for text in arguments.get("running", ())),
        tuple(PolicyTerm(*text.split(":")) for text in arguments.get("terms", ())),
        tuple(_subgroup(*text.split("=")) for text in arguments.get("share", ())),
    )


def _subgroup(scope: str, names: str) -> Subgroup:
    """ "rack=w+x": the members of w and x in one rack."""
    return Subgroup(f"the level of {names}", scope, frozenset(names.split("+")))


def _running_member(text: str) -> RunningMember:
    """ "w-8@a/01": member w-8 of role w on node a, with GPUs 0 and 1."""
    name, _, place = text.partition("@")
    node, _, gpus = place.partition("/")
    return RunningMember(
        Member(name.replace("-", ""), name), name[0], node, mask_of([int(digit) for digit in gpus])
    )


def plan(snapshot: Snapshot, request: Request, places: str) -> Placed:
    """The plan that puts members so ("w-0@a/01 w-1@b"), allowed or not; all that it claims is true."""
    spots = [_running_member(text) for text in places.split()]
    units = {role.name: role.slice.units if role.slice else 0 for role in request.roles}
    return naive.plan(
        snapshot,
        request,
        tuple(
            MemberPlacement(s.member.uid, s.member.name, s.role, s.node, tuple(bits(s.gpus)), units[s.role])
            for s in spots
        ),
    )
