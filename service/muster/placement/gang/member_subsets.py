"""Ways to leave members out, where segments make each of them a problem of its own."""

from __future__ import annotations

from collections.abc import Iterator

from muster.placement.gang.instance import Counts

MAX_TRIES = 64
"""Ways that are tried for one answer."""


def shared_out(total: int, sizes: Counts) -> Iterator[Counts]:
    """So many members shared out to roles of these sizes, most of the earlier roles first."""
    if not sizes:
        yield ()
        return
    first, *others = sizes
    for count in range(min(first, total), max(0, total - sum(others)) - 1, -1):
        for rest in shared_out(total - count, tuple(others)):
            yield (count, *rest)
