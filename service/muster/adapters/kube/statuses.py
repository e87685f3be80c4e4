"""The status of PodGroup objects, written by merge patch of the status subresource.

`write` only remembers what each object is to show; one task sends it, one object after another. What came
while the API server did not answer replaces what waited, so that an outage costs one write an object and not
one a change. Only PodGroups of our own API are written: gangs ask for no others.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from datetime import UTC, datetime

import structlog

from muster.adapters.kube.backoff import Backoff
from muster.adapters.kube.client import ApiError, KubeClient, KubeError
from muster.adapters.kube.events import RETRY_STATUS
from muster.adapters.telemetry.metrics import Metrics
from muster.domain.podgroup import OURS, Condition
from muster.gangs.instructions import WriteStatus

WAITING_LIMIT = 10_000
"""Objects whose status may wait, and whose conditions are remembered: more PodGroups than a cluster has."""

log = structlog.get_logger(__name__)


class StatusWriter:
    """Writes statuses; `run` ends only by cancellation."""

    def __init__(self, client: KubeClient, metrics: Metrics) -> None:
        self._client = client
        self._metrics = metrics
        self._waiting: OrderedDict[tuple[str, str], WriteStatus] = OrderedDict()
        """By namespace and name: what was to be said of an object that is made anew is never said of it."""
        self._arrived = asyncio.Event()
        self._since: OrderedDict[str, dict[str, tuple[bool, str]]] = OrderedDict()
        """By object: condition → (status, since when)."""
        self._backoff = Backoff(first=0.25, limit=30.0)

    def write(self, instruction: WriteStatus) -> None:
        """Remember what the object is to show. Never waits."""
        self._waiting[instruction.namespace, instruction.name] = instruction
        if len(self._waiting) > WAITING_LIMIT:
            self._waiting.popitem(last=False)
            self._metrics.status("dropped")
        self._arrived.set()

    async def run(self) -> None:
        while True:
            await self._arrived.wait()
            while self._waiting:
                _, next_one = self._waiting.popitem(last=False)
                await self._send(next_one)
            self._arrived.clear()

    async def _send(self, instruction: WriteStatus) -> None:
        name = f"{instruction.namespace}/{instruction.name}"
        path = f"/apis/{OURS}/namespaces/{instruction.namespace}/podgroups/{instruction.name}/status"
        try:
            await self._client.merge_patch(f"status of podgroup {name}", path, self._body(instruction))
        except KubeError as problem:
            if isinstance(problem, ApiError) and problem.status not in RETRY_STATUS:
                # gone, or of a CRD that is not ours
                log.info("status not written", podgroup=name, error=str(problem))
                self._metrics.status("failed")
                return
            self._waiting.setdefault((instruction.namespace, instruction.name), instruction)
            delay = self._backoff.delay()
            log.warning("status not written yet", podgroup=name, error=str(problem), retry_in_s=delay)
            await asyncio.sleep(delay)
        else:
            self._backoff.reset()
            self._metrics.status("written")

    def _body(self, instruction: WriteStatus) -> dict[str, object]:
        """What is empty is taken away."""
        status = instruction.status
        return {
            "status": {
                "phase": status.phase,
                "needed": status.needed,
                "present": status.present,
                "placed": status.placed,
                "running": status.running,
                "domain": status.domain or None,
                "reason": status.reason or None,
                "conditions": [self._condition(instruction.uid, each) for each in status.conditions],
            },
        }

    def _condition(self, uid: str, condition: Condition) -> dict[str, object]:
        """With the time since when it is so, as far as this process knows."""
        known = self._since.setdefault(uid, {})
        self._since.move_to_end(uid)
        if len(self._since) > WAITING_LIMIT:
            self._since.popitem(last=False)
        was, since = known.get(condition.type, (None, ""))
        if was is not condition.status:
            since = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
            known[condition.type] = (condition.status, since)
        return {
            "type": condition.type,
            "status": str(condition.status),
            "reason": condition.reason,
            "message": condition.message,
            "lastTransitionTime": since,
        }
