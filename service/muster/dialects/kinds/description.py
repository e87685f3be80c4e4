"""Define how a kind of job is described: its roles, their counts, and the pods that its controller makes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from muster.dialects.objects import Container, CustomObject, Metadata, PodToleration, ResourceRequirements
from muster.dialects.reading import Fields

MAX_PODS = 200_000
"""Largest number of pods of one object. The largest cluster that Kubernetes supports has 150,000."""
MAX_ROLES = 64
"""Largest number of roles of one gang, as in the planner."""

_LETTERS = "bcdfghjklmnpqrstvwxz"
"""The letters among the characters of random names (k8s.io/apimachinery/pkg/util/rand)."""


@dataclass(frozen=True, slots=True)
class NewPod:
    """The additions of a controller to the template, for one of its pods.

    `controller` is the kind and name of the object that the pod's ownerReference names. None means the
    described object itself. `containers` and `init_containers` come after those of the template.
    """

    name: str
    labels: Mapping[str, str] = field(default_factory=dict)
    annotations: Mapping[str, str] = field(default_factory=dict)
    controller: tuple[str, str] | None = None
    node_selector: Mapping[str, str] = field(default_factory=dict)
    tolerations: tuple[PodToleration, ...] = ()
    containers: tuple[Container, ...] = ()
    init_containers: tuple[Container, ...] = ()


@dataclass(frozen=True, slots=True)
class JobRole:
    """The `count` pods of one gang that are made of one template. `min_members` of them must start
    together.

    `name` is "" if the kind has no types of pods. `template` is the pod template as it is written, at `path`
    of the object. `pod` makes one pod, from the index of the gang and the index in the role. The controller
    makes `later` of these pods when others have a node, so no pod of another role waits for these. `unit`
    members in a row are one replica, and 0 means all members. `keys` are KAI's topology keys, which hold for
    each replica.
    """

    name: str
    count: int
    min_members: int
    template: Any
    path: str
    pod: Callable[[int, int], NewPod]
    later: int = 0
    unit: int = 0
    keys: Mapping[str, str] = field(default_factory=dict)
    runs_with_first: bool = True
    """Whether the later pods run together with the first ones, and not after them."""
    hosts: int = 1
    """Members of one replica. A replica is usable only when all its members are there."""
    exclusive: bool = False
    """Whether each unit, or the whole gang, has a topology domain of its own, which its first pod chooses."""
    unit_label: str = ""
    """The label that numbers the units, if the other pods of a unit come when its first pod has a node."""
    min_of_replica: int = 0
    """Members of each replica that must start, if the others are optional."""
    segments_fill: bool = False
    """Whether KAI's segments must fill the role. Otherwise segments would have pods of another role."""

    @property
    def follows(self) -> bool:
        """Return whether all pods of the role come later.

        Once a pod of the role is there, `min_members` of them must start together.
        """
        return 0 < self.later == self.count


@dataclass(frozen=True, slots=True)
class Described:
    """The gangs of an object: there are `copies`, and all have the same roles.

    `idle` is the reason why the object has no pods now. `ordered` means that its controller makes each pod
    when the previous pod runs. `numbered` means that its gangs have numbers, so no pod template can name
    them. `change` is an instruction that makes all its pods start together, as "set spec.completionMode to
    Indexed". `gang_notes` are sentences about fields whose meaning may surprise users if the pods are a gang.
    """

    roles: tuple[JobRole, ...] = ()
    copies: int = 1
    idle: str = ""
    ordered: bool = False
    numbered: bool = False
    change: str = ""
    gang_notes: tuple[str, ...] = ()

    @property
    def size(self) -> int:
        """Return how many members of one gang come at once."""
        return sum(role.count - role.later for role in self.roles)

    @property
    def min_members(self) -> int:
        """Return how many members of one gang must start together at first."""
        return sum(role.min_members for role in self.roles if not role.follows)


@dataclass(frozen=True, slots=True)
class JobObject:
    """An object of one of the kinds, as its controller reads it. `spec` collects ill-formed fields."""

    kind: str
    api_version: str
    meta: Metadata
    spec: Fields
    status: Fields

    @classmethod
    def of(cls, kind: str, obj: CustomObject) -> JobObject:
        """Return the object, ready to be read field by field."""
        meta = obj.metadata
        object_name = f"{kind.lower()}/{meta.namespace}/{meta.name}"
        spec, status = Fields.of(object_name, "spec", obj.spec), Fields.of(object_name, "status", obj.status)
        return cls(kind, obj.api_version, meta, spec, status)

    @property
    def name(self) -> str:
        """Return the object's name."""
        return self.meta.name


@dataclass(frozen=True, slots=True)
class JobPod:
    """The place of a pod in its job, read from the labels and annotations of its controller.

    The pod belongs to the object of `kind` with the name `owner`, to a gang of that object, and to a role.
    """

    kind: str
    owner: str
    gang: str
    role: str = ""


@dataclass(frozen=True, slots=True)
class Kind:
    """One kind of job.

    `describe` reads an object. `member` returns the place of a pod of this kind, from its metadata only.
    `made_by` are the kinds whose objects make objects of this kind. KAI's keys are read there too. All its
    pods have `label`, and the shim holds pods with this label. So pods that request no GPU wait for their
    gang too. `label` is "" for kinds whose pods have one template. `gang_label` is a label of the object by
    which its controller makes a gang with another scheduler. `fields` are the fields, other than those of pod
    templates, that `describe` reads. `maps` are fields whose members may have any name, and `keys` the labels
    and annotations. Fields that no kind reads are dropped when a job arrives.
    """

    group: str
    versions: tuple[str, ...]
    kind: str
    plural: str
    describe: Callable[[JobObject], Described]
    member: Callable[[Metadata], JobPod | None]
    made_by: tuple[str, ...] = ()
    label: str = ""
    gang_label: str = ""
    fields: tuple[str, ...] = ()
    maps: tuple[str, ...] = ()
    keys: tuple[str, ...] = ()


def container(name: str, cpu: str, memory: str) -> Container:
    """Return a container that a controller adds to its pods, with its requests."""
    return Container(name, ResourceRequirements(requests={"cpu": cpu, "memory": memory}))


def letters(number: int, width: int = 5) -> str:
    """Return a number as letters: bbbbb, bbbbc, bbbbd … It replaces a controller's random letters."""
    text = ""
    for _ in range(width):
        number, digit = divmod(number, len(_LETTERS))
        text = _LETTERS[digit] + text
    return text


def controller_of(meta: Metadata) -> tuple[str, str, str]:
    """Return the API group, kind and name of a pod's controller. All are "" for a bare pod."""
    for owner in meta.owner_references or ():
        if owner.controller:
            return owner.api_version.rpartition("/")[0], owner.kind, owner.name
    return "", "", ""


def has_ended(status: Fields, ends: Sequence[str]) -> bool:
    """Return whether a condition with one of these types is true."""
    conditions = status.objects_in("conditions", 64)
    return any(item.text("type") in ends and item.text("status") == "True" for item in conditions)


def why_idle(owner: JobObject, suspended: object) -> str:
    """Return why an object makes no pods now; "" if it makes pods."""
    if suspended is True:
        return "it is suspended"
    ends = ("Complete", "Completed", "Failed", "Succeeded")
    return "it has finished" if has_ended(owner.status, ends) else ""


def check_pod_count(fields: Fields, name: str, count: int) -> int:
    """Return the count, or 0 if the count is larger than any cluster. Then add a cause."""
    if count > MAX_PODS:
        fields.bad(name, count, f"at most {MAX_PODS:,}")
        return 0
    return count
