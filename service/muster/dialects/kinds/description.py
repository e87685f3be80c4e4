"""The words in which a kind of job is described: its roles, their counts, and the pods that it makes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from muster.dialects.fields import Fields
from muster.dialects.objects import CustomObject, Metadata

MAX_PODS = 200_000
"""Pods that one object may stand for; the largest cluster that Kubernetes supports has 150,000."""
MAX_ROLES = 64
"""Roles of one gang that are read: the planner takes no more."""

_LETTERS = "bcdfghjklmnpqrstvwxz"
"""The letters among the characters of random names (k8s.io/apimachinery/pkg/util/rand)."""


@dataclass(frozen=True, slots=True)
class NewPod:
    """What a controller gives one of its pods besides the template. `controller` is (kind, name) of the
    object that the pod's ownerReference names; None: the described object itself."""

    name: str
    labels: Mapping[str, str] = field(default_factory=dict)
    annotations: Mapping[str, str] = field(default_factory=dict)
    controller: tuple[str, str] | None = None


@dataclass(frozen=True, slots=True)
class Role:
    """The pods of one template in one gang: `count` of them. At least `least` must start together.

    `name` is "" if the kind has no types of pods. `template` is the pod template as it is written, at `path`
    of the object. `pod` makes one, from the index of the gang and the index in the role.
    `late`: the controller makes these pods when others run. So nothing waits for them.
    `unit` members in a row are one replica, which KAI's topology keys in `keys` bind together; 0: all.
    """

    name: str
    count: int
    least: int
    template: Any
    path: str
    pod: Callable[[int, int], NewPod]
    late: bool = False
    unit: int = 0
    keys: Mapping[str, str] = field(default_factory=dict)
    segments_fill: bool = False
    """KAI's segments must fill the role: else its controller would count another role's pods in."""


@dataclass(frozen=True, slots=True)
class Described:
    """An object's gangs. All `copies` have the same roles. `idle` says why it has no pods now; `ordered`: its
    pods come one after another, each when the last runs."""

    roles: tuple[Role, ...] = ()
    copies: int = 1
    idle: str = ""
    ordered: bool = False

    @property
    def size(self) -> int:
        """Return how many members of one gang come at once."""
        return sum(role.count for role in self.roles if not role.late)

    @property
    def least(self) -> int:
        """Return how many members of one gang must start together."""
        return sum(role.least for role in self.roles)


@dataclass(frozen=True, slots=True)
class Owner:
    """An object of one of the kinds, as its controller reads it. What is ill-formed is gathered in `spec`."""

    kind: str
    api_version: str
    meta: Metadata
    spec: Fields
    status: Fields

    @classmethod
    def of(cls, kind: str, obj: CustomObject) -> Owner:
        """Return the object with its parts to be read one by one."""
        meta = obj.metadata
        where = f"{kind.lower()}/{meta.namespace}/{meta.name}"
        spec, status = Fields.of(where, "spec", obj.spec), Fields.of(where, "status", obj.status)
        return cls(kind, obj.api_version, meta, spec, status)

    @property
    def name(self) -> str:
        """Return the object's name."""
        return self.meta.name


@dataclass(frozen=True, slots=True)
class Member:
    """The place of a pod by what its controller wrote on it: the object of `kind` called `owner`, the gang of
    that object, and the role."""

    kind: str
    owner: str
    gang: str
    role: str = ""


@dataclass(frozen=True, slots=True)
class Kind:
    """One kind of job. `describe` reads an object; `member` tells whether a pod is of this kind, by its
    metadata alone. `made_by` are kinds whose objects make objects of this one: KAI's keys are read there too.
    `label` is on all its pods, and the shim holds pods with it: also those that ask for no GPU wait for their
    gang. "" for kinds whose pods have one template."""

    group: str
    versions: tuple[str, ...]
    kind: str
    plural: str
    describe: Callable[[Owner], Described]
    member: Callable[[Metadata], Member | None]
    made_by: tuple[str, ...] = ()
    label: str = ""


def letters(number: int, width: int = 5) -> str:
    """Return a number as letters: bbbbb, bbbbc, bbbbd … They stand for what a controller draws at random."""
    text = ""
    for _ in range(width):
        number, digit = divmod(number, len(_LETTERS))
        text = _LETTERS[digit] + text
    return text


def controller_of(meta: Metadata) -> tuple[str, str, str]:
    """Return (API group, kind, name) of a pod's controller; empty for a bare pod."""
    for owner in meta.owner_references or ():
        if owner.controller:
            return owner.api_version.rpartition("/")[0], owner.kind, owner.name
    return "", "", ""


def over(status: Fields, ends: Sequence[str]) -> bool:
    """Return whether a condition with one of these types is true."""
    conditions = status.listed("conditions", 64)
    return any(item.text("type") in ends and item.text("status") == "True" for item in conditions)


def why_idle(owner: Owner, suspended: object) -> str:
    """Return why an object makes no pods now, "" if it does."""
    if suspended is True:
        return "it is suspended"
    return "it has finished" if over(owner.status, ("Complete", "Completed", "Failed", "Succeeded")) else ""


def bounded(fields: Fields, name: str, count: int) -> int:
    """Return the count, with a problem noted if it is larger than any cluster."""
    if count > MAX_PODS:
        fields.bad(name, count, f"at most {MAX_PODS:,}")
        return 0
    return count
