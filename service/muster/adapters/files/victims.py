"""Ask which running pods would have to end so that a refused gang fits. `muster place` ends none of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from muster.domain.clearing import Clearing, ClearQuestion, NoClearing, Occupancy, Occupant, Unit
from muster.domain.node import Usage
from muster.domain.pod import Pod
from muster.domain.request import Request
from muster.domain.snapshot import Snapshot
from muster.gangs.capacity import requests
from muster.gangs.capacity.ledger import Ledger
from muster.gangs.membership.group import Group
from muster.gangs.membership.units import occupant_of, unit_of_gang, unit_of_pod

Clear = Callable[[Snapshot, ClearQuestion], Clearing | NoClearing | None]
"""Returns the answer to the question; None if there is none."""

MAX_GANGS = 16
"""Number of gangs of one input for which victims are sought. The first refused gangs are taken."""


class VictimSearch:
    """The running pods of the input as possible victims, and the search among them.

    Without `clear` no victims are sought. A pod without GPUs is a possible victim only as the member of a
    gang: other pods without GPUs serve the cluster. Times are compared with the newest time in the input, so
    that the same input gives the same answer.
    """

    def __init__(
        self, ledger: Ledger, pods: Iterable[Pod], groups: Iterable[Group], clear: Clear | None
    ) -> None:
        self._clear, self._gangs_left = clear, MAX_GANGS if clear is not None else 0
        self._ledger = ledger
        self._pods = {pod.uid: pod for pod in pods}
        self._now = max((max(pod.created, pod.started) for pod in self._pods.values()), default=0.0)
        self._unit_of: dict[str, str] = {}
        """Pod UID → key of its unit."""
        self._units: dict[str, Unit] = {}
        for group in groups:
            if group.bound:
                self._units[group.gang.key] = unit_of_gang(group, ledger.budgets.protection(group.bound))
                self._unit_of |= {pod.uid: group.gang.key for pod in group.bound}
        for uid, pod in self._pods.items():
            if (usage := pod.usage) is not None and usage.holds_gpus and uid not in self._unit_of:
                self._units[uid] = unit_of_pod(pod, ledger.budgets.protection([pod]))
                self._unit_of[uid] = uid
        self._has_ending = any(self._pods[uid].ends for uid in self._unit_of)
        self._last: tuple[Snapshot, Occupancy] | None = None
        """The last question's snapshot, and what it has given away."""

    def answer(self, group: Group, request: Request, snapshot: Snapshot) -> Clearing | NoClearing | None:
        """Return whose end would make room for a refused gang; None if no pod has a lower priority or is
        being deleted.

        No pod ends for a pod of lower or equal priority. So the lowest priority counts of the members that
        must start.
        """
        least = requests.least_of(request)
        uids = {member.uid for role in least.roles for member in role.members}
        priority = min(pod.priority for pod in group.unbound if pod.uid in uids)
        units = self._units
        if group.gang.key in units:
            units = {key: unit for key, unit in units.items() if key != group.gang.key}
        may_help = self._has_ending or any(unit.priority < priority for unit in units.values())
        if self._clear is None or not self._gangs_left or not may_help:
            return None
        self._gangs_left -= 1
        return self._clear(snapshot, ClearQuestion(least, self._occupancy(snapshot, units), priority))

    def _occupancy(self, snapshot: Snapshot, units: Mapping[str, Unit]) -> Occupancy:
        """Return what the snapshot has given away. Questions about one snapshot share one object, from which
        `clear` makes its arrays once."""
        if self._last is None or self._last[0] is not snapshot or self._last[1].units is not units:
            by_node = {
                name: tuple(map(self._occupant, self._ledger.counted_usages_on(name)))
                for name in snapshot.nodes
            }
            occupancy = Occupancy(by_node, units, self._now, self._ledger.budgets.allowed)
            self._last = snapshot, occupancy
        return self._last[1]

    def _occupant(self, usage: Usage) -> Occupant:
        pod, unit = self._pods.get(usage.pod_uid), self._unit_of.get(usage.pod_uid)
        if pod is None or unit is None:
            return Occupant(usage, usage.pod_uid)
        return occupant_of(pod, usage, unit, self._ledger.budgets.coverage(pod).budget)
