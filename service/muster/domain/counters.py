"""What the devices of a pool consume of its counters: a GPU and its partitions can't be allocated together.

The arithmetic follows the in-tree allocator (k8s.io/dynamic-resource-allocation, checkAvailableCounters). All
allocated devices of a pool consume its counters, each once. A device can be allocated if it exceeds no
counter. If a counter of the pool is exceeded already, no device that consumes counters can be allocated.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

Need = tuple[tuple[int, int], ...]
"""Numbers of counters, and how much of each a device consumes."""


@dataclass(frozen=True, slots=True)
class PoolCounters:
    """The counters of a pool. `available` is how much there is of each, in billionths. `needs` names the
    devices that consume counters."""

    available: tuple[int, ...]
    needs: tuple[tuple[str, Need], ...]

    def without_room(self, names: Sequence[str], allocated: Collection[str]) -> set[str]:
        """Return which of the wanted devices can't be allocated next to the allocated ones.

        The others can be allocated all together. The first ones of `names` come first.
        """
        needs = dict(self.needs)
        amounts_left = list(self.available)
        for name in set(allocated) & needs.keys():
            _consume(amounts_left, needs[name])
        exceeded = any(amount < 0 for amount in amounts_left)
        without = set[str]()
        for name in names:
            need = needs.get(name, ())
            if need and (exceeded or any(amounts_left[counter] < amount for counter, amount in need)):
                without.add(name)
            else:
                _consume(amounts_left, need)
        return without

    def exceeded_by(self, names: Iterable[str]) -> set[int]:
        """Return the counters that these devices together would exceed."""
        needs = dict(self.needs)
        amounts_left = list(self.available)
        for name in names:
            _consume(amounts_left, needs.get(name, ()))
        return {counter for counter, amount in enumerate(amounts_left) if amount < 0}


def _consume(amounts_left: list[int], need: Need) -> None:
    for counter, amount in need:
        amounts_left[counter] -= amount
