"""What PodGroup objects add: facts about their pods, and the members of their gangs that come later.

The first members are planned together with placeholders of those that come later. So they do not settle where
the others have no room. Placeholders are never bound: `capacity.requests` leaves them out of the planner's
answer.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from muster.domain.causes.ill_formed import BadValue, DialectsDisagree
from muster.domain.pod import GROUP, NO_WISHES, GangClaim, Pod, Wishes
from muster.domain.podgroup import Coming, PodGroup, PodGroupKey

def key_of(pod: Pod) -> PodGroupKey | None:
    """Return the key of the PodGroup that the pod names; None if it names none."""
    claim = pod.claim
    return (pod.namespace, claim.dialect, claim.name) if claim is not None and claim.by_object else None


def completed(pod: Pod, groups: Mapping[PodGroupKey, PodGroup]) -> Pod:
    """Return the pod with everything that its PodGroup states.

    Return the same pod if it names no PodGroup, or one that does not exist. If both state a value and they
    differ, the pod is ill-formed.
    """
    key = key_of(pod)
    group = groups.get(key) if key is not None else None
    claim = pod.claim
    if group is None or claim is None:
        return pod
    causes = (*pod.causes, *(group.causes if not pod.node else ()))
    if not pod.node and (cause := _disagreement(pod.name, claim, group)) is not None:
        causes = (*causes, cause)
    if not pod.node and group.role_wishes and claim.wishes.role not in group.role_wishes:
        expected = f"a subgroup of {group.title}: {', '.join(sorted(group.role_wishes)[:8])}"
        causes = (*causes, BadValue(f"pod/{pod.namespace}/{pod.name}", "role", claim.wishes.role, expected))
    wishes = _merged(claim.wishes, group.wishes, group.role_wishes.get(claim.wishes.role, NO_WISHES))
    # Owners join one gang up to this number: the pods of subgroups that it could do without are its own too.
    whole = group.min_member if group.quorum is None else group.size
    min_member = claim.min_member or whole
    return replace(
        pod,
        claim=replace(
            claim, min_member=min_member, wishes=wishes, by_object=False, size=claim.size or group.size
        ),
        rules=replace(pod.rules, required=(*pod.rules.required, *group.required))
        if group.required
        else pod.rules,
        rank=_rank(pod.rank, group.role_first.get(wishes.role, 0), wishes),
        causes=causes,
    )


def _rank(rank: int | None, first: int, wishes: Wishes) -> int | None:
    """Return the rank with which the `first` pods of each Job come before all others.

    Each Job must start with this number. Segments keep the order of the Jobs.
    """
    if rank is None or not first or wishes.segments or rank % GROUP < first:
        return rank
    return rank + GROUP**2


def _merged(pod: Wishes, group: Wishes, role: Wishes) -> Wishes:
    return Wishes(
        role=pod.role,
        required_scope=pod.required_scope or group.required_scope,
        preferred_scopes=pod.preferred_scopes or group.preferred_scopes,
        role_scope=pod.role_scope or role.role_scope or group.role_scope,
        role_preferred=pod.role_preferred or role.role_preferred or group.role_preferred,
        segments=pod.segments or role.segments or group.segments,
        per_scope=pod.per_scope or group.per_scope,
        policies=pod.policies or group.policies,
    )


def _disagreement(pod: str, claim: GangClaim, group: PodGroup) -> DialectsDisagree | None:
    """Return on what pod and PodGroup disagree; None if they agree where both state something."""
    pod_values = _stated(claim.min_member, claim.wishes, claim.wishes)
    group_values = _stated(
        group.min_member, group.wishes, group.role_wishes.get(claim.wishes.role, NO_WISHES)
    )
    if group.owner is not None and (claim.min_member or 0) <= (group.size or 0):
        pod_values.pop("min-member", None)  # fewer than its owner makes: the pod's own word counts
    differing = [
        key for key in pod_values.keys() & group_values.keys() if pod_values[key] != group_values[key]
    ]
    if not differing:
        return None
    pod_text, group_text = (
        ", ".join(f"{key} {stated[key]}" for key in sorted(differing))
        for stated in (pod_values, group_values)
    )
    return DialectsDisagree(pod, f"its annotations: {pod_text}", f"{group.title}: {group_text}")


def _stated(min_member: int | None, gang: Wishes, role: Wishes) -> dict[str, object]:
    """Return key → value, without the values that are not stated."""
    stated = {"min-member": min_member, "scope": gang.required_scope, "role-scope": role.role_scope}
    return {key: value for key, value in stated.items() if value is not None}


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
        by_role[pod.wishes.role].append(pod)
    for coming in of_object.coming:
        if coming.role in by_role:
            yield from _of_leaders(coming, by_role[coming.role])
        elif coming.role in of_object.role_later:
            leads = coming.exclusive and not coming.unit_label
            leader = next(filter(_waits, pods), None) if leads else None
            yield Followers(coming, range(len(coming.ranks)), pods[0], leader)


def _of_leaders(coming: Coming, pods: Sequence[Pod]) -> Iterator[Followers]:
    """Yield the other members of each unit, while its leader alone has been made."""
    units = defaultdict[str, list[Pod]](list)
    for pod in pods if coming.unit_label else ():
        units[dict(pod.labels).get(coming.unit_label, "")].append(pod)
    for unit, members in units.items():
        first = int(unit) * coming.unit if unit.isdecimal() and len(unit) < 8 else len(coming.ranks)
        if len(members) == 1 and _waits(members[0]) and first + coming.unit <= len(coming.ranks):
            yield Followers(coming, range(first + 1, first + coming.unit), members[0], members[0])


def _waits(pod: Pod) -> bool:
    return pod.present and not pod.node
