"""From what the watches see to the gangs' events, leaving out what changes nothing.

A kubelet writes its node's and its pods' status all the time; few of those writes change a fact that matters
here. What is known of each pod and node is kept, for that comparison and for the shim's in-flight Bindings.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Iterable

import structlog

from muster.adapters.kube.watch import Gone, Seen
from muster.dialects import nodes, pods
from muster.dialects.objects import NodeObject, PodObject
from muster.dialects.settings import Settings
from muster.domain import allocation
from muster.domain.node import Node, Usage
from muster.domain.pod import Pod
from muster.gangs.events import Event, NodeGone, NodeSeen, PodGone, PodSeen

log = structlog.get_logger(__name__)


class Intake:
    """`on_pod` and `on_node` are the watches' sinks; `put` takes the events, in order."""

    def __init__(self, settings: Settings, put: Callable[[Event], Awaitable[None]]) -> None:
        self._settings = settings
        self._put = put
        self._pods: dict[str, Pod] = {}
        self._nodes: dict[str, Node] = {}

    async def on_pod(self, change: Seen[PodObject] | Gone) -> None:
        if isinstance(change, Gone):
            if self._pods.pop(change.key, None) is not None:
                await self._put(PodGone(time.monotonic(), change.key))
            return
        pod = pods.read(change.object, self._settings)
        if self._pods.get(pod.uid) != pod:
            self._pods[pod.uid] = pod
            await self._put(PodSeen(time.monotonic(), pod))

    async def on_node(self, change: Seen[NodeObject] | Gone) -> None:
        if isinstance(change, Gone):
            if self._nodes.pop(change.key, None) is not None:
                await self._put(NodeGone(time.monotonic(), change.key))
            return
        node = nodes.read(change.object, self._settings)
        before = self._nodes.get(node.name)
        if before == node:
            return
        if node.problems and (before is None or before.problems != node.problems):
            log.warning("node is used without what can't be read", node=node.name, problems=node.problems)
        self._nodes[node.name] = node
        await self._put(NodeSeen(time.monotonic(), node))

    @property
    def nodes_with_problems(self) -> int:
        return sum(1 for node in self._nodes.values() if node.problems)

    def in_flight(self, bindings: Iterable[tuple[str, str, dict[str, str]]]) -> tuple[Usage, ...]:
        """What Bindings take whose fate the shim does not know: (pod UID, node, annotations) of each.

        A pod that is gone can't be bound any more, and one that is bound or finished speaks for itself.
        """
        usages = []
        for uid, node, carried in bindings:
            pod = self._pods.get(uid)
            if pod is None or pod.node or pod.finished:
                continue
            mask = allocation.read(carried, pod.gpus)
            if mask is None:
                usages.append(Usage(uid, node, pod.resources, unindexed_gpus=pod.gpus))
            else:
                usages.append(Usage(uid, node, pod.resources, gpus=mask))
        return tuple(usages)
