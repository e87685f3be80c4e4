"""The status of PodGroup objects, written by merge patch of the status subresource.

What came while the API server did not answer replaces what waited. So an outage costs one write for each
object, and not one for each change. A patch without an answer may land after the next one: the watch shows it
then, and the gangs ask for the status again. Only PodGroups of our own API are written: gangs ask for no
others.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from datetime import UTC, datetime

import structlog

from muster.adapters.kube.client import KubeClient, KubeError
from muster.adapters.kube.outbox import Outbox, Retry
from muster.adapters.telemetry.metrics import Metrics
from muster.domain.podgroup import OURS, Condition
from muster.domain.printable import printable
from muster.gangs.messages.instructions import WriteStatus

WAITING_LIMIT = 10_000
"""Objects whose status may wait, and whose conditions are remembered: more PodGroups than a cluster has."""
TEXT_LIMIT = 1024
"""Characters of one text in a status."""
LASTING = Retry(tries=100, limit_s=30.0)
"""Some 40 minutes: what an object shows is asked for again only when it changes."""

log = structlog.get_logger(__name__)


class StatusWriter(Outbox[WriteStatus]):
    """Writes statuses."""

    def __init__(self, client: KubeClient, metrics: Metrics, retry: Retry | None = None) -> None:
        super().__init__(WAITING_LIMIT, retry or LASTING)
        self._client = client
        self._metrics = metrics
        self._since: OrderedDict[str, dict[str, tuple[bool, str]]] = OrderedDict()
        """By object: condition → (status, since when)."""

    def write(self, instruction: WriteStatus) -> None:
        """Remember what the object is to show. Never waits."""
        # by name, not UID: what was to be said of an object that is made anew is never said of it
        if self._put(instruction.namespace, instruction.name, instruction) is not None:
            self._metrics.status("dropped")

    async def _send(self, item: WriteStatus) -> None:
        path = f"/apis/{OURS}/namespaces/{item.namespace}/podgroups/{item.name}/status"
        await self._client.merge_patch(
            f"status of podgroup {item.namespace}/{item.name}", path, self._body(item)
        )

    def _heard_at(self) -> float:
        return time.monotonic() - self._client.silent_s

    def _after_send(self, item: WriteStatus, refusal: KubeError | None) -> None:
        if refusal is not None:  # gone, or of a CRD that is not ours
            log.warning("status not written", podgroup=f"{item.namespace}/{item.name}", error=str(refusal))
        self._metrics.status("written" if refusal is None else "failed")

    def _body(self, instruction: WriteStatus) -> dict[str, object]:
        """Return the status as a patch, in which null takes away what is empty."""
        status = instruction.status
        return {
            "status": {
                "phase": status.phase,
                "needed": status.needed,
                "present": status.present,
                "placed": status.placed,
                "running": status.running,
                "domain": printable(status.domain, TEXT_LIMIT) or None,
                "reason": printable(status.reason, TEXT_LIMIT) or None,
                "conditions": [
                    self._condition(instruction.uid, condition) for condition in status.conditions
                ],
            },
        }

    def _condition(self, uid: str, condition: Condition) -> dict[str, object]:
        """With the time since when it is so, as far as this process knows."""
        states = self._since.setdefault(uid, {})
        self._since.move_to_end(uid)
        if len(self._since) > WAITING_LIMIT:
            self._since.popitem(last=False)
        was, since = states.get(condition.type, (None, ""))
        if was is not condition.status:
            since = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
            states[condition.type] = (condition.status, since)
        return {
            "type": condition.type,
            "status": str(condition.status),
            "reason": condition.reason,
            "message": printable(condition.message, TEXT_LIMIT),
            "lastTransitionTime": since,
        }
