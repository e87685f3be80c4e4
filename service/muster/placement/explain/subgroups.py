"""Choose the subgroups whose causes explain why a gang with a quorum does not start."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

from muster.domain.causes.too_little import SubgroupsNeeded
from muster.domain.causes.waiting import MembersMissing
from muster.domain.quorums import Quorum, of_roles
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
    chosen = quorum.fewest(waiting, some=True)
    if chosen is None:
        return tuple(_missing(quorum.less(waiting), waiting))
    kept = of_roles(chosen, waiting)
    roles = tuple(first_by_rank(role, kept[role.name]) for role in request.roles)
    alone = replace(request, roles=roles, quorum=None)
    return instance_with(instance.columns, replace(alone, min_member=alone.size), instance.admitted)


def _missing(lacking: Quorum, waiting: Mapping[str, int]) -> Iterator[MembersMissing]:
    """Yield which members must come. If the gang runs, they are those of subgroups that have begun."""
    needed = [leaf for leaf, count in lacking.fewest() or () if count]
    for leaf in needed or [leaf for leaf in lacking.leaves() if leaf.least]:
        there = leaf.of(waiting)
        if needed or there:
            yield MembersMissing(there, there + leaf.least, ", ".join(sorted(leaf.roles)))


def subgroups_needed(request: Request, chosen: Request) -> Iterator[SubgroupsNeeded]:
    """Yield the cause that says which subgroups the other causes are about, unless the gang runs already."""
    if request.quorum is not None and not request.quorum.starts({}):
        roles = tuple(role.name for role in chosen.roles if role.members)
        yield SubgroupsNeeded(request.quorum.least, len(request.quorum.parts), roles)
