"""Deal the roles out to the capacity that a plan takes, so that each role touches few parts.

Members that ask for the same, and that nothing binds, may change places: no level of the objective notices.
So this is no level. Of a few ways to fill the nodes along the fabric, role after role, the best one is taken.
Then members are exchanged between nodes as long as that helps.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import islice, permutations, product

import numpy as np

from muster.placement.cluster.columns import Bools, Ints
from muster.placement.gang.instance import Instance
from muster.placement.search.plan import Share

MOST_ORDERS = 6
"""The most orders of roles that are tried: all orders of three roles."""

MOST_EXCHANGES = 200
"""The most exchanges that are tried."""

SMALL = 64
"""Nodes × roles of a plan in which members are exchanged. In larger ones that takes longer than deciding."""

SIZES = (0, -1, 1)
"""Parts in the order of the fabric, the largest first, and the smallest first."""

Touched = tuple[int, ...]
"""Parts touched by each role, summed: of the widest level first, of the nodes last."""


def dealt_by_role(instance: Instance, shares: tuple[Share, ...]) -> tuple[Share, ...]:
    """Return the same plan with roles that ask for the same dealt out to fewer parts each, if that helps."""
    groups = _alike(instance) if len(shares) > 1 else []
    if not groups or instance.rules.model or any(share.spread for share in shares):
        return shares
    rows = np.array([share.row for share in shares], np.int64)
    if any(instance.rules.node_rules[rule] is not None for rule in instance.rules.in_node[rows].tolist()):
        return shares
    counts = np.array([share.counts for share in shares], np.int64)
    parts = [instance.columns.topology.index_or_own(level)[rows] for level in instance.levels]
    for group in groups:
        counts[:, group] = _best(counts[:, group], parts, rows)
    return tuple(replace(share, counts=tuple(n)) for share, n in zip(shares, counts.tolist(), strict=True))


def _alike(instance: Instance) -> list[list[int]]:
    """Return the groups of roles that ask for the same on the same nodes."""
    if instance.penalty is not None or instance.rules.caps is not None:
        return []
    found: dict[object, list[int]] = {}
    for r, role in enumerate(instance.roles):
        if role.members:
            alike = (role.resources, role.gpus, role.gpu_resource, role.slice, role.match_attributes)
            found.setdefault((*alike, instance.admits[r].tobytes()), []).append(r)
    return [group for group in found.values() if len(group) > 1]


def _best(counts: Ints, parts: Sequence[Ints], rows: Ints) -> Ints:
    """Return [node, role] the best of the ways that are tried, `counts` included."""
    need, room = counts.sum(axis=0), counts.sum(axis=1)
    best, touched, least = counts, _touched(counts > 0, parts), _least(need, room, parts)
    for filled in _ways(need, room, parts, rows):
        if touched == least:
            break
        value = _touched(filled > 0, parts)
        if value < touched:
            best, touched = filled, value
    tries = MOST_EXCHANGES if counts.size <= SMALL else 0
    while touched > least and tries > 0:
        for other in islice(_exchanges(best), tries):
            tries -= 1
            value = _touched(other > 0, parts)
            if value < touched:
                best, touched = other, value
                break
        else:
            break
    return best


def _exchanges(counts: Ints) -> Iterator[Ints]:
    """Yield what comes of exchanging as many members of two roles as possible between two nodes."""
    nodes, roles = counts.shape
    for pair, (a, b) in product(permutations(range(nodes), 2), permutations(range(roles), 2)):
        members = int(min(counts[pair[0], a], counts[pair[1], b]))
        if members:
            other = counts.copy()
            other[pair, a] += (-members, members)
            other[pair, b] += (members, -members)
            yield other


def _ways(need: Ints, room: Ints, parts: Sequence[Ints], rows: Ints) -> Iterator[Ints]:
    """Yield ways to fill the nodes one after another, role after role."""
    for sign in SIZES:
        sizes = [np.bincount(part, room)[part] for part in parts]
        keys = [key for size, part in zip(sizes, parts, strict=True) for key in (sign * size, part)]
        order = np.lexsort((rows, sign * room, *keys[::-1]))
        for each in islice(permutations(range(len(need))), MOST_ORDERS):
            filled, roles = np.zeros((len(room), len(need)), np.int64), np.array(each)
            filled[np.ix_(order, roles)] = _overlaps(room[order], need[roles])
            yield filled


def _overlaps(room: Ints, need: Ints) -> Ints:
    """Return [node, role] how many members of each role each node gets, if both stand in a row."""
    of_node, of_role = np.cumsum(room), np.cumsum(need)
    ends = np.minimum(of_node[:, None], of_role)
    begins = np.maximum((of_node - room)[:, None], of_role - need)
    return np.asarray(np.maximum(0, ends - begins))


def _touched(there: Bools, parts: Sequence[Ints]) -> Touched:
    """Return the parts that each role touches, summed. `there` [node, role] is whether it has members."""
    node, role = np.nonzero(there)
    found = [len(np.unique(part[node] * there.shape[1] + role)) for part in parts]
    return (*found, len(node))


def _least(need: Ints, room: Ints, parts: Sequence[Ints]) -> Touched:
    """Return a bound: each role alone in the largest parts."""
    sizes = [*(np.bincount(part, room) for part in parts), room]
    held = (np.cumsum(np.sort(size)[::-1]) for size in sizes)
    return tuple(int((np.searchsorted(sums, need) + 1).sum()) for sums in held)
