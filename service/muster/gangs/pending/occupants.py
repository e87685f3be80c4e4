"""The running pods of each node, and the gangs that they belong to, as a search for victims needs them.

The index costs little until a gang asks: changed nodes and gangs are only noted. `settle` reads a
bounded number of them.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from itertools import islice

from muster.domain.clearing import Occupant, Unit
from muster.domain.node import Usage
from muster.domain.pod import Pod
from muster.gangs.capacity.ledger import Ledger
from muster.gangs.membership.units import occupant_of, unit_of_gang
from muster.gangs.record.gang import Gang

SETTLED_AT_ONCE = 128
"""The most nodes, and the most gangs, that one call of `settle` reads: about 5 ms."""


class Occupants:
    """Occupants by node, and units by the keys of their gangs.

    A bound pod of a gang is an occupant of the gang's unit. All else that a node has given away is an
    occupant of no unit, which stays. `pods`: UID → pod, of all pods that claim a gang.
    """

    def __init__(self, ledger: Ledger, pods: Mapping[str, Pod], gangs: Mapping[str, Gang]) -> None:
        self._ledger, self._pods, self._gangs = ledger, pods, gangs
        self.by_node: dict[str, tuple[Occupant, ...]] = {}
        self.units: dict[str, Unit] = {}
        self._changed_gangs: dict[str, None] = {}
        self._unit_of: dict[str, str] = {}
        """UID of a bound member → key of its unit."""
        self._uids_of: dict[str, frozenset[str]] = {}
        """Key of a unit → UIDs of its bound members."""

    def note(self, gang: Gang) -> None:
        """Note that a gang has other members, or moved to another phase."""
        self._changed_gangs[gang.key] = None

    def settle(self) -> bool:
        """Read the next changed gangs and nodes. Return whether all were read.

        An equal node or unit stays the same object, so that it is not sent again.
        """
        self._note_budgets()
        for key in list(islice(self._changed_gangs, SETTLED_AT_ONCE)):
            del self._changed_gangs[key]
            self._read_gang(key)
        changed_nodes = self._ledger.changed_nodes
        for name in () if self._changed_gangs else list(islice(changed_nodes, SETTLED_AT_ONCE)):
            changed_nodes.discard(name)
            if name not in self._ledger.nodes:
                self.by_node.pop(name, None)
            elif (occupants := self._occupants_on(name)) != self.by_node.get(name):
                self.by_node[name] = occupants
        return not (self._changed_gangs or changed_nodes)

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

    def _note_budgets(self) -> None:
        """Have the gangs read again that other disruption budgets may cover."""
        namespaces = self._ledger.budgets.changed_namespaces
        if namespaces:
            changed_keys = (key for key, gang in self._gangs.items() if gang.name[0] in namespaces)
            self._changed_gangs |= dict.fromkeys(changed_keys)
            namespaces.clear()

    def _read_gang(self, key: str) -> None:
        """Read a gang's unit, and have the nodes of its members read again."""
        gang = self._gangs.get(key)
        bound = gang.group.bound if gang is not None else ()
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
        if (unit := self._unit(gang)) != self.units.get(key):
            self.units[key] = unit

    def _occupants_on(self, name: str, left_out_uids: Collection[str] = ()) -> tuple[Occupant, ...]:
        return tuple(map(self._occupant, self._ledger.counted_usages_on(name, left_out_uids)))

    def _occupant(self, usage: Usage) -> Occupant:
        uid = usage.pod_uid
        key, pod = self._unit_of.get(uid), self._pods.get(uid)
        if key is None or pod is None or uid not in self._ledger.bound:
            return Occupant(usage, uid)
        budget = self._ledger.budgets.coverage(pod).budget
        return replace(occupant_of(pod, usage, key), budget=budget)

    def _unit(self, gang: Gang) -> Unit:
        """Return the unit of a gang's bound members. Few members of an incomplete gang are no victims."""
        unit = unit_of_gang(gang.group)
        coverages = map(self._ledger.budgets.coverage, gang.group.bound)
        protected = "it is only partly bound" if gang.is_partially_bound else unit.protected
        protected = protected or next(filter(None, (coverage.protected for coverage in coverages)), "")
        return replace(unit, protected=protected)
