"""Find the regions of a gang: domains of all scopes asked for, with the nodes that may host members there."""

from __future__ import annotations

import numpy as np

from muster.domain.request import Scope
from muster.placement.cluster.columns import Ints
from muster.placement.gang.instance import Counts, Instance
from muster.placement.search.runs import renumbered

NOWHERE = -1
"""The region of a node that is in none."""


def regions(instance: Instance, scopes: tuple[str, ...], need: Counts) -> Ints:
    """Return [row] int64: the region of each node, from 0 in natural order of domains; NOWHERE for none.

    A node is in no region if it lacks a domain, or if it hosts no member. Domains inside a node are not
    regions: single_node.py handles them.
    """
    view = instance.columns
    active = [r for r, count in enumerate(need) if count]
    usable = np.asarray((instance.room[active] > 0).any(axis=0))
    parts = list[Ints]()
    for scope in scopes:
        if scope in (Scope.NODE, Scope.GPU):
            usable &= False
            continue
        part = view.topology.index(scope)
        usable &= part >= 0
        if instance.existing:
            holding = instance.existing.parts(view, scope)
            there = [part[stay.row] for stay in instance.existing.members]
            usable &= np.isin(part, there) if holding else False
        parts.append(part)
    rows = np.flatnonzero(usable)
    code = np.zeros(len(rows), np.int64)
    for part in parts:
        code = renumbered(code * (int(part.max(initial=0)) + 1) + part[rows])
    region = np.full(len(view.names), NOWHERE)
    region[rows] = code
    return region
