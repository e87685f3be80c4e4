"""On which nodes a node agent is ready, by the pods of its DaemonSet.

Only who may create pods in that namespace can make one look ready, and these may do all on the nodes. So the
namespace is a setting, which comes with what makes the namespace.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from muster.dialects.objects import PodObject
from muster.dialects.settings import Settings

NAME = "muster-node-agent"
"""The label app.kubernetes.io/name of the agents."""


class NodeAgents:
    """The agents that are ready. `on_change` hears of a node whose agent became ready, or is no more."""

    def __init__(self, settings: Settings, on_change: Callable[[str], Awaitable[None]]) -> None:
        self._settings = settings
        self._on_change = on_change
        self._nodes: dict[str, str] = {}
        """UID of a ready agent's pod → its node."""
        self._ready: dict[str, set[str]] = {}
        """The same by node."""

    async def see(self, uid: str, obj: PodObject | None) -> None:
        """Take in a pod, None if it is gone."""
        before = self._nodes.pop(uid, "")
        after = obj.spec.node_name if obj is not None and is_ready(obj, self._settings) else ""
        if after:
            self._nodes[uid] = after
            self._ready.setdefault(after, set()).add(uid)
        if before and before != after:
            self._ready[before].discard(uid)
            if not self._ready[before]:
                del self._ready[before]
        for node in {before, after} - {""} if before != after else ():
            await self._on_change(node)

    def ready(self, node: str) -> bool:
        """Return whether an agent is ready there."""
        return node in self._ready


def is_ready(obj: PodObject, settings: Settings) -> bool:
    """Return whether the pod is a node agent that is ready."""
    meta, namespace = obj.metadata, settings.node_agents
    if not namespace or meta.namespace != namespace:
        return False
    if (meta.labels or {}).get("app.kubernetes.io/name") != NAME:
        return False
    ready = any(
        condition.type == "Ready" and condition.status == "True" for condition in obj.status.conditions or ()
    )
    return ready and meta.deletion_timestamp is None
