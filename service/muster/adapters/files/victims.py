"""Ask which running pods would have to end so that a refused gang fits. `muster place` ends none of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from muster.domain.clearing import Clearing, ClearQuestion, NoClearing, Occupancy, Occupant, Unit
from muster.domain.node import Usage
from muster.domain.pod import Pod
from muster.domain.request import Request
from muster.domain.snapshot import NodeState, Snapshot
from muster.gangs.capacity import requests
from muster.gangs.capacity.ledger import Ledger
from muster.gangs.membership.group import Group
from muster.gangs.membership.units import occupant_of, unit_of_gang, unit_of_pod

Clear = Callable[[Snapshot, ClearQuestion], Clearing | NoClearing | None]
"""Returns the answer to the question; None if there is none."""

MAX_GANGS = 16
"""Number of gangs of one input for which victims are sought. The first refused gangs are taken."""


class VictimSearch:
    """The running pods of the input as possible victims, and the search among them. None is asked if `clear`
    is None.

    A pod without GPUs is a possible victim only as the member of a gang: other pods without GPUs serve the
    cluster. Times are compared with the newest time in the input, so that the same input gives the same
    answer.
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
        self._on_node: dict[str, tuple[NodeState, tuple[Occupant, ...]]] = {}
        """Node → its occupants, and the state of the node that they make up."""

    def answer(self, group: Group, request: Request, snapshot: Snapshot) -> Clearing | NoClearing | None:
        """Return whose end would make room for a refused gang; None if no unit may be a victim.

        No pod ends for a pod of lower or equal priority. So the lowest priority counts of the members that
        must start.
        """
        least = requests.least_of(request)
        uids = {member.uid for role in least.roles for member in role.members}
        priority = min(pod.priority for pod in group.unbound if pod.uid in uids)
        units = {key: unit for key, unit in self._units.items() if key != group.gang.key}
        is_sought = any(unit.priority < priority for unit in units.values())
        if self._clear is None or not self._gangs_left or not is_sought:
            return None
        self._gangs_left -= 1
        by_node = {name: self._occupants(name, state) for name, state in snapshot.nodes.items()}
        occupancy = Occupancy(by_node, units, self._now, self._ledger.budgets.allowed)
        return self._clear(snapshot, ClearQuestion(least, occupancy, priority))

    def _occupants(self, name: str, state: NodeState) -> tuple[Occupant, ...]:
        last_state, occupants = self._on_node.get(name, (None, ()))
        if last_state is not state:
            occupants = tuple(map(self._occupant, self._ledger.counted_usages_on(name)))
            self._on_node[name] = state, occupants
        return occupants

    def _occupant(self, usage: Usage) -> Occupant:
        pod, unit = self._pods.get(usage.pod_uid), self._unit_of.get(usage.pod_uid)
        if pod is None or unit is None:
            return Occupant(usage, usage.pod_uid)
        return occupant_of(pod, usage, unit, self._ledger.budgets.coverage(pod).budget)
