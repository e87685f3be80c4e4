"""Bound pods as units and occupants: which pods could end, so that a gang of higher priority fits.

A gang is one unit. So is each pod that is present in no gang: a pod without a claim, or a pod that is being
deleted.
"""

from __future__ import annotations

import math
from collections.abc import Collection

from muster.domain.clearing import Occupant, Unit
from muster.domain.node import Usage
from muster.domain.pod import Pod
from muster.domain.podgroup import PodGroup
from muster.domain.quorums import Leaf
from muster.gangs.membership.group import Group


def unit_of_gang(group: Group, protected: str = "", pods: Collection[Pod] = ()) -> Unit:
    """Return the unit of a gang's bound members.

    The unit has the highest priority of them, so no member ends for a gang of lower or equal priority. It
    goes on with the members that the gang needs. If no member can end alone, it needs all of them.
    `protected`: as in `Unit`. The strictest of what its members state about preemption counts. `pods` are the
    bound members as they are now, if the group is older.
    """
    pods = pods or group.bound
    members_by_role = _min_by_role(group)
    least = len(group.bound) if members_by_role is None else min(max(1, group.needed), len(group.bound))
    return Unit(
        name=str(group.gang),
        priority=max(pod.priority for pod in group.bound),
        min_members=least,
        min_by_subgroup=members_by_role or {},
        protected=protected or _why_protected(pods),
        protected_until=_end_of_min_runtime(pods),
        checkpoint_s=_checkpoint_interval(pods),
    )


def unit_of_pod(pod: Pod, protected: str = "") -> Unit:
    """Return the unit of a bound pod that is present in no gang."""
    return Unit(
        f"pod {pod.namespace}/{pod.name}",
        pod.priority,
        min_members=1,
        protected=protected or _why_protected([pod]),
        protected_until=_end_of_min_runtime([pod]),
        checkpoint_s=pod.preemption.checkpoint_s,
    )


def occupant_of(pod: Pod, usage: Usage, unit: str, budget: str = "") -> Occupant:
    """Return what a bound pod takes of its node. `unit` is the key of its unit, "" if the pod stays.

    What a ResourceClaim takes besides the pod's usage stays.
    """
    if not usage.resources.pods:
        return Occupant(usage, usage.pod_uid)
    return Occupant(
        usage=usage,
        name=f"{pod.namespace}/{pod.name}",
        unit=unit,
        started=_start_of(pod),
        saved=pod.saved,
        subgroup=pod.topology_request.role,
        rank=pod.rank,
        budget=budget,
        ends=pod.ends,
    )


def _start_of(pod: Pod) -> float:
    """Return when the pod started.

    A kubelet states that, and the API server states when the pod was created. So a false start can't make the
    pod look older than it is.
    """
    return max(pod.started, pod.created)


def _why_protected(pods: Collection[Pod]) -> str:
    """Return why one of the pods may never be a victim, as a clause; "" if all may."""
    protected = ((pod.name, pod.preemption.protected) for pod in pods if pod.preemption.protected)
    return next((f"its pod {name} {why}" for name, why in sorted(protected)), "")


def _end_of_min_runtime(pods: Collection[Pod]) -> float:
    """Return until when the longest minimum run time of the pods lasts; 0 if none states one.

    It begins with the first pod, because a pod that was replaced does not begin the work of the others anew.
    """
    min_runtime_s = max(pod.preemption.min_runtime_s for pod in pods)
    return min(map(_start_of, pods)) + min_runtime_s if min_runtime_s else 0.0


def _checkpoint_interval(pods: Collection[Pod]) -> float:
    """Return the longest interval of checkpoints that a pod states; without an end if none states one."""
    intervals = (pod.preemption.checkpoint_s for pod in pods)
    return max((interval for interval in intervals if interval < math.inf), default=math.inf)


def _min_by_role(group: Group) -> dict[str, int] | None:
    """Return role → number of members without which the gang can't go on. None if no member can end alone.

    All members end together if a PodGroup says so, if members share a claim, or if members make replicas.
    They also do if only some of the subgroups must start. The same holds if nothing states how many members
    the gang needs, as when its PodGroup is gone.
    """
    pod_group, quorum = group.pod_group, group.quorum
    pod_groups = (pod_group, *pod_group.pod_groups) if pod_group is not None else ()
    if any(map(_ends_as_a_whole, pod_groups)) or any(pod.group_claims for pod in group.bound):
        return None
    if quorum is None:
        states_number = any(claim.min_member or claim.replicas for claim in group.claims)
        return {} if states_number else None
    leaves = list(quorum.leaves())
    if not quorum.needs_all or not all(map(_is_one_role, leaves)):
        return None
    return {role: leaf.min_members for leaf in leaves for role in leaf.roles}


def _ends_as_a_whole(pod_group: PodGroup) -> bool:
    return pod_group.disruption == "all"


def _is_one_role(leaf: Leaf) -> bool:
    """Return whether the members of the leaf have one role, and each of them is of use alone."""
    return len(leaf.roles) == 1 and leaf.unit == 1
