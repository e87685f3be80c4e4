"""Evicts the bound members of gangs that are given up, through the API that honours disruption budgets.

`evict` only puts into a bounded queue; one task works it off. What is refused for now (a budget, a busy
server) goes to its end and is tried again a few times; what can't be done then is asked for again by the
gangs, as long as the pod is there. The UID is a precondition: a later pod of the same name is left alone.
"""

from __future__ import annotations

import asyncio
from collections import deque
from dataclasses import dataclass, replace

import structlog

from muster.adapters.kube.backoff import Backoff
from muster.adapters.kube.client import ApiError, KubeClient, KubeError
from muster.adapters.telemetry.metrics import Metrics
from muster.gangs.instructions import Evict

QUEUE = 20_000
"""Pods that may wait; what is more is left to the next time that it is asked for."""
TRIES = 5
NOT_THERE = (404, 409)
"""The pod is gone, or another one bears its name."""
NEVER = (400, 401, 403, 405, 422)
"""Refused for good."""

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class _Pod:
    namespace: str
    name: str
    uid: str
    why: str
    tries: int = 0


class Evictor:
    """`run` ends only by cancellation."""

    def __init__(self, client: KubeClient, metrics: Metrics, backoff: Backoff | None = None) -> None:
        self._client = client
        self._metrics = metrics
        self._backoff = backoff or Backoff(first=0.25, limit=8.0)
        self._waiting: deque[_Pod] = deque()
        self._known: set[str] = set()
        """UIDs of those that wait."""
        self._arrived = asyncio.Event()
        self._idle = asyncio.Event()
        self._idle.set()

    def evict(self, instruction: Evict) -> None:
        """Queue the pods that do not wait already. Never waits."""
        for name, uid in instruction.pods:
            if uid in self._known:
                continue
            if len(self._waiting) >= QUEUE:
                self._metrics.eviction("dropped")
                continue
            self._known.add(uid)
            self._waiting.append(_Pod(instruction.namespace, name, uid, instruction.why))
        if self._waiting:
            self._idle.clear()
            self._arrived.set()

    async def run(self) -> None:
        while True:
            await self._arrived.wait()
            while self._waiting:
                await self._next(self._waiting.popleft())
            self._arrived.clear()
            self._idle.set()

    async def drained(self) -> None:
        """Returns when nothing waits."""
        await self._idle.wait()

    async def _next(self, pod: _Pod) -> None:
        what = f"eviction of pod {pod.namespace}/{pod.name}"
        try:
            path = f"/api/v1/namespaces/{pod.namespace}/pods/{pod.name}/eviction"
            await self._client.post(what, path, _body(pod))
        except KubeError as problem:
            status = problem.status if isinstance(problem, ApiError) else 0
            if status in NOT_THERE:
                self._done(pod, "gone")
            elif status in NEVER or pod.tries + 1 >= TRIES:
                log.warning("not evicted", why=pod.why, tries=pod.tries + 1, error=str(problem))
                self._done(pod, "failed")
            else:
                self._waiting.append(replace(pod, tries=pod.tries + 1))
                await asyncio.sleep(self._backoff.delay())
            return
        self._backoff.reset()
        log.info("evicted", pod=f"{pod.namespace}/{pod.name}", why=pod.why)
        self._done(pod, "evicted")

    def _done(self, pod: _Pod, result: str) -> None:
        self._known.discard(pod.uid)
        self._metrics.eviction(result)


def _body(pod: _Pod) -> dict[str, object]:
    return {
        "apiVersion": "policy/v1",
        "kind": "Eviction",
        "metadata": {"name": pod.name, "namespace": pod.namespace},
        "deleteOptions": {"preconditions": {"uid": pod.uid}},
    }
