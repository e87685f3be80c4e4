"""What a gang asks for, whatever dialect its pods speak."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from muster.domain.node import Resources


class Scope(StrEnum):
    """Partitions of the cluster's GPUs that every cluster has a word for. Others are label keys."""

    GPU = "gpu"
    NVLINK_DOMAIN = "nvlink-domain"
    NODE = "node"
    RACK = "rack"
    ZONE = "zone"


@dataclass(frozen=True, slots=True)
class GangId:
    """Identity of a gang. A name used again by other owners is a new gang, hence `owners` (their UIDs)."""

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
    key: str = ""
    operator: str = "Equal"
    value: str = ""
    effect: str = ""


@dataclass(frozen=True, slots=True)
class NodeRules:
    """Which nodes admit a pod: all of `required`, and one of `any_of` (each a conjunction) if there are any.

    Terms on `metadata.name` (matchFields) use that key.
    """

    required: tuple[SelectorTerm, ...] = ()
    any_of: tuple[tuple[SelectorTerm, ...], ...] = ()
    tolerations: tuple[Toleration, ...] = ()


@dataclass(frozen=True, slots=True)
class Member:
    """One pod of the gang."""

    uid: str
    name: str
    rank: int | None = None


@dataclass(frozen=True, slots=True)
class Role:
    """Members with equal requests; the planner counts them and fills their names in last.

    `gpus` whole GPUs a member, of the extended resource `gpu_resource` ("" and 0 for cpu-only members).
    """

    name: str
    members: tuple[Member, ...]
    resources: Resources
    gpus: int = 0
    gpu_resource: str = ""
    rules: NodeRules = field(default_factory=NodeRules)


@dataclass(frozen=True, slots=True)
class Request:
    """A complete gang: `min_member` of its members must fit at once, within one part of `required_scope`.

    `preferred_scopes` are tried narrowest first, in the order given.
    """

    gang: GangId
    roles: tuple[Role, ...]
    min_member: int
    required_scope: str | None = None
    preferred_scopes: tuple[str, ...] = ()
    priority: int = 0
    created: float = 0.0
    """Seconds since the epoch: when the gang's oldest pod was created; with priority it orders the queue."""

    @property
    def size(self) -> int:
        return sum(len(role.members) for role in self.roles)
