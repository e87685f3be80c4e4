"""The parts of the scopes asked for, each with the nodes that may host the gang there."""

from __future__ import annotations

import numpy as np

from muster.domain.request import Scope
from muster.placement.cluster.columns import Ints
from muster.placement.gang.instance import Counts, Instance

NOWHERE = -1


def regions(instance: Instance, scopes: tuple[str, ...], need: Counts) -> Ints:
    """By row, the part of all scopes at once that the node lies in (from 0, in natural order); NOWHERE where
    it lies in none, or hosts no member. Parts inside one node are not among them: see onenode."""
    view = instance.columns
    active = [r for r, count in enumerate(need) if count]
    usable = np.asarray((instance.room[active] > 0).any(axis=0))
    code = np.zeros(len(view.names), np.int64)
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
        code = code * (int(part.max(initial=0)) + 2) + part
        code = np.unique(code, return_inverse=True)[1].astype(np.int64)
    if scopes and (usable).any():
        code[usable] = np.unique(code[usable], return_inverse=True)[1]
    return np.where(usable, code, NOWHERE)
