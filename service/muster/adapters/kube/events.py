"""Kubernetes events: what users see in `kubectl describe`, never at the cost of planning.

They are posted at a limited rate, in all and for each namespace: a namespace that floods delays and drops its
own events alone. What does not fit into the queue is dropped and counted: an event is a courtesy, the pods'
condition and /gangs carry the same sentence. core/v1 is used because `kubectl describe`
and every collector read it.
"""

from __future__ import annotations

import re
import time
from collections import OrderedDict
from dataclasses import dataclass
from datetime import UTC, datetime
from uuid import uuid4

import structlog

from muster.adapters.kube.client import ApiError, KubeClient, KubeError
from muster.adapters.kube.outbox import Retry
from muster.adapters.kube.rated import RatedOutbox, Rates
from muster.adapters.telemetry.metrics import Metrics
from muster.domain.printable import printable
from muster.gangs.messages.instructions import EmitEvent, EventReason

COMPONENT = "muster"
MESSAGE_LIMIT = 1024
"""Bytes that the API server takes in `message`; our sentences put the cause first."""
HTTP_CONFLICT = 409
"""There is an event of this name: a try whose answer did not come had landed."""
NODES = ""
"""The budget of events on nodes, which are no namespace's."""
_OBJECT_NAME = re.compile(r"[a-z0-9]([-a-z0-9.]{0,198}[a-z0-9])?")
NORMAL = frozenset({EventReason.WAITING, EventReason.PLACED})

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class EventSettings(Rates):
    """`repeat_after_s`: an object's last event is posted once more only after so long."""

    repeat_after_s: float = 600.0


@dataclass(frozen=True, slots=True)
class _Post:
    api_version: str
    kind: str
    namespace: str
    name: str
    uid: str
    reason: EventReason
    message: str
    at: datetime
    id: str
    """Of the event's own name, the same at each try."""

    @property
    def budget(self) -> str:
        """Whose rate and room it takes."""
        return NODES if self.kind == "Node" else self.namespace


class EventPoster(RatedOutbox[_Post]):
    """Posts events. `instance` names this process in them."""

    def __init__(
        self,
        client: KubeClient,
        metrics: Metrics,
        instance: str,
        settings: EventSettings | None = None,
        retry: Retry | None = None,
    ) -> None:
        self._settings = settings or EventSettings()
        super().__init__(client, self._settings, retry)
        self._metrics = metrics
        self._instance = instance
        self._last: OrderedDict[str, tuple[EventReason, str, float]] = OrderedDict()

    def emit(self, instruction: EmitEvent) -> None:
        """Queue one event for each object. Never waits."""
        now = datetime.now(UTC)
        message = _shorten(printable(instruction.message, MESSAGE_LIMIT))
        for name, uid in instruction.objects:
            post = _Post(
                instruction.api_version,
                instruction.kind,
                instruction.namespace,
                name,
                uid,
                instruction.reason,
                message,
                now,
                uuid4().hex[:16],
            )
            if self._is_repeated(uid, instruction.reason, message):
                self._metrics.event("repeated")
            elif (dropped := self._offer(post)) is not None:
                self._last.pop(dropped.uid, None)  # it was not said
                self._metrics.event("dropped")

    def _is_repeated(self, uid: str, reason: EventReason, message: str) -> bool:
        """Whether the object's last event said the same not long ago: a retry, and no change of state."""
        now, last = time.monotonic(), self._last.pop(uid, None)
        same = last is not None and last[:2] == (reason, message)
        if same and last is not None and now - last[2] < self._settings.repeat_after_s:
            self._last[uid] = last
            return True
        self._last[uid] = (reason, message, now)
        if len(self._last) > 2 * self._settings.queue:
            self._last.popitem(last=False)
        return False

    async def _send(self, item: _Post) -> None:
        subject = f"event on {item.kind.lower()} {item.namespace}/{item.name}"
        await self._client.post(subject, f"/api/v1/namespaces/{item.namespace}/events", self._body(item))

    def _budget(self, item: _Post) -> str:
        return item.budget

    def _key(self, item: _Post) -> tuple[str, str]:
        return item.id, item.uid

    def _done(self, item: _Post, refusal: KubeError | None) -> None:
        if refusal is None or (isinstance(refusal, ApiError) and refusal.status == HTTP_CONFLICT):
            self._metrics.event("posted")
        else:  # often in a namespace that is being deleted, where events no longer matter
            log.warning("event lost", reason=item.reason.value, error=str(refusal))
            self._metrics.event("failed")

    def _body(self, post: _Post) -> dict[str, object]:
        at = post.at.strftime("%Y-%m-%dT%H:%M:%SZ")
        return {
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {"name": _event_name(post), "namespace": post.namespace},
            "involvedObject": {
                "apiVersion": post.api_version,
                "kind": post.kind,
                "name": post.name,
                "uid": post.uid,
                **({"namespace": post.namespace} if post.kind != "Node" else {}),
            },
            "reason": post.reason.value,
            "message": post.message,
            "type": "Normal" if post.reason in NORMAL else "Warning",
            "firstTimestamp": at,
            "lastTimestamp": at,
            "count": 1,
            "source": {"component": COMPONENT},
            "reportingComponent": COMPONENT,
            "reportingInstance": self._instance,
        }


def _event_name(post: _Post) -> str:
    """Return the event's own name. A controller may be called what no object can be called."""
    is_object_name = _OBJECT_NAME.fullmatch(post.name[:200])
    return f"{post.name[:200] if is_object_name else COMPONENT}.{post.id}"


def _shorten(message: str) -> str:
    """At most MESSAGE_LIMIT bytes of UTF-8."""
    encoded = message.encode()
    if len(encoded) <= MESSAGE_LIMIT:
        return message
    return encoded[: MESSAGE_LIMIT - 3].decode(errors="ignore") + "…"
