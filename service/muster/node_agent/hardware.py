"""The facts about a node's GPUs, and the labels and annotations that follow from them (pure)."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, replace
from itertools import combinations

from muster.domain.topology import LINK_WORDS
from muster.node_agent.inventory import Gpu, Inventory

MATRIX = "GPU_TOPOLOGY"
UNHEALTHY = "gpu.topology/unhealthy"
MEMORY_BY_GPU = "gpu.topology/gpu-mem"
MACHINE = "NODE_TYPE"
UUIDS = "gpu.topology/gpu-uuids"
"""Annotation: the uuid of each GPU, by index."""
GPU_COUNT = "nvidia.com/gpu.count"
DOMAIN = "gpu.topology/nvlink-domain"
DOMAIN_SIZE = "gpu.topology/nvlink-domain-size"
INTERCONNECT = "gpu.topology/interconnect"
NUMA = "topology.kubernetes.io/numa-node"
INSTANCE_TYPE = "node.kubernetes.io/instance-type"
PUBLISHED = "gpu.topology/published"
"""Annotation: the keys of the node that the agent has written, so that it removes no other keys."""
SWITCHED_FROM = 4
"""Number of GPUs from which on "all pairs have the same NVLinks" can only be a switch (a bridge joins two).
"""


@dataclass(frozen=True, slots=True)
class Hardware:
    """The GPUs of one node. `links[i][j]` is an abbreviation, "X" on the diagonal. `numa` has the NUMA node
    of each GPU, or -1. `clique` names the NVLink domain that spans nodes, or is ""."""

    inventory: Inventory
    links: tuple[tuple[str, ...], ...]
    numa: tuple[int, ...] = ()
    product: str = ""
    clique: str = ""

    @property
    def count(self) -> int:
        """Return the number of GPUs."""
        return len(self.inventory.gpus)


def with_lost(before: tuple[str, ...], hardware: Hardware) -> Hardware:
    """Return the hardware with the GPUs that the node had before. Lost GPUs are unhealthy.

    Plans name GPUs by index. If a lost GPU were left out, all GPUs after it would get another index. `before`
    has the uuids by index. If a GPU is new, the node was rebuilt, and its GPUs are numbered again.
    """
    now = {gpu.uuid: gpu for gpu in hardware.inventory.gpus}
    if not now or len(now) >= len(before) or [uuid for uuid in before if uuid in now] != list(now):
        return hardware
    old_place = {uuid: gpu.index for uuid, gpu in now.items()}
    memory = min(gpu.memory_gib for gpu in now.values())
    gpus = tuple(
        replace(now[uuid], index=index) if uuid in now else Gpu(index, uuid, memory, healthy=False)
        for index, uuid in enumerate(before)
    )
    places = [old_place.get(uuid) for uuid in before]

    def link(i: int, j: int) -> str:
        a, b = places[i], places[j]
        return "X" if i == j else hardware.links[a][b] if a is not None and b is not None else "SYS"

    indices = range(len(before))
    numa = tuple(hardware.numa[place] if place is not None and hardware.numa else -1 for place in places)
    links = tuple(tuple(link(i, j) for j in indices) for i in indices)
    return replace(hardware, inventory=Inventory(gpus), links=links, numa=numa)


def changed_uuid(before: tuple[str, ...], hardware: Hardware) -> str:
    """Return a phrase about the first GPU whose uuid changed; "" if none. `before` has the uuids by index.

    A new GPU after all others changes no index.
    """
    now = {gpu.index: gpu.uuid for gpu in hardware.inventory.gpus}
    for index, uuid in enumerate(before):
        if uuid and now.get(index, uuid) != uuid:
            return f"GPU {index} was {uuid} and is {now[index]}"
    return ""


def with_unhealthy(uuids: frozenset[str], hardware: Hardware) -> Hardware:
    """Return the hardware with these GPUs unhealthy."""
    gpus = hardware.inventory.gpus
    sick = tuple(replace(gpu, healthy=gpu.healthy and gpu.uuid not in uuids) for gpu in gpus)
    return replace(hardware, inventory=Inventory(sick))


def matrix(links: tuple[tuple[str, ...], ...]) -> str | None:
    """Return the value of GPU_TOPOLOGY, in the original device plugin's words; None if a link has no word."""
    pairs = {}
    for i, j in combinations(range(len(links)), 2):
        if links[i][j] not in LINK_WORDS:
            return None
        pairs[f"GPU_{links[i][j]}_{i}_{j}"] = LINK_WORDS[links[i][j]]
    return json.dumps(pairs, sort_keys=True, separators=(",", ":"))


def labels_of(hardware: Hardware, *, shared: bool) -> dict[str, str | None]:
    """Return the labels of the node; None removes a label. `shared`: the node offers memory of its GPUs, and
    only a label states their number."""
    islands = _islands(hardware.links)
    size = len(islands[0]) if islands else 0
    in_rows = all(island == tuple(range(k * size, (k + 1) * size)) for k, island in enumerate(islands))
    one_numa = hardware.numa[0] if len(set(hardware.numa)) == 1 and hardware.numa[0] >= 0 else None
    return {
        DOMAIN: _label_value(hardware.clique),
        DOMAIN_SIZE: str(size) if in_rows and size > 1 else None,
        INTERCONNECT: _interconnect(hardware.links, len(islands)),
        NUMA: None if one_numa is None else str(one_numa),
        **({GPU_COUNT: str(hardware.count)} if shared else {}),
    }


def annotations_of(hardware: Hardware, machine: str, *, shared: bool) -> dict[str, str | None]:
    """Return the annotations of the node; None removes an annotation. `machine` is its type, by its cloud."""
    sick = ",".join(str(gpu.index) for gpu in hardware.inventory.gpus if not gpu.healthy)
    memory = ",".join(str(gpu.memory_gib) for gpu in hardware.inventory.gpus)
    return {
        MATRIX: matrix(hardware.links),
        UUIDS: ",".join(gpu.uuid for gpu in hardware.inventory.gpus) or None,
        UNHEALTHY: sick or None,
        MEMORY_BY_GPU: memory if shared else None,
        **({MACHINE: machine} if machine else {}),
    }


def _interconnect(links: tuple[tuple[str, ...], ...], islands: int) -> str | None:
    if len(links) < 2:
        return None
    kinds = {links[i][j] for i, j in combinations(range(len(links)), 2)}
    if not any(kind.startswith("NV") for kind in kinds):
        return "pcie"
    switched = islands == 1 and len(kinds) == 1 and len(links) >= SWITCHED_FROM
    return "nvswitch" if switched else "nvlink" if islands == 1 else None


def _islands(links: tuple[tuple[str, ...], ...]) -> list[tuple[int, ...]]:
    """Return the groups of GPUs that NVLink joins, directly or through others, by smallest index."""
    unvisited, islands = set(range(len(links))), []
    while unvisited:
        island, frontier = set[int](), {min(unvisited)}
        while frontier:
            island |= frontier
            frontier = {j for i in frontier for j in unvisited if links[i][j].startswith("NV")} - island
        islands.append(tuple(sorted(island)))
        unvisited -= island
    return islands


def _label_value(text: str) -> str | None:
    """Return the text as the value of a label; None if no character of the text is allowed there."""
    return re.sub(r"[^A-Za-z0-9._-]", "-", text)[:63].strip("-_.") or None


def changes(
    hardware: Hardware, node_labels: dict[str, str], node_annotations: dict[str, str], *, shared: bool
) -> dict[str, dict[str, str | None]]:
    """Return the changes of a node's metadata; empty if it is up to date.

    A label that another client has set stays. Published keys that are no longer true are removed.
    """
    ours = set(node_annotations.get(PUBLISHED, "").split(","))
    labels = labels_of(hardware, shared=shared)
    new_labels = {
        key: value
        for key, value in labels.items()
        if value != node_labels.get(key) and (key in ours or key not in node_labels)
    }
    annotations = annotations_of(hardware, node_labels.get(INSTANCE_TYPE, ""), shared=shared)
    written = {key for key, value in labels.items() if value and (key in ours or key not in node_labels)}
    written |= {key for key, value in annotations.items() if value}
    annotations[PUBLISHED] = ",".join(sorted(written))
    new_annotations = {
        key: value
        for key, value in annotations.items()
        if value != node_annotations.get(key) and (value is not None or key in ours)
    }
    metadata = {"labels": new_labels, "annotations": new_annotations}
    return {part: values for part, values in metadata.items() if values}
