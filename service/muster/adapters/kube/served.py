"""Extended resources that DRA drivers serve, such as `example.com/nic` for network cards.

A DeviceClass may name such a resource, and each class has one by its own name. On a node whose device plugin
does not offer it, kube-scheduler allocates devices for it, and in-tree answers say where there are enough. So
each node gets plenty of it here, and the shim is asked about pods that ask for it. Classes of GPUs are not
meant: their devices are planned.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import replace

from muster.dialects.devices.objects import DeviceClassObject
from muster.dialects.quantities import MOST
from muster.dialects.settings import Settings
from muster.domain.node import Node
from muster.domain.pod import Pod
from muster.gangs.messages.inputs import Input, NodeGone, NodeSeen, PodGone, PodSeen

OF_CLASS = "deviceclass.resource.kubernetes.io/"
"""With the name of a DeviceClass after it: the extended resource that Kubernetes gives each class."""


class ServedResources:
    """Pass inputs on, with what DeviceClasses add to nodes and pods."""

    def __init__(self, settings: Settings, put: Callable[[Input], Awaitable[None]]) -> None:
        self._settings = settings
        self._pass_on = put
        self._served: dict[str, frozenset[str]] = {}
        """DeviceClass → its extended resources."""
        self._asked: set[str] = set()
        """Resources that a waiting pod has asked for. Nodes get no others: most classes are for claims
        alone."""
        self._nodes: dict[str, Node] = {}
        self._pods: dict[str, Pod] = {}
        """Waiting pods of gangs that ask for other resources than GPUs, cpu and memory, by UID."""

    async def put(self, message: Input) -> None:
        """Pass an input on."""
        match message:
            case NodeSeen(now, node):
                self._nodes[node.name] = node
                message = NodeSeen(now, self._offering(node))
            case NodeGone(_, name):
                self._nodes.pop(name, None)
            case PodSeen(now, pod):
                self._pods.pop(pod.uid, None)
                if pod.claim is not None and pod.resources.others and not pod.node:
                    self._pods[pod.uid] = pod
                    message = PodSeen(now, self._asking(pod))
                    if new := (_others(pod) & self._resources) - self._asked:
                        self._asked |= new
                        await self._read_nodes()
            case PodGone(_, uid):
                self._pods.pop(uid, None)
        await self._pass_on(message)

    async def see_class(self, name: str, obj: DeviceClassObject | None) -> None:
        """Take in a DeviceClass, or None if it is gone."""
        before = self._resources
        self._served[name] = self._resources_of(name, obj)
        if not self._served[name]:
            del self._served[name]
        changed = before ^ self._resources
        if not changed:
            return
        asking_pods = {uid: pod for uid, pod in self._pods.items() if _others(pod) & changed}
        for uid, pod in asking_pods.items():
            if self._pods.get(uid) is pod:
                await self._pass_on(PodSeen(time.monotonic(), self._asking(pod)))
        before_asked, self._asked = self._asked, self._asked & self._resources
        for pod in asking_pods.values():
            self._asked |= _others(pod) & self._resources
        if self._asked != before_asked:
            await self._read_nodes()

    def _resources_of(self, name: str, obj: DeviceClassObject | None) -> frozenset[str]:
        extended = obj.spec.extended_resource_name or "" if obj is not None else ""
        if obj is None or (extended and not self._settings.is_other(extended)):
            return frozenset()
        return frozenset(filter(None, (extended, OF_CLASS + name)))

    @property
    def _resources(self) -> frozenset[str]:
        return frozenset[str]().union(*self._served.values())

    async def _read_nodes(self) -> None:
        for name in list(self._nodes):
            if (node := self._nodes.get(name)) is not None:
                await self._pass_on(NodeSeen(time.monotonic(), self._offering(node)))
                await asyncio.sleep(0)  # there may be thousands, and the shim's calls wait meanwhile

    def _offering(self, node: Node) -> Node:
        """Return the node with plenty of what its device plugins do not offer."""
        of_plugins = dict(node.allocatable.others)
        more = dict.fromkeys(self._asked - {name for name, count in of_plugins.items() if count}, MOST)
        if not more:
            return node
        return replace(
            node, allocatable=replace(node.allocatable, others=tuple(sorted({**of_plugins, **more}.items())))
        )

    def _asking(self, pod: Pod) -> Pod:
        """Return the pod, marked if drivers may have to serve what it asks for."""
        return replace(pod, device_claims=True) if _others(pod) & self._resources else pod


def _others(pod: Pod) -> set[str]:
    return {name for name, _ in pod.resources.others}
