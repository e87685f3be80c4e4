"""How often a node's facts are read: what its account writes again and again costs that node alone.

A node pays for each reading, and for each change that is passed on. It may owe ADVANCE_S. A node that owes
more waits until it owes no more than that, and is read then with all that changed meanwhile.
"""

from __future__ import annotations

from collections.abc import Callable

SHARE = 20
"""What a second of reading costs a node, in seconds: it gets a twentieth of a core."""
CHANGE_S = 0.5
"""What a change costs a node besides: gangs are planned anew for it."""
ADVANCE_S = 10.0
"""How much a node may owe. A node that joins has some ten changes at once."""


class NodeRate:
    """What each node owes. `clock` returns monotonic seconds."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._paid: dict[str, float] = {}
        """By node, when it owes nothing any more."""

    def charge(self, node: str, took_s: float, *, changed: bool) -> None:
        """Charge a node for reading it."""
        owes_from = max(self._clock(), self._paid.get(node, 0.0))
        self._paid[node] = owes_from + SHARE * took_s + CHANGE_S * changed

    def rest_s(self, node: str) -> float:
        """Return in how many seconds the node may be read."""
        return max(0.0, self._paid.get(node, 0.0) - self._clock() - ADVANCE_S)

    def forget(self, known: Callable[[str], bool]) -> None:
        """Forget nodes that are not known and owe nothing."""
        now = self._clock()
        self._paid = {node: paid for node, paid in self._paid.items() if known(node) or paid > now}
