"""Report pods whose containers have other GPUs than planned, once for each pod.

Either a node agent reports other GPUs, or the pod's claims hold other devices of a DRA driver than its plan
names. Pods and claims are seen by two watches, so the known state of a claim may be older than the pod's
Binding. A difference by claims is therefore reported only after `LASTS_S`.
"""

from __future__ import annotations

from collections.abc import Iterable

from muster.domain.node import Device
from muster.domain.pod import Pod
from muster.domain.sentences import differing_devices_sentence, differing_gpus_sentence
from muster.gangs.capacity.ledger import Ledger
from muster.gangs.messages.instructions import EmitEvent, EventReason
from muster.gangs.reporting.publisher import Publisher

LISTED = 20
"""Largest number of pods that are named in the status."""
LASTS_S = 5.0
"""Seconds after which claims that differ from the plan are reported."""


class Differences:
    """Pods whose containers have other GPUs than planned. GPUs that an agent found or claims hold count as
    taken."""

    def __init__(self, publisher: Publisher, ledger: Ledger) -> None:
        self._publisher = publisher
        self._ledger = ledger
        self._pods: dict[str, Pod] = {}
        """Bound pods whose plan names devices, or whose agent found other GPUs."""
        self._due: dict[str, float] = {}
        """UID → when to report the difference by its claims, the earliest first."""
        self._sentences: dict[str, str] = {}
        """UID → a sentence on its present difference."""
        self._posted: dict[str, str] = {}
        """UID → the sentence of the last event."""

    def __len__(self) -> int:
        """Return the number of the pods that differ."""
        return len(self._sentences)

    def see(self, pod: Pod) -> None:
        """Take in a pod's new state."""
        if pod.usage is None or (pod.planned is None and not pod.devices):
            self.forget(pod.uid)
        else:
            self._pods[pod.uid] = pod
            self._compare(pod)

    def compare_again(self, uids: Iterable[str]) -> None:
        """Compare these pods again, because their claims changed."""
        for pod in (self._pods[uid] for uid in uids if uid in self._pods):
            self._compare(pod)

    def compare_node_again(self, name: str) -> None:
        """Compare the pods of a node again, because its devices may have changed."""
        self.compare_again(self._ledger.stated_usages_on(name))

    def forget(self, uid: str) -> None:
        """Forget a pod that is gone."""
        self._pods.pop(uid, None)
        self._forget_difference(uid)

    def tick(self) -> None:
        """Report the differences that have lasted long enough."""
        for uid in [uid for uid, due in self._due.items() if due <= self._publisher.now]:
            del self._due[uid]
            self._report(uid, self._sentence_by_claims(self._pods[uid]))

    def next_deadline(self) -> float | None:
        """Return when the next Tick is due; None if no Tick is needed."""
        return next(iter(self._due.values()), None)

    def post_all(self) -> None:
        """Post the events that were not posted yet, because a shim has connected."""
        for uid in self._sentences:
            self._post(uid)

    def notes(self) -> list[str]:
        """Return a sentence on each of the first pods, and a sentence with the number of further pods."""
        pods = sorted((self._pods[uid] for uid in self._sentences), key=lambda pod: (pod.namespace, pod.name))
        listed = [f"pod {pod.namespace}/{pod.name}: {self._sentences[pod.uid]}" for pod in pods[:LISTED]]
        unlisted_count = len(pods) - len(listed)
        return [
            *listed,
            *([f"{unlisted_count} more pods have other GPUs than planned"] if unlisted_count else []),
        ]

    def _compare(self, pod: Pod) -> None:
        """Compare the GPUs of a pod with its plan, and report a difference now or after `LASTS_S`."""
        if pod.planned is not None:
            self._due.pop(pod.uid, None)
            self._report(pod.uid, differing_gpus_sentence(pod.planned, pod.allocation or 0))
        elif not (sentence := self._sentence_by_claims(pod)):
            self._forget_difference(pod.uid)
        elif pod.uid in self._sentences:
            self._report(pod.uid, sentence)
        else:
            self._due.setdefault(pod.uid, self._publisher.now + LASTS_S)

    def _sentence_by_claims(self, pod: Pod) -> str:
        """Return a sentence on how the devices of the pod's claims differ from the planned devices; else "".

        Claims with too few devices are no difference: other claims of the pod may not have been seen yet.
        """
        planned, node = set(pod.devices), self._ledger.nodes.get(pod.node)
        if pod.group_claims and not planned:
            return ""  # its devices were planned for an earlier holder of its PodGroup's claims
        claimed = self._ledger.device_claims.devices_of(pod.uid)
        gpus = set[Device | None](node.devices) if node is not None else set[Device | None]()
        drivers = {device.driver for device in planned}
        unplanned = {device for device in claimed - planned if device.driver in drivers or device in gpus}
        missing = planned - claimed
        extra_devices = unplanned & gpus if not missing else unplanned
        return (
            differing_devices_sentence(missing, extra_devices)
            if len(extra_devices) >= max(1, len(missing))
            else ""
        )

    def _forget_difference(self, uid: str) -> None:
        self._due.pop(uid, None)
        self._sentences.pop(uid, None)
        self._posted.pop(uid, None)

    def _report(self, uid: str, sentence: str) -> None:
        self._sentences[uid] = sentence
        self._post(uid)

    def _post(self, uid: str) -> None:
        pod, text = self._pods[uid], self._sentences[uid]
        if self._publisher.listening() and self._posted.get(uid) != text:
            self._posted[uid] = text
            objects = ((pod.name, uid),)
            self._publisher.instruct(EmitEvent(pod.namespace, objects, EventReason.DEVICES_DIFFER, text))
