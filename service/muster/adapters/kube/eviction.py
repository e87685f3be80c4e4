"""Evicts the bound members of gangs that are given up, through the API that honours disruption budgets.

An eviction that is refused for long is given up. The gangs ask for it again as long as the pod is there. The
UID is a precondition, so a later pod of the same name is left alone. Before each eviction the evictor asks
whether it is still wanted: the gang may have become complete while the pod waited. An eviction without an
answer is sent once more. For a pod that terminates already this changes nothing.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import structlog

from muster.adapters.kube.client import ApiError, KubeClient, KubeError
from muster.adapters.kube.outbox import Outbox, Retry
from muster.adapters.telemetry.metrics import Metrics
from muster.gangs.messages.instructions import Evict

QUEUE = 20_000
"""The most pods that may wait, of all namespaces. A pod above it is dropped; the gangs ask for it again."""
NOT_THERE = (404, 409)
"""The pod is gone, or another one bears its name."""

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class _Pod:
    namespace: str
    name: str
    uid: str
    why: str


class Evictor(Outbox[_Pod]):
    """Evicts pods. `evicts`: whether the pod of a UID is still to be evicted."""

    def __init__(
        self,
        client: KubeClient,
        metrics: Metrics,
        evicts: Callable[[str], bool],
        retry: Retry | None = None,
    ) -> None:
        super().__init__(QUEUE, retry)
        self._client = client
        self._evicts = evicts
        self._metrics = metrics

    def evict(self, instruction: Evict) -> None:
        """Queue the pods that do not wait already. Never waits."""
        for name, uid in instruction.pods:
            pod = _Pod(instruction.namespace, name, uid, instruction.why)
            if self._put(instruction.namespace, uid, pod) is not None:
                self._metrics.eviction("dropped")

    def _is_due(self, item: _Pod) -> bool:
        is_due = self._evicts(item.uid)
        if not is_due:
            self._metrics.eviction("withdrawn")
        return is_due

    async def _send(self, item: _Pod) -> None:
        path = f"/api/v1/namespaces/{item.namespace}/pods/{item.name}/eviction"
        await self._client.post(f"eviction of pod {item.namespace}/{item.name}", path, _body(item))

    def _heard_at(self) -> float:
        return time.monotonic() - self._client.silent_s

    def _after_send(self, item: _Pod, refusal: KubeError | None) -> None:
        if refusal is None:
            log.info("evicted", pod=f"{item.namespace}/{item.name}", why=item.why)
            self._metrics.eviction("evicted")
        elif isinstance(refusal, ApiError) and refusal.status in NOT_THERE:
            self._metrics.eviction("gone")
        else:
            log.warning("not evicted", why=item.why, error=str(refusal))
            self._metrics.eviction("failed")


def _body(pod: _Pod) -> dict[str, object]:
    return {
        "apiVersion": "policy/v1",
        "kind": "Eviction",
        "metadata": {"name": pod.name, "namespace": pod.namespace},
        "deleteOptions": {"preconditions": {"uid": pod.uid}},
    }
