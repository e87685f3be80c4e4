"""The condition `gpu.topology/WaitingForMembers` of pods whose gang is incomplete.

The gangs say what each pod is to show, and the watch says what it shows. What differs is written. So a write
that was lost, dropped or overtaken by another is repeated. What a bound pod shows is taken back, also if
another service wrote it. Only the leader writes.

The pod's other conditions belong to others: a strategic merge patch leaves them alone. The UID in the patch
keeps a later pod of the same name from being told.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime

import structlog

from muster.adapters.kube.client import ApiError, KubeClient, KubeError
from muster.adapters.kube.outbox import Retry
from muster.adapters.kube.rated import RatedOutbox, Rates
from muster.adapters.kube.watch import Gone, Seen
from muster.adapters.telemetry.metrics import Metrics
from muster.dialects.objects import PodObject
from muster.domain.printable import printable
from muster.gangs.messages.instructions import ShowWaiting

CONDITION = "gpu.topology/WaitingForMembers"
COMPLETE = ("GangComplete", "The gang waits for no member.")
"""Reason and message once it is over."""
TEXT_LIMIT = 1024
NOT_THERE = (404, 409)
"""The pod is gone, or another one bears its name."""

log = structlog.get_logger(__name__)

Said = tuple[str, str]
"""Reason and message."""


@dataclass(frozen=True, slots=True)
class _Pod:
    namespace: str
    name: str
    uid: str


class ConditionWriter(RatedOutbox[_Pod]):
    """Writes the condition. `leads`: whether this service is the one that writes."""

    def __init__(
        self,
        client: KubeClient,
        metrics: Metrics,
        leads: Callable[[], bool],
        rates: Rates,
        retry: Retry | None = None,
    ) -> None:
        super().__init__(client, rates, retry)
        self._metrics = metrics
        self._leads = leads
        self._desired: dict[str, tuple[_Pod, Said | None]] = {}
        """By UID: what pods are to show. None: nothing any more, which is forgotten once it is so."""
        self._shown: dict[str, Said] = {}
        """By UID: what pods show."""
        self._queued: set[str] = set()
        self._sent: dict[str, Said | None] = {}
        """By UID: what the write under way says."""
        self._unreviewed: set[str] = set()
        """UIDs of pods that may show what is over, seen while another service was the leader."""
        self._fails = False

    @property
    def kept(self) -> int:
        """Return of how many pods anything is kept."""
        return len(
            self._desired.keys() | self._shown.keys() | self._queued | self._sent.keys() | self._unreviewed
        )

    def show(self, instruction: ShowWaiting) -> None:
        """Take in what pods are to show. Never waits."""
        self._catch_up()
        text = (
            (instruction.reason, printable(instruction.message, TEXT_LIMIT)) if instruction.reason else None
        )
        for name, uid in instruction.pods:
            _, before = self._desired.get(uid, (None, None))
            if text is None and before is None and uid not in self._shown:
                continue
            if text is None or before is None or instruction.renew:
                self._desired[uid] = (_Pod(instruction.namespace, name, uid), text)
                self._review(uid)

    def see(self, change: Seen[PodObject] | Gone) -> None:
        """Take in what a pod shows. Never waits."""
        if isinstance(change, Gone):
            self._desired.pop(change.key, None)
            self._shown.pop(change.key, None)
            self._unreviewed.discard(change.key)
            return
        metadata, status = change.object.metadata, change.object.status
        uid = metadata.uid
        our_conditions = (
            condition
            for condition in status.conditions or ()
            if (condition.type, condition.status) == (CONDITION, "True")
        )
        self._now_shows(
            uid, next(((condition.reason, condition.message) for condition in our_conditions), None)
        )
        if change.object.spec.node_name and (uid in self._shown or uid in self._desired):
            self._desired[uid] = (_Pod(metadata.namespace, metadata.name, uid), None)
        self._catch_up()
        self._review(uid)

    def _catch_up(self) -> None:
        if self._unreviewed and self._leads():
            pods, self._unreviewed = self._unreviewed, set()
            for uid in pods:
                self._review(uid)

    def _review(self, uid: str) -> None:
        """Queue the pod if it is to show something else than it shows."""
        if uid in self._queued or uid not in self._desired:
            return
        pod, desired = self._desired[uid]
        if desired == self._shown.get(uid):
            if desired is None:
                del self._desired[uid]
        elif not self._leads():
            self._unreviewed.add(uid)
        else:
            self._queued.add(uid)
            if (dropped := self._offer(pod)) is not None:
                self._queued.discard(dropped.uid)
                if dropped.uid not in self._shown:
                    self._desired.pop(dropped.uid, None)  # it may be gone, which nothing would say again
                self._metrics.condition("dropped")

    def _budget(self, item: _Pod) -> str:
        return item.namespace

    def _key(self, item: _Pod) -> tuple[str, str]:
        return item.uid, item.uid

    def _is_due(self, item: _Pod) -> bool:
        desired = self._desired[item.uid][1] if item.uid in self._desired else None
        if desired != self._shown.get(item.uid) and self._leads():
            self._sent[item.uid] = desired
            return True
        self._queued.discard(item.uid)
        self._sent.pop(item.uid, None)
        self._finish(item)
        self._review(item.uid)
        return False

    async def _send(self, item: _Pod) -> None:
        path = f"/api/v1/namespaces/{item.namespace}/pods/{item.name}/status"
        subject = f"condition of pod {item.namespace}/{item.name}"
        await self._client.strategic_patch(subject, path, self._body(item.uid))

    def _done(self, item: _Pod, refusal: KubeError | None) -> None:
        self._queued.discard(item.uid)
        text = self._sent.pop(item.uid)
        if refusal is None:
            self._metrics.condition("written")
            self._now_shows(item.uid, text)
            self._review(item.uid)
        elif isinstance(refusal, ApiError) and refusal.status in NOT_THERE:
            self._metrics.condition("gone")
            # The gangs may have named the pod after the watch said that it is gone.
            self._desired.pop(item.uid, None)
        else:
            self._metrics.condition("failed")
            if not self._fails:
                log.warning("conditions are not written", error=str(refusal))
        self._fails = refusal is not None

    def _now_shows(self, uid: str, text: Said | None) -> None:
        if text is None:
            self._shown.pop(uid, None)
        else:
            self._shown[uid] = text

    def _body(self, uid: str) -> dict[str, object]:
        text = self._sent[uid]
        reason, message = text or COMPLETE
        condition = {"type": CONDITION, "status": str(text is not None), "reason": reason, "message": message}
        if (uid in self._shown) is not (text is not None):
            condition["lastTransitionTime"] = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        return {"metadata": {"uid": uid}, "status": {"conditions": [condition]}}
