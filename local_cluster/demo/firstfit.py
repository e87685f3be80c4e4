"""What first-fit would have done on the cluster as it is: `baseline`, fed with API objects.

First-fit is one pod at a time, the first node with room, its lowest free GPUs: what a scheduler that counts
GPUs and a device plugin that knows no links come to.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import msgspec

from local_cluster.api import Object
from local_cluster.demo import baseline
from local_cluster.demo.facts import Seat
from muster.dialects.nodes import nodes as node_reader
from muster.dialects.objects import NodeObject, PodObject
from muster.dialects.pods import pods as pod_reader
from muster.domain.node import Node
from muster.domain.pod import Pod
from muster.domain.request import GangId, Member, Request, Role
from muster.domain.snapshot import Snapshot


def first_fit(nodes: Iterable[Object], pods: Iterable[Object], objects: Iterable[Object]) -> list[Seat]:
    """Return seats of the pods of `objects` (pods and Jobs) that fit along with `pods`."""
    usages = (read_pod(pod).usage for pod in pods)
    snapshot = Snapshot.of(map(read_node, nodes), [usage for usage in usages if usage])
    roles = tuple(_role(read_pod(pod)) for pod in _pods(objects))
    request = Request(GangId("default", "demo", "asked"), roles, min_member=len(roles))
    members = baseline.first_fit(snapshot, request).members
    return [Seat(member.name, member.node, member.gpus) for member in members]


def read_node(node: Object) -> Node:
    """Read a node as the service does."""
    return node_reader.read(msgspec.convert(node, NodeObject))


def read_pod(pod: Object) -> Pod:
    """Read a pod as the service does."""
    return pod_reader.read(msgspec.convert(pod, PodObject))


def _pods(objects: Iterable[Object]) -> Iterator[Object]:
    """The pods that these objects are or make."""
    for body in objects:
        if "template" not in body["spec"]:
            yield body
            continue
        template = body["spec"]["template"]
        for index in range(body["spec"].get("parallelism", 1)):
            name = f"{body['metadata']['name']}-{index}"
            yield template | {"metadata": template.get("metadata", {}) | {"name": name}}


def _role(pod: Pod) -> Role:
    """A role of its own for each pod, so that they are taken in the order in which they were asked for."""
    member = Member(uid=pod.name, name=pod.name)
    return Role(pod.name, (member,), pod.resources, pod.gpus, pod.gpu_resource, pod.rules)
