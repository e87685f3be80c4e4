"""Queueing hints: the conditions of a refused gang, so that most changes need no new question to the planner.

In a busy cluster most capacity that comes free can't help most of the waiting gangs. A gang is skipped only
if this is proven. The proof: the gang did not fit before, and no node with more free capacity both admits a
member and has room for the member. So the gang does not fit now. Constraints between pods break the proof,
because they depend on pods on other nodes too. `watchers` finds the gangs with such constraints.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from muster.domain.node import Node, Resources
from muster.domain.request import NodeRules, Request, Role, Scope
from muster.domain.snapshot import NodeState
from muster.gangs.capacity.ledger import Ledger
from muster.gangs.peers.existing_pods import PeerInterest
from muster.placement.cluster.candidates import refusal

_MORE_THAN_ANY_NODE = 1 << 20
"""Stands for the GPUs of several members with scope gpu: no whole GPU is given to two members."""


@dataclass(frozen=True, slots=True)
class QueueingHint:
    """The conditions that a refused gang must meet to fit. Gangs with equal requests have equal hints."""

    requests: frozenset[tuple[str, int, Resources, NodeRules]]
    """(GPU resource, GPUs, other resources, node rules) of one member of each role.

    If one node must hold the gang, the GPUs are those of the whole gang.
    """
    quotas: tuple[tuple[str, int, int], ...]
    """(GPU resource, GPUs, the fewest members with this number of GPUs or more that must be placed)."""
    interest: PeerInterest | None = None
    """The pods and claims that constraints between pods concern; None without such constraints."""
    _hash: int = field(init=False, repr=False, compare=False)
    """Stored, because one input may look up ten thousand hints."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "_hash", hash((self.requests, self.quotas, self.interest)))

    def __hash__(self) -> int:
        return self._hash

    @classmethod
    def of(cls, request: Request, interest: PeerInterest | None = None) -> QueueingHint:
        """Return the hint of a request. `interest`: the pods and claims that the request's constraints
        concern."""
        spare = request.size - request.min_member
        sizes: dict[tuple[str, int], int] = {}
        for role in request.roles:
            if role.gpus:
                key = (role.gpu_resource, role.gpus)
                sizes[key] = sizes.get(key, 0) + len(role.members)
        quotas = []
        for resource, gpus in sorted(sizes):
            members = sum(count for (name, size), count in sizes.items() if name == resource and size >= gpus)
            quotas.append((resource, gpus, max(0, members - spare)))
        gpus_of_gang = _gpus_on_one_node(request)
        requests = frozenset(
            (role.gpu_resource, role.gpus and max(role.gpus, gpus_of_gang), role.resources, role.rules)
            for role in request.roles
        )
        return cls(requests, tuple(quotas), interest)

    def for_holder(self) -> QueueingHint:
        """Return the hint of a gang with the same requests that holds places itself.

        The gang can use its own places again, so too little free capacity proves nothing. Only the node rules
        count.
        """
        requests = frozenset(("", 0, Resources(pods=0), rules) for *_, rules in self.requests)
        return QueueingHint(requests, (), self.interest)


def _gpus_on_one_node(request: Request) -> int:
    """Return how many GPUs of one node the gang needs to start, if its scope is a node or a GPU; else 0."""
    if request.required_scope not in (Scope.NODE, Scope.GPU):
        return 0
    gpus_by_member = sorted(role.gpus for role in request.roles for _ in role.members)
    gpus = sum(gpus_by_member[: request.min_member])
    return gpus if request.required_scope == Scope.NODE or gpus < 2 else _MORE_THAN_ANY_NODE


def admits(node: Node, rules: NodeRules) -> bool:
    """Return whether a node admits members with these rules, whatever they request."""
    return refusal(node, Role("", (), Resources(), rules=rules)) is None


MAX_OFFERS = 256
"""Up to this number of different nodes, nodes are compared one by one. More nodes are compared in groups, by
the maxima of each group."""
FEW_NODES = 8
"""Up to this number of nodes with more free capacity, node rules are compared too. With more nodes, node
rules are compared only if MAX_NAMES allows this. So a gang that was just refused is not planned again for
nodes that do not admit it."""
MAX_NAMES = 4096
"""Number of names and values of node rules that are compared with a node: about 10 ms. Each rule counts one
more. Members with further rules count as admitted."""
FIRST_ROWS = 64
SLOT, RESOURCE, GPUS, CPU, MEMORY, PODS, RULES = range(7)
"""Columns of `HintTable._requests`. SLOT, RESOURCE and GPUS are also columns of `HintTable._quotas`."""
MEMBERS = 3
"""Column of `HintTable._quotas`: the fewest members that must be placed."""
_MAX_AMOUNT = 2**62
"""Larger amounts are stored as this amount, because Kubernetes objects may state amounts beyond int64.

A hint may then look as if it fitted. This costs one question to the planner.
"""
_ALWAYS = -_MAX_AMOUNT
"""Stored for a resource that a member does not request: every node has this amount, even an overcommitted
node."""

Numbers = NDArray[np.int64]


class _Rows:
    """Rows of int64 that grow at the end; shape (rows, columns)."""

    def __init__(self, columns: int) -> None:
        self._data: Numbers = np.empty((FIRST_ROWS, columns), dtype=np.int64)
        self._count = 0

    @property
    def values(self) -> Numbers:
        """Return the rows; shape (rows, columns)."""
        return self._data[: self._count]

    def append(self, *row: int) -> None:
        """Add a row."""
        if self._count == len(self._data):
            self._data = np.concatenate([self._data, np.empty_like(self._data)])
        self._data[self._count] = row
        self._count += 1

    def keep(self, rows: NDArray[np.bool_]) -> None:
        """Remove the rows that are not selected; `rows` has shape (rows,)."""
        remaining = self.values[rows]
        self._data[: len(remaining)] = remaining
        self._count = len(remaining)


class HintTable:
    """The hints of all refused gangs as arrays.

    The end of one pod must not cost a look at each of ten thousand waiting gangs. The answers contain each
    gang that may fit. They may also contain gangs that do not fit: each costs one question to the planner.

    Each hint has a slot, and rows in the tables of requests and quotas. Slots of removed hints stay until
    they outnumber the others.
    """

    def __init__(self) -> None:
        self._slots: dict[QueueingHint, int] = {}
        self._hints: list[QueueingHint | None] = []
        self._requests = _Rows(RULES + 1)
        self._quotas = _Rows(MEMBERS + 1)
        self._resources = {"": 0}
        """GPU resource → its number in the column RESOURCE."""
        self._rules: dict[NodeRules, int] = {}
        """Node rules → their number in the column RULES, in the order of the numbers."""

    def add(self, hint: QueueingHint) -> None:
        """Add a hint that is not in the table yet."""
        slot = self._slots[hint] = len(self._hints)
        self._hints.append(hint)
        for resource, gpus, resources, rules in hint.requests:
            self._requests.append(
                slot,
                self._number(resource) if gpus else self._number(""),
                min(gpus, _MAX_AMOUNT),
                min(resources.cpu_milli, _MAX_AMOUNT) or _ALWAYS,
                min(resources.memory_bytes, _MAX_AMOUNT) or _ALWAYS,
                min(resources.pods, _MAX_AMOUNT) or _ALWAYS,
                self._rules.setdefault(rules, len(self._rules)),
            )
        for resource, gpus, members in hint.quotas:
            self._quotas.append(
                slot, self._number(resource), min(gpus, _MAX_AMOUNT), min(members, _MAX_AMOUNT)
            )

    def discard(self, hint: QueueingHint) -> None:
        """Remove a hint, if it is in the table."""
        slot = self._slots.pop(hint, None)
        if slot is not None:
            self._hints[slot] = None
            if len(self._hints) > 2 * len(self._slots) + FIRST_ROWS:
                self._tidy()

    def may_fit(
        self, ledger: Ledger, gained_nodes: Collection[str], touched_hints: Iterable[QueueingHint] = ()
    ) -> set[QueueingHint]:
        """Return the hints of gangs that may fit now. All other gangs provably do not fit.

        `touched_hints`: hints whose constraints concern other pods that changed.
        """
        states = [state for state in map(ledger.state, gained_nodes) if state is not None]
        requests = self._requests.values
        fits = np.zeros(len(requests), dtype=np.bool_)
        for offer in self._offers(states):
            fits |= self._fitting_requests(offer)
        compared_names = len(states) * (len(requests) + sum(rules.size for rules in self._rules))
        if (len(states) <= FEW_NODES or compared_names <= MAX_NAMES) and fits.any():
            fits[:] = False
            for state in states:
                has_room = self._fitting_requests(np.array(self._offer(state), dtype=np.int64))
                fits |= has_room & self._admitted_rules(state.node, has_room)[requests[:, RULES]]
        helped = np.zeros(len(self._hints), dtype=np.bool_)
        helped[requests[fits, SLOT]] = True
        helped[[self._slots[hint] for hint in touched_hints]] = True
        if helped.any():
            quotas = self._quotas.values
            helped[quotas[self._max_members_by_quota(ledger) < quotas[:, MEMBERS], SLOT]] = False
        helped_hints = (self._hints[slot] for slot in np.flatnonzero(helped))
        return {hint for hint in helped_hints if hint is not None}

    def _fitting_requests(self, offer: Numbers) -> NDArray[np.bool_]:
        """Return which requests fit in the offer of a node, rules aside; shape (requests,)."""
        requests = self._requests.values
        enough_gpus = offer[requests[:, RESOURCE]] >= requests[:, GPUS]
        has_room: NDArray[np.bool_] = enough_gpus & (requests[:, CPU:RULES] <= offer[-3:]).all(axis=1)
        return has_room

    def _admitted_rules(self, node: Node, has_room: NDArray[np.bool_]) -> NDArray[np.bool_]:
        """Return, by number of node rules, whether the node admits members with these rules.

        Only rules of requests with room are compared, up to MAX_NAMES.
        """
        admitted, compared_names = np.ones(len(self._rules), dtype=np.bool_), 0
        to_check = np.zeros(len(self._rules), dtype=np.bool_)
        to_check[self._requests.values[has_room, RULES]] = True
        for rules, number in self._rules.items():
            if to_check[number]:
                compared_names += 1 + rules.size
                if compared_names > MAX_NAMES:
                    break
                admitted[number] = admits(node, rules)
        return admitted

    def _offers(self, states: Iterable[NodeState]) -> Numbers:
        """Return the offers of different nodes, each as `_offer` returns it; shape (nodes, resources + 3)."""
        different = {self._offer(state) for state in states}
        offers = np.array(sorted(different), dtype=np.int64).reshape(-1, len(self._resources) + 3)
        if len(offers) <= MAX_OFFERS:
            return offers
        return np.array([group.max(axis=0) for group in np.array_split(offers, MAX_OFFERS)])

    def _offer(self, state: NodeState) -> tuple[int, ...]:
        """Return free GPUs by resource (-1 if the node does not have the resource), then CPU, memory and
        pods."""
        gpus = [-1] * len(self._resources)
        for resource in state.node.gpu_resources:
            if resource in self._resources:
                gpus[self._resources[resource]] = state.max_gpus
        gpus[self._resources[""]] = _MAX_AMOUNT
        free = state.free
        return (*gpus, *map(_clamp, (free.cpu_milli, free.memory_bytes, free.pods)))

    def _max_members_by_quota(self, ledger: Ledger) -> Numbers:
        """Return an upper bound on the members of each quota that all nodes together hold; shape
        (quotas,)."""
        quotas = self._quotas.values
        max_members = np.zeros(len(quotas), dtype=np.int64)
        for (resource, free), nodes in ledger.whole_gpus().items():
            if resource in self._resources and free and nodes:
                rows_of_resource = quotas[:, RESOURCE] == self._resources[resource]
                max_members[rows_of_resource] += nodes * (free // quotas[rows_of_resource, GPUS])
        return max_members

    def _number(self, resource: str) -> int:
        return self._resources.setdefault(resource, len(self._resources))

    def _tidy(self) -> None:
        """Remove the slots and rules of removed hints."""
        live = np.array([hint is not None for hint in self._hints], dtype=np.bool_)
        numbers = np.cumsum(live) - 1
        for rows in (self._requests, self._quotas):
            rows.keep(live[rows.values[:, SLOT]])
            rows.values[:, SLOT] = numbers[rows.values[:, SLOT]]
        live_rules = np.unique(self._requests.values[:, RULES])
        rules = list(self._rules)
        self._rules = {rules[number]: index for index, number in enumerate(live_rules.tolist())}
        self._requests.values[:, RULES] = np.searchsorted(live_rules, self._requests.values[:, RULES])
        self._hints = [hint for hint in self._hints if hint is not None]
        self._slots = {hint: slot for slot, hint in enumerate(self._hints) if hint is not None}


def _clamp(number: int) -> int:
    return max(1 - _MAX_AMOUNT, min(number, _MAX_AMOUNT))
