"""Represent plans and their gaps, as exact methods exchange them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from muster.domain.decision import Step
from muster.placement.gang.rules import Counts
from muster.placement.gpus.gpusets import GpuSet
from muster.placement.gpus.node_rules import Spread

UNBOUNDED = 1.0
"""The gap if no bound is known."""

Value = tuple[int, ...]
"""The value of a plan at the levels below the nodes, each to be made small."""


class Gap(NamedTuple):
    """The first level that is not proven best, and by how much it could be better at most.

    `share` is |value − bound| / max(1, |bound|).
    """

    level: str
    share: float = UNBOUNDED


@dataclass(frozen=True, slots=True)
class Share:
    """What one node takes: members by role, and the GPUs for all of them."""

    row: int
    counts: Counts
    gpus: GpuSet
    spread: Spread = ()
    """By role: its members by NVLink domain. () and None mean that they may lie anywhere."""
    shared: int = 0
    """The mask of those GPUs that slices go to."""


@dataclass(frozen=True, slots=True)
class Found:
    """The best plan for given members: the shares of nodes, and how each level was decided.

    `gap` is that of the first level not proven best, None if all are proven. Without shares nothing fits,
    which is proven if there is no gap.
    """

    shares: tuple[Share, ...]
    gap: Gap | None = None
    steps: tuple[Step, ...] = ()
