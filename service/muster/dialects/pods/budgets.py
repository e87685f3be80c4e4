"""A PodDisruptionBudget object → facts.

The eviction API refuses to evict a pod while the status is older than the spec, or allows a negative number
(pkg/registry/core/pod/storage/eviction.go, checkAndDecrement). It lets some pods go that are not ready,
whatever the number is. Here these pods count like ready ones.
"""

from __future__ import annotations

from muster.dialects.objects import PodDisruptionBudget
from muster.dialects.pods import peers
from muster.domain.preemption import DisruptionBudget


def read(obj: PodDisruptionBudget) -> DisruptionBudget:
    """Return the facts of a budget. A selector that is too large to be matched selects all pods."""
    meta, status = obj.metadata, obj.status
    selector = peers.selector_of(obj.spec.selector, if_too_large=())
    is_current = status.observed_generation >= meta.generation
    allowed = max(0, status.disruptions_allowed) if is_current else 0
    return DisruptionBudget(meta.namespace, meta.name, selector, allowed)
