"""Choose the members whose causes explain why a gang with a quorum does not start."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

from muster.domain.causes.too_little import SubgroupsNeeded
from muster.domain.causes.waiting import MembersMissing
from muster.domain.quorums import Leaf, Quorum
from muster.domain.request import Request
from muster.placement.gang.blocks import first_by_rank
from muster.placement.gang.instance import Instance, instance_with


def fewest(instance: Instance) -> Instance | tuple[MembersMissing, ...]:
    """Return the gang with the fewest members that start it; what is missing if too few members wait.

    All these members must fit. If nothing starts the gang, they do not fit either.
    """
    request, quorum = instance.request, instance.request.quorum
    assert quorum is not None
    waiting = request.waiting
    kept = request.fewest()
    if kept is None:
        return tuple(_missing(quorum, waiting))
    roles = tuple(first_by_rank(role, kept[role.name]) for role in request.roles)
    alone = replace(request, roles=roles, quorum=None)
    return instance_with(instance.columns, replace(alone, min_member=alone.size), instance.admitted)


def _missing(quorum: Quorum, waiting: Mapping[str, int]) -> Iterator[MembersMissing]:
    """Yield which members must come. If the gang runs, they are those of subgroups that have begun.

    If there are enough of each subgroup, they are those that make its replicas whole.
    """
    lacking = quorum.less(waiting)
    needed = [leaf for leaf, count in lacking.fewest() or () if count]
    short = needed or [leaf for leaf in lacking.leaves() if leaf.least and leaf.of(waiting)]
    for leaf in short:
        there = leaf.of(waiting)
        yield MembersMissing(there, there + leaf.fewest(1), _names(leaf))
    if not short:
        torn = [leaf for leaf in quorum.leaves() if leaf.of(waiting) and not leaf.starts(leaf.of(waiting))]
        for leaf in [leaf for leaf in torn if leaf.least] or torn:
            there = leaf.of(waiting)
            yield MembersMissing(there, max(there + 1, leaf.fewest(there)), _names(leaf))


def _names(leaf: Leaf) -> str:
    return ", ".join(sorted(leaf.roles))


def subgroups_needed(request: Request, chosen: Request) -> Iterator[SubgroupsNeeded]:
    """Yield the cause that says which subgroups the other causes are about.

    There is none if the gang runs already, or if all subgroups must start.
    """
    quorum = request.quorum
    if quorum is not None and not quorum.starts({}) and not quorum.leaves_no_choice:
        roles = tuple(role.name for role in chosen.roles if role.members)
        yield SubgroupsNeeded(quorum.least, len(quorum.parts), roles)
