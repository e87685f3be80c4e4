"""Causes of limits inside nodes: volumes that they can attach, GPUs that must agree on attributes."""

from __future__ import annotations

from dataclasses import dataclass

from muster.domain.causes.cause import ConstraintCause
from muster.domain.words import counted, of_role, or_wait, so_many_fit


@dataclass(frozen=True, slots=True)
class RoomTooSmall(ConstraintCause):
    """Nodes can hold few members of a role, as for the volumes that they attach. On the nodes that admit it
    there is room for `room` of its `members`; so `members_fit` of the gang fit."""

    role: str
    room: int
    members: int
    members_fit: int | None
    members_needed: int
    even_empty: bool = False

    def __str__(self) -> str:
        room = f"{counted('member', self.room)}, of {self.members}{of_role(self.role)}, at most"
        return f"nodes can attach the volumes of {room}{_so(self)}"

    @property
    def advice(self) -> str:
        """Return what helps."""
        few = f"Start at most {counted('member', self.room)}{of_role(self.role)}, " if self.room else ""
        wait = or_wait("other pods' volumes are detached", self.even_empty)
        give = "give" if few else "Give"
        return f"{few}{give} each pod fewer volumes, or add nodes that can attach them{wait}."


@dataclass(frozen=True, slots=True)
class AttributesDiffer(ConstraintCause):
    """The `gpus` of each member of a role must agree on `attributes`. On `nodes` of those that admit the role
    some GPUs do. So `members_fit` of the gang fit."""

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
        return f"{must}{_so(self)}"

    @property
    def advice(self) -> str:
        """Return what helps."""
        names = " and ".join(self.attributes)
        wait = or_wait("more of such GPUs are free", self.even_empty or not self.nodes)
        drop = f"drop matchAttribute {names}, or add nodes with {self.gpus} GPUs that agree on it{wait}"
        return f"Ask for fewer than {self.gpus} GPUs in one pod, {drop}."


def _so(cause: RoomTooSmall | AttributesDiffer) -> str:
    return so_many_fit(cause.members_fit, cause.members_needed, cause.even_empty)
