"""Represent plans and their gaps, as exact methods exchange them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from muster.domain.decision import Step
from muster.placement.gang.instance import Instance
from muster.placement.gang.on_node import costs_on, gpus_on
from muster.placement.gang.rules import Counts
from muster.placement.gpus.choices import choices
from muster.placement.gpus.gpusets import GpuSet, best_sets
from muster.placement.gpus.node_rules import Spread, free_by_domain, sets_under, spreads

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


def share_of(instance: Instance, row: int, counts: Counts, choice: int) -> Share:
    """Return the share of a node that takes these members on the GPU set of this choice, as `best_sets`
    orders them.
    """
    if instance.costs:
        sets = choices(instance.asks, (counts,), gpus_on(instance, row), costs_on(instance, row))
        # Alone, a packing may have been examined more closely than among others, so it has fewer choices.
        gpus, shared = sets.chosen(min(choice, len(sets.packing) - 1))
        return Share(row, counts, gpus, lying(instance, row, counts, gpus.mask), shared)
    rule, shape, free = instance.node_rule(row)
    if rule is None:
        size = sum(count * role.gpus for count, role in zip(counts, instance.roles, strict=True))
        return Share(row, counts, best_sets(shape, free, size)[choice])
    return Share(row, counts, *sets_under(rule, shape, free, counts)[choice])


def lying(instance: Instance, row: int, counts: Counts, mask: int, allowed: int = -1) -> Spread:
    """Return how members lie on the chosen GPUs of the node; () if no rule binds them to domains."""
    rule, shape, free = instance.node_rule(row)
    if rule is None or not rule.binds_domains:
        return ()
    return spreads(rule, counts, free_by_domain(shape, free & allowed))[free_by_domain(shape, mask)]
