"""The devices that ResourceClaims hold, added to the usage that pods state.

A device that is allocated to a claim is taken, whatever pods say: kube-scheduler gives it to no other pod.
For a bound pod with GPUs, the allocation of its claim counts, and not the pod's annotations. A claim of a pod
that is not bound, or of several pods, counts as a usage of its own.

A bound pod without a claim and without annotations has no device, whatever it requests. The kubelet runs such
a pod, so a user could otherwise make all GPUs look taken by setting `spec.nodeName`.

If devices share counters, an allocated device may leave too few counters for a GPU, as a partition does for
its own GPU. Then the GPU counts as taken too.

A claim takes a whole device, or a share of its memory. Shares count in bytes, and their sum is rounded up to
whole GiB. Until the pod is bound, a share that has the planned device and no more than the planned memory
counts as planned.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import reduce
from operator import or_

from muster.domain.node import GIB, Device, DeviceClaim, Node, PoolKey, Resources, Usage
from muster.domain.topology import bits, mask_of

_BY_COUNTERS = "devices of the same pool"
"""The holder of GPUs for which other devices leave too few counters. No UID of a pod has a space."""


class DeviceClaims:
    """The allocated claims of a cluster, by the pools of their devices."""

    def __init__(self) -> None:
        self._claims: dict[str, DeviceClaim] = {}
        self._by_pool: dict[PoolKey, dict[str, DeviceClaim]] = {}
        self._by_consumer: dict[str, set[str]] = {}

    def see(self, claim: DeviceClaim) -> set[PoolKey]:
        """Take in a claim. A claim without devices is forgotten. Return the pools whose use changed."""
        uid = claim.uid
        old_claim = self._claims.pop(uid, None)
        new_claim = claim if claim.devices else None
        if new_claim is not None:
            self._claims[uid] = new_claim
        if old_claim == new_claim:
            return set()
        for pool in _pools(old_claim):
            _discard(self._by_pool, pool, uid)
        for consumer in old_claim.consumers if old_claim is not None else ():
            self._by_consumer[consumer].discard(uid)
            if not self._by_consumer[consumer]:
                del self._by_consumer[consumer]
        if new_claim is not None:
            for pool in _pools(new_claim):
                self._by_pool.setdefault(pool, {})[uid] = new_claim
            for consumer in claim.consumers:
                self._by_consumer.setdefault(consumer, set()).add(uid)
        return _pools(old_claim) | _pools(new_claim)

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
        return frozenset(device for claim in claims if len(claim.consumers) == 1 for device in claim.devices)

    def pools_of(self, pod_uid: str) -> set[PoolKey]:
        """Return the pools of the devices that are allocated to a pod."""
        return {pool for uid in self._by_consumer.get(pod_uid, ()) for pool in _pools(self._claims[uid])}

    def usages_with_claims(
        self, node: Node, usages: Mapping[str, Usage], bound: Collection[str], left_out_uids: Collection[str]
    ) -> dict[str, Usage]:
        """Return the usages of a node by pod UID, with the devices that claims hold added.

        Keys that are no UIDs stand for claims that count as usages of their own. `bound` are the UIDs of
        bound pods. Claims that are only for pods in `left_out_uids` are left out.
        """
        number_by_device = {device: index for index, device in enumerate(node.devices) if device is not None}
        pools = {device.pool_key for device in number_by_device}
        claims = {uid: claim for pool in pools for uid, claim in self._by_pool.get(pool, {}).items()}
        shares_by_holder: dict[str, list[tuple[int, int]]] = {}
        for claim in claims.values():
            if claim.is_for(left_out_uids):
                continue
            consumer = claim.consumers[0] if len(claim.consumers) == 1 else ""
            shares = shares_by_holder.setdefault(consumer if consumer in usages else OTHERS, [])
            shares.extend(
                (number_by_device[device], share)
                for device, share in claim.parts()
                if device in number_by_device
            )
        by_holder = {
            holder: ClaimedGpus.of(node, shares) for holder, shares in sorted(shares_by_holder.items())
        }
        all_usages = _add_claimed_gpus(node, usages, by_holder, bound)
        if node.counters and (
            mask := _gpus_without_counters(node, claims.values(), left_out_uids, all_usages)
        ):
            all_usages[_BY_COUNTERS] = Usage(_BY_COUNTERS, node.name, Resources(pods=0), gpus=mask)
        return all_usages


def _gpus_without_counters(
    node: Node, claims: Iterable[DeviceClaim], left_out_uids: Collection[str], usages: Mapping[str, Usage]
) -> int:
    """Return the bit mask of GPUs for which allocated devices leave too few counters.

    Claims that are only for pods in `left_out_uids` are left out. GPUs of usages come first: if a planned GPU
    has no room, it is taken twice, and its plan is voided.
    """
    allocated = {device for claim in claims if not claim.is_for(left_out_uids) for device in claim.devices}
    used_gpus = reduce(or_, (usage.gpus for usage in usages.values()), 0)
    numbers = sorted(
        range(len(node.devices)),
        key=lambda number: (not used_gpus >> number & 1, node.unhealthy >> number & 1),
    )
    mask = 0
    for pool, counters in node.counters.items():
        number_by_name = {
            gpu_device.name: number
            for number in numbers
            if (gpu_device := node.devices[number]) is not None
            if gpu_device.pool_key == pool
        }
        allocated_names = {device.name for device in allocated if device.pool_key == pool}
        unallocated = [name for name in number_by_name if name not in allocated_names]
        mask |= mask_of(
            [number_by_name[name] for name in counters.names_without_room(unallocated, allocated_names)]
        )
    return mask


def _pools(claim: DeviceClaim | None) -> set[PoolKey]:
    return {device.pool_key for device in claim.devices} if claim is not None else set()


def _discard(index: dict[PoolKey, dict[str, DeviceClaim]], pool: PoolKey, uid: str) -> None:
    del index[pool][uid]
    if not index[pool]:
        del index[pool]


OTHERS = "claims"
"""Stands for all claims that are for no pod on the node, or for several pods."""


@dataclass(frozen=True, slots=True)
class ClaimedGpus:
    """The GPUs of a node that the claims of one holder have."""

    whole_gpus: int
    """Bit mask of whole GPUs."""
    bytes_by_gpu: Mapping[int, int]
    """GPU → bytes of shared GPUs."""
    share_count: int
    """Number of shares that make up these bytes."""

    @classmethod
    def of(cls, node: Node, pairs: Iterable[tuple[int, int]]) -> ClaimedGpus:
        """Return the GPUs of pairs (GPU, bytes of the share, or 0 for the whole GPU).

        Shares that leave less than a GiB take the whole GPU. So does any share if the node does not share its
        GPUs.
        """
        whole_gpus, share_count, bytes_by_gpu = 0, 0, Counter[int]()
        for gpu, share in pairs:
            if share:
                bytes_by_gpu[gpu] += share
                share_count += 1
            else:
                whole_gpus |= 1 << gpu
        full_gpus = [gpu for gpu, amount in bytes_by_gpu.items() if not _leaves_memory(node, gpu, amount)]
        whole_gpus |= mask_of(full_gpus)
        shared = {gpu: amount for gpu, amount in bytes_by_gpu.items() if not whole_gpus >> gpu & 1}
        return cls(whole_gpus, shared, share_count)

    @property
    def mask(self) -> int:
        """Return the bit mask of all GPUs, whole or in part."""
        return self.whole_gpus | mask_of(tuple(self.bytes_by_gpu))

    def bytes_on(self, node: Node) -> dict[int, int]:
        """Return GPU → bytes. For a whole GPU these are all the bytes that the node offers in slices."""
        memory = dict(enumerate(node.gpu_memory))
        bytes_of_whole_gpus = {gpu: memory.get(gpu, 0) * GIB for gpu in bits(self.whole_gpus)}
        return bytes_of_whole_gpus | dict(self.bytes_by_gpu)


NOTHING = ClaimedGpus(0, {}, 0)


def _add_claimed_gpus(
    node: Node, usages: Mapping[str, Usage], gpus_by_holder: Mapping[str, ClaimedGpus], bound: Collection[str]
) -> dict[str, Usage]:
    """Return the usages of a node by pod UID, with the claimed GPUs of each holder added.

    Keys that are no UIDs stand for claims that count as usages of their own. `bound` are the UIDs of bound
    pods.
    """
    all_usages, bytes_by_gpu, whole_gpus = dict(usages), Counter[int](), 0
    for holder, claimed in gpus_by_holder.items():
        surplus = claimed
        if (usage := usages.get(holder)) is not None:
            all_usages[holder], surplus = _split_claimed(node, usage, claimed, bound=holder in bound)
            whole_gpus |= 0 if all_usages[holder].units else all_usages[holder].gpus
        if surplus.whole_gpus:
            all_usages[f"{holder}'s devices"] = Usage(
                holder, node.name, Resources(pods=0), gpus=surplus.whole_gpus
            )
        whole_gpus |= surplus.whole_gpus
        bytes_by_gpu.update(surplus.bytes_by_gpu)
    for gpu, amount in bytes_by_gpu.items():
        units = min(_units(amount), node.gpu_memory[gpu] - _sum_units(all_usages.values(), gpu))
        if units > 0 and not whole_gpus >> gpu & 1:
            key = f"shares of GPU {gpu}"
            all_usages[key] = Usage(key, node.name, Resources(pods=0), gpus=1 << gpu, units=units)
    return {
        key: usage if usage.gpus else replace(usage, unindexed_gpus=0) for key, usage in all_usages.items()
    }


def _split_claimed(
    node: Node, usage: Usage, claimed: ClaimedGpus, *, bound: bool
) -> tuple[Usage, ClaimedGpus]:
    """Return the usage of a pod with the GPUs of its own claims, and the claimed GPUs beyond this usage."""
    gpu_count = usage.unindexed_gpus or usage.gpus.bit_count()
    if usage.units:
        if bound and claimed.mask.bit_count() == gpu_count:
            return _split_shares_of_bound(node, usage, claimed)
        units = [_units(share) for share in claimed.bytes_on(node).values()]
        is_planned = claimed.mask == usage.gpus and max(units, default=0) <= usage.units
        return usage, NOTHING if is_planned else claimed
    if 0 < gpu_count <= claimed.whole_gpus.bit_count():
        # a plan that is not carried out yet keeps its own GPUs as well
        gpus = claimed.whole_gpus if bound else usage.gpus | claimed.whole_gpus
        return replace(usage, gpus=gpus, unindexed_gpus=0), replace(claimed, whole_gpus=0)
    if bound and not claimed.whole_gpus and 0 < gpu_count <= claimed.share_count:
        return replace(usage, gpus=0, unindexed_gpus=0), claimed
    return usage, claimed


def _split_shares_of_bound(node: Node, usage: Usage, claimed: ClaimedGpus) -> tuple[Usage, ClaimedGpus]:
    """Return a bound pod's usage in whole GiB, equal on all its GPUs. Also return what its claims take beyond
    this usage.

    The caller adds up these bytes of all pods on a GPU before it rounds them. So each GPU is rounded up once.
    """
    bytes_by_gpu = claimed.bytes_on(node)
    units = min(bytes_by_gpu.values(), default=0) // GIB
    if not units:  # no whole GiB on some GPU
        whole_gpu_usage = replace(usage, gpus=claimed.whole_gpus, unindexed_gpus=0, units=0)
        return whole_gpu_usage, replace(claimed, whole_gpus=0)
    surplus_bytes = {
        gpu: amount - units * GIB for gpu, amount in bytes_by_gpu.items() if amount > units * GIB
    }
    surplus = ClaimedGpus(0, surplus_bytes, len(surplus_bytes))
    return replace(usage, gpus=claimed.mask, unindexed_gpus=0, units=units), surplus


def _sum_units(usages: Iterable[Usage], gpu: int) -> int:
    """Return the GiB that pods have of a GPU."""
    return sum(usage.units for usage in usages if usage.gpus >> gpu & 1)


def _leaves_memory(node: Node, gpu: int, amount: int) -> bool:
    """Return whether shares of `amount` bytes leave a GiB or more of a GPU for others."""
    return gpu < len(node.gpu_memory) and amount // GIB < node.gpu_memory[gpu]


def _units(amount: int) -> int:
    """Return the bytes in GiB, rounded up."""
    return -(-amount // GIB)
