"""Count all gangs at once, for metrics."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Set
from dataclasses import dataclass, field

from muster.gangs.record.gang import Gang, blocking_causes


@dataclass(slots=True)
class NamespaceTally:
    """Counts of the gangs of one namespace."""

    phases: Counter[str] = field(default_factory=Counter)
    """Phase → gangs."""
    causes: Counter[str] = field(default_factory=Counter)
    """Kind of cause → gangs that it blocks now. A gang with two kinds counts for both."""
    gpus: Counter[str] = field(default_factory=lambda: Counter(bound=0, waiting=0))
    """Whole GPUs of bound and of waiting members."""
    oldest: float = math.inf
    """Since when the gang waits that has waited longest, in seconds since the Unix epoch."""

    def count(self, gang: Gang) -> None:
        """Count a gang."""
        self.phases[gang.phase.value] += 1
        self.causes.update({type(cause).__name__ for cause in blocking_causes(gang)})
        self.gpus["bound"] += sum(pod.gpus for pod in gang.group.bound)
        self.gpus["waiting"] += sum(pod.gpus for pod in gang.group.unbound)
        if gang.group.unbound:
            self.oldest = min(self.oldest, gang.group.since)

    def add(self, tally: NamespaceTally) -> None:
        """Add the counts of another namespace."""
        self.phases += tally.phases
        self.causes += tally.causes
        self.gpus.update(tally.gpus)
        self.oldest = min(self.oldest, tally.oldest)


@dataclass(slots=True)
class Tally:
    """Counts of gangs."""

    phases: Counter[str] = field(default_factory=Counter)
    """Phase → gangs."""
    queues: Counter[str] = field(default_factory=Counter)
    """Queue of the PodGroup → gangs."""
    oldest: dict[str, float] = field(default_factory=dict)
    """Phase → since when its gang waits that has waited longest, in seconds since the Unix epoch."""
    partially_bound: int = 0
    reserved: Counter[str] = field(default_factory=Counter)
    """Kind of reservation → members."""
    namespaces: dict[str, NamespaceTally] = field(default_factory=dict)

    def add(self, gang: Gang) -> None:
        """Count a gang."""
        group, phase = gang.group, gang.phase.value
        self.phases[phase] += 1
        self.namespaces.setdefault(group.gang.namespace, NamespaceTally()).count(gang)
        if group.pod_group is not None and group.pod_group.queue:
            self.queues[group.pod_group.queue] += 1
        if group.unbound:
            self.oldest[phase] = min(self.oldest.get(phase, group.since), group.since)
        self.partially_bound += gang.is_partially_bound
        self.reserved["plan"] += len(gang.reserved_uids) - len(gang.awaited_bindings)
        self.reserved["binding"] += len(gang.awaited_bindings)
        self.reserved["retained"] += len(gang.retained_uids)

    def only_namespaces(self, names: Set[str], rest_name: str) -> dict[str, NamespaceTally]:
        """Return these namespaces, and the sum of the others under the name `rest_name`."""
        by_name: dict[str, NamespaceTally] = {}
        for name, tally in self.namespaces.items():
            if name in names:
                by_name[name] = tally
            else:
                by_name.setdefault(rest_name, NamespaceTally()).add(tally)
        return by_name
