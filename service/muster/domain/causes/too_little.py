"""Causes of gangs for which there is too little capacity, or capacity in the wrong places.

`members_fit` of `members_needed` fit; None if the search for the greatest number did not end.
"""

from __future__ import annotations

from dataclasses import dataclass

from muster.domain.reasons import Cause
from muster.domain.words import (
    GPU_MEMORY,
    amount,
    and_more,
    counted_noun,
    if_empty,
    list_names,
    number,
    of_role,
    plural,
    plural_verb,
    so_many_fit,
    the_role,
)


@dataclass(frozen=True, slots=True)
class MemberTooLarge(Cause):
    """One member requests more than any admitting node has. `largest_node` has most of the resource."""

    role: str
    resource: str
    needed: int
    largest_node: str
    largest: int
    anywhere: bool = False
    """No node admits the role: this is told of all nodes."""
    stays = True

    def __str__(self) -> str:
        largest = f"the largest node{'' if self.anywhere else ' that admits it'}, {self.largest_node},"
        asks = f"a member{of_role(self.role)} asks for {amount(self.resource, self.needed)}"
        asks += " on one GPU" if self.resource == GPU_MEMORY else ""
        return f"{asks}, and {largest} has {amount(self.resource, self.largest)}"

    @property
    def advice(self) -> str:
        limit, larger = amount(self.resource, self.largest), amount(self.resource, self.needed)
        return f"Ask for at most {limit} in one pod, or add a node with {larger}."


@dataclass(frozen=True, slots=True)
class ResourceNotOffered(Cause):
    """No node of the cluster offers the resource that the role requests. `meant`: the resource that was
    probably meant; "" if there is none."""

    role: str
    resource: str
    nodes: int
    meant: str = ""
    stays = True

    def __str__(self) -> str:
        hint = f"; did you mean {self.meant}?" if self.meant else ""
        asks = f", which {the_role(self.role)} {'need' if ', ' in self.role else 'needs'}"
        return f"no node offers {self.resource}{asks}{hint}"

    @property
    def advice(self) -> str:
        if self.meant:
            return f"Ask for {self.meant} in place of {self.resource}."
        return f"Let nodes offer {self.resource}, or ask for a resource that nodes offer."


@dataclass(frozen=True, slots=True)
class GpusNotOffered(Cause):
    """Nodes that admit the role offer only `offered` of their `there` GPUs. `names`: the first of these
    nodes."""

    role: str
    resource: str
    nodes: int
    offered: int
    there: int
    names: tuple[str, ...]

    def __str__(self) -> str:
        subject = f"{counted_noun('node', self.nodes)} {plural_verb('offer', self.nodes)}"
        share = f"{self.offered} of {'its' if self.nodes == 1 else 'their'} {self.there} {self.resource}"
        return f"{subject} {share}: {', '.join(self.names)}{and_more(self.nodes)}"

    @property
    def advice(self) -> str:
        return f"Find out if the device plugin runs on {self.names[0]}, and which GPUs are unhealthy there."


@dataclass(frozen=True, slots=True)
class RoomTaken(Cause):
    """The holders of the GPUs where the gang nearly fits: gangs of lower priority, other gangs, pods in no
    gang.

    `where` names these nodes in words.
    """

    where: str
    lower_gangs: int
    lower_gpus: int
    other_gangs: int
    other_gpus: int
    pods_gpus: int

    def __str__(self) -> str:
        holders = (
            (
                self.lower_gpus,
                f"{counted_noun('gang', self.lower_gangs)} of lower priority",
                self.lower_gangs,
            ),
            (
                self.other_gpus,
                counted_noun("other gang" if self.lower_gangs else "gang", self.other_gangs),
                self.other_gangs,
            ),
            (self.pods_gpus, "pods in no gang", 2),
        )
        *clauses, last = [
            f"{holder} {'has' if count == 1 else 'have'} {gpus}" for gpus, holder, count in holders if gpus
        ]
        return f"of the GPUs {self.where}, {', '.join(clauses)}{' and ' if clauses else ''}{last}"

    @property
    def advice(self) -> str:
        if self.lower_gpus:
            gangs = counted_noun("gang", self.lower_gangs)
            return f"To make room, end some of the {gangs} of lower priority: Muster does not."
        return "Wait until some of them end: no gang of lower priority is there."


@dataclass(frozen=True, slots=True)
class ClusterTooSmall(Cause):
    """The nodes that admit the role, taken together, could not host its members even if they were empty.

    `total` and `needed` count the scarce resource. If the total is enough, no single node has enough.
    `largest_node` has the most, `largest`.
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
    stays = True
    advice = "Ask for fewer members, or add nodes: it does not fit even on an empty cluster."

    def __str__(self) -> str:
        need, fit = _need_clause(self), _fit_clause(self)
        nodes = "all nodes" if self.anywhere else f"the nodes that admit {_pronoun(self)}"
        supply = f"{nodes} have {amount(self.resource, self.total)} in all"
        if not self.largest_node:
            return f"{need}, and there are no nodes"
        fit += if_empty(bool(fit))
        if self.total < self.needed:
            return f"{need}, and {supply}{fit}"
        return f"{need}; {supply}, but {_pieces_phrase(self)}{fit}"


@dataclass(frozen=True, slots=True)
class NotEnoughFree(Cause):
    """Less of a resource is free on the nodes that admit the role than its members need."""

    role: str
    resource: str
    free: int
    needed: int
    members_fit: int | None
    members_needed: int
    elsewhere: int = 0
    """Free amount on other nodes, which do not admit the role."""

    def __str__(self) -> str:
        return f"{_need_clause(self)}, and {_free_clause(self)}{_fit_clause(self)}"

    @property
    def advice(self) -> str:
        lacks = amount(self.resource, self.needed - self.free)
        return f"Wait until {lacks} more are free, ask for less, or add nodes."


@dataclass(frozen=True, slots=True)
class FreeInPieces(Cause):
    """Enough of the resource is free in sum, but in pieces that are too small. The largest piece is
    `largest`, on `largest_node`."""

    role: str
    resource: str
    free: int
    needed: int
    members_fit: int | None
    members_needed: int
    largest_node: str
    largest: int
    elsewhere: int = 0
    """Free amount on other nodes, which do not admit the role."""

    def __str__(self) -> str:
        fit = _fit_clause(self)
        return f"{_need_clause(self)}; {_free_clause(self)}, but {_pieces_phrase(self)}{fit}"

    @property
    def advice(self) -> str:
        piece = amount(self.resource, self.largest)
        return f"Ask for at most {piece} in one pod, or wait until more is free on one node."


@dataclass(frozen=True, slots=True)
class FreeApart(Cause):
    """Each of these resources has enough free in sum, but not on the same nodes.

    `resources`: (resource, free amount). If this holds even on empty nodes, it is the amount of the empty
    cluster.
    """

    role: str
    resources: tuple[tuple[str, int], ...]
    members_fit: int | None
    members_needed: int
    even_empty: bool = False

    def __str__(self) -> str:
        amounts = " and ".join(amount(*pair) for pair in self.resources)
        state = "there" if self.even_empty else "free"
        names = {resource for resource, _ in self.resources}
        same = "at once" if GPU_MEMORY in names and len(names) > 1 else "on the same nodes"
        fit = _fit_clause(self)
        needs = f"{_subject_and_verb(self)} room for {counted_noun('member', self.members_needed)}"
        return f"{needs}; {amounts} are {state}, but not {same}{fit}{if_empty(self.even_empty and bool(fit))}"

    @property
    def advice(self) -> str:
        names = [resource for resource, _ in self.resources]
        if self.even_empty:
            return f"Ask for less {' or '.join(names)} in one pod, or add nodes that have enough of both."
        free = f"Wait until {' and '.join(names)} are free on the same nodes"
        return f"{free}, or ask for less of one of them in one pod."


@dataclass(frozen=True, slots=True)
class SubgroupsNeeded(Cause):
    """The gang starts with `needed` of its `subgroups`, and no choice of them fits. The causes next to this
    one are about `roles`, which have the fewest members of all choices. If all subgroups are needed, the
    choice is between the members of a subgroup. A gang without subgroups counts as one."""

    needed: int
    subgroups: int
    roles: tuple[str, ...]

    def __str__(self) -> str:
        needs = f"the gang needs {self.needed} of its {self.subgroups} subgroups, and no others fit either"
        if self.needed == self.subgroups:
            needs = "no other members can start either"
        return f"{needs}: this is about {list_names(self.roles)}"

    @property
    def advice(self) -> str:
        if self.needed == self.subgroups:
            return "Make the members smaller: other members may start the gang too."
        return "Lower minSubGroup, or make the subgroups smaller: any of them may start the gang."


@dataclass(frozen=True, slots=True)
class MembersToCome(Cause):
    """Members of these roles come when other members have a node. The planner looks for their room already
    now."""

    members: int
    roles: tuple[str, ...]
    advice = "The first members start where those that come later fit too: else they would wait for them."

    def __str__(self) -> str:
        come, roles = (
            plural_verb("come", self.members),
            f"{plural('role', len(self.roles))} {list_names(self.roles)}",
        )
        return f"{self.members} of these members {come} when the others have a node: {roles}"


ShortOf = ClusterTooSmall | NotEnoughFree | FreeInPieces | FreeApart
"""Causes by which the members of a role together lack capacity."""


def _is_about_several_roles(cause: ShortOf) -> bool:
    """Return whether the cause is about several roles, whose names are then listed with commas."""
    return ", " in cause.role


def _pronoun(cause: ShortOf) -> str:
    return "them" if _is_about_several_roles(cause) else "it"


def _subject_and_verb(cause: ShortOf) -> str:
    """Return the subject and verb of a clause: "role r needs", "the pod needs"."""
    if cause.members_needed == 1 and not cause.role:
        return "the pod needs"
    return f"{the_role(cause.role)} {'need' if _is_about_several_roles(cause) else 'needs'}"


def _fit_clause(cause: ShortOf) -> str:
    """Return the clause of `so_many_fit` about several members."""
    return so_many_fit(cause.members_fit, cause.members_needed) if cause.members_needed > 1 else ""


def _need_clause(cause: ClusterTooSmall | NotEnoughFree | FreeInPieces) -> str:
    """Return the clause about the needed amount: "role r needs 8 GPUs for 2 members"."""
    members = f" for {counted_noun('member', cause.members_needed)}" if cause.members_needed > 1 else ""
    return f"{_subject_and_verb(cause)} {amount(cause.resource, cause.needed)}{members}"


def _free_clause(cause: NotEnoughFree | FreeInPieces) -> str:
    """Return the clause about the free amount, on nodes that admit the role and on others."""
    free = f"{amount(cause.resource, cause.free)} {'is' if cause.free == 1 else 'are'} free"
    if not cause.elsewhere:
        return free
    elsewhere = number(cause.resource, cause.elsewhere)
    return f"{free} on nodes that admit {_pronoun(cause)} ({elsewhere} on others)"


def _pieces_phrase(cause: ClusterTooSmall | FreeInPieces) -> str:
    """Return the phrase about the largest piece, which is too small."""
    largest = number(cause.resource, cause.largest)
    piece = "GPU" if cause.resource == GPU_MEMORY else "node"
    return f"in pieces too small, at most {largest} on one {piece} ({cause.largest_node})"
