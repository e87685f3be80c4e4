"""The running pods of each node, and the units that they belong to, as a search for victims needs them.

The index costs little until a gang asks: changed nodes and gangs are only noted. `settle` reads a
bounded number of them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import replace
from itertools import islice

from muster.domain.clearing import Occupant, Unit
from muster.domain.node import Usage
from muster.domain.pod import Pod
from muster.gangs.capacity.ledger import Ledger
from muster.gangs.membership.group import name_key
from muster.gangs.membership.units import occupant_of, unit_of_gang, unit_of_pod
from muster.gangs.record.gang import Gang

SETTLED_AT_ONCE = 128
"""The most nodes, and the most gangs, that one call of `settle` reads: about 5 ms."""
WORK_AT_ONCE = 64_000
"""A call of `settle` stops after this work: about 10 ms. A gang is not matched with the budgets of its
namespace if the matching alone is more work."""
_WORK_OF_POD = 16
"""The work to read a pod, apart from budgets: as much as to match this number of names and values."""
BUDGETS_PAUSE_S = 10.0
"""Shortest time between two times that pods are matched again because selectors of budgets changed: it may
take 2 s."""
MAX_GONE = 1024
"""Changes of this number of gangs and nodes are kept, and of twice those that are there. Beyond it, changes
of gangs and nodes that are gone are dropped. Of namespaces, changes of this number are kept."""


class Occupants:
    """Occupants by node, and units. The key of a unit is that of its gang, or the UID of a pod in no gang.

    What a node has given away otherwise is an occupant of no unit, which stays. `pods`: UID → pod, of all
    pods that claim a gang. `clock` returns the time of the inputs' clock.
    """

    def __init__(
        self,
        ledger: Ledger,
        pods: Mapping[str, Pod],
        gangs: Mapping[str, Gang],
        clock: Callable[[], float],
    ) -> None:
        self._ledger, self._pods, self._gangs, self._clock = ledger, pods, gangs, clock
        self.by_node: dict[str, tuple[Occupant, ...]] = {}
        self.units: dict[str, Unit] = {}
        self._changed_gangs: dict[str, None] = {}
        self._unit_of: dict[str, str] = {}
        """UID of a bound member → key of its unit."""
        self._uids_of: dict[str, frozenset[str]] = {}
        """Key of a unit → UIDs of its bound members."""
        self._lone_uids_on: dict[str, frozenset[str]] = {}
        """Node → UIDs of its pods in no gang that are units."""
        self._pods_read = 0
        self._budgets_noted_at = -math.inf

    def note(self, gang: Gang) -> None:
        """Note that a gang has other members, or moved to another phase."""
        self._changed_gangs[gang.key] = None
        changes = len(self._changed_gangs) + len(self._ledger.changed_nodes)
        things = len(self._gangs) + len(self.units) + len(self._ledger.nodes) + len(self.by_node)
        if changes > 2 * things + MAX_GONE:
            self._drop_gone()

    def limit_namespaces(self) -> None:
        """If budgets of too many namespaces changed, note their gangs and nodes in place of the names."""
        if len(self._ledger.budgets.changed_namespaces) > MAX_GONE:
            self._note_budgets()

    def settle(self) -> bool:
        """Read the next changed gangs and nodes. Return whether all were read.

        An equal node or unit stays the same object, so that it is not sent again. For `BUDGETS_PAUSE_S`, pods
        may be read as other selectors of budgets covered them, so that changes of selectors hold up no gang.
        """
        if self._clock() >= self._budgets_noted_at + BUDGETS_PAUSE_S:
            self._note_budgets()
        end = self._work() + WORK_AT_ONCE
        for key in list(islice(self._changed_gangs, SETTLED_AT_ONCE)):
            if self._work() >= end:
                return False
            del self._changed_gangs[key]
            self._read_gang(key)
        changed_nodes = self._ledger.changed_nodes
        for name in () if self._changed_gangs else list(islice(changed_nodes, SETTLED_AT_ONCE)):
            if self._work() >= end:
                return False
            changed_nodes.discard(name)
            self._read_node(name)
        return not (self._changed_gangs or changed_nodes)

    def _work(self) -> int:
        """Return the work so far: with pods, and with the budgets of their namespaces."""
        return self._pods_read * _WORK_OF_POD + self._ledger.budgets.work

    def seen_by(self, own_uids: Collection[str], hidden: Iterable[Usage]) -> dict[str, tuple[Occupant, ...]]:
        """Return the occupants of each node for a question of one gang.

        The places of its own pods are free. What is `hidden` from the gang counts as taken.
        """
        by_node = dict(self.by_node)
        for name in self._ledger.states_without(own_uids):
            by_node[name] = self._occupants_on(name, own_uids)
        for usage in hidden:
            by_node[usage.node] = (*by_node.get(usage.node, ()), Occupant(usage, usage.pod_uid))
        return by_node

    def note_all(self) -> None:
        """Have all units read again."""
        self._changed_gangs |= dict.fromkeys(self._gangs)
        self._ledger.changed_nodes.update(self._ledger.nodes)

    def _drop_gone(self) -> None:
        """Drop changes of gangs and nodes that came and went while no gang asked."""
        self._changed_gangs = {
            key: None for key in self._changed_gangs if key in self._gangs or key in self.units
        }
        self._ledger.changed_nodes &= self._ledger.nodes.keys() | self.by_node.keys()

    def _note_budgets(self) -> None:
        """Have the gangs and nodes read again whose pods other disruption budgets may cover."""
        namespaces = self._ledger.budgets.changed_namespaces
        if not namespaces:
            return
        self._budgets_noted_at = self._clock()
        self._changed_gangs |= dict.fromkeys(
            key for key, gang in self._gangs.items() if gang.name[0] in namespaces
        )
        for name, uids in self._lone_uids_on.items():
            pods = map(self._ledger.existing_pods.pod, uids)
            if any(pod is not None and pod.namespace in namespaces for pod in pods):
                self._ledger.changed_nodes.add(name)
        namespaces.clear()

    def _read_gang(self, key: str) -> None:
        """Read a gang's unit, and have the nodes of its members read again."""
        gang = self._gangs.get(key)
        bound = self._bound_members(gang) if gang is not None else []
        old_uids, uids = self._uids_of.pop(key, frozenset()), frozenset(pod.uid for pod in bound)
        for uid in old_uids - uids:
            if self._unit_of.get(uid) == key:
                del self._unit_of[uid]
        self._unit_of |= dict.fromkeys(uids, key)
        self._ledger.changed_nodes.update(filter(None, map(self._ledger.node_of, old_uids | uids)))
        if gang is None or not bound:
            self.units.pop(key, None)
            return
        self._uids_of[key] = uids
        self._set_unit(key, unit_of_gang(gang.group, self._why_protected(gang, bound), bound))

    def _why_protected(self, gang: Gang, bound: Collection[Pod]) -> str:
        """Return why no bound member may be a victim, apart from what the members state; "" if one may."""
        if gang.is_partially_bound:
            return "it is only partly bound"
        namespace, budgets = gang.name[0], self._ledger.budgets
        if len(bound) * budgets.size(namespace) > WORK_AT_ONCE:
            return f"it has too many pods to match with the PodDisruptionBudgets of namespace {namespace}"
        return budgets.protection(bound)

    def _bound_members(self, gang: Gang) -> list[Pod]:
        """Return the bound members, as they are now. A gang that is regrouped later may still list pods that
        moved to another gang."""
        self._pods_read += len(gang.group.bound)
        pods = (self._pods.get(pod.uid, pod) for pod in gang.group.bound)
        return [pod for pod in pods if name_key(pod) == gang.name]

    def _read_node(self, name: str) -> None:
        """Read the occupants of a node, and the units of its pods in no gang."""
        old_uids = self._lone_uids_on.pop(name, frozenset())
        is_there, usages = name in self._ledger.nodes, self._ledger.stated_usages_on(name)
        self._pods_read += len(usages)
        pods = [pod for uid in usages if (pod := self._lone_pod(uid))]
        for pod in pods if is_there else ():
            self._set_unit(pod.uid, unit_of_pod(pod, self._ledger.budgets.protection([pod])))
        uids = frozenset(pod.uid for pod in pods) if is_there else frozenset()
        for uid in old_uids - uids:
            self.units.pop(uid, None)
        if uids:
            self._lone_uids_on[name] = uids
        if not is_there:
            self.by_node.pop(name, None)
        elif (occupants := self._occupants_on(name)) != self.by_node.get(name):
            self.by_node[name] = occupants

    def _lone_pod(self, uid: str) -> Pod | None:
        """Return a bound pod that is present in no gang and has GPUs. Other such pods serve the cluster, and
        stay."""
        usage, pod = self._ledger.bound.get(uid), self._ledger.existing_pods.pod(uid)
        if usage is None or pod is None or not usage.holds_gpus or uid in self._unit_of:
            return None
        return pod if pod.claim is None or not pod.present else None

    def _set_unit(self, key: str, unit: Unit) -> None:
        if self.units.get(key) != unit:
            self.units[key] = unit

    def _occupants_on(self, name: str, left_out_uids: Collection[str] = ()) -> tuple[Occupant, ...]:
        return tuple(map(self._occupant, self._ledger.counted_usages_on(name, left_out_uids)))

    def _occupant(self, usage: Usage) -> Occupant:
        uid = usage.pod_uid
        pod, key = self._pods.get(uid), self._unit_of.get(uid)
        if key is None and uid in self.units:
            pod, key = self._ledger.existing_pods.pod(uid), uid
        if key is None or pod is None or uid not in self._ledger.bound:
            return Occupant(usage, uid)
        occupant = occupant_of(pod, usage, key, self._ledger.budgets.coverage(pod).budget)
        saved = self._ledger.existing_pods.checkpoints.get(uid)
        return replace(occupant, saved=saved) if saved else occupant
