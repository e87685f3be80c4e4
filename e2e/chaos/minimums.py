"""How many members a PodGroup of Kubernetes' own API says that its gang needs, and when it said so. Pure.

The number may change at any time, and no change takes a running pod back. So a gang needs the lowest number
that was said since its first member was bound, or a little before: its start may have been under way.
"""

from __future__ import annotations

from collections import defaultdict

from local_cluster.api import Object


class Minimums:
    """Numbers by the name of the PodGroup. Times are seconds on one clock. `race_s`: how long a start may be
    under way."""

    def __init__(self, race_s: float) -> None:
        self._race_s = race_s
        self._counts: dict[str, list[tuple[float, int]]] = defaultdict(list)
        self._bound_since: dict[str, float] = {}

    def says(self, at: float, name: str, body: Object) -> None:
        """A PodGroup was made or changed."""
        self._counts[name].append((at, least_of(body)))

    def bound(self, at: float, name: str) -> None:
        """A member was seen bound."""
        self._bound_since.setdefault(name, at)

    def ended(self, name: str) -> None:
        """No bound member is there any more."""
        self._bound_since.pop(name, None)

    def needed(self, at: float, name: str) -> int:
        """Return how many members the gang needs; 0 if its PodGroup was never seen."""
        since = min(at, self._bound_since.get(name, at)) - self._race_s
        counts = self._counts.get(name, [])
        count_before = [count for when, count in counts if when <= since][-1:]
        return min((*count_before, *(count for when, count in counts if when > since)), default=0)


def least_of(body: Object) -> int:
    """Return how many members the PodGroup says now; 1 for the policy basic."""
    gang = body["spec"]["schedulingPolicy"].get("gang") or {"minCount": 1}
    return int(gang["minCount"])
