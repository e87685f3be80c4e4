"""Queueing hints: what a refused gang must have to fit, so that most changes need no new question.

In a busy cluster most of what comes free can't help most of the waiting gangs. All tests here are necessary
conditions: a gang is skipped only if a proof says that it does not fit. The proof is this. A gang did not
fit, and none of the nodes that gained admits a member and can take it. So the gang does not fit now.
Constraints between pods break the proof, because pods elsewhere affect them: `watchers` finds those gangs.

The proof counts the places that the gang itself holds as free for it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from muster.domain.node import Node, Resources
from muster.domain.request import NodeRules, Request, Role, Scope
from muster.domain.snapshot import NodeState
from muster.gangs.capacity.ledger import Ledger, resources_fit
from muster.gangs.peers.existing_pods import PeerInterest
from muster.placement.cluster.candidates import refusal

_MORE_THAN_ANY_NODE = 1 << 20
"""One GPU is never given whole to two members."""

_WholeGpus = Mapping[tuple[str, int], int]
"""(extended resource, free whole GPUs, tainted ones too) → number of nodes that have them."""


@dataclass(frozen=True, slots=True)
class QueueingHint:
    """What a refused gang must have to fit. Gangs with equal requests have equal hints."""

    asks: frozenset[tuple[str, int, Resources, NodeRules]]
    """(GPU resource, GPUs, other resources) that one member of each role takes of a node, and which nodes.

    If one node must hold the gang, the GPUs are those of the gang.
    """
    quotas: tuple[tuple[str, int, int], ...]
    """(GPU resource, k, the fewest members with k or more of these GPUs that must be placed)."""
    interest: PeerInterest | None = None
    """What the constraints between pods concern; None if there are none."""
    _hash: int = field(init=False, repr=False, compare=False)
    """Stored, because one input may look up ten thousand hints."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "_hash", hash((self.asks, self.quotas, self.interest)))

    def __hash__(self) -> int:
        return self._hash

    @classmethod
    def of(cls, request: Request, interest: PeerInterest | None = None) -> QueueingHint:
        """Return the hint of a request, with what its constraints concern."""
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


def _gpus_on_one_node(request: Request) -> int:
    """Return how many GPUs the fewest members take of one node, if the scope is a node or a GPU; else 0."""
    if request.required_scope not in (Scope.NODE, Scope.GPU):
        return 0
    gpus_by_member = sorted(role.gpus for role in request.roles for _ in role.members)
    gpus = sum(gpus_by_member[: request.min_member])
    return gpus if request.required_scope == Scope.NODE or gpus < 2 else _MORE_THAN_ANY_NODE


def may_fit_now(
    hint: QueueingHint,
    ledger: Ledger,
    gained: Collection[str],
    touched: bool = False,
    own_uids: Collection[str] = (),
) -> bool:
    """Return whether a gang that did not fit may fit now; False is a proof.

    `gained`: nodes with more free capacity. `touched`: other pods changed that its constraints concern.
    `own_uids`: UIDs whose reserved places are held for this gang and count as free for it.
    """
    own_states = ledger.states_without(own_uids)
    states = (own_states.get(name) or ledger.state(name) for name in gained)
    if not (touched or any(_takes_one(state, hint) for state in states if state is not None)):
        return False
    whole = ledger.whole_gpus()
    if own_states:
        whole = Counter(whole)
        for name, free in own_states.items():
            for state, nodes in ((ledger.state(name), -1), (free, 1)):
                assert state is not None
                for resource in state.node.gpu_resources:
                    whole[resource, state.most_gpus] += nodes
    return _enough_whole(whole, hint)


def _takes_one(state: NodeState, hint: QueueingHint) -> bool:
    """Return whether the node admits a member and can take it, as far as whole GPUs and other resources
    say."""
    return any(
        resources_fit(resources, state.free)
        and (not gpus or (resource in state.node.gpu_resources and gpus <= state.most_gpus))
        and admits(state.node, rules)
        for resource, gpus, resources, rules in hint.asks
    )


def admits(node: Node, rules: NodeRules) -> bool:
    """Return whether a node admits members with these rules, whatever they request."""
    return refusal(node, Role("", (), Resources(), rules=rules)) is None


def _enough_whole(whole: _WholeGpus, hint: QueueingHint) -> bool:
    """Return whether all nodes together can hold the members of each quota.

    A node with f free GPUs holds at most f // k members with k or more GPUs.
    """
    return all(
        must <= sum(nodes * (free // k) for (name, free), nodes in whole.items() if name == resource)
        for resource, k, must in hint.quotas
    )
