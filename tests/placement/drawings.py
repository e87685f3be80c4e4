"""Clusters and gangs drawn as text.

    rack r1: a[8 = 4+4, free 0011 1111]  b[8, free 1111 1111]
    zone z1 rack r2: c[v100-8x-gputopology-document, cpu 4]  d[8 pcie, cordoned]

In the brackets: the GPUs first: "8" one NVLink domain of 8, "8 = 4+4" islands, "8 pcie" no NVLink,
"8 unknown" no matrix, "0" none, or a file of local-cluster/topologies. Then: "free" bits, GPU 0 first;
"cpu" cores; "unindexed" GPUs taken without an index; "cordoned"; "clique x"; any label as key=value.
A line may leave out zone and rack.

    3 x 4 GPU 2 cpu + 1 x 0 GPU, scope rack, prefer nvlink-domain node, min 2
"""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

from local_cluster.topology import parse_topology
from muster.domain.node import Node, Resources, Usage
from muster.domain.request import GangId, Member, NodeRules, Request, Role, SelectorTerm
from muster.domain.snapshot import Snapshot
from muster.domain.topology import GpuTopology, Link

RESOURCE = "nvidia.com/gpu"
TOPOLOGIES = Path(__file__).parents[2] / "local-cluster" / "topologies"
ROLES = "wxyz"


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


def cluster(drawing: str) -> Snapshot:
    """The snapshot that a drawing shows."""
    nodes: list[Node] = []
    usages: list[Usage] = []
    for line in filter(str.strip, drawing.splitlines()):
        head = re.match(r"\s*(?:zone (\S+)\s*)?(?:rack (\S+?)\s*)?:", line)
        labels = {}
        if head and head[1]:
            labels["topology.kubernetes.io/zone"] = head[1]
        if head and head[2]:
            labels["topology.kubernetes.io/rack"] = head[2]
        for name, inside in re.findall(r"(\S+?)\[(.*?)\]", line):
            node, taken = _node(name, [part.strip() for part in inside.split(",")], labels)
            nodes.append(node)
            usages += taken
    return Snapshot.of(nodes, usages)


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
        resources = Resources(int(cores * 1000))
        roles.append(Role(name, members, resources, gpus, RESOURCE if gpus else "", NodeRules(terms)))
    said = {option.split()[0]: option.split()[1:] for option in options}
    return Request(
        GangId("default", "test", "gang"),
        tuple(roles),
        int(said["min"][0]) if "min" in said else sum(len(role.members) for role in roles),
        said["scope"][0] if "scope" in said else None,
        tuple(said.get("prefer", ())),
    )
