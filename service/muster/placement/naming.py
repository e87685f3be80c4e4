"""From counts to members: names, ranks and GPU indices, once the nodes are known."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from muster.domain.decision import MemberPlacement
from muster.domain.request import Member, Role
from muster.domain.topology import bits
from muster.placement.fabric import natural
from muster.placement.gpusets import split
from muster.placement.site import Site

if TYPE_CHECKING:  # with the search come the solver and pandas, 3 s of imports: first-fit needs neither
    from muster.placement.search import Share


def in_rank_order(role: Role) -> list[Member]:
    """Members by rank, those without one last, by natural order of names (worker-2 before worker-10)."""
    return sorted(role.members, key=lambda m: (m.rank is None, m.rank or 0, natural(m.name), m.uid))


def named(site: Site, shares: Iterable[Share]) -> tuple[MemberPlacement, ...]:
    """The members' places: consecutive ranks of a role together on a node, nodes in the order of the fabric.

    The result is in the order of roles, then ranks. Members that the shares do not count are left out, the
    last ranks first.
    """
    queues = [in_rank_order(role) for role in site.roles]
    done: list[list[MemberPlacement]] = [[] for _ in queues]

    def along_fabric(share: Share) -> tuple[object, ...]:
        place = site.places[share.node]
        return (natural(place.zone), natural(place.rack), natural(place.wide), natural(share.node))

    for share in sorted(shares, key=along_fabric):
        place = site.places[share.node]
        roles = [r for r, count in enumerate(share.counts) for _ in range(count)]
        masks = split(place.shape.topology, share.gpus.mask, tuple(site.roles[r].gpus for r in roles))
        for r, mask in zip(roles, masks, strict=True):
            member = queues[r].pop(0)
            done[r].append(
                MemberPlacement(member.uid, member.name, site.roles[r].name, share.node, tuple(bits(mask)))
            )
    return tuple(member for members in done for member in members)
