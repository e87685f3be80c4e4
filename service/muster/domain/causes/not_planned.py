"""Causes of gangs that are incomplete, or that get no plan for reasons other than capacity."""

from __future__ import annotations

from dataclasses import dataclass

from muster.domain.reasons import Cause
from muster.domain.words import LISTED, and_more, of_role, plural, the_role

_AGAIN = "It is tried again. If that does not help, make the pods more alike."


class Waiting(Cause):
    """The gang is not complete yet."""

    __slots__ = ()


class NotPlanned(Cause):
    """The gang gets no plan for a reason other than capacity."""

    __slots__ = ()
    stays = True


class Ended(NotPlanned):
    """The planner was ended: nothing is known about the cluster."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class MembersMissing(Waiting):
    """The gang lacks members. `role`: "" if members of any role count.

    `stateful_set`: the StatefulSet that has made one pod, and may make each further pod only when the
    previous pod runs; "" if no such set is known. `stated_by`: the field and the object that state `needed`;
    "" if the sentence need not name them.
    """

    present: int
    needed: int
    role: str = ""
    stateful_set: str = ""
    stated_by: str = ""

    def __str__(self) -> str:
        missing = max(0, self.needed - self.present)
        members = f"{plural('member', missing)}{of_role(self.role)}"
        sentence = f"waiting for {missing} more {members}: {self.present} of {self.needed} are here"
        if self.stated_by:
            sentence = f"{sentence} ({self.stated_by})"
        if not self.stateful_set:
            return sentence
        maker = f"StatefulSet {self.stateful_set} makes its pods one by one"
        return f"{sentence}; {maker}, unless it has podManagementPolicy: Parallel"

    @property
    def advice(self) -> str:
        if self.stateful_set:
            return f"Create StatefulSet {self.stateful_set} again with podManagementPolicy: Parallel."
        missing = self.needed - self.present
        lacks = f"{missing} more {plural('pod', missing)}{of_role(self.role)}"
        return f"Create {lacks}, or ask for fewer members. A quota or a suspended job may hold pods back."


@dataclass(frozen=True, slots=True)
class PodGroupMissing(Waiting):
    """The pods name a PodGroup that does not exist (yet). `name` is namespace/name."""

    name: str
    stays = True

    def __str__(self) -> str:
        return f"PodGroup {self.name} does not exist yet; its pods wait for it"

    @property
    def advice(self) -> str:
        return f"Create PodGroup {self.name}, or remove its name from the pods."


@dataclass(frozen=True, slots=True)
class ParentMissing(Waiting):
    """A group names a CompositePodGroup that does not exist (yet). `name` is namespace/name."""

    name: str
    stays = True

    def __str__(self) -> str:
        names = (
            "spec.parentCompositePodGroupName of a group names it, and names this namespace's groups alone"
        )
        return (
            f"CompositePodGroup {self.name} does not exist yet; the pods below it wait for it, since {names}"
        )

    @property
    def advice(self) -> str:
        return f"Create CompositePodGroup {self.name}, or create the groups again that name it."


@dataclass(frozen=True, slots=True)
class GroupsMissing(Waiting):
    """A CompositePodGroup has fewer groups below it than must start. `title` is its kind, namespace and
    name."""

    title: str
    present: int
    needed: int
    stays = True

    def __str__(self) -> str:
        missing = self.needed - self.present
        counts = f"{self.present} of {self.needed} are here"
        stated_by = f"spec.schedulingPolicy.gang.minGroupCount of {self.title}"
        return f"waiting for {missing} more {plural('group', missing)}: {counts} ({stated_by})"

    @property
    def advice(self) -> str:
        missing = self.needed - self.present
        return f"Create {missing} more {plural('group', missing)} below {self.title}."


@dataclass(frozen=True, slots=True)
class JobMissing(Waiting):
    """The job that made the pods, and that states their number, does not exist. `job` is its kind, namespace
    and name."""

    job: str
    stays = True

    def __str__(self) -> str:
        return f"{self.job} is not there; its pods wait for it, since it says how many they are"

    @property
    def advice(self) -> str:
        return f"Create {self.job} again, or delete its pods."


@dataclass(frozen=True, slots=True)
class ClaimsMissing(NotPlanned):
    """The pods name PersistentVolumeClaims that do not exist (yet). `more`: number of claims that `claims`
    leaves out."""

    claims: tuple[str, ...]
    more: int = 0

    def __str__(self) -> str:
        count = len(self.claims) + self.more
        listed, verb = ", ".join(self.claims[:LISTED]), "does" if count == 1 else "do"
        return f"{plural('PersistentVolumeClaim', count)} {listed}{and_more(count)} {verb} not exist"

    @property
    def advice(self) -> str:
        return f"Create the {plural('PersistentVolumeClaim', len(self.claims) + self.more)}."


@dataclass(frozen=True, slots=True)
class RefusedEverywhere(NotPlanned):
    """An in-tree plugin refuses members of the role on each node. `by` is the plugin and its reason."""

    role: str
    by: str
    advice = "Change what the plugin refuses in the pod, or in the objects that the pod names."

    def __str__(self) -> str:
        return f"no node admits {the_role(self.role)}: {self.by}"


@dataclass(frozen=True, slots=True)
class NotSupported(NotPlanned):
    """The planner does not support this combination of rules.

    The gang shares GPUs, and has `rule` about parts inside a node by `scope`: max-per, role-scope,
    segment-scope, or a subgroup's level. With `attribute`, the gang shares no GPUs, and has the rule together
    with this matchAttribute.
    """

    rule: str
    scope: str
    attribute: str = ""

    def __str__(self) -> str:
        if self.attribute:
            return f"{self.rule} {self.scope} is not supported together with matchAttribute {self.attribute}"
        return f"{self.rule} {self.scope} is not supported where members share GPUs"

    @property
    def advice(self) -> str:
        if (self.rule, self.scope) == ("role-scope", "gpu"):
            return "Let one pod ask for the memory of all, or make the role a gang of its own with scope gpu."
        if self.attribute:
            return f"Remove {self.rule} or matchAttribute {self.attribute}."
        return f"Remove {self.rule}, or ask for whole GPUs."


@dataclass(frozen=True, slots=True)
class NotDecided(NotPlanned):
    """The search ended before it found a plan or a proof that there is none. `truncated`: by wall clock."""

    truncated: bool
    stays = False
    advice = _AGAIN

    def __str__(self) -> str:
        limit = "wall clock" if self.truncated else "its budget"
        return f"the search was ended by {limit} before it found a plan or a proof that there is none"


@dataclass(frozen=True, slots=True)
class PlannerDefect(NotPlanned):
    """The planner failed on this gang with `error`, so nothing is known about its place."""

    error: str
    advice = "Report it with the output of `muster capture`."

    def __str__(self) -> str:
        report = "please report it with the input (`muster capture` writes it from a cluster)"
        return f"not decided: the planner has a defect; {report}: {self.error}"


@dataclass(frozen=True, slots=True)
class TookTooLong(Ended):
    """The planner was ended after `seconds` of wall clock, so nothing is known. `others_wait`: it was ended
    early, because other gangs waited."""

    seconds: float
    others_wait: bool = False
    advice = _AGAIN

    def __str__(self) -> str:
        why = "because other gangs waited" if self.others_wait else "the limit for one gang"
        return f"not decided: the planner was ended after {self.seconds:.1f} s, {why}"


@dataclass(frozen=True, slots=True)
class TookTooMuchMemory(Ended):
    """The planner was ended because it needed more than `limit_mib` MiB, so nothing is known."""

    limit_mib: int
    advice = "Make the pods more alike, or raise planner.memory_mib."

    def __str__(self) -> str:
        limit = f"{self.limit_mib} MiB of memory, the limit for one gang"
        return f"not decided: the planner was ended because it needed more than {limit}"


@dataclass(frozen=True, slots=True)
class TooManyRoles(NotPlanned):
    """The gang has `roles` roles. At most `most` roles are planned together. `tree`: the CompositePodGroup
    whose PodGroups are these roles; "" for other gangs."""

    roles: int
    most: int
    tree: str = ""

    def __str__(self) -> str:
        if self.tree:
            way_out = "make several trees, or give the pods of each PodGroup equal requests"
            subject = f"{self.tree} has pods of {self.roles} PodGroups or different requests"
            return f"{subject}, and a tree may have {self.most}: {way_out}"
        way_out = "give pods that do the same work equal requests, node selectors and tolerations"
        return f"its pods are of {self.roles} different roles, and a gang may have {self.most}: {way_out}"

    @property
    def advice(self) -> str:
        return f"Give pods that do the same work equal requests: a gang may have {self.most} roles."
