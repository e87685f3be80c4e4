"""Kubernetes events: what users see in `kubectl describe`, never at the cost of planning.

`emit` only puts into a bounded queue; one task posts from it, at a limited rate. What does not fit is dropped
and counted: an event is a courtesy, the pods' condition and /gangs carry the same sentence. core/v1 is used
because `kubectl describe` and every collector read it.
"""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict, deque
from dataclasses import dataclass
from datetime import UTC, datetime
from uuid import uuid4

import structlog

from muster.adapters.kube.backoff import Backoff
from muster.adapters.kube.client import ApiError, KubeClient, KubeError, Unreachable
from muster.adapters.telemetry.metrics import Metrics
from muster.gangs.instructions import EmitEvent, EventReason

COMPONENT = "muster"
MESSAGE_LIMIT = 1024
"""Bytes that the API server takes in `message`; our sentences put the cause first."""
TRIES = 5
RETRY_STATUS = frozenset({429, 500, 502, 503, 504})
NORMAL = frozenset({EventReason.WAITING, EventReason.PLACED})

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class EventSettings:
    """`queue`: how many may wait. `per_s` and `burst`: how fast they are posted. `repeat_after_s`: an
    object's last event is posted once more only after so long."""

    queue: int = 10_000
    per_s: float = 50.0
    burst: int = 100
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


class EventPoster:
    """Posts events; `run` ends only by cancellation. `instance` names this process in them."""

    def __init__(
        self, client: KubeClient, metrics: Metrics, instance: str, settings: EventSettings | None = None
    ) -> None:
        self._client = client
        self._metrics = metrics
        self._instance = instance
        self._settings = settings or EventSettings()
        self._waiting: deque[_Post] = deque()
        self._arrived = asyncio.Event()
        self._idle = asyncio.Event()
        self._idle.set()
        self._last: OrderedDict[str, tuple[EventReason, str, float]] = OrderedDict()
        self._tokens = float(self._settings.burst)
        self._filled = time.monotonic()

    def emit(self, instruction: EmitEvent) -> None:
        """Queue one event for each object. Never waits."""
        now = datetime.now(UTC)
        message = _shortened(instruction.message)
        for name, uid in instruction.objects:
            if self._repeated(uid, instruction.reason, message):
                self._metrics.event("repeated")
            elif len(self._waiting) >= self._settings.queue:
                self._metrics.event("dropped")
            else:
                self._waiting.append(
                    _Post(
                        instruction.api_version,
                        instruction.kind,
                        instruction.namespace,
                        name,
                        uid,
                        instruction.reason,
                        message,
                        now,
                    )
                )
        if self._waiting:
            self._idle.clear()
            self._arrived.set()

    async def run(self) -> None:
        while True:
            await self._arrived.wait()
            while self._waiting:
                await self._take_token()
                await self._post(self._waiting.popleft())
            self._arrived.clear()
            self._idle.set()

    async def drained(self) -> None:
        """Returns when nothing waits to be posted: for a clean shutdown (give it a deadline) and tests."""
        await self._idle.wait()

    def _repeated(self, uid: str, reason: EventReason, message: str) -> bool:
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

    async def _take_token(self) -> None:
        now = time.monotonic()
        grown = self._tokens + (now - self._filled) * self._settings.per_s
        self._tokens, self._filled = min(float(self._settings.burst), grown) - 1, now
        if self._tokens < 0:
            await asyncio.sleep(-self._tokens / self._settings.per_s)

    async def _post(self, post: _Post) -> None:
        backoff = Backoff(first=0.25, limit=8.0)
        path = f"/api/v1/namespaces/{post.namespace}/events"
        what = f"event on {post.kind.lower()} {post.namespace}/{post.name}"
        for attempt in range(1, TRIES + 1):
            try:
                await self._client.post(what, path, self._body(post))
            except KubeError as problem:
                lasting = isinstance(problem, ApiError) and problem.status not in RETRY_STATUS
                if lasting or attempt == TRIES or not isinstance(problem, ApiError | Unreachable):
                    # 403 and 404 mean a namespace that is going away: nobody will miss it there
                    log.warning("event lost", reason=post.reason.value, tries=attempt, error=str(problem))
                    self._metrics.event("failed")
                    return
            else:
                self._metrics.event("posted")
                return
            await asyncio.sleep(backoff.delay())

    def _body(self, post: _Post) -> dict[str, object]:
        at = post.at.strftime("%Y-%m-%dT%H:%M:%SZ")
        return {
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {"name": f"{post.name[:200]}.{uuid4().hex[:16]}", "namespace": post.namespace},
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


def _shortened(message: str) -> str:
    """At most MESSAGE_LIMIT bytes of UTF-8."""
    encoded = message.encode()
    if len(encoded) <= MESSAGE_LIMIT:
        return message
    return encoded[: MESSAGE_LIMIT - 3].decode(errors="ignore") + "…"
