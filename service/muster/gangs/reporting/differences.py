"""Tell where containers have other GPUs than the planned ones, once for each pod."""

from __future__ import annotations

from collections.abc import Callable

from muster.domain.pod import Pod
from muster.domain.sentences import differing_sentence
from muster.gangs.messages.instructions import EmitEvent, EventReason
from muster.gangs.reporting.publisher import Publisher

LISTED = 20
"""Pods that are named in the status."""


class Differences:
    """Pods whose containers have other GPUs. What a node agent found counts as taken all the same.

    `active` returns whether this service is the one that speaks.
    """

    def __init__(self, publisher: Publisher, active: Callable[[], bool]) -> None:
        self._publisher = publisher
        self._active = active
        self._pods: dict[str, Pod] = {}
        self._posted: dict[str, str] = {}
        """UID → the sentence of the last event."""

    def __len__(self) -> int:
        """Return the number of these pods."""
        return len(self._pods)

    def see(self, pod: Pod) -> None:
        """Take in a pod's new state."""
        if pod.planned is None or pod.usage is None:
            self.forget(pod.uid)
        else:
            self._pods[pod.uid] = pod
            self._post(pod)

    def forget(self, uid: str) -> None:
        """Forget a pod that is gone."""
        self._pods.pop(uid, None)
        self._posted.pop(uid, None)

    def post_all(self) -> None:
        """Post the events that were not posted yet, when this service begins to speak."""
        for pod in self._pods.values():
            self._post(pod)

    def notes(self) -> list[str]:
        """Return a sentence for each of the first pods, and how many more there are."""
        pods = sorted(self._pods.values(), key=lambda pod: (pod.namespace, pod.name))
        listed = [f"pod {pod.namespace}/{pod.name}: {_sentence(pod)}" for pod in pods[:LISTED]]
        more = len(pods) - len(listed)
        return [*listed, *([f"{more} more pods have other GPUs than planned"] if more else [])]

    def _post(self, pod: Pod) -> None:
        text = _sentence(pod)
        if self._active() and self._posted.get(pod.uid) != text:
            self._posted[pod.uid] = text
            where = ((pod.name, pod.uid),)
            self._publisher.instruct(EmitEvent(pod.namespace, where, EventReason.DEVICES_DIFFER, text))


def _sentence(pod: Pod) -> str:
    return differing_sentence(pod.planned or 0, pod.allocation or 0)
