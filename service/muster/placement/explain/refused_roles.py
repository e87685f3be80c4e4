"""List everything that refuses a role, each reason by itself, so that the effect of dropping one is known."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from muster.domain.node import Taint
from muster.domain.request import Role
from muster.placement.cluster.candidates import (
    UNSCHEDULABLE,
    affinity_text,
    holding,
    profile_refusal,
    selector_text,
)
from muster.placement.cluster.columns import Bools, Columns
from muster.placement.cluster.profile import Profile
from muster.placement.exclusions import of_role

NOT_READY = ("node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable")
"""Taints that the cluster sets on a node that is not ready."""


def refused_by(view: Columns, role: Role, excluded: Mapping[tuple[str, str], str]) -> dict[str, Bools]:
    """Return reason → [row] bool: the nodes that refuse the role for it, whatever else refuses it there.

    The reasons are worded as those of `candidates`.
    """
    found: dict[str, Bools] = {}

    def add(by: str, rows: Bools) -> None:
        if rows.any():
            found[by] = found[by] | rows if by in found else rows

    reasons = [_reasons(profile, role) for profile in view.profiles]
    for by in sorted({by for each in reasons for by in each}):
        add(by, np.array([by in each for each in reasons], np.bool_)[view.profile])
    for term in role.rules.required:
        add(selector_text(term), ~holding(view, term))
    if role.rules.any_of:
        holds = np.zeros(len(view.names), np.bool_)
        for terms in filter(None, role.rules.any_of):
            holds |= np.logical_and.reduce([holding(view, term) for term in terms])
        add(affinity_text(role.rules.any_of), ~holds)
    by_plugin: dict[str, list[int]] = {}
    for node, by in of_role(excluded, role.name).items():
        if by and node in view.row:
            by_plugin.setdefault(by, []).append(view.row[node])
    for by, rows in sorted(by_plugin.items()):
        refused = np.zeros(len(view.names), np.bool_)
        refused[rows] = True
        add(by, refused)
    return found


def resource_missing(role: Role) -> str:
    """Return the reason that cannot be dropped: nodes do not offer what the role asks for."""
    return f"no {role.slice.resource if role.slice else role.gpu_resource}"


def _said_already(profile: Profile, taint: Taint) -> bool:
    """Return whether the taint only repeats a fact that is a reason of its own."""
    return (profile.unschedulable and taint.key == UNSCHEDULABLE.key) or (
        not profile.ready and taint.key in NOT_READY
    )


def _reasons(profile: Profile, role: Role) -> set[str]:
    """Return what refuses a role on nodes of this profile. Each fact is tested on a node without other
    faults.
    """
    asked = frozenset({role.slice.resource} if role.slice else ())
    well = Profile(frozenset({role.gpu_resource}), True, False, (), True, asked)
    alone = [
        well._replace(gpu_memory=profile.gpu_memory, memory_resources=profile.memory_resources),
        well._replace(gpu_resources=profile.gpu_resources),
        well._replace(partitions=profile.partitions),
        well._replace(ready=profile.ready),
        well._replace(unschedulable=profile.unschedulable),
        *(well._replace(taints=(taint,)) for taint in profile.taints if not _said_already(profile, taint)),
    ]
    return {by for by in (profile_refusal(each, role) for each in alone) if by is not None}
