"""Queueing hints: the conditions of a refused gang, so that most changes need no new question to the planner.

In a busy cluster most capacity that comes free can't help most of the waiting gangs. All tests here are
necessary conditions: a gang is skipped only if a proof says that it does not fit. The proof: the gang did not
fit before, and no node with more free capacity both admits a member and has room for it. So the gang does not
fit now. Constraints between pods break the proof, because pods on other nodes affect them. `watchers` finds
the gangs with such constraints.
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

    asks: frozenset[tuple[str, int, Resources, NodeRules]]
    """(GPU resource, GPUs, other resources, node rules): one member of each role takes these of an admitted
    node.

    If one node must hold the gang, the GPUs are those of the gang.
    """
    quotas: tuple[tuple[str, int, int], ...]
    """(GPU resource, k, the fewest members with k or more of these GPUs that must be placed)."""
    interest: PeerInterest | None = None
    """The pods and claims that constraints between pods concern; None without such constraints."""
    _hash: int = field(init=False, repr=False, compare=False)
    """Stored, because one input may look up ten thousand hints."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "_hash", hash((self.asks, self.quotas, self.interest)))

    def __hash__(self) -> int:
        return self._hash

    @classmethod
    def of(cls, request: Request, interest: PeerInterest | None = None) -> QueueingHint:
        """Return the hint of a request. `interest`: the pods and claims that its constraints concern."""
        spare = request.size - request.min_member
        sizes: dict[tuple[str, int], int] = {}
        for role in request.roles:
            if role.gpus:
                key = (role.gpu_resource, role.gpus)
                sizes[key] = sizes.get(key, 0) + len(role.members)
        quotas = []
        for resource, gpus in sorted(sizes):
            as_many = sum(count for (name, k), count in sizes.items() if name == resource and k >= gpus)
            quotas.append((resource, gpus, max(0, as_many - spare)))
        of_gang = _gpus_on_one_node(request)
        asks = frozenset(
            (role.gpu_resource, role.gpus and max(role.gpus, of_gang), role.resources, role.rules)
            for role in request.roles
        )
        return cls(asks, tuple(quotas), interest)

    def of_holder(self) -> QueueingHint:
        """Return the weaker hint of a gang with the same requests that holds places itself.

        These places are free for the gang, so the proof from free capacity does not hold. Only the node rules
        count.
        """
        asks = frozenset(("", 0, Resources(pods=0), rules) for *_, rules in self.asks)
        return QueueingHint(asks, (), self.interest)


def _gpus_on_one_node(request: Request) -> int:
    """Return how many GPUs the fewest members take of one node, if the scope is a node or a GPU; else 0."""
    if request.required_scope not in (Scope.NODE, Scope.GPU):
        return 0
    gpus_by_member = sorted(role.gpus for role in request.roles for _ in role.members)
    gpus = sum(gpus_by_member[: request.min_member])
    return gpus if request.required_scope == Scope.NODE or gpus < 2 else _MORE_THAN_ANY_NODE


def admits(node: Node, rules: NodeRules) -> bool:
    """Return whether a node admits members with these rules, whatever they request."""
    return refusal(node, Role("", (), Resources(), rules=rules)) is None


MAX_OFFERS = 256
"""Number of different nodes up to which nodes are compared one by one. With more, groups of nodes are
compared by their maxima."""
FEW_NODES = 8
"""Number of nodes with more free capacity up to which node rules are compared too. With more nodes, node
rules are compared only if few gangs are. So a gang that was just refused is not planned again for nodes that
do not admit it."""
MAX_NAMES = 4096
"""Number of names and values of node rules that are compared with a node: about 10 ms. Each rule counts one
more. Members with further rules count as admitted."""
FIRST_ROWS = 64
_MAX_AMOUNT = 2**62
"""Larger amounts are stored as this one, because Kubernetes objects may state amounts beyond int64.

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
    """The hints of all refused gangs as arrays, each with a slot.

    The end of one pod must not cost a look at each of ten thousand waiting gangs. A gang that may fit is
    never left out. Gangs that do not fit may be among the answer, and each costs a question to the planner.

    Requests are rows (slot, GPU resource, GPUs, CPU, memory, pods, node rules). Quotas are rows (slot, GPU
    resource, GPUs of a member, members). Slots of removed hints stay until they outnumber the others.
    """

    def __init__(self) -> None:
        self._slots: dict[QueueingHint, int] = {}
        self._hints: list[QueueingHint | None] = []
        self._asks = _Rows(7)
        self._quotas = _Rows(4)
        self._resources = {"": 0}
        self._rules: dict[NodeRules, int] = {}
        """The number of each, in their order."""

    def add(self, hint: QueueingHint) -> None:
        """Add a hint that is not in the table yet."""
        slot = self._slots[hint] = len(self._hints)
        self._hints.append(hint)
        for resource, gpus, resources, rules in hint.asks:
            self._asks.append(
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
        self, ledger: Ledger, gained: Collection[str], touched: Iterable[QueueingHint] = ()
    ) -> set[QueueingHint]:
        """Return the hints of gangs that may fit now. All other gangs provably do not fit.

        `gained`: nodes with more free capacity. `touched`: hints whose constraints concern other pods that
        changed.
        """
        states = [state for state in map(ledger.state, gained) if state is not None]
        asks = self._asks.values
        fits = np.zeros(len(asks), dtype=np.bool_)
        for offer in self._offers(states):
            fits |= self._room(offer)
        names = len(states) * (len(asks) + sum(rules.size for rules in self._rules))
        if (len(states) <= FEW_NODES or names <= MAX_NAMES) and fits.any():
            fits[:] = False
            for state in states:
                room = self._room(np.array(self._offer(state), dtype=np.int64))
                fits |= room & self._admitted(state.node, room)[asks[:, 6]]
        slots = asks[:, 0]
        helped = np.zeros(len(self._hints), dtype=np.bool_)
        helped[slots[fits]] = True
        helped[[self._slots[hint] for hint in touched]] = True
        if helped.any():
            quotas = self._quotas.values
            helped[quotas[self._room_of_quotas(ledger) < quotas[:, 3], 0]] = False
        helped_hints = (self._hints[slot] for slot in np.flatnonzero(helped))
        return {hint for hint in helped_hints if hint is not None}

    def _room(self, offer: Numbers) -> NDArray[np.bool_]:
        """Return which requests fit in the offer of a node; shape (requests,)."""
        asks = self._asks.values
        has_room: NDArray[np.bool_] = (offer[asks[:, 1]] >= asks[:, 2]) & (asks[:, 3:6] <= offer[-3:]).all(
            axis=1
        )
        return has_room

    def _admitted(self, node: Node, room: NDArray[np.bool_]) -> NDArray[np.bool_]:
        """Return, by number of node rules, whether the node admits members with these rules. Only rules of
        requests with room are compared, up to MAX_NAMES."""
        admitted, names = np.ones(len(self._rules), dtype=np.bool_), 0
        to_check = np.zeros(len(self._rules), dtype=np.bool_)
        to_check[self._asks.values[room, 6]] = True
        for rules, number in self._rules.items():
            if to_check[number]:
                names += 1 + rules.size
                if names > MAX_NAMES:
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
        return (*gpus, *map(_bounded, (free.cpu_milli, free.memory_bytes, free.pods)))

    def _room_of_quotas(self, ledger: Ledger) -> Numbers:
        """Return an upper bound on the members of each quota that all nodes together hold; shape
        (quotas,)."""
        quotas = self._quotas.values
        max_members = np.zeros(len(quotas), dtype=np.int64)
        for (resource, free), nodes in ledger.whole_gpus().items():
            if resource in self._resources and free and nodes:
                of_resource = quotas[:, 1] == self._resources[resource]
                max_members[of_resource] += nodes * (free // quotas[of_resource, 2])
        return max_members

    def _number(self, resource: str) -> int:
        return self._resources.setdefault(resource, len(self._resources))

    def _tidy(self) -> None:
        live = np.array([hint is not None for hint in self._hints], dtype=np.bool_)
        numbers = np.cumsum(live) - 1
        for rows in (self._asks, self._quotas):
            rows.keep(live[rows.values[:, 0]])
            rows.values[:, 0] = numbers[rows.values[:, 0]]
        live_rules = np.unique(self._asks.values[:, 6])
        rules = list(self._rules)
        self._rules = {rules[number]: index for index, number in enumerate(live_rules.tolist())}
        self._asks.values[:, 6] = np.searchsorted(live_rules, self._asks.values[:, 6])
        self._hints = [hint for hint in self._hints if hint is not None]
        self._slots = {hint: slot for slot, hint in enumerate(self._hints) if hint is not None}


def _bounded(number: int) -> int:
    return max(1 - _MAX_AMOUNT, min(number, _MAX_AMOUNT))
