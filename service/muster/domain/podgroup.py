"""A PodGroup object as the gangs see it: what it says of its gang, whichever API it was written in."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from muster.domain.pod import Wishes
from muster.domain.reasons import Cause
from muster.domain.request import SelectorTerm

PodGroupKey = tuple[str, str, str]
"""Namespace, dialect, name."""


@dataclass(frozen=True, slots=True)
class PodGroup:
    """`min_member` members must fit at once. `wishes` are the whole gang's; `role_wishes` those of the
    members of a role (KAI's subgroups), by its name. `required` are terms that every node must fulfil.
    `causes` say what is ill-formed: no pod of such a group is planned."""

    namespace: str
    dialect: str
    name: str
    uid: str = ""
    min_member: int | None = None
    wishes: Wishes = field(default_factory=Wishes)
    role_wishes: Mapping[str, Wishes] = field(default_factory=dict)
    required: tuple[SelectorTerm, ...] = ()
    queue: str = ""
    causes: tuple[Cause, ...] = ()

    @property
    def key(self) -> PodGroupKey:
        return (self.namespace, self.dialect, self.name)
