"""The request of a gang, independent of the dialect of its pods."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from muster.domain.constraints import Constraint, PerScope, Subgroup
from muster.domain.node import GPU_MEM, Resources, Usage
from muster.domain.quorums import Counts, Leaf, Quorum, of_roles


class Scope(StrEnum):
    """Partitions of the cluster's GPUs that every cluster has a word for. Others are label keys."""

    GPU = "gpu"
    NVLINK_DOMAIN = "nvlink-domain"
    NODE = "node"
    RACK = "rack"
    ZONE = "zone"


@dataclass(frozen=True, slots=True)
class GangId:
    """Identity of a gang. A name used again by other owners is a new gang, hence `owners`: their UIDs, or of
    many their number and a digest (`muster.gangs.membership.roster`)."""

    namespace: str
    dialect: str
    name: str
    owners: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"

    @property
    def key(self) -> str:
        """One string, unique among live gangs, for the wire and for maps."""
        return "/".join((self.namespace, self.dialect, self.name, *self.owners))


@dataclass(frozen=True, slots=True)
class SelectorTerm:
    """One node selector requirement, as in the API: operator In, NotIn, Exists, DoesNotExist, Gt, Lt."""

    key: str
    operator: str
    values: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Toleration:
    """A toleration of a pod, as Kubernetes has it."""

    key: str = ""
    operator: str = "Equal"
    value: str = ""
    effect: str = ""


@dataclass(frozen=True, slots=True, weakref_slot=True)
class NodeRules:
    """Which nodes admit a pod: all of `required`, and one of `any_of` (each a conjunction) if there are any.

    Terms on `metadata.name` (matchFields) use that key.
    """

    required: tuple[SelectorTerm, ...] = ()
    any_of: tuple[tuple[SelectorTerm, ...], ...] = ()
    tolerations: tuple[Toleration, ...] = ()
    _hash: int = field(init=False, repr=False, compare=False)
    """Kept, because a gang may have thousands of members, and rules may have a thousand values."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "_hash", hash((self.required, self.any_of, self.tolerations)))

    def __hash__(self) -> int:
        return self._hash

    @property
    def size(self) -> int:
        """Return how many names and values there are."""
        terms = (*self.required, *(term for terms in self.any_of for term in terms))
        return len(self.tolerations) + sum(1 + len(term.values) for term in terms)


@dataclass(frozen=True, slots=True)
class Member:
    """One pod of the gang."""

    uid: str
    name: str
    rank: int | None = None


@dataclass(frozen=True, slots=True)
class Segment:
    """Every `size` consecutive members of a role, in rank order from the first, lie in one part of `scope`.

    The last ones, where the number of members is no multiple of `size`, make a shorter segment.
    """

    size: int
    scope: str


@dataclass(frozen=True, slots=True)
class Slice:
    """Memory of shared GPUs: `units` (GiB) on each of `gpus` GPUs of one node.

    `resource` is how the pod asks for it: an extended resource, or a capacity of devices (`of_capacity`).
    """

    units: int
    gpus: int = 1
    resource: str = GPU_MEM


@dataclass(frozen=True, slots=True)
class RolePreference:
    """Scopes that all members of these roles, by name, share if they can, running ones too.

    The first of `scopes` that can hold them is taken. `name` is how the decision calls the preference.
    """

    name: str
    scopes: tuple[str, ...]
    roles: frozenset[str]


@dataclass(frozen=True, slots=True)
class Term:
    """A preference inside the objective: what of the topology (nvlink, numa, nvswitch) to pack, prefer or
    spread over. See docs/policies.md."""

    topology: str
    strategy: str


@dataclass(frozen=True, slots=True)
class TypicalRequest:
    """One kind of the requests that usually come, and its share: by these damage is measured.

    `share` is positive; only the ratios between the shares of a mix count. A pod of it asks for `cpu_milli`
    thousandths of a core and for `gpus` whole GPUs. If `units` is not zero, it asks for as many GiB of each
    GPU's memory instead, as `aliyun.com/gpu-mem` counts. `labels`: label keys of nodes with the values that
    it accepts, as its node selector or affinity has them; all must hold.
    """

    share: float
    gpus: int
    cpu_milli: int = 0
    units: int = 0
    labels: tuple[tuple[str, tuple[str, ...]], ...] = ()


@dataclass(frozen=True, slots=True)
class Running:
    """A member that is bound already and stays where it is. `gpus` is the bit mask of its GPUs (shared ones
    too), 0 if it has none or they are unknown. The snapshot already counts what it takes."""

    member: Member
    role: str
    node: str
    gpus: int = 0
    usage: Usage | None = field(default=None, compare=False)
    """What it takes of its node, which is read where no member of its role waits."""

    @property
    def has_gpus(self) -> bool:
        """Return whether it is known to have GPUs, be it by their number alone."""
        return bool(self.gpus or (self.usage is not None and self.usage.unindexed_gpus))


@dataclass(frozen=True, slots=True)
class Subrequest:
    """One way to serve the claims of a role's members: `gpus` for each, of those that match.

    `matching` is as that of `Role`. `number` is its place among the subrequests that the claims name, from 1.
    With `takes_all` a member takes all matching GPUs of its node (allocationMode All): nodes with another
    number of them have none here.
    """

    matching: Mapping[str, int] = field(hash=False)
    gpus: int
    number: int = field(default=1, compare=False)
    takes_all: bool = False


@dataclass(frozen=True, slots=True)
class Role:
    """Members with equal requests; the planner counts them and fills their names in last.

    `gpus` whole GPUs a member, of the extended resource `gpu_resource` ("" and 0 for cpu-only members), or a
    `slice` of shared ones: never both.
    `required_scope`: all members of this role in one part of it; other roles may be in other parts.
    `segments` are nested, widest first: each size is a multiple of the next, and each scope comes once.

    Raises:
        ValueError: two segments have one scope.
    """

    name: str
    members: tuple[Member, ...]
    resources: Resources
    gpus: int = 0
    gpu_resource: str = ""
    rules: NodeRules = field(default_factory=NodeRules)
    required_scope: str | None = None
    segments: tuple[Segment, ...] = ()
    slice: Slice | None = None
    room: Mapping[str, int] = field(default_factory=dict, hash=False)
    """Node → how many members of the role it can hold at most.

    The planner does not model the reason: volumes that a node can attach. Nodes that are not in it have no
    such limit.
    """
    scores: Mapping[str, int] = field(default_factory=dict, hash=False)
    """Node → how much kube-scheduler's preferences favour it for a member (0 to 100, node affinity, pod
    affinity, images …); 0 for nodes that are not in it. The last level of the objective sums it up."""
    match_attributes: tuple[str, ...] = ()
    """The devices of each member agree on these attributes."""
    several_claims: bool = False
    """The GPUs of each member are in several claims, and the plan does not say which claim gets which GPU."""
    matching: Mapping[str, int] = field(default_factory=dict, hash=False)
    """Node → bit mask of the GPUs that a member may have, where its claims match some or tolerate taints.

    Of other nodes a member may have all GPUs whose devices have no taint.
    """
    gpu_counts: tuple[int, ...] = ()
    """GPUs by each subrequest of the claims, 0 for all that match on a node; () if `gpus` says it."""
    subrequests: tuple[Subrequest, ...] = ()
    """The subrequests; () if there is no choice. The first one with which the gang fits is planned. Until
    then `gpus` are the fewest of all subrequests."""
    chosen_subrequest: Subrequest | None = None
    """The subrequest that was planned."""

    def __post_init__(self) -> None:
        scopes = [segment.scope for segment in self.segments]
        twice = next((scope for scope in scopes if scopes.count(scope) > 1), None)
        if twice is not None:
            raise ValueError(f"role {self.name!r} has two segments by {twice}: each scope may come once")


@dataclass(frozen=True, slots=True)
class Request:
    """A complete gang: `min_member` of its members must fit at once, within one part of `required_scope`.

    `preferred_scopes` are tried in the order given. `running` are members that stay where
    they are: they are not in `roles[…].members`, `min_member` does not count them, but scopes, segments,
    `per_scope` and every level of the objective do. `terms` are decided in this order.
    """

    gang: GangId
    roles: tuple[Role, ...]
    min_member: int
    required_scope: str | None = None
    preferred_scopes: tuple[str, ...] = ()
    per_scope: tuple[PerScope, ...] = ()
    running: tuple[Running, ...] = ()
    terms: tuple[Term, ...] = ()
    subgroups: tuple[Subgroup, ...] = ()
    """Several roles that share a part of a scope. The scope of one role is its own."""
    role_preferences: tuple[RolePreference, ...] = ()
    """They are tried in this order, after the preferred scopes of the whole gang."""
    constraints: tuple[Constraint, ...] = ()
    """Rules between pods, from the pods' own affinity, spread constraints, host ports and shared volumes."""
    quorum: Quorum | None = None
    """How many subgroups start, or how many members each role needs: the roles that its leaves name get
    members as it says. Its numbers count the members that are to be placed."""
    priority: int = 0
    created: float = 0.0
    """Seconds since the epoch: since when the gang's members wait; with priority it orders the queue."""

    @property
    def size(self) -> int:
        """Return the number of members, over all roles."""
        return sum(len(role.members) for role in self.roles)

    @property
    def waiting(self) -> Mapping[str, int]:
        """Return the number of members of each role."""
        return {role.name: len(role.members) for role in self.roles}

    def starts(self, counts: Counts) -> bool:
        """Return whether these numbers of members, by role, start as many subgroups as the gang needs."""
        return self.quorum is None or self.quorum.starts(counts)

    def fewest(self) -> Counts | None:
        """Return the fewest members of each role that start the gang; None if too few wait.

        They are what each role needs, then more of the earlier roles up to `min_member`.
        """
        waiting = self.waiting
        quorum = self.quorum or Quorum(1, (Leaf(frozenset(waiting), 0),))
        first_leaves = quorum.fewest(waiting, some=True)
        if first_leaves is None:
            return None
        leaves = [*quorum.leaves()] if quorum.leaves_no_choice else [leaf for leaf, _ in first_leaves]
        members = dict.fromkeys(leaves, 0) | dict(first_leaves)
        for leaf in leaves:
            lacking = self.min_member - sum(members.values())
            if lacking > 0:
                more_members, limit = leaf.fewest(members[leaf] + lacking), leaf.limit(leaf.of(waiting))
                members[leaf] = (
                    more_members if more_members <= limit else max(members[leaf], leaf.most_startable(limit))
                )
        if quorum.leaves_no_choice and sum(members.values()) < self.min_member:
            return None
        return of_roles(members.items(), waiting)
