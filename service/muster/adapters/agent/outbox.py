"""What the agent writes: events, and annotations of pods and of its node. It never waits for a write.

All of it is bounded. What is not taken after a few tries is dropped, with a line in the log.
"""

from __future__ import annotations

import asyncio
import logging
import time
from dataclasses import dataclass
from datetime import UTC, datetime
from uuid import uuid4

from muster.adapters.agent.api import ApiError, ApiServer
from muster.adapters.kube.backoff import Backoff
from muster.domain.printable import printable

ROOM = 500
"""Writes that may wait."""
TRIES = 8
"""With the longest delays of the back-off, half a minute."""
LONGEST_DELAY_S = 8.0
REPEAT_AFTER_S = 300.0
"""The same sentence on the same object is posted again after so long."""
REMEMBERED = 256
MESSAGE_LIMIT = 1000

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Target:
    """A pod, or a node (without a namespace), as events name it."""

    name: str
    uid: str
    namespace: str = ""

    @property
    def path(self) -> str:
        """Return its path in the API."""
        if self.namespace:
            return f"/api/v1/namespaces/{self.namespace}/pods/{self.name}"
        return f"/api/v1/nodes/{self.name}"

    def __str__(self) -> str:
        return f"pod {self.namespace}/{self.name}" if self.namespace else f"node {self.name}"


@dataclass(frozen=True, slots=True)
class _Write:
    subject: str
    path: str
    body: dict[str, object]
    create: bool


class Outbox:
    """Sends writes one after another. `instance` names this agent in events."""

    def __init__(self, api: ApiServer, instance: str) -> None:
        self._api = api
        self._instance = instance
        self._queue: asyncio.Queue[_Write] = asyncio.Queue(ROOM)
        self._said: dict[tuple[str, str], float] = {}

    def event(self, target: Target, reason: str, message: str) -> None:
        """Queue a Warning on the object, unless the same was said a short while ago."""
        now = time.monotonic()
        if now - self._said.get((target.uid, message), float("-inf")) < REPEAT_AFTER_S:
            return
        self._said[target.uid, message] = now
        if len(self._said) > REMEMBERED:
            del self._said[next(iter(self._said))]
        log.warning("%s: %s: %s", target, reason, printable(message, MESSAGE_LIMIT))
        at = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        namespace = target.namespace or "default"
        body: dict[str, object] = {
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {"name": f"{target.name[:200]}.{uuid4().hex[:16]}", "namespace": namespace},
            "involvedObject": {
                "apiVersion": "v1",
                "kind": "Pod" if target.namespace else "Node",
                "name": target.name,
                "uid": target.uid if target.namespace else target.name,
                **({"namespace": namespace} if target.namespace else {}),
            },
            "reason": reason,
            "message": printable(message, MESSAGE_LIMIT),
            "type": "Warning",
            "firstTimestamp": at,
            "lastTimestamp": at,
            "count": 1,
            "source": {"component": "muster-node-agent"},
            "reportingComponent": "muster-node-agent",
            "reportingInstance": self._instance,
        }
        self._put(_Write(f"event on {target}", f"/api/v1/namespaces/{namespace}/events", body, True))

    def annotate(self, target: Target, annotations: dict[str, str]) -> None:
        """Queue annotations of a pod, if it is still the same one."""
        metadata = {"uid": target.uid, "annotations": annotations}
        self._put(_Write(str(target), target.path, {"metadata": metadata}, False))

    async def run(self) -> None:
        """Send what is queued; ends only by cancellation."""
        while True:
            await self._send(await self._queue.get())

    def _put(self, write: _Write) -> None:
        try:
            self._queue.put_nowait(write)
        except asyncio.QueueFull:
            log.warning("%s is lost: %d writes wait already", write.subject, ROOM)

    async def _send(self, write: _Write) -> None:
        backoff = Backoff(limit=LONGEST_DELAY_S)
        for tries_left in reversed(range(TRIES)):
            try:
                if write.create:
                    await self._api.post(write.subject, write.path, write.body)
                else:
                    await self._api.merge_patch(write.subject, write.path, write.body)
            except ApiError as problem:
                if not tries_left or not problem.passing:
                    log.warning("lost: %s", printable(str(problem)))
                    return
                await asyncio.sleep(backoff.delay())
            else:
                return
