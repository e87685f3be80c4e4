"""Find the regions of a gang, and work with columns of codes that stand for regions or domains."""

from __future__ import annotations

import numpy as np

from muster.domain.request import Scope
from muster.placement.cluster.columns import Ints
from muster.placement.gang.instance import Instance
from muster.placement.gpus.node_rules import Counts

NOWHERE = -1
"""The code of a node that is in no region."""


def regions(instance: Instance, scopes: tuple[str, ...], need: Counts) -> Ints:
    """Return [row] int64: the code of the node's region, in natural order of domains; NOWHERE without one.

    Some codes may have no node. A node is in no region if it lacks a domain of the scopes, or can host no
    member. Domains inside a node are not regions: single_node.py handles them.
    """
    columns = instance.columns
    active = [r for r, count in enumerate(need) if count]
    usable = np.asarray((instance.room[active] > 0).any(axis=0))
    parts = list[Ints]()
    for scope in scopes:
        if scope in (Scope.NODE, Scope.GPU):
            usable &= False
            continue
        part = columns.topology.index(scope)
        usable &= part >= 0
        if instance.running:
            holding = instance.running.parts(columns, scope)
            touched_parts = [part[member.row] for member in instance.running.members]
            usable &= np.isin(part, touched_parts) if holding else False
        parts.append(part)
    code, *wider_parts = parts or [np.zeros(len(usable), np.int64)]
    for part in wider_parts:
        code = renumber(np.where(usable, code * (int(part.max(initial=0)) + 1) + part, 0))
    return np.where(usable, code, NOWHERE)


# Runs of equal codes


def position_in_run(codes: Ints) -> Ints:
    """Return the position of each entry among the entries of its code, from 0.

    Equal codes must be adjacent.
    """
    index, begins = np.arange(len(codes)), np.ones(len(codes), bool)
    begins[1:] = codes[1:] != codes[:-1]
    return index - np.maximum.accumulate(np.where(begins, index, 0))


def fullest_first_order(codes: Ints, cap: Ints) -> Ints:
    """Return the order by code, and by descending `cap` inside each code. Equal entries keep their order.

    No code and no `cap` may be negative. A sort by one number takes half the time of a sort by two numbers.
    """
    return np.argsort(codes * (int(cap.max(initial=0)) + 1) - cap, kind="stable")


def renumber(codes: Ints) -> Ints:
    """Return the codes renumbered from 0 without gaps, in their order. No code may be negative.

    Small codes are counted, which takes half the time of sorting them.
    """
    if int(codes.max(initial=0)) > 4 * len(codes):
        return np.asarray(np.unique(codes, return_inverse=True)[1])
    return np.asarray((np.cumsum(np.bincount(codes) > 0) - 1)[codes])
