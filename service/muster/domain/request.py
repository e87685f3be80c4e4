"""The request of a gang, independent of the dialect of its pods."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from muster.domain.constraints import PeerConstraint, PerScope, Subgroup
from muster.domain.node import GPU_MEM, Resources, Usage
from muster.domain.quorums import CountByRole, Leaf, Quorum, of_roles


class Scope(StrEnum):
    """The scopes that every cluster has a word for. Each scope partitions the cluster's GPUs. Other scopes
    are label keys."""

    GPU = "gpu"
    NVLINK_DOMAIN = "nvlink-domain"
    NODE = "node"
    RACK = "rack"
    ZONE = "zone"


@dataclass(frozen=True, slots=True)
class GangId:
    """The identity of a gang.

    `owners` are the UIDs of its owners, because other owners with the same name are a new gang. For many
    owners it is their number and a digest (`muster.gangs.membership.roster`).
    """

    namespace: str
    dialect: str
    name: str
    owners: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"

    @property
    def key(self) -> str:
        """Return a string that is unique among live gangs, for the wire and for maps."""
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
    """The rules for nodes that admit a pod: all terms of `required`, and one conjunction of `any_of` (if not
    ()). Terms on `metadata.name` (matchFields) use that key."""

    required: tuple[SelectorTerm, ...] = ()
    any_of: tuple[tuple[SelectorTerm, ...], ...] = ()
    tolerations: tuple[Toleration, ...] = ()
    _hash: int = field(init=False, repr=False, compare=False)
    """The hash is stored, because a gang may have thousands of members, and rules may have a thousand values.
    """

    def __post_init__(self) -> None:
        object.__setattr__(self, "_hash", hash((self.required, self.any_of, self.tolerations)))

    def __hash__(self) -> int:
        return self._hash

    @property
    def size(self) -> int:
        """Return the number of names and values in the rules."""
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
    """`size` consecutive members of a role, in rank order from the first, lie in one part of `scope`. If the
    number of members is no multiple of `size`, the last segment is shorter."""

    size: int
    scope: str


@dataclass(frozen=True, slots=True)
class Slice:
    """Memory of shared GPUs: `units` (GiB) on each of `gpus` GPUs of one node. The pod requests it by
    `resource`: an extended resource, or a capacity of devices."""

    units: int
    gpus: int = 1
    resource: str = GPU_MEM


@dataclass(frozen=True, slots=True)
class RolePreference:
    """Preferred scopes of the named roles together. The first of `scopes` that can hold all their members,
    also running ones, is taken. `name` is for the decision."""

    name: str
    scopes: tuple[str, ...]
    roles: frozenset[str]


@dataclass(frozen=True, slots=True)
class PolicyTerm:
    """A level of the objective by a policy: pack, prefer or spread over a part of the topology (nvlink, numa,
    nvswitch). See docs/policies.md."""

    topology: str
    strategy: str


@dataclass(frozen=True, slots=True)
class TypicalRequest:
    """A kind of request that is typical in the cluster. Damage is measured by typical requests.

    `share` is positive, and only the ratios between shares count. A pod requests `cpu_milli` thousandths of a
    core and `gpus` whole GPUs. If `units` is not zero, it requests this many GiB of each GPU's memory
    instead, as `aliyun.com/gpu-mem` counts. `labels`: label keys of nodes with the values that the pod
    accepts, as its node selector or affinity has them. All keys must match.
    """

    share: float
    gpus: int
    cpu_milli: int = 0
    units: int = 0
    labels: tuple[tuple[str, tuple[str, ...]], ...] = ()


@dataclass(frozen=True, slots=True)
class RunningMember:
    """A member that is bound already and keeps its place.

    `gpus` is the bit mask of its GPUs, whole or shared; 0 if it has none or they are unknown. The snapshot
    already counts its capacity as taken.
    """

    member: Member
    role: str
    node: str
    gpus: int = 0
    usage: Usage | None = field(default=None, compare=False)
    """The capacity that it takes of its node. Needed only for roles without waiting members."""

    @property
    def has_gpus(self) -> bool:
        """Return whether it is known to have GPUs, even if only their number is known."""
        return bool(self.gpus or (self.usage is not None and self.usage.unindexed_gpus))


@dataclass(frozen=True, slots=True)
class Subrequest:
    """One way to serve the claims of a role's members: `gpus` matching GPUs for each member.

    `matching` has the meaning of `Role.matching`. `number` is the place among the subrequests of the claims,
    from 1. With `takes_all` a member takes all matching GPUs of its node (allocationMode All). Nodes with
    another number of matching GPUs can't serve this subrequest.
    """

    matching: Mapping[str, int] = field(hash=False)
    gpus: int
    number: int = field(default=1, compare=False)
    takes_all: bool = False


@dataclass(frozen=True, slots=True)
class Role:
    """Members with equal requests. The planner counts them, and fills their names in last.

    Each member requests `gpus` whole GPUs of the extended resource `gpu_resource`, or a `slice` of shared
    GPUs, but never both. A cpu-only member has 0 and "". `required_scope`: all members of this role lie in
    one part of the scope; other roles may lie in other parts. `segments` are nested, widest first. Each size
    is a multiple of the next, and each scope comes once.

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
    """Node → largest number of members of the role there. The planner does not model the reason, such as
    volumes that a node can attach. Nodes that are left out have no such limit."""
    scores: Mapping[str, int] = field(default_factory=dict, hash=False)
    """Node → kube-scheduler's score for a member, by its preferences: 0 to 100 (node affinity, pod affinity,
    images …). Nodes that are left out have 0. The last level of the objective sums the scores up."""
    match_attributes: tuple[str, ...] = ()
    """The devices of each member agree on these attributes."""
    several_claims: bool = False
    """The GPUs of each member are in several claims, and the plan does not say which claim gets which GPU."""
    matching: Mapping[str, int] = field(default_factory=dict, hash=False)
    """Node → bit mask of the GPUs that a member may have, if its claims match only some GPUs or tolerate
    taints. On nodes that are left out, a member may have all GPUs whose devices have no taint."""
    gpu_counts: tuple[int, ...] = ()
    """Number of GPUs by each subrequest of the claims, 0 for all matching GPUs of a node. () if `gpus` states
    the number."""
    subrequests: tuple[Subrequest, ...] = ()
    """The subrequests; () if there is no choice. The first subrequest with which the gang fits is planned.
    Until then `gpus` is the smallest number of all subrequests."""
    chosen_subrequest: Subrequest | None = None
    """The subrequest that was planned."""

    def __post_init__(self) -> None:
        scopes = [segment.scope for segment in self.segments]
        twice = next((scope for scope in scopes if scopes.count(scope) > 1), None)
        if twice is not None:
            raise ValueError(f"role {self.name!r} has two segments by {twice}: each scope may come once")


@dataclass(frozen=True, slots=True)
class Request:
    """A complete gang. `min_member` of its members must fit at once, in one part of `required_scope`.

    `preferred_scopes` are tried in this order. `terms` are decided in this order. `running` are members that
    keep their places: `roles[…].members` and `min_member` do not count them, but scopes, segments,
    `per_scope` and every level of the objective do.
    """

    gang: GangId
    roles: tuple[Role, ...]
    min_member: int
    required_scope: str | None = None
    preferred_scopes: tuple[str, ...] = ()
    per_scope: tuple[PerScope, ...] = ()
    running: tuple[RunningMember, ...] = ()
    terms: tuple[PolicyTerm, ...] = ()
    subgroups: tuple[Subgroup, ...] = ()
    """Scopes of several roles together. The scope of a single role is in the role."""
    role_preferences: tuple[RolePreference, ...] = ()
    """Preferred scopes of roles. They are tried in this order, after the preferred scopes of the whole gang.
    """
    constraints: tuple[PeerConstraint, ...] = ()
    """Rules between pods, from the pods' own affinity, spread constraints, host ports and shared volumes."""
    quorum: Quorum | None = None
    """The number of subgroups that start, or of members that each role needs. The quorum decides for the
    roles that its leaves name, and counts only members that are to be placed."""
    priority: int = 0
    created: float = 0.0
    """Since when the gang's members wait, in seconds since the epoch. Priority and this time order the queue.
    """

    @property
    def size(self) -> int:
        """Return the number of members, over all roles."""
        return sum(len(role.members) for role in self.roles)

    @property
    def waiting_by_role(self) -> Mapping[str, int]:
        """Return the number of waiting members of each role."""
        return {role.name: len(role.members) for role in self.roles}

    def starts(self, counts: CountByRole) -> bool:
        """Return whether these numbers of members by role start enough subgroups."""
        return self.quorum is None or self.quorum.starts(counts)

    def fewest_members(self) -> CountByRole | None:
        """Return the fewest members of each role that start the gang; None if too few wait.

        Each role gets its minimum first. Then earlier roles get more members, up to `min_member` in all.
        """
        waiting = self.waiting_by_role
        quorum = self.quorum or Quorum(1, (Leaf(frozenset(waiting), 0),))
        first_leaves = quorum.fewest_members(waiting, some=True)
        if first_leaves is None:
            return None
        leaves = [*quorum.leaves()] if quorum.leaves_no_choice else [leaf for leaf, _ in first_leaves]
        members = dict.fromkeys(leaves, 0) | dict(first_leaves)
        for leaf in leaves:
            lacking = self.min_member - sum(members.values())
            if lacking > 0:
                more_members = leaf.next_startable(members[leaf] + lacking)
                limit = leaf.limit(leaf.count_in(waiting))
                if more_members > limit:
                    more_members = max(members[leaf], leaf.largest_startable(limit))
                members[leaf] = more_members
        if quorum.leaves_no_choice and sum(members.values()) < self.min_member:
            return None
        return of_roles(members.items(), waiting)
