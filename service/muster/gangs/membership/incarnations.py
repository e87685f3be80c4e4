"""Assign owners, and their pods, to the incarnations of a gang name.

Owners are taken in the order of their oldest pods. "The last" is the incarnation that the previous owner
joined, and its count is the number of members that its pods state. The first row that holds decides:

    owner                                                       | result
    of a PodGroup of Kubernetes: it has ended, and began before |
    another owner came                                          | left out: an earlier gang of the PodGroup
    a job, or Kubernetes' groups, state the number of pods      | joins: all such owners are one gang
    it is the first owner                                       | opens an incarnation
    the last has reached its count                              | opens an incarnation
    it came after an ended owner of the last had begun          | opens an incarnation
    it has ended, and began before an owner of the last came    | opens an incarnation
    it came after the last began, and pods for a count remain   | opens an incarnation
    any other                                                   | joins the last: master and workers

An owner comes when its first pod is created, begins when its first pod runs, and has ended if all its pods
have succeeded. Times are whole seconds. A gang often starts in the second in which it was created, so an
owner of the same second joins. An example with a count of 3 members:

    Job      | pods | came | began | result
    master   | 1    | 0 s  | 5 s   | opens incarnation 1
    workers  | 2    | 1 s  | 5 s   | joins incarnation 1
    later    | 3    | 90 s | -     | opens incarnation 2: incarnation 1 has reached its count

If an incarnation has one owner, its pods join waves, in the order of their age. Waves are the steps of a
workflow, or of a Job with more completions than parallel pods. Each wave is an incarnation of its own.

    pod, created after the wave began                           | result
    the whole wave has succeeded, and pods for a count remain   | opens a wave
    the wave has all members of a fixed number, some succeeded  | opens a wave
    any other                                                   | joins the wave: replaces a lost pod

Strangers are waiting pods that are no members, because they would hold up the replacements.

    waiting pod, while members run                              | result
    it agrees with a running member about the gang              | member: a replacement
    it does not, but another waiting pod does                   | stranger
    no waiting pod does                                         | member: the gang may be updated pod by pod
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from muster.domain.pod import COMPOSITE, NATIVE, Pod
from muster.gangs.membership.consistency import asked_of_gang, claim_of

Incarnation = dict[str, list[Pod]]
"""The pods of a gang, by owner. For a later wave of one owner, the key has the number of the wave: `uid#2`.
"""
STRANGERS = "#strangers"
"""The key of strangers, whichever owners they have."""


@dataclass(slots=True)
class _IncarnationBuilder:
    """The incarnation that owners join now, and the facts that decide whether an owner may join."""

    pods: Incarnation
    count: int
    """Number of members that the pods of its first owner state."""
    pod_count: int = 0
    latest_owner_came: float = -math.inf
    """When its latest owner came."""
    ended_owners_began: float = math.inf
    """When the first pod of an owner that has ended began to run."""
    ran_since: float = math.inf
    """When the first pod of the incarnation began to run."""

    def takes(self, pods: list[Pod]) -> bool:
        """Return whether an owner's pods may join, by the table of owners without its last two rows."""
        return (
            self.pod_count < self.count
            and _oldest_creation(pods) <= self.ended_owners_began
            and self.latest_owner_came <= _begin_if_ended(pods)
        )

    def join(self, owner: str, pods: list[Pod]) -> None:
        """Add the pods of an owner."""
        self.pods[owner] = pods
        self.pod_count += len(pods)
        self.latest_owner_came = max(self.latest_owner_came, _oldest_creation(pods))
        self.ended_owners_began = min(self.ended_owners_began, _begin_if_ended(pods))
        self.ran_since = min(self.ran_since, _begin_of(pods))


def assign(by_owner: Mapping[str, list[Pod]], born: Mapping[str, float]) -> list[Incarnation]:
    """Return the incarnations of one name, the oldest first.

    `born`: when each owner came, even if its first pod is gone.
    """
    if belong_to_job(pod for pods in by_owner.values() for pod in pods):
        return list(_waves({owner: by_owner[owner] for owner in _owners_of_gang(by_owner, born)}))
    incarnations: list[_IncarnationBuilder] = []
    remaining = sum(map(len, by_owner.values()))
    for owner in sorted(by_owner, key=lambda owner: (born[owner], owner)):
        pods, last = by_owner[owner], incarnations[-1] if incarnations else None
        if last is None or not last.takes(pods) or (remaining >= last.count and born[owner] > last.ran_since):
            incarnations.append(_IncarnationBuilder({}, max(map(_stated_size, pods))))
        incarnations[-1].join(owner, pods)
        remaining -= len(pods)
    return [wave for incarnation in incarnations for wave in _waves(incarnation.pods)]


def _owners_of_gang(by_owner: Mapping[str, list[Pod]], born: Mapping[str, float]) -> list[str]:
    """Return the owners that are one gang, without those of an earlier gang of the same PodGroup.

    A job has all of its owners. A PodGroup of Kubernetes may be used again, by pods of another owner.
    """
    if all(claim_of(pod).dialect not in NATIVE for pods in by_owner.values() for pod in pods):
        return sorted(by_owner)
    newest: dict[str, float] = {}
    for owner, pods in by_owner.items():
        for name in map(_group_in_tree, pods):
            newest[name] = max(newest.get(name, -math.inf), born[owner])
    return [
        owner
        for owner in sorted(by_owner)
        if any(_begin_if_ended(by_owner[owner]) >= newest[_group_in_tree(pod)] for pod in by_owner[owner])
    ]


def _group_in_tree(pod: Pod) -> str:
    """Return the pod's PodGroup in the tree of a CompositePodGroup; "" in other gangs. Pods of one group that
    come after another group has ended are no new gang."""
    return pod.topology_request.role if claim_of(pod).dialect == COMPOSITE else ""


def _waves(incarnation: Incarnation) -> Iterable[Incarnation]:
    """Split an incarnation of one owner into its waves, by the table of waves."""
    ((owner, pods), *more_owners) = incarnation.items()
    if more_owners or not owner or not any(pod.succeeded for pod in pods):
        return [incarnation]
    ordered = sorted(pods, key=lambda pod: (pod.created, pod.uid))
    waves: list[list[Pod]] = [[]]
    succeeded, began = 0, math.inf
    for position, pod in enumerate(ordered):
        wave, remaining = waves[-1], len(ordered) - position
        wave_is_over = succeeded == len(wave) and remaining >= _stated_size(pod)
        if pod.created > began and succeeded and (wave_is_over or len(wave) >= _fixed_size(pod)):
            succeeded, began = 0, math.inf
            waves.append([])
        waves[-1].append(pod)
        succeeded, began = succeeded + pod.succeeded, min(began, pod.started or math.inf)
    return [{f"{owner}#{n}" if n > 1 else owner: wave} for n, wave in enumerate(waves, 1)]


def without_earlier(pods: Collection[Pod]) -> list[Pod]:
    """Return the pods, which have no owner, without succeeded pods that may belong to an earlier gang.

    A succeeded pod is kept if all present pods existed when it began, and together these pods are no more
    than the gang has members. Nothing else shows that a name is used again. In a tree of groups, only pods of
    the same group are compared.
    """
    pods_by_group: dict[str, list[Pod]] = {}
    for pod in pods:
        pods_by_group.setdefault(_group_in_tree(pod), []).append(pod)
    return [pod for group_pods in pods_by_group.values() for pod in _without_earlier(group_pods)]


def _without_earlier(pods: Collection[Pod]) -> Collection[Pod]:
    present = [pod for pod in pods if pod.present]
    if len(present) == len(pods) or (not present and any(map(_group_in_tree, pods))):
        return pods
    newest = max((pod.created for pod in present), default=math.inf)
    gang_pods = [pod for pod in pods if pod.present or (pod.succeeded and newest <= pod.started)]
    return gang_pods if len(gang_pods) <= max(map(_fixed_size, present), default=0) else present


def without_strangers(incarnation: Incarnation) -> Iterable[Incarnation]:
    """Yield the incarnation without strangers, then the strangers as another incarnation.

    This module's last table says which pods are strangers.
    """
    pods = [pod for owner_pods in incarnation.values() for pod in owner_pods if pod.present]
    waiting = [pod for pod in pods if not pod.node]
    is_one_kind = len({pod.claim for pod in waiting}) < 2 and not any(pod.causes for pod in waiting)
    running = set() if is_one_kind else {asked_of_gang(pod) for pod in pods if pod.node}
    replacements = (
        {pod.uid for pod in waiting if not pod.causes and asked_of_gang(pod) in running} if running else ()
    )
    strangers = [pod for pod in waiting if pod.uid not in replacements] if replacements else []
    if not strangers:
        yield incarnation
        return
    left_out = {pod.uid for pod in strangers}
    members_by_owner = {
        owner: [pod for pod in pods if pod.uid not in left_out] for owner, pods in incarnation.items()
    }
    yield {owner: pods for owner, pods in members_by_owner.items() if pods}
    yield {STRANGERS: strangers}


def is_ambiguous(incarnation: Incarnation, born: Mapping[str, float]) -> bool:
    """Return whether some pods may be replacements of lost members, or the first pods of another incarnation.

    This is so if an owner came after another owner had begun. With one owner, this is so if all present pods
    were created after the succeeded pods began.
    """
    if len(incarnation) > 1:
        if belong_to_job(pod for pods in incarnation.values() for pod in pods):
            return False
        return max(born[owner] for owner in incarnation) > min(map(_begin_of, incarnation.values()))
    ((owner, pods),) = incarnation.items()
    began = _begin_of(pod for pod in pods if not pod.present)
    return bool(owner) and all(pod.created > began for pod in pods if pod.present)


def belong_to_job(pods: Iterable[Pod]) -> bool:
    """Return whether the pods are one gang, whichever owners they have (`GangClaim.ignores_owners`)."""
    return any(pod.claim is not None and pod.claim.ignores_owners for pod in pods)


def _begin_of(pods: Iterable[Pod]) -> float:
    """Return when the first of the pods began to run; infinite if no pod runs.

    A gang begins only when all members are there. So an owner that came later has replacements, or belongs to
    another incarnation.
    """
    return min((pod.started for pod in pods if pod.started), default=math.inf)


def _oldest_creation(pods: Iterable[Pod]) -> float:
    """Return when the oldest of the pods was created."""
    return min(pod.created for pod in pods)


def _begin_if_ended(pods: Iterable[Pod]) -> float:
    """Return when the first pod began to run, if all pods have succeeded; else infinity.

    Return minus infinity if the time is unknown, so that no other owner joins.
    """
    if any(pod.present for pod in pods):
        return math.inf
    return min((pod.started for pod in pods if pod.started), default=-math.inf)


def _fixed_size(pod: Pod) -> float:
    """Return how many members the pod's gang has; infinite if the number is open."""
    return claim_of(pod).replicas or math.inf


def _stated_size(pod: Pod) -> int:
    """Return how many members the pod's gang needs, as the pod states it."""
    claim = claim_of(pod)
    return claim.replicas or claim.min_member or 0


MAX_GONE = 64
"""Number of owners without pods that are remembered for each name, because a controller may send its next
pods later."""


@dataclass(slots=True)
class _Owner:
    """Facts about one owner. Times are in seconds since the Unix epoch."""

    born: float = math.inf
    """When the owner's first pod was created, even if that pod is gone."""
    since: float = math.inf
    """When the oldest pod was created, of those that wait or were deleted while they waited."""
    pods: int = 0
    began: float = math.inf
    """When the first of its pods began to run."""
    bound: bool = False
    """Whether a pod of the owner was bound since `since` was last computed."""


class Owners:
    """The owners of the pods that have one name.

    A gang is as old as its waiting members. If a waiting pod is deleted and recreated, the gang keeps its
    age, unless a pod of the same owner runs. Pods that are added while a pod runs count from their own
    creation.
    """

    def __init__(self) -> None:
        self._owners: dict[str, _Owner] = {}
        self._gone: dict[str, None] = {}

    def see(self, pod: Pod) -> None:
        """Take in a pod that came, or the new state of a pod that was dropped before."""
        owner = self._owners.setdefault(pod.owner, _Owner())
        self._gone.pop(pod.owner, None)
        owner.pods += 1
        owner.born = min(owner.born, pod.created)
        if pod.present and not pod.node:
            owner.since = min(owner.since, pod.created)
        owner.bound |= bool(pod.node)
        self.note_begin(pod)

    def note_begin(self, pod: Pod) -> bool:
        """Note when a pod of a known owner began to run. Return whether no pod of the owner began earlier."""
        owner = self._owners[pod.owner]
        is_first = 0 < pod.started < owner.began
        if is_first:
            owner.began = pod.started
        return is_first

    def drop(self, pod: Pod) -> None:
        """Remove a pod. The latest owners without pods are remembered."""
        owner = self._owners[pod.owner]
        owner.pods -= 1
        if not owner.pods:
            self._gone[pod.owner] = None
            if len(self._gone) > MAX_GONE:
                oldest = next(iter(self._gone))
                del self._gone[oldest], self._owners[oldest]

    def came_at(self) -> Mapping[str, float]:
        """Return when the first pod of each owner was created, even if that pod is gone."""
        return {name: owner.born for name, owner in self._owners.items()}

    def waiting_since(self, by_owner: Mapping[str, Collection[Pod]]) -> Mapping[str, float]:
        """Return since when the pods of each of these owners wait; infinite if no pod waits."""
        for name, pods in by_owner.items():
            owner = self._owners[name]
            if owner.bound or any(pod.node and pod.present for pod in pods):
                waiting = (pod.created for pod in pods if pod.present and not pod.node)
                owner.since, owner.bound = min(waiting, default=math.inf), False
        return {name: self._owners[name].since for name in by_owner}
