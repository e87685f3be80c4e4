"""The "best effort" policy of NVIDIA's go-gpuallocator, which its device plugin asks: GPUs of one node.

Described and published at github.com/NVIDIA/go-gpuallocator: README.md ("optimized to assume that all future
allocations will be of size 'num' as well") and gpuallocator/besteffort_policy.go: the available GPUs are
partitioned into sets of the wanted size, padded where that leaves a rest; the padding lies in one set. The
partition with the largest total of pairwise scores wins, the first such in lexicographic order, and out of it
the set with the largest score. One GPU is simply the first.

The original goes through all partitions (16 s for a node of 16 GPUs: NVIDIA/k8s-device-plugin#774). This one
remembers the best partition of every rest, which changes no answer: its time says nothing about theirs.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations
from types import MappingProxyType

from muster.domain.topology import GpuTopology, bits, mask_of

NVLINK_SCORE = 100
"""For each NVLink between two GPUs."""

PCIE_SCORES: Mapping[str, int] = MappingProxyType(
    {"SYS": 10, "NODE": 20, "PHB": 30, "PXB": 40, "PIX": 50, "PSB": 60}
)
"""calculateGPUPairScore, by the words of `nvidia-smi topo -m`: cross-CPU, same CPU, host bridge, several
switches, single switch, same board."""

Scores = Sequence[Sequence[int]]
"""The score of each pair of GPUs, symmetric."""

_Partition = tuple[int, tuple[int, ...]]
"""Total score, and the sets as masks, by their lowest GPUs."""


def score(*kinds: str) -> int:
    """The score of a pair: NVLink and PCIe count together where both are known.

    >>> score("NV2", "PHB")
    230
    """
    return sum(
        NVLINK_SCORE * int(kind[2:]) if kind.startswith("NV") else PCIE_SCORES.get(kind, 0) for kind in kinds
    )


def scores_of(topology: GpuTopology) -> Scores:
    """Scores from a matrix alone: it hides the PCIe kind of a pair that has NVLink, so those points miss."""
    return [[score(link.kind) if link else 0 for link in row] for row in topology.links]


class BestEffort:
    """The policy for one node. Sets of GPUs are bit masks, 0 is none."""

    def __init__(self, scores: Scores, complete_only: bool = True) -> None:
        """`complete_only`: as github.com/NVIDIA/go-gpuallocator/pull/80 mends it. Without that a padded set
        may win, and fewer GPUs come back than were asked for (the original's caller then panics)."""
        self._scores = scores
        self._complete_only = complete_only
        self._known: dict[tuple[int, int, int], int] = {}

    def allocate(self, available: int, size: int, required: int = 0) -> int:
        """The GPUs to take of the available ones, all `required` ones among them."""
        key = (available, size, required)
        if key not in self._known:
            self._known[key] = self._allocate(*key)
        return self._known[key]

    def _allocate(self, available: int, size: int, required: int) -> int:
        if size <= 0 or available.bit_count() < size or required.bit_count() > size or required & ~available:
            return 0
        if size == 1:
            return required or available & -available
        padding = -available.bit_count() % size
        partition = self._best(available, size, padding, required, {})
        if partition is None:
            return 0
        sets = [
            gpus
            for gpus in partition[1]
            if required & ~gpus == 0 and (not self._complete_only or gpus.bit_count() == size)
        ]
        return max(sets, key=self._set_score, default=0)  # the first of equals

    def _best(
        self,
        gpus_left: int,
        size: int,
        padding: int,
        required: int,
        memo: dict[tuple[int, int], _Partition | None],
    ) -> _Partition | None:
        """The first of the best partitions of `gpus_left`. If padding is left, one set has `size - padding`.

        `required` GPUs lie together in a full set. They are 0 once a set has them, or where there are none.
        """
        if not gpus_left:
            return None if required else (0, ())
        key = (gpus_left, required)  # how much padding is left follows from the rest
        if key in memo:
            return memo[key]
        best_partition: _Partition | None = None
        for gpus in _first_sets(gpus_left, size, padding):
            full = gpus.bit_count() == size
            still_required = 0 if full and required & ~gpus == 0 else required
            partition = self._best(gpus_left & ~gpus, size, padding if full else 0, still_required, memo)
            if partition is not None:
                total = partition[0] + self._set_score(gpus)
                if best_partition is None or total > best_partition[0]:
                    best_partition = (total, (gpus, *partition[1]))
        memo[key] = best_partition
        return best_partition

    def _set_score(self, gpus: int) -> int:
        return sum(self._scores[a][b] for a, b in combinations(bits(gpus), 2))


def _first_sets(gpus_left: int, size: int, padding: int) -> Iterator[int]:
    """Every set that the lowest GPU can lie in, full or with all the padding, which sorts after every GPU."""
    lowest, *higher_gpus = bits(gpus_left)
    choices = list(combinations(higher_gpus, size - 1))
    if padding:
        after = max(bits(gpus_left)) + 1
        choices += [
            (*subset, *range(after, after + padding))
            for subset in combinations(higher_gpus, size - 1 - padding)
        ]
        choices.sort()
    for subset in choices:
        yield mask_of((lowest, *subset)) & gpus_left
