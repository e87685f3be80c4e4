"""The pods of one gang that are present, how many it needs, and what its PodGroup adds.

A PodGroup object adds facts about its pods, and members that come later. The first members are planned
together with placeholders of the later members. So the first members do not settle where the later members
have no room. Placeholders are never bound: `capacity.requests` leaves them out of the planner's answer.
"""

from __future__ import annotations

import hashlib
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from muster.domain.causes.ill_formed import BadValue, DialectsDisagree
from muster.domain.causes.not_planned import JobMissing, MembersMissing, PodGroupMissing
from muster.domain.constraints import Subgroup
from muster.domain.pod import GROUP, NO_WISHES, GangClaim, Pod, Wishes
from muster.domain.podgroup import Coming, PodGroup, PodGroupKey
from muster.domain.policies import Policies
from muster.domain.quorums import Counts, Leaf, Quorum, members_of
from muster.domain.reasons import Cause
from muster.domain.request import GangId, RolePreference
from muster.gangs.membership.consistency import claim_of, ill_formed
from muster.gangs.membership.incarnations import Incarnation, of_job


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


NameKey = tuple[str, str, str, str]
"""Namespace, dialect, name, and the pod's UID for a gang of one."""

_FEW_OWNERS = 4
"""Up to this many owners are named in a gang's key (master and workers are two); else a digest of them."""


@dataclass(frozen=True, slots=True)
class Group:
    """The present pods of one gang."""

    gang: GangId
    bound: tuple[Pod, ...]
    unbound: tuple[Pod, ...]
    needed: int
    """Members that must be present, less those that have succeeded."""
    size: int | None = None
    """Members that are expected, less those that have succeeded; None if that is not known."""
    causes: tuple[Cause, ...] = ()
    claims: frozenset[GangClaim] = frozenset()
    """The different claims of its waiting pods; of its bound pods if none waits.

    Running pods were placed by earlier claims, which must not affect their replacements.
    """
    owners: frozenset[str] = frozenset()
    """UIDs of the owners of all its pods, "" for pods without one; or the UID of a gang of one.

    `gang` names only the owners that exist, or has a digest if there are many.
    """
    pod_group: PodGroup | None = None
    quorum: Quorum | None = None
    """How many subgroups must be present, and how many members of each role, if its PodGroup states it.

    Members that have succeeded count as present.
    """
    followers: tuple[Followers, ...] = ()
    """Members that come when others have a node: these are planned where they fit too."""
    ambiguous: bool = False
    """Whether some of its pods may be the first of another incarnation of its name."""
    since: float = 0.0
    """Since when its waiting members wait, in seconds since the Unix epoch.

    That is the creation of the first pod of their owner that waits, or was deleted while it waited. If no
    member waits, that of the oldest bound member.
    """

    @property
    def present(self) -> int:
        """Return how many pods are present, bound or not."""
        return len(self.bound) + len(self.unbound)

    @property
    def priority(self) -> int:
        """Return the highest priority of its waiting members; 0 if none waits."""
        return max((pod.priority for pod in self.unbound), default=0)

    @property
    def members(self) -> tuple[Pod, ...]:
        """Return all present pods, bound ones first."""
        return (*self.bound, *self.unbound)

    @property
    def uids(self) -> frozenset[str]:
        """Return the UIDs of all present pods."""
        return frozenset(pod.uid for pod in self.members)

    @property
    def elastic(self) -> bool:
        """Return whether more members than it needs may come."""
        return all(claim.replicas is None for claim in self.claims)

    @property
    def expects_more(self) -> bool:
        """Return whether more members may come: as many as are expected are not there, or that is open.

        If there are more than expected, the number was wrong, and others may follow.
        """
        return self.elastic and self.present != self.size

    @property
    def waits_for(self) -> Cause | None:
        """Return what is still missing; None if the gang is complete."""
        for claim in self.claims:
            if claim.by_object and self.unbound:
                missing = f"{self.gang.namespace}/{claim.name}"
                return JobMissing(claim.job) if claim.job else PodGroupMissing(missing)
        if self.present < self.needed:
            return MembersMissing(self.present, self.needed, stateful_set=self._stateful_set)
        return next(iter(self.roles_short(self.members)), None)

    @property
    def _stateful_set(self) -> str:
        """Return a StatefulSet that has made one pod, if such sets have made all that wait; "" otherwise."""
        makers = {pod.controller for pod in self.unbound if pod.claim is not None and not pod.claim.job}
        sets = sorted(maker.name for maker in makers if maker is not None and maker.kind == "StatefulSet")
        return sets[0] if sets and len(sets) == len(self.unbound) else ""

    @property
    def fewest_needed(self) -> int:
        """Return the fewest members that must be bound before enough can be."""
        return max(self.needed, members_of(self.quorum.fewest() or ()) if self.quorum is not None else 0)

    @property
    def enough_bound(self) -> bool:
        """Return whether all required members are bound, of each role too."""
        return self.enough(self.bound)

    @property
    def was_fully_bound(self) -> bool:
        """Return whether all required members are bound: those needed now, or when they were permitted.

        How many the gang needs is not known while its PodGroup is gone.
        """
        least = min((pod.batch.needed for pod in self.bound if pod.batch is not None), default=None)
        is_known = not any(claim.by_object for claim in self.claims)
        return (is_known and self.enough_bound) or (least is not None and len(self.bound) >= least)

    @property
    def was_split_by_crash(self) -> bool:
        """Return whether a gang that is seen for the first time was split by a crash.

        Its pods must prove it, by what was written on the members that Muster bound (`Batch`). There are
        fewer of them than had to be bound then, whatever is needed now. Among the waiting pods, enough to
        fill the gap were there at that time and were not left out; replacements were created later. Creation
        times are whole seconds.
        """
        batches = [pod.batch for pod in self.bound if pod.batch is not None]
        if self.was_fully_bound or not batches:
            return False
        missing = min(batch.needed for batch in batches) - len(self.bound)
        newest = min(batch.newest for batch in batches)
        left_out = max(batch.left_out for batch in batches)
        candidates = sum(pod.created <= newest for pod in self.unbound)
        return candidates - left_out >= missing

    def enough(self, pods: Collection[Pod]) -> bool:
        """Return whether these pods are all that the gang needs, of each role too."""
        return len(pods) >= self.needed and not any(self.roles_short(pods))

    def roles_short(self, pods: Iterable[Pod]) -> Iterator[MembersMissing]:
        """Yield the roles with too few members among these pods.

        If some subgroups are enough, these are the roles of those that lack the fewest members.
        """
        if self.quorum is None:
            return
        present_by_role = stated_roles(pods)
        for leaf, missing in self.quorum.less(present_by_role).fewest() or ():
            if missing:
                present, roles = leaf.of(present_by_role), ", ".join(sorted(leaf.roles))
                yield MembersMissing(present, present + missing, roles)

    @property
    def placeholders(self) -> tuple[Pod, ...]:
        """Return a placeholder for each member that comes later."""
        of_object = self.pod_group
        if of_object is None:
            return ()
        return tuple(pod for role in self.followers for pod in role.placeholders(of_object))

    def least_coming(self, placeholders: Collection[Pod]) -> Counts:
        """Return how many of these members that come later must fit, by the roles that they state."""
        later = self.pod_group.role_later if self.pod_group is not None else {}
        return {
            role: min(count, later.get(role, count)) for role, count in stated_roles(placeholders).items()
        }

    @property
    def subgroups(self) -> tuple[Subgroup, ...]:
        """Return the scopes that members of several roles share, by the roles that pods state."""
        return self.pod_group.subgroups if self.pod_group is not None else ()

    @property
    def role_preferences(self) -> tuple[RolePreference, ...]:
        """Return the preferred scopes of several roles together, by the names that pods give to roles."""
        return self.pod_group.role_preferences if self.pod_group is not None else ()

    @property
    def facts(self) -> tuple[object, ...]:
        """Return everything that planning depends on."""
        return (
            frozenset(pod.uid for pod in self.bound),
            {pod.uid: planning_facts(pod) for pod in self.unbound},
            self.needed,
            self.quorum,
            self.followers,
            self.pod_group.role_later if self.followers and self.pod_group is not None else {},
            self.subgroups,
            self.role_preferences,
            self.causes,
        )


def name_key(pod: Pod) -> NameKey:
    """Return the name of the pod's gang."""
    claim = claim_of(pod)
    return (pod.namespace, claim.dialect, claim.name, pod.uid if claim.lone else "")


def stated_roles(pods: Iterable[Pod]) -> Counter[str]:
    """Return how many of these pods state each role."""
    return Counter(pod.wishes.role for pod in pods)


def planning_facts(pod: Pod) -> tuple[object, ...]:
    """Return what the plan of an unbound pod depends on: everything but its state."""
    claims = (pod.gpu_counts, pod.match_attributes, pod.several_claims, pod.compute_domain, pod.device_claims)
    requests = (pod.resources, pod.gpus, pod.gpu_resource, pod.slice, *claims)
    return (pod.claim, *requests, pod.rules, pod.priority, pod.rank, pod.labels, pod.peers, pod.preferences)


def group_of(
    key: NameKey,
    by_owner: Incarnation,
    policies: Policies,
    of_object: PodGroup | None,
    ambiguous: bool,
    since: Mapping[str, float],
) -> Group:
    """Return the group of one incarnation of a name.

    `by_owner`: its pods, and those that have succeeded. `since`: since when the pods of each owner wait, in
    seconds since the Unix epoch.
    """
    namespace, dialect, name, lone = key
    pods = [pod for of_owner in by_owner.values() for pod in of_owner]
    owners = frozenset((lone,) if lone else (pod.owner for pod in pods))
    # A job may make its Jobs or StatefulSets one after another: it stays the same gang.
    waves = (owner.partition("#")[2] for owner in by_owner) if of_job(pods) else by_owner
    identity = _as_identity((lone,) if lone else tuple(waves))
    bound = tuple(sorted((p for p in pods if p.present and p.node), key=lambda p: p.uid))
    unbound = tuple(sorted((p for p in pods if p.present and not p.node), key=lambda p: p.uid))
    succeeded = [pod for pod in pods if pod.succeeded]
    done = stated_roles(succeeded)
    oldest = min((pod.created for pod in bound), default=0.0)
    claims = frozenset(pod.claim for pod in unbound or bound if pod.claim is not None)
    counts = (claim.min_member or claim.replicas or 0 for claim in claims)
    quorum = _quorum(of_object, stated_roles((*bound, *unbound)))
    if quorum is not None:
        quorum = quorum.less(done)
    if quorum is None or quorum.leaves_no_choice:
        fewest = max(0, max(counts) - len(succeeded))
    else:  # a gang whose minimums are all 0 needs one member to begin
        fewest = members_of(quorum.fewest() or ()) or int(not succeeded)
    sizes = [claim.size for claim in claims if claim.size is not None]
    return Group(
        GangId(namespace, dialect, name, identity),
        bound,
        unbound,
        needed=fewest,
        size=max(sizes) - len(succeeded) if sizes else None,
        causes=ill_formed(f"gang/{namespace}/{name}", len(bound) + len(unbound), unbound, claims, policies),
        claims=claims,
        owners=owners,
        pod_group=of_object,
        quorum=quorum,
        followers=tuple(followers(of_object, pods)) if of_object is not None and unbound else (),
        ambiguous=ambiguous,
        since=min((since[pod.owner] for pod in unbound), default=oldest),
    )


def _quorum(of_object: PodGroup | None, present_by_role: Counts) -> Quorum | None:
    """Return how many subgroups start, or how many members each role needs; None if nothing states it.

    Members of a role that comes later count once one of them is there.
    """
    if of_object is None or of_object.quorum is not None:
        return of_object.quorum if of_object is not None else None
    leaves = []
    for role, least in of_object.role_min.items():
        fewest = of_object.role_later.get(role, least) if present_by_role.get(role) else least
        leaves.append(Leaf(frozenset((role,)), fewest, of_object.role_unit.get(role, 1)))
    return Quorum(len(leaves), tuple(leaves)) if leaves else None


def _as_identity(owners: Collection[str]) -> tuple[str, ...]:
    """Return a short text for exactly these owners, the same in every process."""
    ordered = sorted(filter(None, owners))
    if len(ordered) <= _FEW_OWNERS:
        return tuple(ordered)
    digest = hashlib.blake2b("\n".join(ordered).encode(), digest_size=16, usedforsecurity=False)
    return (f"{len(ordered)}-owners", digest.hexdigest())
