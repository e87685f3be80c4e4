"""The pods of one gang that are present, and how many it needs."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass

from muster.domain.causes.not_planned import JobMissing, MembersMissing, PodGroupMissing
from muster.domain.constraints import Subgroup
from muster.domain.pod import GangClaim, Pod
from muster.domain.podgroup import PodGroup
from muster.domain.policies import Policies
from muster.domain.quorums import Counts, Leaf, Quorum, members_of
from muster.domain.reasons import Cause
from muster.domain.request import GangId, RolePreference
from muster.gangs.membership.consistency import claim_of, ill_formed
from muster.gangs.membership.incarnations import Incarnation, of_job
from muster.gangs.membership.podgroups import Followers, followers

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
    def least(self) -> int:
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
