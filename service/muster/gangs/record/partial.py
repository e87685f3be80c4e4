"""Tell which gangs are partially bound.

Bindings are not atomic. A refused Binding, a crash or a deleted pod can leave a gang with too few bound
members, or too few of a role. Once all required members have been bound, lost members are replaced
and no member is evicted.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import replace

from muster.domain.pod import Pod
from muster.gangs.membership.group import Group
from muster.gangs.record.gang import Gang


def is_partially_bound(gang: Gang) -> bool:
    """Return whether the gang is partially bound now."""
    return not gang.was_complete and bool(gang.group.bound) and not gang.group.enough_bound


def has_precedence(gang: Gang) -> bool:
    """Return whether the gang comes before others of its priority.

    That is so if it is partially bound. It is also so if its waiting members replace what it lost: each asks
    for what a lost member had, and they are as many as the gang needs.
    """
    group, lost = gang.group, Counter(_size(lost.pod) for lost in gang.lost.values())
    if not lost or any(_size(pod) not in lost for pod in group.unbound):
        return is_partially_bound(gang)
    replacements = []
    for pod in group.unbound:
        if lost[_size(pod)]:
            lost[_size(pod)] -= 1
            replacements.append(pod)
    return bool(group.bound) and not group.enough_bound and group.enough((*group.bound, *replacements))


def _size(pod: Pod) -> tuple[object, ...]:
    """Return what the pod takes of a node, its role and its priority."""
    role = pod.claim.wishes.role if pod.claim is not None else ""
    gpus = (pod.fewest_gpus, pod.gpu_counts, pod.gpu_resource, pod.slice)
    return (role, pod.priority, pod.resources, *gpus)


def was_fully_bound(group: Group) -> bool:
    """Return whether all required members are bound: those needed now, or when they were permitted.

    How many it needs is not known while its PodGroup is gone.
    """
    least = min((pod.batch.needed for pod in group.bound if pod.batch is not None), default=None)
    known = not any(claim.by_object for claim in group.claims)
    return (known and group.enough_bound) or (least is not None and len(group.bound) >= least)


def was_split_by_crash(group: Group) -> bool:
    """Return whether a gang that is seen for the first time was split by a crash.

    Its pods must prove it, by what was written on the members that Muster bound (`Batch`). There are fewer of
    them than had to be bound then, whatever is needed now. Among the waiting pods, enough to fill the gap
    were there at that time and were not left out; replacements were created later. Creation times are whole
    seconds.
    """
    batches = [pod.batch for pod in group.bound if pod.batch is not None]
    if was_fully_bound(group) or not batches:
        return False
    lacks = min(batch.needed for batch in batches) - len(group.bound)
    newest = min(batch.newest for batch in batches)
    left_out = max(batch.left_out for batch in batches)
    there = sum(pod.created <= newest for pod in group.unbound)
    return there - left_out >= lacks


def givers(known: Iterable[Gang], groups: Mapping[str, Group]) -> list[Gang]:
    """Return copies of the gangs that lose bound members to other gangs, as they were before.

    `known`: the gangs of one name. `groups`: what their pods form now, by key. Gangs with Bindings under way
    are left out, because it is not known yet whether they are partially bound.
    """
    if len(groups) < 2:
        return []
    now_in = {pod.uid: key for key, group in groups.items() for pod in group.bound}
    return [
        replace(gang, timers=dict(gang.timers), lost={})
        for gang in known
        if gang.key in groups
        and not gang.awaited
        and any(now_in.get(pod.uid, gang.key) != gang.key for pod in gang.group.bound)
    ]
