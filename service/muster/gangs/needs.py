"""What a refused gang can't do without. Most of what comes free in a busy cluster can't help most of the
gangs that wait: those are not asked about again.

All tests here are necessary ones: a gang is passed over only where a proof says that it does not fit. The
proof stands on one thing: a gang that did not fit before some nodes gained does not fit after it either,
where none of these nodes can take any of its members.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from muster.domain.node import Resources
from muster.domain.request import Request
from muster.domain.snapshot import NodeState
from muster.gangs.ledger import Ledger, resources_fit

WholeGpus = Mapping[tuple[str, int], int]
"""(extended resource, free whole GPUs) → nodes that offer the resource and have so many free."""


@dataclass(frozen=True, slots=True)
class Needs:
    """`asks`: (GPU resource, GPUs, other resources), what one member of each role takes of a node. `quotas`:
    (GPU resource, k, how many members that ask for k or more of it must be placed at the least)."""

    asks: frozenset[tuple[str, int, Resources]]
    quotas: tuple[tuple[str, int, int], ...]

    @classmethod
    def of(cls, request: Request) -> Needs:
        """The needs of a request."""
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
        return cls(asks, tuple(quotas))


def may_fit_now(needs: Needs, ledger: Ledger, gained: Collection[str]) -> bool:
    """Whether a gang that did not fit may fit now that these nodes gained; False is a proof."""
    return any(
        _takes_one(state, needs) for state in map(ledger.state, gained) if state is not None
    ) and _enough_whole(ledger.whole_gpus(), needs)


def _takes_one(state: NodeState, needs: Needs) -> bool:
    """Whether the node can take a member, as far as whole GPUs and other resources say."""
    return any(
        resources_fit(resources, state.free)
        and (not gpus or (resource in state.node.gpu_resources and gpus <= state.free_gpu_count))
        for resource, gpus, resources in needs.asks
    )


def _enough_whole(whole: WholeGpus, needs: Needs) -> bool:
    """A node with f free GPUs takes at most f // k members of k or more."""
    return all(
        must <= sum(nodes * (free // k) for (name, free), nodes in whole.items() if name == resource)
        for resource, k, must in needs.quotas
    )
