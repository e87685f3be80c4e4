"""What claims hold of one node's GPUs, next to what pods take of it by plans and annotations.

A claim takes a device whole, or a share of its memory. Shares count in bytes, and their sum is rounded up
to whole GiB. Until its pod is bound, a planned share counts as planned, if its claim has the same device and
no more of it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace

from muster.domain.node import GIB, Node, Resources, Usage
from muster.domain.topology import bits, mask_of

OTHERS = "claims"
"""Stands for all claims that are for no pod on the node, or for several."""


@dataclass(frozen=True, slots=True)
class Held:
    """What the claims of one holder have of a node: the bit mask of its whole GPUs, the bytes of others by
    their number, and how many shares these bytes are."""

    whole: int
    parts: Mapping[int, int]
    shares: int

    @classmethod
    def of(cls, node: Node, held: Iterable[tuple[int, int]]) -> Held:
        """Return what is held by GPU and share, 0 for a whole GPU.

        What leaves less than a GiB takes the whole GPU. So does any share where the node's GPUs are not
        shared.
        """
        whole, shares, parts = 0, 0, Counter[int]()
        for gpu, share in held:
            if share:
                parts[gpu] += share
                shares += 1
            else:
                whole |= 1 << gpu
        whole |= mask_of([gpu for gpu, share in parts.items() if not _is_part(node, gpu, share)])
        return cls(whole, {gpu: share for gpu, share in parts.items() if not whole >> gpu & 1}, shares)

    @property
    def mask(self) -> int:
        """Return all of its GPUs."""
        return self.whole | mask_of(tuple(self.parts))

    def bytes_on(self, node: Node) -> dict[int, int]:
        """Return the bytes of each of its GPUs; of a whole one all that the node offers in slices."""
        memory = dict(enumerate(node.gpu_memory))
        whole = {gpu: memory.get(gpu, 0) * GIB for gpu in bits(self.whole)}
        return whole | dict(self.parts)


NOTHING = Held(0, {}, 0)


def with_held(
    node: Node, usages: Mapping[str, Usage], held: Mapping[str, Held], bound: Collection[str]
) -> dict[str, Usage]:
    """Return the usages of a node by pod, with what claims hold of it by their holder.

    Other keys are for claims alone. `bound` are the UIDs of bound pods.
    """
    found, parts, whole = dict(usages), Counter[int](), 0
    for holder, its in held.items():
        left = its
        if (usage := usages.get(holder)) is not None:
            found[holder], left = _told(node, usage, its, bound=holder in bound)
            whole |= 0 if found[holder].units else found[holder].gpus
        if left.whole:
            found[f"{holder}'s devices"] = Usage(holder, node.name, Resources(pods=0), gpus=left.whole)
        whole |= left.whole
        parts.update(left.parts)
    for gpu, share in parts.items():
        units = min(_units(share), node.gpu_memory[gpu] - _taken(found.values(), gpu))
        if units > 0 and not whole >> gpu & 1:
            key = f"shares of GPU {gpu}"
            found[key] = Usage(key, node.name, Resources(pods=0), gpus=1 << gpu, units=units)
    return {key: it if it.gpus else replace(it, unindexed_gpus=0) for key, it in found.items()}


def _told(node: Node, usage: Usage, its: Held, *, bound: bool) -> tuple[Usage, Held]:
    """Return what a pod takes, as its own claims tell it, and what they hold in addition."""
    asked = usage.unindexed_gpus or usage.gpus.bit_count()
    if usage.units:
        if bound and its.mask.bit_count() == asked:
            return _of_bound(node, usage, its)
        units = [_units(share) for share in its.bytes_on(node).values()]
        is_planned = its.mask == usage.gpus and max(units, default=0) <= usage.units
        return usage, NOTHING if is_planned else its
    if 0 < asked <= its.whole.bit_count():
        # a plan that is not carried out yet keeps its own GPUs as well
        gpus = its.whole if bound else usage.gpus | its.whole
        return replace(usage, gpus=gpus, unindexed_gpus=0), replace(its, whole=0)
    if bound and not its.whole and 0 < asked <= its.shares:
        return replace(usage, gpus=0, unindexed_gpus=0), its
    return usage, its


def _of_bound(node: Node, usage: Usage, its: Held) -> tuple[Usage, Held]:
    """Return what a bound pod takes of each GPU alike, in whole GiB, and the bytes that it has in addition.

    These are rounded up once with all others of the GPU, and not for each pod.
    """
    held = its.bytes_on(node)
    if not (units := min(held.values(), default=0) // GIB):
        return replace(usage, gpus=its.whole, unindexed_gpus=0, units=0), replace(its, whole=0)
    parts = {gpu: more for gpu, share in held.items() if (more := share - units * GIB)}
    return replace(usage, gpus=its.mask, unindexed_gpus=0, units=units), Held(0, parts, len(parts))


def _taken(usages: Iterable[Usage], gpu: int) -> int:
    """Return the GiB that pods have of a GPU."""
    return sum(usage.units for usage in usages if usage.gpus >> gpu & 1)


def _is_part(node: Node, gpu: int, share: int) -> bool:
    return gpu < len(node.gpu_memory) and share // GIB < node.gpu_memory[gpu]


def _units(share: int) -> int:
    return -(-share // GIB)
