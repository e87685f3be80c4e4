"""Half a gang: the first Bindings of a gang are under way, some of its members are bound, and fewer than it
needs, or too few of a role. Bindings are not atomic: a refused one, a crash or a deleted pod can leave it so.

A gang that was whole once is no half: what dies of it is replaced, and its others run on.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from muster.gangs.membership.roster import Group
from muster.gangs.record.gang import Gang


def is_partially_bound(gang: Gang) -> bool:
    """Whether the gang is half now."""
    return not gang.was_complete and bool(gang.group.bound) and not gang.group.enough_bound


def was_fully_bound(group: Group) -> bool:
    """Whether all are bound that it needs, or that it needed when they were let go. How many it needs is not
    known while its PodGroup is gone."""
    least = min((pod.batch.needed for pod in group.bound if pod.batch is not None), default=None)
    known = not any(claim.by_object for claim in group.claims)
    return (known and group.enough_bound) or (least is not None and len(group.bound) >= least)


def was_split_by_crash(group: Group) -> bool:
    """Whether a gang that is seen for the first time was split by a crash. Its pods must prove it, by what
    was written on those that we have bound (`Batch`): they are fewer than had to be bound then, whatever is
    needed now, and of those that wait, as many as are lacking were there and were not left out. Whoever
    replaces a member came later. The times are whole seconds."""
    batches = [pod.batch for pod in group.bound if pod.batch is not None]
    if was_fully_bound(group) or not batches:
        return False
    lacks = min(batch.needed for batch in batches) - len(group.bound)
    newest = min(batch.newest for batch in batches)
    left_out = max(batch.left_out for batch in batches)
    there = sum(pod.created <= newest for pod in group.unbound)
    return there - left_out >= lacks


def givers(known: Iterable[Gang], groups: Mapping[str, Group]) -> list[Gang]:
    """Return the gangs that go on without bound members of theirs, which are dealt to others now: copies, as
    they were before that. `known` are the gangs of one name, `groups` what their pods are now, by key. Where
    Bindings are under way it is not known yet whether the gang is half: it is left out."""
    if len(groups) < 2:
        return []
    now_in = {pod.uid: key for key, group in groups.items() for pod in group.bound}
    return [
        replace(gang, timers=dict(gang.timers))
        for gang in known
        if gang.key in groups
        and not gang.awaited
        and any(now_in.get(pod.uid, gang.key) != gang.key for pod in gang.group.bound)
    ]
