"""The facts of a PodGroup about its gang, independent of the PodGroup's API."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from muster.domain.constraints import Subgroup
from muster.domain.pod import COMPOSITE, KUBERNETES, Controller, Pod, TopologyRequest
from muster.domain.quorums import Quorum
from muster.domain.reasons import Cause
from muster.domain.request import RolePreference, SelectorTerm

PodGroupKey = tuple[str, str, str]
"""Namespace, dialect, name."""

OURS = "scheduling.run.ai/v2"
"""The API whose PodGroups get a whole status from Muster."""
SCHEDULED = "PodGroupInitiallyScheduled"
"""Type of the condition of Kubernetes' own PodGroups, by its API."""


@dataclass(frozen=True, slots=True)
class Condition:
    """One condition of a status. `reason` is one word, `message` a sentence."""

    type: str
    status: bool
    reason: str
    message: str = ""
    since: str = field(default="", compare=False)
    """Since when the object shows this `status`, as the API writes times; "" if not known."""


@dataclass(frozen=True, slots=True)
class PodGroupStatus:
    """The state of a PodGroup's gang.

    Counts are numbers of pods: `needed` must fit at the same time, `present` exist, `placed` are bound or
    permitted to bind, `running` have running containers. `domain` is the part of the fabric that holds the
    placed pods. `reason` is the last sentence about the gang.
    """

    phase: str
    needed: int = 0
    present: int = 0
    placed: int = 0
    running: int = 0
    domain: str = ""
    reason: str = ""

    @property
    def conditions(self) -> tuple[Condition, ...]:
        """Return the conditions: whether enough members are present, and whether they have places."""
        complete, all_placed = self.present >= self.needed > 0, self.placed >= self.needed > 0
        return (
            Condition("Complete", complete, "MembersPresent" if complete else "MembersMissing"),
            Condition("Placed", all_placed, self.phase, self.reason),
        )


GroupStatus = PodGroupStatus | Condition
"""A whole status, or for Kubernetes' own PodGroups the one condition that Muster writes."""


@dataclass(frozen=True, slots=True)
class FollowerTemplate:
    """The template for followers of one role. Followers come when other members have a node, and run together
    with them."""

    pod: Pod
    """A follower, by the pod template of its job."""
    ranks: tuple[int | None, ...]
    """Ranks of all members of the role, including members that come at once."""
    shared_labels: frozenset[str] = frozenset()
    """Labels whose values are equal for all members of a unit."""
    exclusive: bool = False
    """Whether each unit has its own topology domain, which its leader chooses."""
    unit: int = 0
    """Number of consecutive members that form one unit with a leader."""
    unit_label: str = ""
    """The label that numbers the units; "" if the role follows a leader of another role."""

    @property
    def role(self) -> str:
        """Return the name of the role."""
        return self.pod.topology_request.role


@dataclass(frozen=True, slots=True)
class PodGroup:
    """The facts of a PodGroup, of a CompositePodGroup, or of a job whose pods are a gang."""

    namespace: str
    dialect: str
    name: str
    uid: str = ""
    min_member: int | None = None
    """Number of members that must fit at the same time."""
    topology_request: TopologyRequest = field(default_factory=TopologyRequest)
    """Constraints of the whole gang."""
    role_topology_requests: Mapping[str, TopologyRequest] = field(default_factory=dict)
    """Role (KAI's subgroup) → its own constraints."""
    role_min: Mapping[str, int] = field(default_factory=dict)
    """Role → number of its members that must fit at the same time."""
    role_later: Mapping[str, int] = field(default_factory=dict)
    """Role that comes after others have started → number of its members that must start together. Such a role
    counts once one of its members is present. Its number in `role_min` is 0."""
    role_unit: Mapping[str, int] = field(default_factory=dict)
    """Role of `role_min` → number of members in one replica, which start together."""
    role_first: Mapping[str, int] = field(default_factory=dict)
    """Role → number of pods of each of its Jobs that start before the other pods of all its Jobs."""
    follower_templates: tuple[FollowerTemplate, ...] = ()
    """Members that come later. The first members are planned only where later members fit too."""
    subgroups: tuple[Subgroup, ...] = ()
    """Scopes for the members of several roles together."""
    role_preferences: tuple[RolePreference, ...] = ()
    """Preferred scopes for the members of several roles together."""
    quorum: Quorum | None = None
    """The number of subgroups that start, if not all must. Then `role_min` is empty."""
    required: tuple[SelectorTerm, ...] = ()
    queue: str = ""
    causes: tuple[Cause, ...] = ()
    problems: tuple[str, ...] = ()
    api_version: str = OURS
    size: int | None = None
    """Number of members that come at once; None if unknown. Once this many are present, the gang waits for no
    more."""
    owner: Controller | None = None
    """The job from which these facts were read, if there is no PodGroup object."""
    makes_gang: bool = True
    """Whether its pods are a gang. In Kubernetes' API the policy basic makes no gang, unless the PodGroup has
    a topology constraint."""
    count_field: str = ""
    """The field that states `min_member`, as the sentence about missing members names it; "" if that sentence
    names no field."""
    priority: int | None = None
    """The priority that its pods must have too; None if it states none."""
    disruption: str = ""
    """Kubernetes' disruptionMode: preemption may evict a "single" pod, or must evict "all" pods."""
    preempts: bool = True
    """Whether other pods may end for its pods, by Kubernetes' preemptionPolicy."""
    parent: str = ""
    """Name of the CompositePodGroup around it; "" if there is none."""
    workload: str = ""
    """Name of its Workload, whose annotations add constraints; "" for none. All groups of one tree have the
    same."""
    missing: Cause | None = None
    """The groups of the tree that must come before the gang can start; None if they are there."""
    pod_groups: tuple[PodGroup, ...] = ()
    """The PodGroups of a tree, as their objects state them."""
    begun: bool = False
    """Whether a pod of a PodGroup that makes no gang was bound. For gangs this is not filled."""
    generation: int = field(default=0, compare=False)
    status: GroupStatus | None = field(default=None, compare=False)
    """The status that the object shows."""

    @property
    def key(self) -> PodGroupKey:
        """Return the identity of the PodGroup. The dialect is part of it, because two dialects may use the
        same name."""
        return (self.namespace, self.dialect, self.name)

    @property
    def gets_status(self) -> bool:
        """Return whether Muster writes a status of `objects`. For other APIs, their own scheduler does."""
        is_native = self.dialect == KUBERNETES and bool(self.uid)
        return self.api_version == OURS or is_native or bool(self.pod_groups)

    @property
    def objects(self) -> tuple[PodGroup, ...]:
        """Return the PodGroups whose objects describe the gang: those of a tree, or this one."""
        return self.pod_groups or (self,)

    @property
    def title(self) -> str:
        """Return the object's kind, namespace and name, as sentences say it."""
        name = self.owner.name if self.owner is not None else self.name
        return f"{self.kind} {self.namespace}/{name}"

    @property
    def kind(self) -> str:
        """Return the kind of the object from which these facts were read."""
        if self.owner is not None:
            return self.owner.kind
        return COMPOSITE if self.dialect == COMPOSITE else "PodGroup"
