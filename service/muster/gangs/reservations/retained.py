"""Capacity that gangs retain for their next plan. No other gang is planned on it.

Partially bound gangs do, and running gangs that lost members which they need.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping

from muster.domain.node import Resources, Usage
from muster.domain.pod import Pod
from muster.domain.snapshot import Snapshot
from muster.gangs.capacity.ledger import Ledger, fits
from muster.gangs.record.gang import Gang

_Size = tuple[Resources, int, int]
"""Other resources, GPUs, and units of each GPU."""


class Retained:
    """Track retained capacity. `Gang.retained` are the UIDs; the ledger holds the places."""

    def __init__(self, gangs: Mapping[str, Gang], ledger: Ledger) -> None:
        self._gangs = gangs
        self._ledger = ledger
        self._holders: set[str] = set()
        """Keys of the gangs that retain capacity."""

    def keep(self, gang: Gang, uids: Iterable[str]) -> None:
        """Retain the reservations of these members for the gang's next plan."""
        gang.retained |= {uid for uid in uids if uid in self._ledger.held}
        if gang.retained:
            self._holders.add(gang.key)

    def keep_lost(self, gang: Gang) -> None:
        """Retain what lost members had, if it is still free: as many places as the gang lacks.

        In all these are no more GPUs than the gang's bound members have. Else a user whose quota is free as
        soon as a pod is deleted could keep many times that quota.
        """
        self.release(gang, gang.retained & gang.lost.keys())
        bound = [usage for pod in gang.group.bound if (usage := self._ledger.bound.get(pod.uid)) is not None]
        places = max(1, gang.group.least - len(bound)) - len(gang.reserved)  # 1 if only a role lacks it
        room = sum(map(_gpus, bound))
        for uid, lost in sorted(gang.lost.items()):
            usage, name = lost.usage, lost.usage.node
            # Without a claim of the pod, which may still be there.
            node = self._ledger.states_without((uid,)).get(name) or self._ledger.state(name)
            if uid in self._ledger.bound or places <= 0 or node is None or _gpus(usage) > room:
                continue
            if fits(Snapshot({name: node}), [usage]):
                self._ledger.hold([usage])
                self.keep(gang, [uid])
                places, room = places - 1, room - _gpus(usage)

    def release(self, gang: Gang, uids: Collection[str]) -> None:
        """End reservations of the gang, retained or not."""
        self._ledger.release(tuple(uids))
        gang.retained = gang.retained.difference(uids)
        if not gang.retained:
            self._holders.discard(gang.key)

    def release_taken(self, node: str) -> None:
        """Release retained capacity on this node that other pods took or the node no longer has."""
        held = self._ledger.on_node(node).keys() & self._ledger.held.keys()
        for key in sorted(key for key in self._holders if not self._gangs[key].retained.isdisjoint(held)):
            gang = self._gangs[key]
            here = [usage for usage in self.places(gang) if usage.node == node]
            uids = {usage.pod_uid for usage in here}
            if here and not fits(self._ledger.without(uids), here):
                self.release(gang, uids)

    def covers(self, gang: Gang) -> bool:
        """Return whether a place of exactly the requested size is retained for each waiting member."""
        if not gang.retained:
            return False
        places = Counter((usage.resources, _gpus(usage), usage.units) for usage in self.places(gang))
        for pod in sorted(gang.group.unbound, key=lambda pod: len(pod.gpu_counts)):
            place = next((each for each in _sizes(pod, places) if places[each] > 0), None)
            if place is None:
                return False
            places[place] -= 1
        return True

    def places(self, gang: Gang) -> list[Usage]:
        """Return the usages that are retained for the gang."""
        return [self._ledger.held[uid] for uid in sorted(gang.retained) if uid in self._ledger.held]


def _gpus(usage: Usage) -> int:
    return usage.gpus.bit_count() + usage.unindexed_gpus


def _sizes(pod: Pod, places: Iterable[_Size]) -> list[_Size]:
    """Return the sizes of a place for the pod: several, if its claims leave the number of GPUs open."""
    if pod.slice is not None:
        return [(pod.resources, pod.slice.gpus, pod.slice.units)]
    if not pod.gpu_counts:
        return [(pod.resources, pod.gpus, 0)]
    return [(pod.resources, gpus, 0) for _, gpus, _ in places if pod.may_take(gpus)]
