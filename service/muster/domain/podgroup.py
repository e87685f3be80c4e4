"""A PodGroup object as the gangs see it: what it says of its gang, whichever API it was written in."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from muster.domain.constraints import Subgroup
from muster.domain.pod import Controller, Pod, Wishes
from muster.domain.quorums import Quorum
from muster.domain.reasons import Cause
from muster.domain.request import RolePreference, SelectorTerm

PodGroupKey = tuple[str, str, str]
"""Namespace, dialect, name."""

OURS = "scheduling.run.ai/v2"
"""The API whose PodGroups carry a status of ours. That of any other is its own scheduler's to write."""


@dataclass(frozen=True, slots=True)
class Condition:
    """One condition of a status, without its time: `reason` is one word, `message` a sentence."""

    type: str
    status: bool
    reason: str
    message: str = ""


@dataclass(frozen=True, slots=True)
class PodGroupStatus:
    """How a PodGroup's gang stands. Counts are pods: `needed` must fit at once, `present` are there,
    `placed` are bound or permitted to bind, `running` have running containers. `domain` is the part of the
    fabric that holds the placed ones, `reason` the last sentence that was said of the gang."""

    phase: str
    needed: int = 0
    present: int = 0
    placed: int = 0
    running: int = 0
    domain: str = ""
    reason: str = ""

    @property
    def conditions(self) -> tuple[Condition, ...]:
        """Whether enough members are there, and whether they have their places."""
        complete, all_placed = self.present >= self.needed > 0, self.placed >= self.needed > 0
        return (
            Condition("Complete", complete, "MembersPresent" if complete else "MembersMissing"),
            Condition("Placed", all_placed, self.phase, self.reason),
        )


@dataclass(frozen=True, slots=True)
class Coming:
    """Members of a role that come when others have a node, and then run together with these.

    `pod` is what each of them is, as its template says. `ranks` are those of all members of the role, also of
    those that come at once. All members of a unit have the same value of `shared_labels`.
    """

    pod: Pod
    ranks: tuple[int | None, ...]
    shared_labels: frozenset[str] = frozenset()
    exclusive: bool = False
    """Whether each unit has a topology domain of its own, which its leader chooses."""
    unit: int = 0
    unit_label: str = ""
    """`unit` members in a row are one unit with a leader, and this label numbers the units. "" where the role
    follows a leader of another role."""

    @property
    def role(self) -> str:
        """Return the name of the role."""
        return self.pod.wishes.role


@dataclass(frozen=True, slots=True)
class PodGroup:
    """`min_member` members must fit at once. `wishes` are the whole gang's; `role_wishes` those of the
    members of a role (KAI's subgroups), by its name, and `role_min` how many of it must. `required` are terms
    that every node must fulfil. `causes` say what is ill-formed: no pod of such a group is planned.
    `problems` are sentences about constraints that can't be kept: the group is planned without them.

    `api_version` is the API it was read in; `status` what it shows, which changes nothing of the gang."""

    namespace: str
    dialect: str
    name: str
    uid: str = ""
    min_member: int | None = None
    wishes: Wishes = field(default_factory=Wishes)
    role_wishes: Mapping[str, Wishes] = field(default_factory=dict)
    role_min: Mapping[str, int] = field(default_factory=dict)
    role_later: Mapping[str, int] = field(default_factory=dict)
    """Role → members that must start together, of roles that come when others have started.

    These roles count once one of their members is there. `role_min` has 0 for them.
    """
    role_unit: Mapping[str, int] = field(default_factory=dict)
    """Role → members that are one replica: they start together, of roles that `role_min` names."""
    role_first: Mapping[str, int] = field(default_factory=dict)
    """Role → how many pods of each of its Jobs come before the other pods of all its Jobs."""
    coming: tuple[Coming, ...] = ()
    """Members that come later: the first ones are planned where these fit too."""
    subgroups: tuple[Subgroup, ...] = ()
    """Scopes for the members of several roles together."""
    role_preferences: tuple[RolePreference, ...] = ()
    """Preferred scopes for the members of several roles together."""
    quorum: Quorum | None = None
    """How many subgroups start, if not all must. Then `role_min` is empty."""
    required: tuple[SelectorTerm, ...] = ()
    queue: str = ""
    causes: tuple[Cause, ...] = ()
    problems: tuple[str, ...] = ()
    api_version: str = OURS
    size: int | None = None
    """Members that come at once, if that is known: then nothing waits for more."""
    owner: Controller | None = None
    """The object that it was inferred from, if there is no PodGroup object."""
    status: PodGroupStatus | None = field(default=None, compare=False)

    @property
    def key(self) -> PodGroupKey:
        """Return what identifies the PodGroup; two dialects may use the same name."""
        return (self.namespace, self.dialect, self.name)

    @property
    def title(self) -> str:
        """Return the object's kind, namespace and name, as sentences say it."""
        if self.owner is not None:
            return f"{self.owner.kind} {self.namespace}/{self.owner.name}"
        return f"PodGroup {self.namespace}/{self.name}"
