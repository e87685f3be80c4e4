"""From counts to members: names, ranks and GPU indices, once the nodes are known."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from muster.domain.decision import MemberPlacement
from muster.domain.request import Member, Role
from muster.domain.topology import bits
from muster.placement.gang.blocks import rank_key
from muster.placement.gang.site import Counts, Site
from muster.placement.gpus.filling import dealt
from muster.placement.gpus.gpusets import split

if TYPE_CHECKING:  # with the search come the solver and pandas, 3 s of imports: first-fit needs neither
    from muster.placement.search.onenode import Share


def in_rank_order(role: Role) -> list[Member]:
    """Members by rank, those without one last, by natural order of names (worker-2 before worker-10)."""
    return sorted(role.members, key=rank_key)


def named(site: Site, shares: Iterable[Share]) -> tuple[MemberPlacement, ...]:
    """The members' places: consecutive ranks of a role together on a node, nodes in the order of the fabric.

    The result is in the order of roles, then ranks. Members that the shares do not count are left out, the
    last ranks first.
    """
    given = [(share, _masks(site, share)) for share in shares]
    placed: list[tuple[int, Member, MemberPlacement]] = []
    order = {role.name: i for i, role in enumerate(site.request.roles)}
    for block, role in enumerate(site.roles):
        here = [(share.row, masks[block]) for share, masks in given if masks[block]]
        queue = iter(in_rank_order(role))
        for row, masks in sorted(here, key=lambda one: _along_fabric(site, block, one[0])):
            node = site.columns.names[row]
            for mask, member in zip(masks, queue, strict=False):
                placement = MemberPlacement(
                    member.uid, member.name, role.name, node, tuple(bits(mask)), site.asks[block].units
                )
                placed.append((order[role.name], member, placement))
    return tuple(placement for _, _, placement in sorted(placed, key=lambda one: (one[0], rank_key(one[1]))))


def _along_fabric(site: Site, block: int, row: int) -> tuple[int, ...]:
    """Nodes of one part of a segment's scope stay together, then those of one zone, one rack, one domain."""
    view = site.columns
    segments = (int(site.rules.cells[name][row]) for name in site.rules.order[block])
    levels = (int(view.part(level).codes[row]) for level in site.levels)
    return (*segments, *levels, int(view.wide[row]), row)


def _masks(site: Site, share: Share) -> list[list[int]]:
    """By block, the GPUs of each of its members on the node: first those that are bound to a domain, domain
    by domain, then the rest."""
    gpus = [role.gpus for role in site.roles]
    shape = site.columns.shapes[site.columns.shape[share.row]]
    given: list[list[int]] = [[] for _ in gpus]
    left = share.gpus.mask & ~share.shared
    if site.sliced:
        for block, masks in enumerate(_slices(site, share)):
            given[block] += masks
    for domain, inside in enumerate(shape.domains if any(share.spread) else ()):
        bound = [
            block for block, members in enumerate(share.spread) for _ in range(_in_domain(members, domain))
        ]
        sizes = [gpus[block] for block in bound]
        rest = (left & inside).bit_count() - sum(sizes)
        for block, mask in zip(bound, split(shape.topology, left & inside, (*sizes, rest)), strict=False):
            given[block].append(mask)
            left &= ~mask
    for block, members in enumerate(share.spread):
        for across in members or ():
            if isinstance(across, tuple):
                mask = sum(_lowest(left & shape.domains[d], count) for d, count in enumerate(across))
                given[block].append(mask)
                left &= ~mask
    loose = [block for block, count in enumerate(share.counts) for _ in range(count - len(given[block]))]
    for block, mask in zip(
        loose, split(shape.topology, left, tuple(gpus[block] for block in loose)), strict=True
    ):
        given[block].append(mask)
    return given


def _slices(site: Site, share: Share) -> list[list[int]]:
    """By block, the GPUs of each of its members that shares some. Their places are dealt out in turn, GPU by
    GPU: no GPU has more of a block's places than members, so each member's are of different ones."""
    given: list[list[int]] = []
    dealt_out = dealt(site.asks, share.counts, site.gpus_on(share.row), share.shared)
    for ask, count, by_gpu in zip(site.asks, share.counts, dealt_out, strict=True):
        places = [gpu for gpu, slices in enumerate(by_gpu) for _ in range(slices)]
        members = [sum(1 << gpu for gpu in places[i::count]) for i in range(count)] if ask.units else []
        given.append(members)
    return given


def _in_domain(members: Counts | tuple[Counts, ...] | None, domain: int) -> int:
    count = members[domain] if members and domain < len(members) else 0
    return count if isinstance(count, int) else 0


def _lowest(mask: int, count: int) -> int:
    return sum(1 << gpu for gpu in list(bits(mask))[:count])
