"""Who belongs to which gang: present pods grouped by namespace, dialect, name and owners (`runs`)."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from muster.domain.pod import GangClaim, Pod
from muster.domain.podgroup import PodGroup, PodGroupKey
from muster.domain.policies import DEFAULT_POLICIES, Policies
from muster.domain.reasons import BadValue, Cause, MembersMissing, PodGroupMissing, TooManyMembers
from muster.domain.request import GangId
from muster.gangs.membership.consistency import disagreements
from muster.gangs.membership.incarnations import Incarnation, assign, is_ambiguous
from muster.gangs.membership.owners import Owners
from muster.gangs.membership.podgroups import completed, key_of

NameKey = tuple[str, str, str, str]
"""Namespace, dialect, name, and the pod's UID where it is a gang of one."""

FEW_OWNERS = 4
"""So many are named in a gang's key: master and workers are two. A digest stands for more."""
MAX_CAUSES = 8
"""Of the members' own causes: a gang of thousands with the same slip in each says it a few times only."""


@dataclass(frozen=True, slots=True)
class Group:
    """The present pods of one gang. `needed` is how many must be there, those that succeeded not counted.
    `claims` are what they say of it, each once: those that wait, where any do. What runs was placed by what
    was said then, and has no say in what replaces it."""

    gang: GangId
    bound: tuple[Pod, ...]
    unbound: tuple[Pod, ...]
    needed: int
    causes: tuple[Cause, ...] = ()
    claims: frozenset[GangClaim] = frozenset()
    owners: frozenset[str] = frozenset()
    """Of all its pods, by UID, "" where some have none; or the UID of a gang of one. `gang` names those that
    there are, or has a digest of many."""
    pod_group: PodGroup | None = None
    role_needed: Mapping[str, int] = field(default_factory=dict)
    """How many of a role must be there, where its PodGroup says so, those that succeeded not counted."""
    ambiguous: bool = False
    """Whether some of its pods may be the first of another run under its name."""
    since: float = 0.0
    """Since when its waiting members wait, in seconds since the epoch: the creation of the first pod of their
    owner that waits, or was deleted while it did. If none waits, of the oldest bound member."""

    @property
    def present(self) -> int:
        return len(self.bound) + len(self.unbound)

    @property
    def elastic(self) -> bool:
        """Whether more members than it needs may come."""
        return all(claim.replicas is None for claim in self.claims)

    @property
    def waits_for(self) -> Cause | None:
        """What is not there yet; None where the gang is complete."""
        for claim in self.claims:
            if claim.by_object and self.unbound:
                return PodGroupMissing(f"{self.gang.namespace}/{claim.name}")
        if self.present < self.needed:
            return MembersMissing(self.present, self.needed)
        return next(iter(self.roles_short((*self.bound, *self.unbound))), None)

    @property
    def least(self) -> int:
        """So many must be bound before enough can be."""
        return max(self.needed, sum(self.role_needed.values()))

    @property
    def enough_bound(self) -> bool:
        """Whether all that it needs are bound, of each role too."""
        return self.enough(self.bound)

    def enough(self, pods: Collection[Pod]) -> bool:
        """Whether these are all that it needs, of each role too."""
        return len(pods) >= self.needed and not any(self.roles_short(pods))

    def roles_short(self, pods: Iterable[Pod]) -> Iterator[MembersMissing]:
        """The roles of which too few are among these pods."""
        if not self.role_needed:
            return
        there = Counter(pod.claim.wishes.role for pod in pods if pod.claim is not None)
        for role, needed in self.role_needed.items():
            if there[role] < needed:
                yield MembersMissing(there[role], needed, role)

    @property
    def facts(self) -> tuple[object, ...]:
        """All that planning depends on."""
        return (
            frozenset(pod.uid for pod in self.bound),
            {pod.uid: planning_facts(pod) for pod in self.unbound},
            self.needed,
            self.role_needed,
            self.causes,
        )


def planning_facts(pod: Pod) -> tuple[object, ...]:
    """What a plan made for an unbound pod depends on: all but its state."""
    asked = (pod.resources, pod.gpus, pod.gpu_resource, pod.slice)
    return (pod.claim, *asked, pod.rules, pod.priority, pod.rank, pod.labels, pod.peers, pod.preferences)


class Roster:
    """All pods that claim a gang, by UID and by gang name, completed by their PodGroups."""

    def __init__(self) -> None:
        self.pods: dict[str, Pod] = {}
        self.policies = DEFAULT_POLICIES
        self._named: dict[NameKey, dict[str, Pod]] = {}
        self._present: Counter[tuple[NameKey, str | None]] = Counter()
        """By name and owner, and by name alone (None)."""
        self._pod_groups: dict[PodGroupKey, PodGroup] = {}
        self._by_object: dict[PodGroupKey, dict[str, Pod]] = {}
        """Pods that name a PodGroup, as they are without it."""
        self._owners: dict[NameKey, Owners] = {}
        self._waiting: Counter[NameKey] = Counter()
        """Present pods that are not bound, by name."""
        self._begun: set[NameKey] = set()
        self.touched: set[PodGroupKey] = set()
        """PodGroups whose status may be another one now."""

    @property
    def names(self) -> set[NameKey]:
        """Of all pods."""
        return set(self._named)

    @property
    def pod_groups(self) -> Mapping[PodGroupKey, PodGroup]:
        """All that are there."""
        return self._pod_groups

    def named(self, key: NameKey) -> Collection[Pod]:
        """The pods that bear the name, present or not."""
        return self._named.get(key, {}).values()

    def see_pod_group(self, key: PodGroupKey, group: PodGroup | None) -> set[NameKey]:
        """Take in a PodGroup's new state, None when it went; the names whose groups may have changed."""
        if self._pod_groups.get(key) == group:
            if group is not None:
                self._pod_groups[key] = group  # it may show another status
            return set()
        if group is None:
            del self._pod_groups[key]
        else:
            self._pod_groups[key] = group
        self.touched.add(key)
        named = list(self._by_object.get(key, {}).values())
        for pod in named:
            self.see(pod)
        return {(*key, "")} if named else set()

    def see(self, pod: Pod) -> set[NameKey]:
        """Take in a pod's new state; the names whose groups may have changed."""
        incomplete, key = pod, key_of(pod)
        pod = completed(pod, self._pod_groups)
        touched = self._see(pod)
        if key is not None:
            self._by_object.setdefault(key, {})[pod.uid] = incomplete
            self.touched.add(key)
        return touched

    def _see(self, pod: Pod) -> set[NameKey]:
        before = self.pods.get(pod.uid)
        if before is None and pod.claim is None:
            return set()
        if before is not None and _grouping_facts(before) == _grouping_facts(pod):
            key = _name_key(pod)
            self.pods[pod.uid] = pod
            self._named[key][pod.uid] = pod
            if pod.started and not before.started and self._owners[key].begins(pod) and self._waiting[key]:
                self._begun.add(key)
            return set()
        touched = self._drop(pod.uid)
        if pod.claim is not None:
            key = _name_key(pod)
            self.pods[pod.uid] = pod
            self._named.setdefault(key, {})[pod.uid] = pod
            self._count(key, pod, 1)
            self._owners.setdefault(key, Owners()).see(pod)
            touched.add(key)
        return self._swept(touched)

    def drop(self, uid: str) -> set[NameKey]:
        """Forget a pod; the names whose groups may have changed."""
        pod = self.pods.get(uid)
        names = self._swept(self._drop(uid))
        return names if pod is not None and _counts(pod) else set()

    def _swept(self, names: set[NameKey]) -> set[NameKey]:
        """The names, of which those are forgotten that no pod bears any more."""
        for name in names - self._named.keys():
            self._owners.pop(name, None)
        return names

    def _drop(self, uid: str) -> set[NameKey]:
        pod = self.pods.pop(uid, None)
        if pod is None:
            return set()
        key = _name_key(pod)
        del self._named[key][uid]
        self._owners[key].drop(pod)
        self._count(key, pod, -1)
        if not self._named[key]:
            del self._named[key]
        of_object = key[:3]
        if self._by_object.get(of_object, {}).pop(uid, None) is not None:
            self.touched.add(of_object)
            if not self._by_object[of_object]:
                del self._by_object[of_object]
        return {key}

    def _count(self, key: NameKey, pod: Pod, more: int) -> None:
        self._waiting[key] += more * (pod.present and not pod.node)
        if not self._waiting[key]:
            del self._waiting[key]
        for whose in (pod.owner, None):
            self._present[key, whose] += more * pod.present
            if not self._present[key, whose]:
                del self._present[key, whose]

    def take_begun(self) -> set[NameKey]:
        """Return the names of which an owner's first pod was seen to run, while others of the name wait.

        Which runs the waiting ones are of may be another question now. The set begins anew.
        """
        begun, self._begun = self._begun, set()
        return begun

    def size(self, key: NameKey, owner: str | None = None) -> int:
        """How many present pods bear the name, of all owners or of one."""
        return self._present[key, owner]

    def groups(self, key: NameKey) -> list[Group]:
        """The gangs of one name, by the age of their owners."""
        by_owner: dict[str, list[Pod]] = {}
        for pod in self._named.get(key, {}).values():
            if _counts(pod):
                by_owner.setdefault(pod.owner, []).append(pod)
        if not by_owner:
            return []
        owners, of_object = self._owners[key], self._pod_groups.get(key[:3])
        born, since = owners.born(), owners.since(by_owner)
        return [
            _group(key, incarnation, self.policies, of_object, is_ambiguous(incarnation, born), since)
            for incarnation in assign(by_owner, born)
            if any(pod.present for pods in incarnation.values() for pod in pods)
        ]


def _counts(pod: Pod) -> bool:
    """Whether a gang is what it is by this pod too."""
    return pod.present or (pod.succeeded and bool(pod.owner))


def _grouping_facts(pod: Pod) -> tuple[object, ...]:
    """All of a pod that grouping and planning look at: not whether its containers run."""
    return (
        planning_facts(pod),
        pod.present,
        pod.node,
        pod.succeeded,
        pod.owner,
        pod.causes,
        pod.created,
        pod.name,
    )


def _name_key(pod: Pod) -> NameKey:
    claim = pod.claim
    assert claim is not None
    return (pod.namespace, claim.dialect, claim.name, pod.uid if claim.lone else "")


def _group(
    key: NameKey,
    by_owner: Incarnation,
    policies: Policies,
    of_object: PodGroup | None,
    ambiguous: bool,
    since: Mapping[str, float],
) -> Group:
    namespace, dialect, name, lone = key
    pods = [pod for of_owner in by_owner.values() for pod in of_owner]
    owners = frozenset((lone,) if lone else (pod.owner for pod in pods))
    identity = _as_identity((lone,) if lone else by_owner)
    bound = tuple(sorted((p for p in pods if p.present and p.node), key=lambda p: p.uid))
    unbound = tuple(sorted((p for p in pods if p.present and not p.node), key=lambda p: p.uid))
    succeeded = sum(1 for pod in pods if pod.succeeded)
    oldest = min((pod.created for pod in bound), default=0.0)
    claims = frozenset(pod.claim for pod in unbound or bound if pod.claim is not None)
    counts = (claim.min_member or claim.replicas or 0 for claim in claims)
    return Group(
        GangId(namespace, dialect, name, identity),
        bound,
        unbound,
        needed=max(0, max(counts) - succeeded),
        causes=_causes(f"gang/{namespace}/{name}", len(bound) + len(unbound), unbound, policies),
        claims=claims,
        owners=owners,
        pod_group=of_object,
        role_needed=_role_needed(of_object, pods) if of_object is not None and of_object.role_min else {},
        ambiguous=ambiguous,
        since=min((since[pod.owner] for pod in unbound), default=oldest),
    )


def _as_identity(owners: Collection[str]) -> tuple[str, ...]:
    """These owners, and no others, in a few words that every process says alike."""
    ordered = sorted(filter(None, owners))
    if len(ordered) <= FEW_OWNERS:
        return tuple(ordered)
    digest = hashlib.blake2b("\n".join(ordered).encode(), digest_size=16, usedforsecurity=False)
    return (f"{len(ordered)}-owners", digest.hexdigest())


def _role_needed(of_object: PodGroup, pods: Iterable[Pod]) -> Mapping[str, int]:
    succeeded = Counter(pod.claim.wishes.role for pod in pods if pod.succeeded and pod.claim is not None)
    return {role: least - succeeded[role] for role, least in of_object.role_min.items()}


def _causes(where: str, present: int, unbound: tuple[Pod, ...], policies: Policies) -> tuple[Cause, ...]:
    """Why the gang is ill-formed. Only pods that are still to be placed have causes of their own."""
    own = dict.fromkeys(cause for pod in unbound for cause in pod.causes)
    causes: list[Cause] = list(own)[:MAX_CAUSES]
    if not unbound or causes:
        return tuple(causes)
    causes.extend(disagreements(unbound))
    if causes:
        return tuple(causes)
    claim = unbound[0].claim
    assert claim is not None
    if unknown := policies.unknown(claim.wishes.policies):
        known = ", ".join(policy.name for policy in policies.policies) or "none"
        causes.append(BadValue(where, "topology policy", unknown[0], f"a policy of the cluster: {known}"))
    if claim.min_member is None and claim.replicas is None and not claim.by_object:
        causes.append(BadValue(where, "min-member", "", _COUNT_EXPECTED))
    if claim.replicas is not None and present > claim.replicas:
        causes.append(TooManyMembers(present, claim.replicas))
    return tuple(causes)


# The counts of its pods' owners are not read, and a gang must not begin with those that came first.
_COUNT_EXPECTED = (
    'how many of its members must fit at once: add the annotation gpu.topology/min-member, as in "4", to each'
)
