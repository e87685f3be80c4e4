"""Causes of gangs that are ill-formed: the pods contradict themselves or each other."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import TypeVar

from muster.domain.reasons import Cause
from muster.domain.words import counted_noun, list_names, quote, such_pods

_MAX_VALUE_CHARS = 80
"""Number of characters that are kept of an unreadable value."""
_MEANT = re.compile(r"none: did you mean (.+?)(?:, which .+)?\?|none of this name: (.+) is nearly the same")
"""Matches `expected` of a misspelt name; the groups are the name that was probably meant."""
_CORRECTED_IN_PLACE = ("podgroup", "compositepodgroup", "workload")
"""Kinds of objects that are read again when they change. Pods of them need not be created again."""


class IllFormed(Cause):
    """No cluster could place the pods as they are."""

    __slots__ = ()
    stays = True


@dataclass(frozen=True, slots=True)
class BadValue(IllFormed):
    """A label, annotation or field that can't be read. `where` is its object, as kind/namespace/name: the
    first object if several `pods` have the value."""

    where: str
    field: str
    value: str
    expected: str
    pods: int = 1

    def __post_init__(self) -> None:
        object.__setattr__(self, "value", self.value[:_MAX_VALUE_CHARS])

    def __str__(self) -> str:
        subject = such_pods(self.where, self.pods)
        return f"{subject}: {self.field} is {quote(self.value)}, expected {self.expected}"

    @property
    def advice(self) -> str:
        change = f"set {self.field} to {self.expected}"
        if match := _MEANT.fullmatch(self.expected):
            change = f"write {match[1] or match[2]} in place of {self.field}"
        elif self.expected.startswith(("none: ", "none of this name: ")):
            change = f"remove {self.field}"
        if self.where.partition("/")[0] not in _CORRECTED_IN_PLACE:
            return f"{change[0].upper()}{change[1:]}, and create the pods again."
        if self.field.startswith(("spec.", "apiVersion")):
            refused = "if the API server refuses the change, create the object and its pods again"
            return f"In {self.where}, {change}; {refused}."
        return f"In {self.where}, {change}: the change counts at once."


@dataclass(frozen=True, slots=True)
class MembersDisagree(IllFormed):
    """Pods of one gang give a field different values."""

    field: str
    values: tuple[tuple[str, str], ...]
    """(value, the name of one pod that has it)."""

    def __str__(self) -> str:
        values = [f"{quote(value)} (pod {pod})" for value, pod in self.values]
        return f"pods of one gang disagree on {self.field}: {list_names(values)}"

    @property
    def advice(self) -> str:
        return f"Give all pods of the gang the same {self.field}, and create those again that differ."


@dataclass(frozen=True, slots=True)
class TooManyMembers(IllFormed):
    """More pods than replicas belong to the gang."""

    live: int
    replicas: int

    def __str__(self) -> str:
        return f"the gang has {self.live} live pods, more than its {self.replicas} replicas"

    @property
    def advice(self) -> str:
        pods = counted_noun("pod", self.live - self.replicas)
        return f"Delete {pods}, or give each new gang a name of its own."


@dataclass(frozen=True, slots=True)
class ForgedAllocation(IllFormed):
    """An unbound pod has an annotation that only the scheduler may write. `pod` is the first of `pods`
    pods."""

    pod: str
    key: str
    pods: int = 1

    def __str__(self) -> str:
        subject = such_pods(f"pod {self.pod}", self.pods)
        return f"{subject} came with the annotation {self.key}, which only the scheduler may write"

    @property
    def advice(self) -> str:
        return f"Create the pods without the annotation {self.key}."


@dataclass(frozen=True, slots=True)
class DialectsDisagree(IllFormed):
    """A pod has keys of two dialects that name different gangs or counts. `pod` is the first of `pods`
    pods."""

    pod: str
    first: str
    second: str
    pods: int = 1
    advice = "Name the gang and its size in one way, or in the same words in each."

    def __str__(self) -> str:
        subject, names = such_pods(f"pod {self.pod}", self.pods), "names" if self.pods == 1 else "name"
        return f"{subject} {names} two different gangs or counts: {self.first} and {self.second}"


@dataclass(frozen=True, slots=True)
class GroupDisagrees(IllFormed):
    """A pod and its PodGroup state different values. `pod` is the first of `pods` pods."""

    pod: str
    key: str
    """The annotation or label of the pod."""
    value: str
    group: str
    """The title of the PodGroup, or of the job that stands for one."""
    field: str
    """What the value is in the PodGroup."""
    group_value: str
    pods: int = 1

    def __str__(self) -> str:
        subject, verb = such_pods(f"pod {self.pod}", self.pods), "has" if self.pods == 1 else "have"
        of_group = f"{self.group} has {self.field}: {self.group_value}"
        return f"{subject} {verb} {self.key}: {self.value}, and {of_group}"

    @property
    def advice(self) -> str:
        """Return what to change in the pods, since some fields of PodGroups can't change."""
        values = f"set {self.key} to {self.group_value}, as {self.group} has it, or leave {self.key} out"
        return f"In the pods, {values}, and create the pods again."


C = TypeVar("C", bound=Cause)
_PLACES: dict[type, str] = {
    BadValue: "where",
    ForgedAllocation: "pod",
    DialectsDisagree: "pod",
    GroupDisagrees: "pod",
}
"""Type of a cause about one pod → the field that names the pod."""


def counted_once(causes: Iterable[C]) -> list[C]:
    """Return each cause of several pods once: with the name of the first pod, and the number of pods.

    A cause about another object, such as a PodGroup, keeps the name of this object.
    """
    pods: dict[C, list[str]] = {}
    for cause in dict.fromkeys(causes):
        about_pod = not isinstance(cause, BadValue) or cause.where.startswith("pod/")
        place = _PLACES.get(type(cause)) if about_pod else None
        cause_without_name = replace(cause, **{place: ""}) if place else cause
        pods.setdefault(cause_without_name, []).extend([getattr(cause, place)] if place else [])
    return [
        replace(cause, **{_PLACES[type(cause)]: min(names), "pods": len(names)}) if names else cause
        for cause, names in pods.items()
    ]
