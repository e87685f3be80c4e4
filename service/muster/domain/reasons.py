"""Why a gang waits, does not fit or is ill-formed: typed causes with numbers in them.

`muster.domain.cause_sentences` makes sentences from these.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

# --- ill-formed: the pods contradict themselves or each other ---------------------------------------


@dataclass(frozen=True, slots=True)
class BadValue:
    """A label, annotation or field that can't be read. `where` is the object, as kind/namespace/name: the
    first of `pods` members that have it."""

    where: str
    field: str
    value: str
    expected: str
    pods: int = 1


@dataclass(frozen=True, slots=True)
class MembersDisagree:
    """Pods of one gang give a field different values."""

    field: str
    values: tuple[tuple[str, str], ...]
    """(value, the name of one pod that has it)."""


@dataclass(frozen=True, slots=True)
class TooManyMembers:
    """More pods than replicas belong to the gang."""

    live: int
    replicas: int


@dataclass(frozen=True, slots=True)
class ForgedAllocation:
    """A pod, the first of `pods`, came with an annotation that only the scheduler may write."""

    pod: str
    key: str
    pods: int = 1


@dataclass(frozen=True, slots=True)
class DialectsDisagree:
    """A pod, the first of `pods`, speaks two dialects that name different gangs or counts."""

    pod: str
    first: str
    second: str
    pods: int = 1


# --- waiting: not complete yet -----------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class MembersMissing:
    """`role`: "" where members of any role count."""

    present: int
    needed: int
    role: str = ""


@dataclass(frozen=True, slots=True)
class PodGroupMissing:
    """The pods name a PodGroup that is not there (yet). `name` is namespace/name."""

    name: str


GPU_MEMORY = "GPU memory"
"""In causes, the resource of shared GPUs, in GiB."""


def in_bytes(resource: str) -> bool:
    """Return whether amounts of the resource are bytes."""
    return resource in ("memory", "ephemeral-storage") or resource.startswith("hugepages-")


def gpus_with(units: int) -> str:
    """Return the name that causes give to GPUs with this much memory for slices."""
    return f"GPUs of {units} GiB"


@dataclass(frozen=True, slots=True)
class JobMissing:
    """The job that made the pods, as kind, namespace and name, is not there: it says how many they are."""

    job: str


@dataclass(frozen=True, slots=True)
class ClaimsMissing:
    """The pods name PersistentVolumeClaims that do not exist (yet). `more`: their number besides `claims`."""

    claims: tuple[str, ...]
    more: int = 0


@dataclass(frozen=True, slots=True)
class RefusedEverywhere:
    """An in-tree plugin refuses members of the role whatever the node. `by` is the plugin and its reason."""

    role: str
    by: str


# --- unplaceable: complete, and nothing fits ---------------------------------------------------------
# `members_fit` of `members_needed` fit; None if the search for the greatest number did not end.


@dataclass(frozen=True, slots=True)
class MemberTooLarge:
    """One member asks for more than any node that admits it has. `largest_node` has most of what is short."""

    role: str
    resource: str
    needed: int
    largest_node: str
    largest: int
    anywhere: bool = False
    """No node admits the role: this is told of all nodes."""


@dataclass(frozen=True, slots=True)
class ClusterTooSmall:
    """The nodes that admit the role, taken together, could not host its members even if they were empty.

    `total` and `needed` count the resource that is short; where there is enough of it, it is in pieces too
    small: `largest_node` has most of it, `largest`.
    """

    role: str
    resource: str
    total: int
    needed: int
    members_fit: int | None
    members_needed: int
    largest_node: str
    largest: int
    anywhere: bool = False
    """No node admits the role: this is told of all nodes."""


@dataclass(frozen=True, slots=True)
class NotEnoughFree:
    """Less of a resource is free on the nodes that admit the role than its members need."""

    role: str
    resource: str
    free: int
    needed: int
    members_fit: int | None
    members_needed: int


@dataclass(frozen=True, slots=True)
class FreeInPieces:
    """Enough of the resource is free in sum, but in pieces too small; `largest` of it on `largest_node`."""

    role: str
    resource: str
    free: int
    needed: int
    members_fit: int | None
    members_needed: int
    largest_node: str
    largest: int


@dataclass(frozen=True, slots=True)
class FreeApart:
    """Of each of these resources as much as is needed is free, but not on the same nodes. `resources`:
    (resource, free); (resource, what there is) if that is so even on empty nodes."""

    role: str
    resources: tuple[tuple[str, int], ...]
    members_fit: int | None
    members_needed: int
    even_empty: bool = False


@dataclass(frozen=True, slots=True)
class DomainTooSmall:
    """No part of the required scope holds all; the best one holds `members_fit`, or, where it holds none, has
    most free. `role`: "" where all roles of the gang are meant."""

    scope: str
    best: str
    members_fit: int | None
    members_needed: int
    has_nvlink: bool = True
    """False when the scope is an nvlink-domain and the best part is a GPU without NVLink."""
    even_empty: bool = False
    """Also if nothing else ran there: `members_fit` counts that."""
    role: str = ""


@dataclass(frozen=True, slots=True)
class NoSuchDomain:
    """No node that admits the gang lies in a part of the required scope."""

    scope: str
    role: str = ""
    labels: tuple[str, ...] = ()
    """The node labels that name its parts, if no node of the cluster carries any of them; else ()."""
    meant: str = ""
    """The scope that was probably meant then, "" if there is none."""


@dataclass(frozen=True, slots=True)
class IndicesUnknown:
    """No part of the scope, narrower than a node, can be promised: on the nodes that admit the gang, GPUs are
    taken by pods that do not say which. `role`: "" if the gang or several of its roles ask for the scope."""

    scope: str
    nodes: int
    role: str = ""


@dataclass(frozen=True, slots=True)
class RoleScope:
    """All members of a role must lie in one part of its own scope. The best part holds `members_fit` of them;
    if that is all, it does not leave the other roles enough."""

    role: str
    scope: str
    best: str
    members_fit: int | None
    members_needed: int
    even_empty: bool = False


@dataclass(frozen=True, slots=True)
class SegmentsTooLarge:
    """A role comes in segments, each in one part of a scope: `segments` are (members, scope), widest first.
    So `members_fit` of the gang fit."""

    role: str
    segments: tuple[tuple[int, str], ...]
    members_fit: int | None
    members_needed: int
    even_empty: bool = False


@dataclass(frozen=True, slots=True)
class ConstraintCause:
    """A constraint forbids it. The causes lie with the constraints; their text is a clause, like all."""


@dataclass(frozen=True, slots=True)
class RunningElsewhere:
    """Running members determine the part of a scope where the others must be. `part` is "" if they are
    in several parts themselves, or in an unknown one."""

    scope: str
    part: str
    running: int


@dataclass(frozen=True, slots=True)
class NodesExcluded:
    """Nodes that would have had room but do not admit the role. `by` is a selector term, a taint,
    "cordoned", "not ready", a resource that they do not offer, or the plugin that refused them."""

    role: str
    by: str
    nodes: int


@dataclass(frozen=True, slots=True)
class NotSupported:
    """The gang shares GPUs, and has a rule about parts inside a node, `rule` (max-per, role-scope or
    segment-scope, or a subgroup's level) by `scope`: that is not decided. `attribute`: it shares no GPUs, and
    has the rule together with this matchAttribute."""

    rule: str
    scope: str
    attribute: str = ""


@dataclass(frozen=True, slots=True)
class SubgroupsNeeded:
    """The gang starts with `needed` of its `subgroups`, and no choice of them fits. The causes next to this
    one are about `roles`, which have the fewest members of all choices."""

    needed: int
    subgroups: int
    roles: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class NotDecided:
    """The search ended before it found a plan or a proof that there is none. `truncated`: by wall clock."""

    truncated: bool


@dataclass(frozen=True, slots=True)
class PlannerDefect:
    """The planner failed on this gang, as `error` says: nothing is known."""

    error: str


@dataclass(frozen=True, slots=True)
class TookTooLong:
    """The planner was ended after `seconds` of wall clock: nothing is known. `others_wait`: because other
    gangs waited for it, and not because that is the limit."""

    seconds: float
    others_wait: bool = False


@dataclass(frozen=True, slots=True)
class TookTooMuchMemory:
    """The planner was ended when it needed more than `limit_mib` MiB for the decision: nothing is known."""

    limit_mib: int


@dataclass(frozen=True, slots=True)
class TooManyRoles:
    """The gang's members differ too much: there are `roles` roles, and `most` are planned together."""

    roles: int
    most: int


Ended = TookTooLong | TookTooMuchMemory
"""Causes that say nothing about the cluster: the planner was ended."""

ShortOf = ClusterTooSmall | NotEnoughFree | FreeInPieces | FreeApart
"""There is too little, or it is not where it helps."""

Cause = (
    BadValue
    | MembersDisagree
    | TooManyMembers
    | ForgedAllocation
    | DialectsDisagree
    | MembersMissing
    | PodGroupMissing
    | JobMissing
    | ClaimsMissing
    | RefusedEverywhere
    | MemberTooLarge
    | ShortOf
    | DomainTooSmall
    | NoSuchDomain
    | IndicesUnknown
    | RoleScope
    | SegmentsTooLarge
    | ConstraintCause
    | RunningElsewhere
    | NodesExcluded
    | NotSupported
    | SubgroupsNeeded
    | NotDecided
    | PlannerDefect
    | Ended
    | TooManyRoles
)


def counted_once(causes: Iterable[Cause]) -> list[Cause]:
    """Return each cause of several pods once: that of the first pod by name, with the number of pods."""
    pods: dict[Cause, list[str]] = {}
    for cause in dict.fromkeys(causes):
        match cause:
            case BadValue(where):
                pods.setdefault(replace(cause, where=""), []).append(where)
            case ForgedAllocation(pod) | DialectsDisagree(pod):
                pods.setdefault(replace(cause, pod=""), []).append(pod)
            case _:
                pods[cause] = []
    return [_of_first(cause, sorted(names)) for cause, names in pods.items()]


def _of_first(cause: Cause, names: list[str]) -> Cause:
    match cause:
        case BadValue():
            return replace(cause, where=names[0], pods=len(names))
        case ForgedAllocation() | DialectsDisagree():
            return replace(cause, pod=names[0], pods=len(names))
    return cause
