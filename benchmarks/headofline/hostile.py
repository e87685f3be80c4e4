"""The largest objects of a node and of a user, which change again and again.

The node's kubelet changes them with its own rights. Pods may come to the node, where its taints allow it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from benchmarks.headofline import pods
from benchmarks.headofline.changing import changing
from benchmarks.headofline.neighbour import Neighbour
from benchmarks.headofline.stats import Changes
from benchmarks.throughput.site import NODES, RACK_LABEL
from e2e import objects
from e2e.client import Client
from e2e.dra import DRIVER, GPU, GROUP
from e2e.fuzz import largest
from local_cluster.api import Api, Object
from local_cluster.cluster import LocalCluster
from local_cluster.nodes import SCHEDULE

NODE = "hostile-node"
PATH = f"{NODES}/{NODE}"
BIG_PER_S = 4.0
"""Changes a second of a node of 1.2 MB."""
GROUPS_PER_S = 2.0
"""The same of PodGroups of up to 1.1 MB."""
FACTS_PER_S = 10.0
"""The same of matrices and slices."""
MATRIX_GPUS = 89
"""Of the largest matrix that Muster reads, which is 32 KiB; the node has this number of GPUs."""
LARGEST_MATRIX = 240
"""GPUs of one that has nearly all bytes that an object's annotations may have."""
OF_OTHERS = 600_000
"""Bytes of the labels of a Secret that has 1 MB with who owns them."""
CUT = largest.OF_A_GROUP // 2
"""Bytes, at most, of the answer where the API server refused a new PodGroup or dropped its field."""
DEVICES, SLICES, READ_SLICES = 128, 100, 8
"""Devices of a slice; slices of the node, and of the pool that Muster reads. The first has all used GPUs."""
CLASSES, OF_SLICES = f"{GROUP}/deviceclasses", f"{GROUP}/resourceslices"
CLASS = "headofline-hostile"


@contextlib.contextmanager
def big_node(cluster: LocalCluster, admin: Api) -> Iterator[Changes]:
    """Have a node with the largest labels, annotations, taints and resources change one of these in turn. Of
    resources the first ones by name are read, and one of them changes."""

    def change(index: int) -> tuple[str, Object]:
        first = {"a": str(index)}
        if index % 3 == 2:
            return f"{PATH}/status", {"status": {"allocatable": {"a.a/a": str(index)}}}
        return PATH, {"metadata": {("labels", "annotations")[index % 3]: first}}

    with (
        _node(cluster, admin, largest.node(_body(pods.NODE_GPUS))) as kubelet,
        changing(kubelet, change, BIG_PER_S) as changes,
    ):
        yield changes


@contextlib.contextmanager
def matrix(cluster: LocalCluster, admin: Api) -> Iterator[Changes]:
    """Have a node change its matrix: the largest that is read, with other links, then the largest of all."""
    texts = [largest.matrix(MATRIX_GPUS, "NV1"), largest.matrix(MATRIX_GPUS, "PIX")]
    texts.append(largest.matrix(LARGEST_MATRIX, "NV1"))

    def change(index: int) -> tuple[str, Object]:
        return PATH, {"metadata": {"annotations": {"GPU_TOPOLOGY": texts[index % len(texts)]}}}

    with (
        _node(cluster, admin, _body(MATRIX_GPUS)) as kubelet,
        changing(kubelet, change, FACTS_PER_S) as changes,
    ):
        yield changes


@contextlib.contextmanager
def slices(cluster: LocalCluster, admin: Api) -> Iterator[Changes]:
    """Have a node with many ResourceSlices change the devices of one after another, and each second time of
    the one whose devices are used."""

    def change(index: int) -> tuple[str, Object]:
        part = 0 if index % 2 else index // 2 % SLICES
        return f"{OF_SLICES}/{_name(part)}", {"spec": {"devices": _devices(part, str(index))}}

    expression = {"cel": {"expression": f"device.driver == '{DRIVER}'"}}
    gpus = {"metadata": {"name": CLASS}, "spec": {"extendedResourceName": GPU, "selectors": [expression]}}
    with contextlib.ExitStack() as stack:
        kubelet = stack.enter_context(_node(cluster, admin, _body(0)))
        admin.post(CLASSES, gpus)
        stack.callback(admin.delete, f"{CLASSES}/{CLASS}")
        stack.callback(admin.delete, f"{OF_SLICES}?fieldSelector=spec.nodeName={NODE}")
        for part in range(SLICES):
            kubelet.post(OF_SLICES, _slice(part))
        yield stack.enter_context(changing(kubelet, change, FACTS_PER_S))


@contextlib.contextmanager
def big_groups(beside: Neighbour) -> Iterator[Changes]:
    """Have a user change one large PodGroup after another, each large in another field: as large as Muster
    reads them, and one larger. Those that the API server refuses or cuts are left out."""
    path = beside.path.replace("/api/v1/", "/apis/scheduling.run.ai/v2/") + "/podgroups"
    fields = largest.OF_GROUPS.keys() - {"labels"}  # a change of many takes the API server some seconds
    bodies = [largest.group(field, name=f"big-{at}") for at, field in enumerate(sorted(fields))]
    bodies.append(largest.group("numbers", largest.OF_ETCD, "largest"))
    large = [body for body in bodies if len(beside.client.send("POST", path, body).body) > CUT]
    names = [body["metadata"]["name"] for body in large]

    def change(index: int) -> tuple[str, Object]:
        return f"{path}/{names[index % len(names)]}", {"spec": {"minMember": 2 + index // len(names) % 2}}

    try:
        with changing(beside.client, change, GROUPS_PER_S) as changes:
            yield changes
    finally:
        beside.client.delete(path)


@contextlib.contextmanager
def big_others(beside: Neighbour) -> Iterator[Changes]:
    """Have a user change a Secret with the largest labels: nothing of Muster reads Secrets."""
    path = f"{beside.path}/secrets"
    secret = largest.filled({"metadata": {"name": "big"}}, *largest.OF_NODES["labels"], OF_OTHERS)
    beside.client.post(path, secret)

    def change(index: int) -> tuple[str, Object]:
        return f"{path}/big", {"metadata": {"labels": {"tick": str(index)}}}

    try:
        with changing(beside.client, change, BIG_PER_S) as changes:
            yield changes
    finally:
        beside.client.delete(f"{path}/big")


@contextlib.contextmanager
def _node(cluster: LocalCluster, admin: Api, body: Object) -> Iterator[Api]:
    """Make this node, and yield what sends requests as its kubelet."""
    kubeconfig = cluster.kubeconfig_for_user(f"system:node:{NODE}", ["system:nodes"])
    credentials = kubeconfig.with_suffix(".credentials")
    credentials.mkdir(mode=0o700, exist_ok=True)
    admin.post(NODES, body)
    try:
        yield Client.of(kubeconfig, credentials)
    finally:
        admin.delete(PATH)


def _body(gpus: int) -> Object:
    return objects.node(NODE, gpus=gpus, labels={SCHEDULE: "topology", RACK_LABEL: "hostile"})


def _slice(part: int) -> Object:
    """Return a slice of the pool that is read, or of the one that is left out."""
    read = part < READ_SLICES
    pool = {
        "name": f"{NODE}-{'a' if read else 'b'}",
        "generation": 1,
        "resourceSliceCount": READ_SLICES if read else SLICES - READ_SLICES,
    }
    spec = {"driver": DRIVER, "nodeName": NODE, "pool": pool, "devices": _devices(part, "first")}
    return {"metadata": {"name": _name(part)}, "spec": spec}


def _devices(part: int, version: str) -> list[dict[str, Any]]:
    return [
        {
            "name": f"gpu-{part}-{number}-{version}",
            "attributes": {
                "uuid": {"string": f"GPU-{part}-{number}"},
                "resource.kubernetes.io/pciBusID": {"string": f"{part:04x}:{number:02x}:00.0"},
            },
        }
        for number in range(DEVICES)
    ]


def _name(part: int) -> str:
    return f"{NODE}-{part:03}"
