"""Turn nodes, and objects with facts about them, from the watches into inputs for the gangs.

A node's facts come from its object, its ConfigMaps, its ResourceSlices and its agent. When one of these
changes, the node is read again. Large nodes are read one at a time on a thread. Each node is read at a
limited rate (`rate`), so that a node which changes all the time delays no other.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from functools import cached_property

import structlog

from muster.adapters.kube.key_groups import KeyGroups
from muster.adapters.kube.leftout import LeftOutObjects
from muster.dialects.devices.published import NodeSlices
from muster.dialects.nodes import bounds, configmaps, nodes
from muster.dialects.nodes.configmaps import NodeFact, PolicyText
from muster.dialects.objects import ConfigMapObject, NodeObject, PodObject
from muster.dialects.settings import DialectSettings
from muster.domain.node import Node
from muster.domain.rate import Rate
from muster.gangs.messages.inputs import Input, NodeGone, NodeSeen

AGENT_NAME = "muster-node-agent"
"""The label app.kubernetes.io/name of the agents."""
LARGE = 16 * 1024
"""Nodes with more to read (`bounds.reading_size`) are read on a thread. A node of 8 GPUs has less than
half."""
SHARE = 20
"""Seconds that a second of reading costs a node, which therefore gets a twentieth of a core."""
CHANGE_S = 0.5
"""Seconds that a change costs a node in addition, because gangs are planned again for it."""
ADVANCE_S = 10.0
"""Seconds that a node may owe. A node that joins has some ten changes at once."""

log = structlog.get_logger(__name__)


class NodeAgents:
    """The nodes on which a node agent is ready, by the pods of its DaemonSet.

    Only clients that may create pods in that namespace can make an agent look ready, and they have full
    access to the nodes anyway. So the namespace is a setting, which the agents' installation makes.
    `on_change` is called with a node whose agent became ready, or stopped being ready.
    """

    def __init__(self, settings: DialectSettings, on_change: Callable[[str], Awaitable[None]]) -> None:
        self._settings = settings
        self._on_change = on_change
        self._ready = KeyGroups[str, str]()
        """UIDs of ready agents' pods, by node."""

    async def see(self, uid: str, obj: PodObject | None) -> None:
        """Take in a pod, None if it is gone."""
        new_node = (
            obj.spec.node_name or None if obj is not None and is_ready_agent(obj, self._settings) else None
        )
        old_node = self._ready.put(uid, new_node)
        for node in (old_node, new_node) if old_node != new_node else ():
            if node is not None:
                await self._on_change(node)

    def is_ready_on(self, node: str) -> bool:
        """Return whether an agent is ready on the node."""
        return node in self._ready.groups


def is_ready_agent(obj: PodObject, settings: DialectSettings) -> bool:
    """Return whether the pod is a node agent that is ready."""
    meta, namespace = obj.metadata, settings.node_agents
    if not namespace or meta.namespace != namespace:
        return False
    if (meta.labels or {}).get("app.kubernetes.io/name") != AGENT_NAME:
        return False
    ready = any(
        condition.type == "Ready" and condition.status == "True" for condition in obj.status.conditions or ()
    )
    return ready and meta.deletion_timestamp is None


@dataclass(frozen=True)
class _ConfigMap:
    """A ConfigMap about a node. It is read together with the node, on the same thread."""

    obj: ConfigMapObject
    settings: DialectSettings

    @cached_property
    def fact(self) -> NodeFact | None:
        """Return the ConfigMap's facts about the node."""
        content = configmaps.read(self.obj, self.settings)
        return None if isinstance(content, PolicyText) else content


@dataclass(frozen=True, slots=True)
class _Facts:
    """All objects that are read for a node. They are immutable, so any thread may read them."""

    obj: NodeObject
    maps: tuple[_ConfigMap, ...]
    published: NodeSlices
    agent: bool
    settings: DialectSettings

    @property
    def size(self) -> int:
        """Return the amount to read."""
        return self.published.to_decode + bounds.reading_size(
            self.obj,
            (config_map.obj for config_map in self.maps if "fact" not in config_map.__dict__),
            self.settings,
        )

    def read(self) -> tuple[Node, float]:
        """Return the node, and the seconds of processor time that reading took."""
        began = time.thread_time()
        facts_of_maps = [config_map.fact for config_map in self.maps]
        facts = [fact for fact in facts_of_maps if fact is not None]
        node = nodes.read(self.obj, self.settings, facts, self.published.offer, agent=self.agent)
        return node, time.thread_time() - began


class NodeIntake:
    """Takes in nodes: `on_node` is the watch's sink, and `put` takes the inputs, in order. `on_labels` is
    called when labels changed. `published` returns the ResourceSlices of a node."""

    def __init__(
        self,
        settings: DialectSettings,
        put: Callable[[Input], Awaitable[None]],
        left_out: LeftOutObjects,
        published: Callable[[str], NodeSlices],
        on_labels: Callable[[], None] = lambda: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.agents = NodeAgents(settings, self.read_again)
        self._settings = settings
        self._put = put
        self._left_out = left_out
        self._published = published
        self._on_labels = on_labels
        self._rate = Rate(ADVANCE_S, clock)
        self._nodes: dict[str, Node] = {}
        self._objects: dict[str, NodeObject] = {}
        self._maps: dict[str, _ConfigMap] = {}
        self._maps_of = KeyGroups[str, str]()
        """Keys of ConfigMaps, by node."""
        self._waiting: set[str] = set()
        """Nodes that are to be read on the thread, or later."""
        self._due: deque[str | asyncio.Future[None]] = deque()
        """Waiting nodes that are due, and futures that end when the nodes before them are read."""
        self._being_read = ""
        self._gone_meanwhile = False
        self._reader: asyncio.Task[None] | None = None

    @property
    def nodes(self) -> Mapping[str, Node]:
        """Return the nodes as they were read last, by name."""
        return self._nodes

    async def on_node(self, name: str, obj: NodeObject | None) -> None:
        """Take in a node's change."""
        if obj is None:
            self._objects.pop(name, None)
            self._waiting.discard(name)
            self._gone_meanwhile |= self._being_read == name
            self._rate.forget()
            if self._nodes.pop(name, None) is not None:
                self._on_labels()
                await self._put(NodeGone(time.monotonic(), name))
            return
        self._objects[name] = nodes.trim(obj)
        await self._read_in_turn(name)

    async def on_config_map(self, key: str, obj: ConfigMapObject | None) -> None:
        """Take in the new state of the ConfigMap of this key; None if it has no facts about a node."""
        new_node = configmaps.node_of(obj, self._settings) if obj is not None else ""
        new_map = _ConfigMap(configmaps.trim(obj), self._settings) if obj is not None and new_node else None
        old_node, old_map = self._maps_of.put(key, new_node or None) or "", self._maps.pop(key, None)
        if new_map is not None:
            self._maps[key] = old_map if old_map == new_map and old_map is not None else new_map
        if (old_node, old_map) != (new_node, new_map):
            for name in sorted({old_node, new_node} - {""}):
                await self.read_again(name)

    async def read_again(self, name: str) -> None:
        """Read a node again because another object with facts about it has changed."""
        if name in self._objects:
            with self._left_out.guard("nodes", name, name):
                await self._read_in_turn(name)

    async def until_read(self) -> None:
        """Return when all nodes that are due now have been read."""
        if self._due or self._being_read:
            turn = asyncio.get_running_loop().create_future()
            self._due.append(turn)
            await turn

    async def _read_in_turn(self, name: str) -> None:
        """Read the node now if it is small and within its rate; else queue it for the thread."""
        if name in self._waiting:
            return
        wait_s = self._rate.wait_s(name)
        if not wait_s and name != self._being_read:
            facts = self._facts(name)
            if facts.size <= LARGE:
                await self._pass_on(name, *facts.read())
                return
        self._waiting.add(name)
        if wait_s:
            asyncio.get_running_loop().call_later(wait_s, self._queue_read, name)
        else:
            self._queue_read(name)

    def _queue_read(self, name: str) -> None:
        self._due.append(name)
        if self._reader is None or self._reader.done():
            self._reader = asyncio.create_task(self._read_due(), name="nodes")

    async def _read_due(self) -> None:
        """Read on a thread the nodes that are due, one after another."""
        while self._due:
            turn = self._due.popleft()
            if isinstance(turn, asyncio.Future):
                if not turn.done():
                    turn.set_result(None)
            elif turn in self._waiting:
                self._waiting.discard(turn)
                self._being_read, self._gone_meanwhile = turn, False
                with self._left_out.guard("nodes", turn, turn):
                    node, took = await asyncio.to_thread(self._facts(turn).read)
                    if not self._gone_meanwhile:
                        await self._pass_on(turn, node, took)
                self._being_read = ""

    def _facts(self, name: str) -> _Facts:
        about = tuple(
            self._maps[key] for key in sorted(self._maps_of.keys_of(name))[: bounds.MAX_CONFIG_MAPS]
        )
        published, agent = self._published(name), self.agents.is_ready_on(name)
        return _Facts(self._objects[name], about, published, agent, self._settings)

    async def _pass_on(self, name: str, node: Node, took: float) -> None:
        old_node = self._nodes.get(name)
        self._rate.charge(name, SHARE * took + CHANGE_S * (old_node != node))
        if old_node == node:
            return
        if node.problems and (old_node is None or old_node.problems != node.problems):
            log.warning("node is used without what can't be read", node=name, problems=node.problems)
        if old_node is None or old_node.labels != node.labels:
            self._on_labels()
        self._nodes[name] = node
        await self._put(NodeSeen(time.monotonic(), node))
