"""The present pods of one gang, the number that it needs, and the facts that its PodGroup adds.

A PodGroup object adds facts about its pods, and followers: members that come later. The first members are
planned together with placeholders of followers, so that they do not settle where followers have no room.
Placeholders are never bound: `capacity.requests` leaves them out of the planner's answer.
"""

from __future__ import annotations

import hashlib
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from muster.domain.causes.ill_formed import BadValue, GroupDisagrees
from muster.domain.causes.not_planned import JobMissing, MembersMissing, ParentMissing, PodGroupMissing
from muster.domain.constraints import Subgroup
from muster.domain.pod import COMPOSITE, GROUP, NO_TOPOLOGY_REQUEST, GangClaim, Pod, TopologyRequest
from muster.domain.podgroup import FollowerTemplate, PodGroup, PodGroupKey
from muster.domain.policies import Policies
from muster.domain.quorums import CountByRole, Leaf, Quorum, members_of
from muster.domain.reasons import Cause
from muster.domain.request import GangId, RolePreference
from muster.gangs.membership.consistency import claim_of, ill_formed
from muster.gangs.membership.incarnations import Incarnation, belong_to_job

_MIN_MEMBER = "min-member"
"""The name of a gang's number of members among `_stated_values`."""


def key_of(pod: Pod) -> PodGroupKey | None:
    """Return the key of the PodGroup that the pod names; None if it names none."""
    claim = pod.claim
    return (pod.namespace, claim.dialect, claim.name) if claim is not None and claim.by_object else None


def complete_pod(pod: Pod, groups: Mapping[PodGroupKey, PodGroup]) -> Pod:
    """Return the pod with everything that its PodGroup states.

    Return the same pod if its PodGroup does not exist, or makes no gang. If pod and PodGroup state different
    values, the pod is ill-formed.
    """
    key = key_of(pod)
    group = groups.get(key) if key is not None else None
    claim = pod.claim
    if group is None or claim is None or not group.makes_gang:
        return pod
    causes = (*pod.causes, *(group.causes if not pod.node else ()))
    if not pod.node:
        causes = (*causes, *_disagreements(pod.name, claim, group))
    if (
        not pod.node
        and group.role_topology_requests
        and claim.topology_request.role not in group.role_topology_requests
    ):
        expected = f"a subgroup of {group.title}: {', '.join(sorted(group.role_topology_requests)[:8])}"
        causes = (
            *causes,
            BadValue(f"pod/{pod.namespace}/{pod.name}", "role", claim.topology_request.role, expected),
        )
    if not pod.node and group.priority not in (None, pod.priority):
        expected = f"{group.priority}, as {group.title} has it: set one priorityClassName in both"
        name = f"pod/{pod.namespace}/{pod.name}"
        causes = (*causes, BadValue(name, "spec.priority", str(pod.priority), expected))
    of_pod = claim.topology_request
    of_role = group.role_topology_requests.get(of_pod.role, NO_TOPOLOGY_REQUEST)
    topology_request = replace(of_pod.completed_by(of_role, group.topology_request), role=of_pod.role)
    # Owners join one gang up to this number. It includes the pods of optional subgroups.
    gang_size = group.min_member if group.quorum is None else group.size
    min_member = claim.min_member or gang_size
    return replace(
        pod,
        claim=replace(
            claim,
            min_member=min_member,
            topology_request=topology_request,
            by_object=False,
            size=claim.size or group.size,
        ),
        rules=replace(pod.rules, required=(*pod.rules.required, *group.required))
        if group.required
        else pod.rules,
        rank=_rank(pod.rank, group.role_first.get(topology_request.role, 0), topology_request),
        causes=causes,
    )


def _rank(rank: int | None, first: int, topology_request: TopologyRequest) -> int | None:
    """Return the pod's rank, raised unless the pod is one of the `first` pods of its Job.

    Each Job must start with this number of pods, so these pods come before all others. With segments no rank
    is raised, because segments are consecutive members.
    """
    if rank is None or not first or topology_request.segments or rank % GROUP < first:
        return rank
    return rank + GROUP**2


def _disagreements(pod: str, claim: GangClaim, group: PodGroup) -> Iterator[GroupDisagrees]:
    """Yield a cause for each value that pod and PodGroup state differently."""
    pod_values = _stated_values(claim.min_member, claim.topology_request, claim.topology_request)
    group_values = _stated_values(
        group.min_member,
        group.topology_request,
        group.role_topology_requests.get(claim.topology_request.role, NO_TOPOLOGY_REQUEST),
    )
    if group.owner is not None and (claim.min_member or 0) <= (group.size or 0):
        pod_values.pop(_MIN_MEMBER, None)  # the owner makes more members: the pod's number counts
    for name in sorted(pod_values.keys() & group_values.keys()):
        if pod_values[name] != group_values[name]:
            is_count = name == _MIN_MEMBER
            key = (claim.count_key if is_count else "") or f"gpu.topology/{name}"
            field = (group.count_field if is_count else "") or name
            yield GroupDisagrees(pod, key, str(pod_values[name]), group.title, field, str(group_values[name]))


def _stated_values(min_member: int | None, gang: TopologyRequest, role: TopologyRequest) -> dict[str, object]:
    """Return field → value, for the values that are stated."""
    stated = {_MIN_MEMBER: min_member, "scope": gang.required_scope, "role-scope": role.role_scope}
    return {key: value for key, value in stated.items() if value is not None}


PREFIX = "coming/"
"""Prefix of the UIDs of placeholders. UIDs of pods never have a slash."""


@dataclass(frozen=True, slots=True)
class Followers:
    """Followers of one role: members that come later."""

    template: FollowerTemplate
    numbers: range
    """The followers' numbers in the role."""
    sibling: Pod
    """A pod of the gang. Followers get this pod's values of the template's `shared_labels`."""
    leader: Pod | None = None
    """The pod whose rules place the followers in its own topology domain; None if no pod leads."""

    def placeholders(self, pod_group: PodGroup) -> Iterator[Pod]:
        """Yield a placeholder for each follower."""
        template = self.template
        assert template.pod.claim is not None
        claim = replace(template.pod.claim, name=pod_group.name)
        sample = complete_pod(replace(template.pod, claim=claim), {pod_group.key: pod_group})
        shared_labels = {key: value for key, value in self.sibling.labels if key in template.shared_labels}
        labels = tuple(sorted((dict(sample.labels) | shared_labels).items()))
        peers = sample.peers if self.leader is None else self.leader.peers
        for number in self.numbers:
            uid = f"{PREFIX}{template.role}/{number}"
            yield replace(sample, uid=uid, rank=template.ranks[number], labels=labels, peers=peers)


def followers(pod_group: PodGroup, pods: Sequence[Pod]) -> Iterator[Followers]:
    """Yield the followers of a gang. `pods` are the gang's pods, including succeeded pods."""
    by_role = defaultdict[str, list[Pod]](list)
    for pod in pods if pod_group.follower_templates else ():
        by_role[pod.topology_request.role].append(pod)
    for template in pod_group.follower_templates:
        if template.role in by_role:
            yield from _followers_of_leaders(template, by_role[template.role])
        elif template.role in pod_group.role_later:
            leads = template.exclusive and not template.unit_label
            leader = next(filter(_waits, pods), None) if leads else None
            yield Followers(template, range(len(template.ranks)), pods[0], leader)


def _followers_of_leaders(template: FollowerTemplate, pods: Sequence[Pod]) -> Iterator[Followers]:
    """Yield the followers of each unit whose leader is its only pod so far."""
    units = defaultdict[str, list[Pod]](list)
    for pod in pods if template.unit_label else ():
        units[dict(pod.labels).get(template.unit_label, "")].append(pod)
    for unit, members in units.items():
        first = int(unit) * template.unit if unit.isdecimal() and len(unit) < 8 else len(template.ranks)
        if len(members) == 1 and _waits(members[0]) and first + template.unit <= len(template.ranks):
            yield Followers(template, range(first + 1, first + template.unit), members[0], members[0])


def _waits(pod: Pod) -> bool:
    return pod.present and not pod.node


NameKey = tuple[str, str, str, str]
"""Namespace, dialect, name, and the pod's UID for a gang of one."""

_FEW_OWNERS = 4
"""Up to this many owners are named in a gang's key (master and workers are two). With more owners, the key
has a digest."""


@dataclass(frozen=True, slots=True)
class Group:
    """The present pods of one gang."""

    gang: GangId
    bound: tuple[Pod, ...]
    unbound: tuple[Pod, ...]
    needed: int
    """Number of members that must be present, less succeeded members."""
    size: int | None = None
    """Number of expected members, less succeeded members; None if not known."""
    causes: tuple[Cause, ...] = ()
    claims: frozenset[GangClaim] = frozenset()
    """The different claims of its waiting pods; of its bound pods if no pod waits.

    Running pods may have been placed by older claims, which must not affect their replacements.
    """
    owners: frozenset[str] = frozenset()
    """UIDs of the owners of all its pods, "" for pods without an owner; or the UID of a gang of one.

    `gang` names only the owners that exist, or has a digest if there are many.
    """
    pod_group: PodGroup | None = None
    quorum: Quorum | None = None
    """How many subgroups and members of each role must be present, less succeeded members; None if the
    PodGroup states neither."""
    followers: tuple[Followers, ...] = ()
    """Members that come when others have a node. The gang is planned where the followers fit too."""
    ambiguous: bool = False
    """Whether some of its pods may be the first of another incarnation of its name."""
    since: float = 0.0
    """Since when the gang waits, in seconds since the Unix epoch.

    This is the creation of its oldest waiting pod, or of an older pod of that owner that was deleted while it
    waited. If no member waits, this is the creation of the oldest bound member.
    """

    @property
    def present(self) -> int:
        """Return how many pods are present, bound or not."""
        return len(self.bound) + len(self.unbound)

    @property
    def priority(self) -> int:
        """Return the highest priority of its waiting members; 0 if no member waits."""
        return max((pod.priority for pod in self.unbound), default=0)

    @property
    def members(self) -> tuple[Pod, ...]:
        """Return all present pods, bound pods first."""
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
        """Return whether more members may come: the size is open, and the present members are not the
        expected number.

        If there are more members than expected, the number was wrong, and others may follow.
        """
        return self.elastic and self.present != self.size

    @property
    def waits_for(self) -> Cause | None:
        """Return the cause for which the gang waits; None if it is complete."""
        for claim in self.claims:
            if claim.by_object and self.unbound:
                missing = f"{self.gang.namespace}/{claim.name}"
                if claim.job:
                    return JobMissing(claim.job)
                return ParentMissing(missing) if claim.dialect == COMPOSITE else PodGroupMissing(missing)
        if self.pod_group is not None and self.pod_group.missing is not None:
            return self.pod_group.missing
        is_short = self.present < self.needed
        names_role = self._is_tree or not is_short
        short_role = next(self.roles_short(self.members), None) if names_role else None
        if is_short and short_role is None:
            return MembersMissing(
                self.present, self.needed, stateful_set=self._stateful_set, stated_by=self._stated_by
            )
        return short_role

    @property
    def _is_tree(self) -> bool:
        """Return whether a CompositePodGroup describes the gang, so that each role is a PodGroup."""
        return self.pod_group is not None and self.pod_group.dialect == COMPOSITE

    @property
    def _stated_by(self) -> str:
        """Return the field that states how many members are needed; "" if a sentence need not name it."""
        group = self.pod_group
        return f"{group.count_field} of {group.title}" if group is not None and group.count_field else ""

    @property
    def _stateful_set(self) -> str:
        """Return the name of a StatefulSet if each waiting pod comes from a different StatefulSet; else
        ""."""
        controllers = {pod.controller for pod in self.unbound if pod.claim is not None and not pod.claim.job}
        names = sorted(
            controller.name
            for controller in controllers
            if controller is not None and controller.kind == "StatefulSet"
        )
        return names[0] if names and len(names) == len(self.unbound) else ""

    @property
    def fewest_needed(self) -> int:
        """Return the smallest number of bound members with which all required members can be bound."""
        return max(
            self.needed, members_of(self.quorum.fewest_members() or ()) if self.quorum is not None else 0
        )

    @property
    def enough_bound(self) -> bool:
        """Return whether all required members are bound, of each role too."""
        return self.is_enough(self.bound)

    @property
    def was_fully_bound(self) -> bool:
        """Return whether all members are bound that are required now, or were required at their Permit.

        While the gang's PodGroup is gone or can't be read, the number that the gang needs now is not known.
        """
        least = min((pod.batch.needed for pod in self.bound if pod.batch is not None), default=None)
        group = self.pod_group
        states_number = group is None or group.min_member is not None or group.quorum is not None
        is_known = states_number and not any(claim.by_object for claim in self.claims)
        return (is_known and self.enough_bound) or (least is not None and len(self.bound) >= least)

    @property
    def was_split_by_crash(self) -> bool:
        """Return whether a gang that is seen for the first time was split by a crash.

        The records on the members that Muster bound (`Batch`) must prove the split. First, fewer members are
        bound than had to be bound then, whatever the gang needs now. Second, enough waiting pods to fill the
        gap were there at that time and were not left out; replacements were created later. Creation times are
        whole seconds.
        """
        batches = [pod.batch for pod in self.bound if pod.batch is not None]
        if self.was_fully_bound or not batches:
            return False
        missing = min(batch.needed for batch in batches) - len(self.bound)
        newest = min(batch.newest for batch in batches)
        left_out = max(batch.left_out for batch in batches)
        candidates = sum(pod.created <= newest for pod in self.unbound)
        return candidates - left_out >= missing

    def is_enough(self, pods: Collection[Pod]) -> bool:
        """Return whether these pods are as many as the gang needs, of each role too."""
        return len(pods) >= self.needed and not any(self.roles_short(pods))

    def roles_short(self, pods: Iterable[Pod]) -> Iterator[MembersMissing]:
        """Yield the roles with too few members among these pods.

        If some subgroups are enough, yield the roles of the subgroups that lack the fewest members.
        """
        if self.quorum is None:
            return
        present_by_role = stated_roles(pods)
        for leaf, missing in self.quorum.without_members(present_by_role).fewest_members() or ():
            if missing:
                present, roles = leaf.count_in(present_by_role), ", ".join(sorted(leaf.roles))
                pod_group = f"PodGroup {self.gang.namespace}/{roles}"
                stated_by = f"spec.schedulingPolicy of {pod_group}" if self._is_tree else ""
                yield MembersMissing(present, present + missing, roles, stated_by=stated_by)

    @property
    def placeholders(self) -> tuple[Pod, ...]:
        """Return a placeholder for each follower."""
        pod_group = self.pod_group
        if pod_group is None:
            return ()
        return tuple(pod for role in self.followers for pod in role.placeholders(pod_group))

    def least_followers(self, placeholders: Collection[Pod]) -> CountByRole:
        """Return role → number of these followers that must fit. Roles have the names that pods state."""
        later = self.pod_group.role_later if self.pod_group is not None else {}
        return {
            role: min(count, later.get(role, count)) for role, count in stated_roles(placeholders).items()
        }

    @property
    def subgroups(self) -> tuple[Subgroup, ...]:
        """Return the scopes that several roles share. Roles have the names that pods state."""
        return self.pod_group.subgroups if self.pod_group is not None else ()

    @property
    def role_preferences(self) -> tuple[RolePreference, ...]:
        """Return the preferred scopes of several roles together. Roles have the names that pods state."""
        return self.pod_group.role_preferences if self.pod_group is not None else ()

    @property
    def facts(self) -> tuple[object, ...]:
        """Return all facts of the gang that a plan depends on."""
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
            self.pod_group.missing if self.pod_group is not None else None,
        )


def name_key(pod: Pod) -> NameKey:
    """Return the name of the pod's gang."""
    claim = claim_of(pod)
    return (pod.namespace, claim.dialect, claim.name, pod.uid if claim.lone else "")


def stated_roles(pods: Iterable[Pod]) -> Counter[str]:
    """Return how many of these pods state each role."""
    return Counter(pod.topology_request.role for pod in pods)


def planning_facts(pod: Pod) -> tuple[object, ...]:
    """Return all facts of an unbound pod except its state: a plan depends on these facts."""
    claims = (pod.gpu_counts, pod.match_attributes, pod.several_claims, pod.compute_domain, pod.device_claims)
    requests = (pod.resources, pod.gpus, pod.gpu_resource, pod.slice, pod.group_claims, *claims)
    return (pod.claim, *requests, pod.rules, pod.priority, pod.rank, pod.labels, pod.peers, pod.preferences)


def group_of(
    key: NameKey,
    by_owner: Incarnation,
    policies: Policies,
    pod_group: PodGroup | None,
    ambiguous: bool,
    since: Mapping[str, float],
) -> Group:
    """Return the group of one incarnation of a name.

    `by_owner`: the incarnation, including succeeded pods. `since`: since when the pods of each owner wait, in
    seconds since the Unix epoch.
    """
    namespace, dialect, name, lone = key
    pods = [pod for owner_pods in by_owner.values() for pod in owner_pods]
    owners = frozenset((lone,) if lone else (pod.owner for pod in pods))
    # A job may make its Jobs or StatefulSets one after another: they stay one gang.
    waves = (owner.partition("#")[2] for owner in by_owner) if belong_to_job(pods) else by_owner
    identity = _as_identity((lone,) if lone else tuple(waves))
    bound = tuple(sorted((p for p in pods if p.present and p.node), key=lambda p: p.uid))
    unbound = tuple(sorted((p for p in pods if p.present and not p.node), key=lambda p: p.uid))
    succeeded = [pod for pod in pods if pod.succeeded]
    oldest = min((pod.created for pod in bound), default=0.0)
    claims = frozenset(pod.claim for pod in unbound or bound if pod.claim is not None)
    counts = (claim.min_member or claim.replicas or 0 for claim in claims)
    quorum = _quorum(pod_group, stated_roles((*bound, *unbound)))
    if quorum is not None:
        quorum = quorum.without_members(stated_roles(succeeded))
    if quorum is None or quorum.leaves_no_choice:
        fewest = max(0, max(counts) - len(succeeded))
    else:  # a gang whose minimums are all 0 needs one member to begin
        fewest = members_of(quorum.fewest_members() or ()) or int(not succeeded)
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
        pod_group=pod_group,
        quorum=quorum,
        followers=tuple(followers(pod_group, pods)) if pod_group is not None and unbound else (),
        ambiguous=ambiguous,
        since=min((since[pod.owner] for pod in unbound), default=oldest),
    )


def _quorum(pod_group: PodGroup | None, present_by_role: CountByRole) -> Quorum | None:
    """Return how many subgroups start, or how many members each role needs; None if the PodGroup states
    neither.

    The minimum of a role that comes later counts once a pod of this role is there.
    """
    if pod_group is None or pod_group.quorum is not None:
        return pod_group.quorum if pod_group is not None else None
    leaves = []
    for role, least in pod_group.role_min.items():
        fewest = pod_group.role_later.get(role, least) if present_by_role.get(role) else least
        leaves.append(Leaf(frozenset((role,)), fewest, pod_group.role_unit.get(role, 1)))
    return Quorum(len(leaves), tuple(leaves)) if leaves else None


def _as_identity(owners: Collection[str]) -> tuple[str, ...]:
    """Return the owners as they stand in a gang's key, the same in every process."""
    ordered = sorted(filter(None, owners))
    if len(ordered) <= _FEW_OWNERS:
        return tuple(ordered)
    digest = hashlib.blake2b("\n".join(ordered).encode(), digest_size=16, usedforsecurity=False)
    return (f"{len(ordered)}-owners", digest.hexdigest())
