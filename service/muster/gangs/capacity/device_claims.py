"""Which devices ResourceClaims hold, and how they count next to what pods take.

A device that is allocated to a claim is taken, whatever pods say: kube-scheduler gives it to no other pod. A
claim of a bound pod with GPUs tells which GPUs these are, and outdoes the pod's annotations. A claim of a pod
that is not bound, or of several pods, counts by itself.

A bound pod without a claim and without annotations has no device, whatever it asks for. The kubelet runs such
a pod, so a user who sets `spec.nodeName` could make all GPUs look taken.

Where devices share counters, an allocated one may leave too few for a GPU, as a partition does for its own.
Then the GPU is taken as well.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import reduce
from operator import or_

from muster.domain.node import Device, Node, PoolKey, Resources, Usage
from muster.domain.topology import mask_of
from muster.gangs.capacity.held_devices import OTHERS, Held, with_held

_BY_COUNTERS = "devices of the same pool"
"""The holder of GPUs for which other devices leave too few counters. No UID of a pod has a space."""


@dataclass(frozen=True, slots=True)
class DeviceClaim:
    """A ResourceClaim that is allocated, and the UIDs of the pods that it is for.

    `shares` are the bytes that it takes of each device's memory, 0 if it takes the whole device; () if it
    takes all of them whole.
    """

    uid: str
    devices: tuple[Device, ...]
    consumers: tuple[str, ...]
    shares: tuple[int, ...] = ()

    def parts(self) -> Iterator[tuple[Device, int]]:
        """Return each device with what is taken of it."""
        return zip(self.devices, self.shares or (0,) * len(self.devices), strict=True)

    def is_for(self, uids: Collection[str]) -> bool:
        """Return whether the claim is for some of these pods and for no others."""
        return bool(self.consumers and uids) and set(self.consumers) <= set(uids)


class DeviceClaims:
    """The allocated claims of a cluster, by the pools of their devices."""

    def __init__(self) -> None:
        self._claims: dict[str, DeviceClaim] = {}
        self._by_pool: dict[PoolKey, dict[str, DeviceClaim]] = {}
        self._by_consumer: dict[str, set[str]] = {}

    def see(self, claim: DeviceClaim) -> set[PoolKey]:
        """Take in a claim; without devices it is forgotten. Return the pools whose use changed."""
        uid = claim.uid
        before = self._claims.pop(uid, None)
        after = claim if claim.devices else None
        if after is not None:
            self._claims[uid] = after
        if before == after:
            return set()
        for pool in _pools(before):
            _discard(self._by_pool, pool, uid)
        for consumer in before.consumers if before is not None else ():
            self._by_consumer[consumer].discard(uid)
            if not self._by_consumer[consumer]:
                del self._by_consumer[consumer]
        if after is not None:
            for pool in _pools(after):
                self._by_pool.setdefault(pool, {})[uid] = after
            for consumer in claim.consumers:
                self._by_consumer.setdefault(consumer, set()).add(uid)
        return _pools(before) | _pools(after)

    @property
    def consumers(self) -> Collection[str]:
        """Return the UIDs of pods to which devices are allocated."""
        return self._by_consumer.keys()

    def consumers_of(self, uid: str) -> tuple[str, ...]:
        """Return the UIDs of the pods that a claim is for."""
        return self._claims[uid].consumers if uid in self._claims else ()

    def devices_of(self, pod_uid: str) -> frozenset[Device]:
        """Return the devices of the claims that are for this pod alone."""
        claims = (self._claims[uid] for uid in self._by_consumer.get(pod_uid, ()))
        return frozenset(it for claim in claims if len(claim.consumers) == 1 for it in claim.devices)

    def pools_of(self, pod_uid: str) -> set[PoolKey]:
        """Return the pools of the devices that are allocated to a pod."""
        return {pool for uid in self._by_consumer.get(pod_uid, ()) for pool in _pools(self._claims[uid])}

    def beside(
        self, node: Node, usages: Mapping[str, Usage], bound: Collection[str], but: Collection[str]
    ) -> dict[str, Usage]:
        """Return the usages of a node by pod, with what claims hold of it. Other keys are for claims alone.

        `bound` are the UIDs of bound pods. Claims for the pods in `but` alone are left out.
        """
        number = {device: index for index, device in enumerate(node.devices) if device is not None}
        pools = {device.pool_key for device in number}
        claims = {uid: claim for pool in pools for uid, claim in self._by_pool.get(pool, {}).items()}
        held: dict[str, list[tuple[int, int]]] = {}
        for claim in claims.values():
            if claim.is_for(but):
                continue
            consumer = claim.consumers[0] if len(claim.consumers) == 1 else ""
            parts = held.setdefault(consumer if consumer in usages else OTHERS, [])
            parts.extend((number[device], share) for device, share in claim.parts() if device in number)
        by_holder = {holder: Held.of(node, parts) for holder, parts in sorted(held.items())}
        found = with_held(node, usages, by_holder, bound)
        if node.counters and (mask := _without_counters(node, claims.values(), but, found)):
            found[_BY_COUNTERS] = Usage(_BY_COUNTERS, node.name, Resources(pods=0), gpus=mask)
        return found


def _without_counters(
    node: Node, claims: Iterable[DeviceClaim], but: Collection[str], found: Mapping[str, Usage]
) -> int:
    """Return the bit mask of GPUs for which allocated devices leave too few counters.

    Claims for the pods in `but` alone are left out. GPUs of usages come first: one without room is taken
    twice, so its plan can't stand.
    """
    allocated = {device for claim in claims if not claim.is_for(but) for device in claim.devices}
    used = reduce(or_, (usage.gpus for usage in found.values()), 0)
    numbers = sorted(range(len(node.devices)), key=lambda at: (not used >> at & 1, node.unhealthy >> at & 1))
    mask = 0
    for pool, counters in node.counters.items():
        of_pool = {
            it.name: at for at in numbers if (it := node.devices[at]) is not None if it.pool_key == pool
        }
        names = {device.name for device in allocated if device.pool_key == pool}
        wanted = [name for name in of_pool if name not in names]
        mask |= mask_of([of_pool[name] for name in counters.without_room(wanted, names)])
    return mask


def _pools(claim: DeviceClaim | None) -> set[PoolKey]:
    return {device.pool_key for device in claim.devices} if claim is not None else set()


def _discard(index: dict[PoolKey, dict[str, DeviceClaim]], pool: PoolKey, uid: str) -> None:
    del index[pool][uid]
    if not index[pool]:
        del index[pool]
