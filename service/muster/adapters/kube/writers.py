"""The writes to the API server: events, evictions, statuses of PodGroups, and conditions of waiting pods.

Each kind of write has an outbox, which queues, limits and repeats the writes. No caller waits.
"""

from __future__ import annotations

import re
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from uuid import uuid4

import structlog

from muster.adapters.kube.client import ApiError, KubeClient, KubeError
from muster.adapters.kube.outbox import Outbox, Retry
from muster.adapters.telemetry.metrics import Metrics
from muster.config import Events, Rates
from muster.dialects.objects import PodObject
from muster.domain.podgroup import Condition, PodGroupStatus
from muster.domain.printable import printable
from muster.gangs.messages.instructions import EmitEvent, EventReason, Evict, ShowWaiting, WriteStatus

MAX_EVICTIONS = 20_000
"""Largest number of waiting pods, of all namespaces. Further pods are dropped, and the gangs request their
eviction again."""
NOT_THERE = (404, 409)
"""Status codes: the pod is gone, or another pod has its name."""

FORBIDDEN = 403
MAX_STATUSES = 10_000
"""Largest number of objects whose status may wait, and whose conditions are remembered: more PodGroups than a
cluster has."""
TEXT_LIMIT = 1024
"""Characters of one text in a status."""
CONDITION = "gpu.topology/WaitingForMembers"
COMPLETE = ("GangComplete", "The gang waits for no member.")
"""Reason and message once the gang is complete."""
ConditionText = tuple[str, str]
"""Reason and message."""
COMPONENT = "muster"
MESSAGE_LIMIT = 1024
"""Bytes that the API server takes in `message`; our sentences put the cause first."""
CONFLICT = 409
"""Status code: an event of this name exists, because an earlier try without an answer succeeded."""
_OBJECT_NAME = re.compile(r"[a-z0-9]([-a-z0-9.]{0,198}[a-z0-9])?")
NORMAL = frozenset({EventReason.WAITING, EventReason.PLACED})

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class _Pod:
    namespace: str
    name: str
    uid: str
    why: str = ""


class Evictor(Outbox[_Pod]):
    """Evicts the bound members of gangs that are given up, through the API that honours disruption budgets.

    An eviction that is refused for long is given up. The gangs request it again as long as the pod exists.
    The UID is a precondition, so a later pod of the same name is left alone. Before each eviction the evictor
    calls `evicts` with the UID: the gang may have become complete while the pod waited. An eviction without
    an answer is sent again. For a pod that already terminates, this changes nothing.
    """

    def __init__(self, client: KubeClient, metrics: Metrics, evicts: Callable[[str], bool]) -> None:
        super().__init__(client, Rates.of_queue(MAX_EVICTIONS))
        self._evicts = evicts
        self._metrics = metrics

    def evict(self, instruction: Evict) -> None:
        """Queue the pods that are not queued yet. Never waits."""
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
        body = {
            "apiVersion": "policy/v1",
            "kind": "Eviction",
            "metadata": {"name": item.name, "namespace": item.namespace},
            "deleteOptions": {"preconditions": {"uid": item.uid}},
        }
        await self._client.post(f"eviction of pod {item.namespace}/{item.name}", path, body)

    def _after_send(self, item: _Pod, refusal: KubeError | None) -> None:
        if refusal is None:
            log.info("evicted", pod=f"{item.namespace}/{item.name}", why=item.why)
            self._metrics.eviction("evicted")
        elif isinstance(refusal, ApiError) and refusal.status in NOT_THERE:
            self._metrics.eviction("gone")
        else:
            log.warning("not evicted", why=item.why, error=str(refusal))
            self._metrics.eviction("failed")


class StatusWriter(Outbox[WriteStatus]):
    """Writes the status of PodGroup objects, by a patch of the status subresource.

    A new status replaces the waiting status of its object. So an outage of the API server costs one write for
    each object, and not one for each change. A patch without an answer may succeed after the next patch. Then
    the watch shows the old status, and the gangs request the status again.

    In Kubernetes' own PodGroups, one condition is written. The rest of their status belongs to other writers,
    and a strategic merge patch does not change it. The UID in that patch protects a later object of the name.
    """

    retry = Retry(tries=100, limit_s=30.0)
    """Some 40 minutes of tries, because a status is requested again only when the object changes."""

    def __init__(self, client: KubeClient, metrics: Metrics) -> None:
        super().__init__(client, Rates.of_queue(MAX_STATUSES))
        self._metrics = metrics
        self._since: OrderedDict[str, dict[str, tuple[bool, str]]] = OrderedDict()
        """Object → condition → (status, since when)."""
        self._forbidden: set[str] = set()
        """API versions of PodGroups whose status this account may not write."""

    def write(self, instruction: WriteStatus) -> None:
        """Queue the status of an object. Never waits."""
        # keyed by name, not UID: the status of a deleted object is replaced by that of its successor
        key = (instruction.api_version, instruction.name)
        if self._put(instruction.namespace, key, instruction) is not None:
            self._metrics.status("dropped")

    async def _send(self, item: WriteStatus) -> None:
        path = f"/apis/{item.api_version}/namespaces/{item.namespace}/podgroups/{item.name}/status"
        subject = f"status of podgroup {item.namespace}/{item.name}"
        if isinstance(item.status, Condition):
            condition = self._condition(item.uid, item.status) | {"observedGeneration": item.generation}
            body = {"metadata": {"uid": item.uid}, "status": {"conditions": [condition]}}
            await self._client.patch(subject, path, body, kind="strategic-merge")
        else:
            await self._client.patch(subject, path, self._body(item.uid, item.status))

    def _note_refusal(self, item: WriteStatus, refusal: ApiError) -> None:
        if refusal.status == FORBIDDEN and item.api_version not in self._forbidden:
            self._forbidden.add(item.api_version)
            right = f"patch podgroups/status of {item.api_version}"
            log.warning("a status may not be written, tried again", right=right, error=str(refusal))

    def _after_send(self, item: WriteStatus, refusal: KubeError | None) -> None:
        if refusal is not None:  # the object is gone, or its CRD is not ours
            log.warning("status not written", podgroup=f"{item.namespace}/{item.name}", error=str(refusal))
        self._metrics.status("written" if refusal is None else "failed")

    def _body(self, uid: str, status: PodGroupStatus) -> dict[str, object]:
        """Return the status as a patch, in which null removes empty fields."""
        return {
            "status": {
                "phase": status.phase,
                "needed": status.needed,
                "present": status.present,
                "placed": status.placed,
                "running": status.running,
                "domain": printable(status.domain, TEXT_LIMIT) or None,
                "reason": printable(status.reason, TEXT_LIMIT) or None,
                "conditions": [self._condition(uid, condition) for condition in status.conditions],
            },
        }

    def _condition(self, uid: str, condition: Condition) -> dict[str, object]:
        """Return the condition with the time of its last transition, as far as this process or the object
        knows."""
        states = self._since.setdefault(uid, {})
        self._since.move_to_end(uid)
        if len(self._since) > MAX_STATUSES:
            self._since.popitem(last=False)
        was, since = states.get(condition.type, (None, ""))
        if condition.since or was is not condition.status:
            since = condition.since or _text_of(datetime.now(UTC))
            states[condition.type] = (condition.status, since)
        return {
            "type": condition.type,
            "status": str(condition.status),
            "reason": condition.reason,
            "message": printable(condition.message, TEXT_LIMIT),
            "lastTransitionTime": since,
        }


class ConditionWriter(Outbox[_Pod]):
    """Writes the condition `gpu.topology/WaitingForMembers` of pods whose gang is incomplete.

    The gangs state the condition that each pod must have, and the watch shows the condition that it has.
    Differences are written, so a write that was lost, dropped or overtaken is repeated. The condition of a
    bound pod is taken back, also if another service wrote it. Only the service that `leads` writes.

    Other conditions of the pod belong to other writers, and a strategic merge patch does not change them. The
    UID in the patch protects a later pod of the same name.
    """

    def __init__(self, client: KubeClient, metrics: Metrics, leads: Callable[[], bool], rates: Rates) -> None:
        super().__init__(client, rates)
        self._metrics = metrics
        self._leads = leads
        self._desired: dict[str, tuple[_Pod, ConditionText | None]] = {}
        """UID → the pod and its desired condition. None: no condition; the entry is dropped once the pod has
        none."""
        self._shown: dict[str, ConditionText] = {}
        """UID → the condition that the pod shows."""
        self._sent: dict[str, ConditionText | None] = {}
        """UID → the condition in the write under way."""
        self._unreviewed: set[str] = set()
        """UIDs of pods that were seen while another service led, and may show an old condition."""
        self._is_failing = False

    @property
    def pod_count(self) -> int:
        """Return the number of pods about which facts are kept."""
        return len(self._desired.keys() | self._shown.keys() | self._sent.keys() | self._unreviewed)

    def show(self, instruction: ShowWaiting) -> None:
        """Take in the desired condition of pods. Never waits."""
        self._catch_up()
        text = (
            (instruction.reason, printable(instruction.message, TEXT_LIMIT)) if instruction.reason else None
        )
        for name, uid in instruction.pods:
            _, old_text = self._desired.get(uid, (None, None))
            if text is None and old_text is None and uid not in self._shown:
                continue
            if text is None or old_text is None or instruction.renew:
                self._desired[uid] = (_Pod(instruction.namespace, name, uid), text)
                self._review(uid)

    def see(self, uid: str, obj: PodObject | None) -> None:
        """Take in the condition that a pod shows; None if the pod is gone. Never waits."""
        if obj is None:
            self._desired.pop(uid, None)
            self._shown.pop(uid, None)
            self._unreviewed.discard(uid)
            return
        metadata, status = obj.metadata, obj.status
        our_conditions = (
            condition
            for condition in status.conditions or ()
            if (condition.type, condition.status) == (CONDITION, "True")
        )
        self._note_shown(
            uid, next(((condition.reason, condition.message) for condition in our_conditions), None)
        )
        if obj.spec.node_name and (uid in self._shown or uid in self._desired):
            self._desired[uid] = (_Pod(metadata.namespace, metadata.name, uid), None)
        self._catch_up()
        self._review(uid)

    def _catch_up(self) -> None:
        if self._unreviewed and self._leads():
            pods, self._unreviewed = self._unreviewed, set()
            for uid in pods:
                self._review(uid)

    def _review(self, uid: str) -> None:
        """Queue the pod if its condition differs from the desired one."""
        if uid not in self._desired:
            return
        pod, desired = self._desired[uid]
        if desired == self._shown.get(uid):
            if desired is None:
                del self._desired[uid]
        elif not self._leads():
            self._unreviewed.add(uid)
        elif (dropped := self._put(pod.namespace, uid, pod)) is not None:
            if dropped.uid not in self._shown:
                self._desired.pop(dropped.uid, None)  # the pod may be gone, which would not be reported again
            self._metrics.condition("dropped")

    def _is_due(self, item: _Pod) -> bool:
        desired = self._desired[item.uid][1] if item.uid in self._desired else None
        if desired != self._shown.get(item.uid) and self._leads():
            self._sent[item.uid] = desired
            return True
        self._sent.pop(item.uid, None)
        self._review(item.uid)
        return False

    async def _send(self, item: _Pod) -> None:
        path = f"/api/v1/namespaces/{item.namespace}/pods/{item.name}/status"
        subject = f"condition of pod {item.namespace}/{item.name}"
        await self._client.patch(subject, path, self._body(item.uid), kind="strategic-merge")

    def _after_send(self, item: _Pod, refusal: KubeError | None) -> None:
        text = self._sent.pop(item.uid)
        if refusal is None:
            self._metrics.condition("written")
            self._note_shown(item.uid, text)
            self._review(item.uid)
        elif isinstance(refusal, ApiError) and refusal.status in NOT_THERE:
            self._metrics.condition("gone")
            # The gangs may have named the pod after the watch reported its deletion.
            self._desired.pop(item.uid, None)
        else:
            self._metrics.condition("failed")
            if not self._is_failing:
                log.warning("conditions are not written", error=str(refusal))
        self._is_failing = refusal is not None

    def _note_shown(self, uid: str, text: ConditionText | None) -> None:
        if text is None:
            self._shown.pop(uid, None)
        else:
            self._shown[uid] = text

    def _body(self, uid: str) -> dict[str, object]:
        text = self._sent[uid]
        reason, message = text or COMPLETE
        condition = {"type": CONDITION, "status": str(text is not None), "reason": reason, "message": message}
        if (uid in self._shown) is not (text is not None):
            condition["lastTransitionTime"] = _text_of(datetime.now(UTC))
        return {"metadata": {"uid": uid}, "status": {"conditions": [condition]}}


@dataclass(frozen=True, slots=True)
class _Post:
    """An event on one of the objects of an instruction."""

    instruction: EmitEvent
    name: str
    uid: str
    message: str
    event_time: datetime
    id: str
    """Part of the event's name, the same at each try."""


class EventPoster(Outbox[_Post]):
    """Posts Kubernetes events, which users see in `kubectl describe`. `instance` names this process in them.

    An event that does not fit into the queue is dropped and counted, because the pods' condition and /gangs
    have the same sentence. core/v1 is used because `kubectl describe` and every collector read it.
    """

    def __init__(self, client: KubeClient, metrics: Metrics, instance: str, settings: Events) -> None:
        super().__init__(client, settings)
        self._settings = settings
        self._metrics = metrics
        self._instance = instance
        self._last: OrderedDict[str, tuple[EventReason, str, float]] = OrderedDict()

    def emit(self, instruction: EmitEvent) -> None:
        """Queue one event for each object. Never waits."""
        now = datetime.now(UTC)
        message = _shorten(printable(instruction.message, MESSAGE_LIMIT))
        for name, uid in instruction.objects:
            post = _Post(instruction, name, uid, message, now, uuid4().hex[:16])
            namespace = "" if instruction.kind == "Node" else instruction.namespace
            if self._is_repeated(uid, instruction.reason, message):
                self._metrics.event("repeated")
            elif (dropped := self._put(namespace, post.id, post, subject=uid)) is not None:
                self._last.pop(dropped.uid, None)  # it was not posted
                self._metrics.event("dropped")

    def _is_repeated(self, uid: str, reason: EventReason, message: str) -> bool:
        """Return whether the object's last event was the same, not long ago: a retry, and no change of
        state."""
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
        namespace = item.instruction.namespace
        subject = f"event on {item.instruction.kind.lower()} {namespace}/{item.name}"
        await self._client.post(subject, f"/api/v1/namespaces/{namespace}/events", self._body(item))

    def _after_send(self, item: _Post, refusal: KubeError | None) -> None:
        if refusal is None or (isinstance(refusal, ApiError) and refusal.status == CONFLICT):
            self._metrics.event("posted")
        else:  # often in a namespace that is being deleted, where events no longer matter
            log.warning("event lost", reason=item.instruction.reason.value, error=str(refusal))
            self._metrics.event("failed")

    def _body(self, post: _Post) -> dict[str, object]:
        timestamp = _text_of(post.event_time)
        return {
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {"name": _event_name(post), "namespace": post.instruction.namespace},
            "involvedObject": {
                "apiVersion": post.instruction.api_version,
                "kind": post.instruction.kind,
                "name": post.name,
                "uid": post.uid,
                **({"namespace": post.instruction.namespace} if post.instruction.kind != "Node" else {}),
            },
            "reason": post.instruction.reason.value,
            "message": post.message,
            "type": "Normal" if post.instruction.reason in NORMAL else "Warning",
            "firstTimestamp": timestamp,
            "lastTimestamp": timestamp,
            "count": 1,
            "source": {"component": COMPONENT},
            "reportingComponent": COMPONENT,
            "reportingInstance": self._instance,
        }


def _event_name(post: _Post) -> str:
    """Return the event's name. It can't always contain the controller's name, which may be invalid for an
    event."""
    is_object_name = _OBJECT_NAME.fullmatch(post.name[:200])
    return f"{post.name[:200] if is_object_name else COMPONENT}.{post.id}"


def _text_of(moment: datetime) -> str:
    return moment.strftime("%Y-%m-%dT%H:%M:%SZ")


def _shorten(message: str) -> str:
    """Return the message, cut to MESSAGE_LIMIT bytes of UTF-8."""
    encoded = message.encode()
    if len(encoded) <= MESSAGE_LIMIT:
        return message
    return encoded[: MESSAGE_LIMIT - 3].decode(errors="ignore") + "…"
