"""What is not proven of a plan."""

from __future__ import annotations

from typing import NamedTuple

UNBOUNDED = 1.0
"""The share where no bound is known."""


class Gap(NamedTuple):
    """The first level that is not proven best, and by how much it could be better at most:
    |value − bound| / max(1, |bound|)."""

    level: str
    share: float = UNBOUNDED
