"""From a shape to Node objects (pure), and from those to nodes that are Ready in a cluster."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from local_cluster.api import CONNECTIONS, Api, Object
from local_cluster.patience import HANG_S, Guard
from local_cluster.places import TOPOLOGIES
from local_cluster.shape import NodeGroup, Shape, ShapeError, check_label_value, check_name, load_shape
from local_cluster.topology import Topology, TopologyError, load_topology

RACK, ZONE, HOSTNAME = "topology.kubernetes.io/rack", "topology.kubernetes.io/zone", "kubernetes.io/hostname"
SCHEDULE = "ack.node.gpu.schedule"
APPLIED = "local-cluster/applied"
"""Annotation: the keys that the last shape gave the node, so that the next one can take them away."""

NOT_READY = "node.kubernetes.io/not-ready"
READY_POLL_S = 0.1


class NodesNotReady(RuntimeError):
    """Nodes were created, and did not all become Ready in time."""


def nodes_of(path: Path, topologies: Path = TOPOLOGIES) -> list[Object]:
    """All Node objects of a shape file."""
    return shape_nodes(load_shape(path), str(path), topologies)


def shape_nodes(shape: Shape, source: str, topologies: Path = TOPOLOGIES) -> list[Object]:
    """The Node objects of a shape, in the order of the file."""
    nodes: dict[str, Object] = {}
    for number, group in enumerate(shape.nodes):
        place = f"{source}: nodes[{number}] ({group.name})"
        for node in _group_nodes(place, group, topologies):
            name = node["metadata"]["name"]
            if name in nodes:
                raise ShapeError(
                    f"{place}: name: {name!r} comes out twice; number the nodes with {{index}} in the name"
                )
            nodes[name] = node
    return list(nodes.values())


def _group_nodes(place: str, group: NodeGroup, topologies: Path) -> Iterator[Object]:
    topology = _topology(place, group, topologies)
    gpus = group.gpus if group.gpus is not None else topology.gpu_count if topology else 0
    try:
        published_labels = topology.labels() if topology and group.publish == "labels" else {}
        published = topology.annotation() if topology and group.publish == "gpu-topology-annotation" else None
    except TopologyError as problem:
        raise ShapeError(f"{place}: publish: {problem}") from problem
    annotations = ({"GPU_TOPOLOGY": published} if published else {}) | group.annotations
    resources = _resources(group, gpus)
    for index in range(group.zones * group.racks * group.count):
        rack = index // group.count
        places = {"zone": rack // group.racks, "rack": rack, "index": index}
        name = group.name.format(**places)
        check_name(place, name)
        labels = {
            HOSTNAME: name,
            "kubernetes.io/arch": "amd64",
            "kubernetes.io/os": "linux",
            ZONE: group.zone.format(**places),
            RACK: group.rack.format(**places),
            SCHEDULE: group.schedule,
        }
        labels = {key: value for key, value in labels.items() if value} | published_labels
        labels |= {key: value.format(**places) for key, value in group.labels.items()}
        for key, value in labels.items():
            check_label_value(place, key, value)
        yield _node(name, labels, annotations, resources, group)


def _topology(place: str, group: NodeGroup, topologies: Path) -> Topology | None:
    if not group.topology:
        return None
    try:
        topology = load_topology(group.topology, topologies)
    except TopologyError as problem:
        raise ShapeError(f"{place}: topology: {problem}") from problem
    if group.gpus is None:
        return topology
    if group.gpus > topology.gpu_count:
        raise ShapeError(
            f"{place}: gpus: {group.gpus} is more than the {topology.gpu_count} of {group.topology}"
        )
    return topology.first(group.gpus) if group.gpus else None


def _resources(group: NodeGroup, gpus: int) -> dict[str, str]:
    resources = {"cpu": group.cpu, "memory": group.memory, "pods": str(group.pods)}
    for resource in group.resources:
        if resource == "aliyun.com/gpu-mem":
            resources |= {resource: str(gpus * group.gpu_memory_gib), "aliyun.com/gpu-count": str(gpus)}
        else:
            resources[resource] = str(gpus)
    return resources


def _node(
    name: str,
    labels: dict[str, str],
    annotations: dict[str, str],
    resources: dict[str, str],
    group: NodeGroup,
) -> Object:
    applied = {"labels": sorted(labels), "annotations": sorted(annotations), "resources": sorted(resources)}
    taints = [{"key": t.key, "value": t.value, "effect": t.effect} for t in group.taints]
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {
            "name": name,
            "labels": labels,
            "annotations": annotations | {APPLIED: json.dumps(applied, separators=(",", ":"))},
        },
        "spec": {"taints": taints, "unschedulable": group.unschedulable},
        "status": {"capacity": resources, "allocatable": resources},
    }


def apply_nodes(api: Api, nodes: list[Object], quiet_s: float = HANG_S) -> None:
    """Create the nodes, or bring those that are there to what is wanted; wait until all are Ready."""
    guard = Guard(quiet_s)
    with ThreadPoolExecutor(max_workers=CONNECTIONS) as workers:
        for _ in workers.map(lambda node: _put(api, node), nodes):
            pass
    names = {node["metadata"]["name"] for node in nodes}
    while waiting := names - ready_nodes(api):
        if guard.over:
            first_names = ", ".join(sorted(waiting)[:5])
            raise NodesNotReady(
                f"{len(waiting)} of {len(names)} nodes not Ready within {guard.whole_s:.0f} s: {first_names}…"
            )
        time.sleep(READY_POLL_S)


def _put(api: Api, node: Object) -> None:
    if api.create("/api/v1/nodes", node):
        return
    path = f"/api/v1/nodes/{node['metadata']['name']}"
    live = api.get(path)
    meta, status = node["metadata"], node["status"]
    before = json.loads(live["metadata"].get("annotations", {}).get(APPLIED, "{}"))
    # taints that the control plane set (not-ready, unschedulable) stay: a patch of a list replaces it
    taints_of_kubernetes = [
        t for t in live["spec"].get("taints", []) if t["key"].startswith("node.kubernetes.io/")
    ]
    api.patch(
        path,
        {
            "metadata": {
                "labels": _without(before.get("labels", []), meta["labels"]),
                "annotations": _without(before.get("annotations", []), meta["annotations"]),
            },
            "spec": {**node["spec"], "taints": node["spec"]["taints"] + taints_of_kubernetes},
        },
    )
    resources = _without(before.get("resources", []), status["allocatable"])
    api.patch(f"{path}/status", {"status": {"capacity": resources, "allocatable": resources}})


def _without(before: list[str], target: dict[str, str]) -> dict[str, str | None]:
    """A merge patch that sets what is wanted and removes what was given before and is wanted no more."""
    return dict.fromkeys(before) | target


def ready_nodes(api: Api) -> set[str]:
    """Return the names of the nodes that are Ready and have lost the not-ready taint."""
    return {
        node["metadata"]["name"]
        # resourceVersion=0: from the API server's cache, not through etcd, every time
        for node in api.get("/api/v1/nodes?resourceVersion=0")["items"]
        if any(c["type"] == "Ready" and c["status"] == "True" for c in node["status"].get("conditions", []))
        and not any(taint["key"] == NOT_READY for taint in node["spec"].get("taints", []))
    }
