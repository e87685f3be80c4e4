"""What would help, worked out and checked: GPUs that must become free."""

from __future__ import annotations

import heapq

from muster.placement.fabric import Place, natural, parts_of
from muster.placement.limits import member_room
from muster.placement.site import Site

_Offer = tuple[int, tuple[object, ...], str]
"""GPUs that must become free for one more member, the sort key of the node's name, its name."""

LISTED = 3
"""Nodes named in a sentence; more are counted."""


def more_free_gpus(site: Site, role: int, wanted: int) -> str | None:
    """The fewest GPUs that must become free so that `wanted` members of one role fit in one part of the
    required scope, everything else as it is; None where free GPUs alone do not help."""
    scope = site.request.required_scope
    best: tuple[int, tuple[str, ...], dict[str, int]] | None = None
    if not site.roles[role].gpus:
        return None
    for part, nodes in parts_of((scope,) if scope else (), site.places.values()).items():
        needed = _fewest(site, role, wanted, nodes)
        if needed and (best is None or (sum(needed.values()), part) < best[:2]):
            best = (sum(needed.values()), part, needed)
    if best is None:
        return None
    gpus, _, needed = best
    names = sorted(needed, key=natural)
    if len(names) > LISTED:
        return f"{gpus} more free GPUs on {len(names)} nodes"
    listed = " and ".join(
        f"{needed[name]} {'on' if i else _more(needed[name])} {name}" for i, name in enumerate(names)
    )
    return listed


def _more(gpus: int) -> str:
    return "more free GPU on" if gpus == 1 else "more free GPUs on"


def _fewest(site: Site, role: int, wanted: int, nodes: dict[str, int]) -> dict[str, int] | None:
    """GPUs to free by node: member after member where the next is cheapest (on a node costs never fall)."""
    queue: list[_Offer] = []
    hosted: dict[str, int] = {}
    fit = 0
    for name, mask in nodes.items():
        if name not in site.admits[role]:
            continue
        place = site.places[name]
        hosted[name] = min(
            max(0, _free(place, mask)) // site.roles[role].gpus, _other_room(site, role, place)
        )
        fit += hosted[name]
        queue += _offer(site, role, place, mask, hosted[name])
    heapq.heapify(queue)
    freed: dict[str, int] = {}
    while fit < wanted:
        if not queue:
            return None
        cost, _, name = heapq.heappop(queue)
        freed[name] = freed.get(name, 0) + cost
        hosted[name] += 1
        fit += 1
        for offer in _offer(site, role, site.places[name], nodes[name], hosted[name]):
            heapq.heappush(queue, offer)
    return freed


def _offer(site: Site, role: int, place: Place, mask: int, hosted: int) -> list[_Offer]:
    """One more member on the node, if its GPUs and the rest of it would do; else nothing."""
    gpus = site.roles[role].gpus
    total = place.state.node.topology.gpu_count if place.state.unindexed_gpus else mask.bit_count()
    if (hosted + 1) * gpus <= total and hosted < _other_room(site, role, place):
        short = (hosted + 1) * gpus - _free(place, mask)
        return [(min(gpus, short) if hosted else short, natural(place.name), place.name)]
    return []


def _free(place: Place, mask: int) -> int:
    """Below zero where more is taken than there is: so much must go before anything comes free."""
    state = place.state
    return min((state.free_gpus & mask).bit_count(), state.free_gpus.bit_count() - state.unindexed_gpus)


def _other_room(site: Site, role: int, place: Place) -> int:
    return member_room(site.roles[role].resources, place.state.free)
