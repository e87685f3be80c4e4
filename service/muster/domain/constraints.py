"""Constraints on a whole gang, between pods or by scope, each with its cause and its relaxation.

Constraints between pods come from the pods' own fields. The code of `gangs` resolves their label selectors
and namespaces against the members and all other pods. So the planner sees only names of roles, names of
nodes, and numbers.

`name` is the constraint as its user wrote it, for causes and relaxations. `topology_key` is the node label
whose values are the domains. `NODE` means that each node is a domain, whatever its labels.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar

from muster.domain.reasons import Cause, Relaxation
from muster.domain.words import counted_noun, of_role, or_wait, plural, plural_verb, so_many_fit

NODE = "node"
"""Value of `topology_key` if each node is a domain of its own (host ports, volumes that attach to one node).
"""


class BaseConstraint:
    """The base of constraints between members."""

    fewer_fit: ClassVar[bool] = True
    """Whether a member can always be left out: if n members keep the constraint, n − 1 members do too."""

    def depends_on(self, role: str) -> bool:
        """Return whether members of this role may make a place allowed for other members. By default not."""
        return False


@dataclass(frozen=True, slots=True)
class AntiAffinity(BaseConstraint):
    """Keep members of `roles` out of every domain that holds a member of `other_roles` or a pod on
    `existing`.

    The constraint is symmetric between members, as in kube-scheduler (interpodaffinity/filtering.go): the
    second of two members is refused. If a role is in both sets, a domain holds one member of it. Nodes
    without the label `topology_key` are in no domain: the constraint does not concern them. `existing` are
    nodes that hold running or planned pods which repel `roles`, or are repelled by them.
    """

    name: str
    topology_key: str
    roles: frozenset[str]
    other_roles: frozenset[str] = frozenset()
    existing: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Affinity(BaseConstraint):
    """Place members of `roles` only in domains that hold a matching pod.

    A matching pod is a running one, on the nodes `existing`, or a member of `other_roles`. Nodes without the
    label are refused. If `existing` is empty and a role is in both sets, its first member may open one
    domain, and only one. So does kube-scheduler (interpodaffinity/filtering.go, satisfyPodAffinity). Members
    of `other_roles` that are not in `roles` open any domain that they are placed in.
    """

    name: str
    topology_key: str
    roles: frozenset[str]
    other_roles: frozenset[str] = frozenset()
    existing: frozenset[str] = frozenset()

    def depends_on(self, role: str) -> bool:
        """Return whether a member of this role makes a domain allowed for members of `roles`.

        If so, dropping the role drops the constraint too.
        """
        return role in self.other_roles


@dataclass(frozen=True, slots=True)
class TopologySpread(BaseConstraint):
    """Keep the skew of every domain that receives a member of `roles` at most `max_skew`.

    The skew of a domain is its number of matching pods less the smallest number in any eligible domain.
    Matching pods are members of `counted_roles`, and running ones: `existing` counts them by node. A domain
    is eligible if it has an eligible node. A node is eligible if it carries all `required_keys`. With
    `honor_affinity` it must also satisfy the role's node selector and affinity. With `honor_taints` it must
    have no taint that the role does not tolerate. With fewer eligible domains than `min_domains` the smallest
    number is 0. Nodes without the label `topology_key` are refused. Source: podtopologyspread/filtering.go.

    All members of the gang count, in whatever order they are placed. So the rule holds for the finished gang.
    """

    name: str
    topology_key: str
    max_skew: int
    roles: frozenset[str]
    counted_roles: frozenset[str]
    existing: Mapping[str, int] = field(default_factory=dict, hash=False)
    min_domains: int = 1
    required_keys: frozenset[str] = frozenset()
    honor_affinity: bool = True
    honor_taints: bool = False
    fewer_fit: ClassVar[bool] = False

    def depends_on(self, role: str) -> bool:
        """Return whether members of this role are among the counted pods."""
        return role in self.counted_roles


PeerConstraint = AntiAffinity | Affinity | TopologySpread


@dataclass(frozen=True, slots=True)
class AntiAffinityLimits(Cause):
    """A constraint keeps pods in different domains of `topology_key`. So only `members_fit` members fit."""

    constraint: str
    topology_key: str
    members_fit: int | None
    members_needed: int
    even_empty: bool = False

    def __str__(self) -> str:
        name, key = self.constraint, self.topology_key
        return f"by {name}, no member may share one {key} with a pod that it keeps apart{_fit_clause(self)}"

    @property
    def advice(self) -> str:
        wait = or_wait("pods that it keeps apart end", self.even_empty)
        return f"Relax {self.constraint}, or add nodes in another {self.topology_key}{wait}."


@dataclass(frozen=True, slots=True)
class AffinityUnsatisfied(Cause):
    """A constraint allows only domains of `topology_key` with a matching pod. So only `members_fit` fit."""

    constraint: str
    topology_key: str
    members_fit: int | None
    members_needed: int
    even_empty: bool = False

    def __str__(self) -> str:
        name, key = self.constraint, self.topology_key
        return f"by {name}, members may lie only in one {key} with a pod that it names{_fit_clause(self)}"

    @property
    def advice(self) -> str:
        room = f"one {self.topology_key} with room for {counted_noun('member', self.members_needed)}"
        wait = or_wait(f"more is free in one {self.topology_key} with such a pod", self.even_empty)
        return f"Relax {self.constraint}, or start a pod that it names in {room}{wait}."


@dataclass(frozen=True, slots=True)
class SkewTooLarge(Cause):
    """A constraint lets domains of `topology_key` differ by at most `max_skew` pods. So only `members_fit`
    fit."""

    constraint: str
    topology_key: str
    max_skew: int
    members_fit: int | None
    members_needed: int
    even_empty: bool = False

    def __str__(self) -> str:
        name, key, skew = self.constraint, self.topology_key, self.max_skew
        limit = f"{skew} more {plural('pod', skew)} than another at most"
        return f"by {name}, one {key} may have {limit}{_fit_clause(self)}"

    @property
    def advice(self) -> str:
        wait = or_wait("more is free there", self.even_empty)
        few = f"the {self.topology_key} that has the fewest pods"
        return f"Raise maxSkew above {self.max_skew} in {self.constraint}, or add nodes in {few}{wait}."


@dataclass(frozen=True, slots=True)
class DropConstraint(Relaxation):
    """The pods drop the constraint of this name."""

    constraint: str

    def __str__(self) -> str:
        return f"to drop {self.constraint}"


@dataclass(frozen=True, slots=True)
class PerScope(BaseConstraint):
    """A limit on the number of members in one part of `scope`. Running members count."""

    scope: str
    members: int

    annotation: ClassVar[str]
    """The annotation with the numbers, as rack=2,node=1."""
    nowhere: ClassVar[str]
    """The effect if no node lies in any domain of the scope."""
    not_by: ClassVar[frozenset[str]] = frozenset({"gpu"})
    """Scopes that users may not name. Members with whole GPUs share no GPU, so a number by GPU is useless."""


@dataclass(frozen=True, slots=True)
class MaxPer(PerScope):
    """The largest number of members. A node without the label of the scope is a part of its own."""

    annotation = "max-per"
    nowhere = "max-per counts each node as one"


@dataclass(frozen=True, slots=True)
class TooFewParts(Cause):
    """At most `members_per_part` members may lie in one part of the scope. So only `members_fit` fit."""

    scope: str
    members_per_part: int
    members_fit: int | None
    members_needed: int
    even_empty: bool = False
    running: int = 0
    """Number of running members, which count too."""

    def __str__(self) -> str:
        limit, runs = counted_noun("member", self.members_per_part), plural_verb("run", self.running)
        running = f", {self.running} that {runs} already counted" if self.running else ""
        return f"at most {limit} may lie in one {self.scope}{running}{_fit_clause(self)}"

    @property
    def advice(self) -> str:
        wait = or_wait(f"more is free in another {self.scope}", self.even_empty)
        raised = f"Raise max-per {self.scope} above {self.members_per_part}"
        return f"{raised}, or add nodes in another {self.scope}{wait}."


@dataclass(frozen=True, slots=True)
class MorePerPart(Relaxation):
    """More members of the gang may lie in one part of the scope than now, which is `before`."""

    scope: str
    members_per_part: int
    before: int

    def __str__(self) -> str:
        limit = counted_noun("member", self.members_per_part)
        return f"up to {limit} in one {self.scope} instead of {self.before}"


PER_SCOPE: tuple[type[PerScope], ...] = (MaxPer,)
"""All limits by scope. Each has an annotation of its own."""


@dataclass(frozen=True, slots=True)
class Subgroup:
    """All members of the named roles, also running members, lie in one part of `scope`. Causes and
    relaxations call the constraint `name`."""

    name: str
    scope: str
    roles: frozenset[str]


@dataclass(frozen=True, slots=True)
class SubgroupScope(Cause):
    """All members of the subgroup must lie in one part of a scope, as `constraint` says. So only
    `members_fit` members of the gang fit."""

    constraint: str
    scope: str
    members_fit: int | None
    members_needed: int
    even_empty: bool = False

    def __str__(self) -> str:
        return f"by {self.constraint}, its members must lie in one {self.scope}{_fit_clause(self)}"

    @property
    def advice(self) -> str:
        wait = or_wait(f"more is free in one {self.scope}", self.even_empty)
        return f"Make {self.constraint} wider than {self.scope}, or its members fewer{wait}."


@dataclass(frozen=True, slots=True)
class RoomTooSmall(Cause):
    """Nodes can hold few members of a role, for example because a node attaches few volumes.

    The nodes that admit the role have room for `room` of its `members`. So only `members_fit` members of the
    gang fit.
    """

    role: str
    room: int
    members: int
    members_fit: int | None
    members_needed: int
    even_empty: bool = False

    def __str__(self) -> str:
        room = f"{counted_noun('member', self.room)}, of {self.members}{of_role(self.role)}, at most"
        return f"nodes can attach the volumes of {room}{_fit_clause(self)}"

    @property
    def advice(self) -> str:
        few = f"Start at most {counted_noun('member', self.room)}{of_role(self.role)}, " if self.room else ""
        wait = or_wait("other pods' volumes are detached", self.even_empty)
        give = "give" if few else "Give"
        return f"{few}{give} each pod fewer volumes, or add nodes that can attach them{wait}."


@dataclass(frozen=True, slots=True)
class AttributesDiffer(Cause):
    """The `gpus` of each member of a role must agree on `attributes`. On `nodes` of the nodes that admit the
    role, some GPUs do. So only `members_fit` members of the gang fit."""

    role: str
    attributes: tuple[str, ...]
    gpus: int
    nodes: int
    members_fit: int | None
    members_needed: int
    even_empty: bool = False

    def __str__(self) -> str:
        must = f"the {self.gpus} GPUs of each member{of_role(self.role)} must agree on matchAttribute "
        must += " and ".join(self.attributes)
        if not self.nodes:
            return f"{must}, and no node that admits it has two GPUs that do"
        return f"{must}{_fit_clause(self)}"

    @property
    def advice(self) -> str:
        names = " and ".join(self.attributes)
        wait = or_wait("more of such GPUs are free", self.even_empty or not self.nodes)
        drop = f"drop matchAttribute {names}, or add nodes with {self.gpus} GPUs that agree on it{wait}"
        return f"Ask for fewer than {self.gpus} GPUs in one pod, {drop}."


_SoManyFit = (
    AntiAffinityLimits
    | AffinityUnsatisfied
    | SkewTooLarge
    | RoomTooSmall
    | AttributesDiffer
    | TooFewParts
    | SubgroupScope
)


def _fit_clause(cause: _SoManyFit) -> str:
    return so_many_fit(cause.members_fit, cause.members_needed, cause.even_empty)
