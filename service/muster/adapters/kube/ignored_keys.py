"""Say once for each gang which keys on its pods have no effect: of KAI, or of unknown systems."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable

from muster.adapters.kube.standing import Standing, always
from muster.dialects.jobs import slips
from muster.dialects.objects import PodObject
from muster.domain.pod import Pod
from muster.gangs.messages.instructions import EmitEvent, EventReason


class IgnoredKeys:
    """The pods of ours that have such keys, by gang. `emit` posts an event, if this replica `leads`."""

    def __init__(self, emit: Callable[[EmitEvent], None], leads: Callable[[], bool] = always) -> None:
        self._standing = Standing(emit, leads)
        self.post_held = self._standing.post_held
        self._by_uid: dict[str, Hashable] = {}
        self._pods = Counter[Hashable]()

    def see(self, obj: PodObject, pod: Pod) -> None:
        """Take in a pod, and post an event on it if it is the first of its gang."""
        slip_text = "; ".join(slips.on_pod(obj.metadata, pod))
        if not slip_text:
            self.forget(pod.uid)
        elif pod.uid not in self._by_uid:
            gang = _gang(pod)
            self._by_uid[pod.uid] = gang
            self._pods[gang] += 1
            if self._pods[gang] == 1:
                pods_of_event = ((pod.name, pod.uid),)
                event = EmitEvent(pod.namespace, pods_of_event, EventReason.KEY_IGNORED, slip_text)
                self._standing.say(gang, event)

    def forget(self, uid: str) -> None:
        """Forget a pod that is gone."""
        gang = self._by_uid.pop(uid, None)
        if gang is not None:
            self._pods[gang] -= 1
            if not self._pods[gang]:
                del self._pods[gang]
                self._standing.drop(gang)


def _gang(pod: Pod) -> Hashable:
    """Return what the pods of a gang have in common; of pods that are alone, their controller."""
    if pod.claim is None or pod.claim.lone:
        return pod.controller.uid if pod.controller is not None else pod.uid
    return pod.namespace, pod.claim.dialect, pod.claim.name
