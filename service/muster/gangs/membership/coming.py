"""Find the members of a gang that come later, and make placeholders for them.

The first members are planned together with these, so that they do not settle where the others have no room.
Placeholders are never bound: `capacity.requests` leaves them out of the planner's answer.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from muster.domain.pod import Pod
from muster.domain.podgroup import Coming, PodGroup
from muster.gangs.membership.podgroups import completed

PREFIX = "coming/"
"""How the UIDs of placeholders begin. UIDs of pods never have a slash."""


@dataclass(frozen=True, slots=True)
class Followers:
    """Members of a role that are not there yet, by their numbers in the role.

    They have the labels of their gang from the pod `sibling`. They follow `leader` into its topology domain,
    by the leader's own rules, if there is one.
    """

    coming: Coming
    numbers: range
    sibling: Pod
    leader: Pod | None = None

    def __len__(self) -> int:
        return len(self.numbers)

    def placeholders(self, of_object: PodGroup) -> Iterator[Pod]:
        """Yield a placeholder for each member."""
        coming = self.coming
        assert coming.pod.claim is not None
        claim = replace(coming.pod.claim, name=of_object.name)
        sample = completed(replace(coming.pod, claim=claim), {of_object.key: of_object})
        shared = {key: value for key, value in self.sibling.labels if key in coming.shared_labels}
        labels = tuple(sorted((dict(sample.labels) | shared).items()))
        peers = sample.peers if self.leader is None else self.leader.peers
        for number in self.numbers:
            uid = f"{PREFIX}{coming.role}/{number}"
            yield replace(sample, uid=uid, rank=coming.ranks[number], labels=labels, peers=peers)


def followers(of_object: PodGroup, pods: Sequence[Pod]) -> Iterator[Followers]:
    """Yield the members that come later. `pods` are those of the gang, also those that have succeeded."""
    by_role = defaultdict[str, list[Pod]](list)
    for pod in pods if of_object.coming else ():
        if pod.claim is not None:
            by_role[pod.claim.wishes.role].append(pod)
    for coming in of_object.coming:
        if coming.role in by_role:
            yield from _of_leaders(coming, by_role[coming.role])
        elif coming.role in of_object.role_later:
            leads = coming.exclusive and not coming.unit_label
            leader = next(filter(_waits, pods), None) if leads else None
            yield Followers(coming, range(len(coming.ranks)), pods[0], leader)


def _of_leaders(coming: Coming, there: Sequence[Pod]) -> Iterator[Followers]:
    """Yield the other members of each unit, while its leader alone has been made."""
    units = defaultdict[str, list[Pod]](list)
    for pod in there if coming.unit_label else ():
        units[dict(pod.labels).get(coming.unit_label, "")].append(pod)
    for unit, members in units.items():
        first = int(unit) * coming.unit if unit.isdecimal() and len(unit) < 8 else len(coming.ranks)
        if len(members) == 1 and _waits(members[0]) and first + coming.unit <= len(coming.ranks):
            yield Followers(coming, range(first + 1, first + coming.unit), members[0], members[0])


def _waits(pod: Pod) -> bool:
    return pod.present and not pod.node
