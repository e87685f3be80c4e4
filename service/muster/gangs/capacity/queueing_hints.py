"""What a refused gang can't do without. Most of what comes free in a busy cluster can't help most of the
gangs that wait: those are not asked about again.

All tests here are necessary ones: a gang is passed over only where a proof says that it does not fit. The
proof stands on one thing: a gang that did not fit before some nodes gained does not fit after it either,
where none of these nodes can take any of its members. Constraints between pods break it, since pods
elsewhere bear on them: `watchers` says on which gangs.

The proof counts the places that the gang itself holds as free for it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from muster.domain.node import Resources
from muster.domain.request import Request
from muster.domain.snapshot import NodeState
from muster.gangs.capacity.ledger import Ledger, resources_fit
from muster.gangs.peers.peer_changes import PeerInterest

WholeGpus = Mapping[tuple[str, int], int]
"""(extended resource, free whole GPUs) → nodes that offer the resource and have so many free."""


@dataclass(frozen=True, slots=True)
class QueueingHint:
    """`asks`: (GPU resource, GPUs, other resources), what one member of each role takes of a node. `quotas`:
    (GPU resource, k, how many members that ask for k or more of it must be placed at the least). `watched` is
    what the constraints between pods speak of; None if there are none."""

    asks: frozenset[tuple[str, int, Resources]]
    quotas: tuple[tuple[str, int, int], ...]
    interest: PeerInterest | None = None
    _hash: int = field(init=False, repr=False, compare=False)
    """Kept, because one event may look up ten thousand needs."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "_hash", hash((self.asks, self.quotas, self.interest)))

    def __hash__(self) -> int:
        return self._hash

    @classmethod
    def of(cls, request: Request, interest: PeerInterest | None = None) -> QueueingHint:
        """The needs of a request, and what its constraints speak of."""
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
        asks = frozenset((role.gpu_resource, role.gpus, role.resources) for role in request.roles)
        return cls(asks, tuple(quotas), interest)


def may_fit_now(
    hint: QueueingHint,
    ledger: Ledger,
    gained: Collection[str],
    touched: bool = False,
    own: Collection[str] = (),
) -> bool:
    """Return whether a gang that did not fit may fit now; False is a proof.

    These nodes gained. `touched`: other pods changed that its constraints speak of. `own` are the UIDs whose
    reserved places are held for this gang: they count as free for it.
    """
    mine = ledger.states_without(own)
    states = (mine.get(name) or ledger.state(name) for name in gained)
    if not (touched or any(_takes_one(state, hint) for state in states if state is not None)):
        return False
    whole = ledger.whole_gpus()
    if mine:
        whole = Counter(whole)
        for name, free in mine.items():
            for state, nodes in ((ledger.state(name), -1), (free, 1)):
                assert state is not None
                for resource in state.node.gpu_resources:
                    whole[resource, state.free_gpu_count] += nodes
    return _enough_whole(whole, hint)


def _takes_one(state: NodeState, hint: QueueingHint) -> bool:
    """Whether the node can take a member, as far as whole GPUs and other resources say."""
    return any(
        resources_fit(resources, state.free)
        and (not gpus or (resource in state.node.gpu_resources and gpus <= state.free_gpu_count))
        for resource, gpus, resources in hint.asks
    )


def _enough_whole(whole: WholeGpus, hint: QueueingHint) -> bool:
    """A node with f free GPUs takes at most f // k members of k or more."""
    return all(
        must <= sum(nodes * (free // k) for (name, free), nodes in whole.items() if name == resource)
        for resource, k, must in hint.quotas
    )
