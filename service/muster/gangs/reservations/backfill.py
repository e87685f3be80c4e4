"""The earmark: a reservation with backfill for the gang that has waited longest, so that smaller gangs do not
pass it for ever. What is free and comes free on the nodes of its best domain is kept for it, for a while.

A held place is sure; the earmark is a hope, because nobody knows when the pods on those nodes end. So it is
bounded: there is one at a time, it hides nothing from what is more urgent, it covers a share of the cluster,
it ends after a term, and the namespaces take turns. This module is all there is of it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from muster.domain.levels import part_of
from muster.domain.node import Node, Resources, Usage
from muster.domain.request import Request, Role, Scope
from muster.domain.snapshot import NodeState, Snapshot
from muster.gangs.capacity import requests
from muster.gangs.capacity.ledger import Ledger, holds_gpus
from muster.gangs.messages.settings import Settings
from muster.gangs.record.gang import Gang
from muster.placement.cluster.candidates import refusal
from muster.placement.cluster.topology import DOMAIN_LABELS
from muster.placement.limits import member_room

LOOK_S = 0.5
"""Pause between two looks for the next gang, in seconds."""
_DUE = 256
"""Gangs that one look notes as having waited long enough."""
_DISMISSED = 32
"""Gangs that one look passes over because nothing that ends would make them fit."""
_STEPS = 10_000
"""Pairs of role and node that one look examines. A gang that needs more has no earmark."""
_NOTHING = Resources(pods=0)
_NAMED = 8

_NONE: Mapping[str, Resources] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class BackfillReservation:
    """The nodes on which what is free, and comes free, is kept for this gang until then.

    `wants` are the GPUs that the gang would take of each node. `priority` is the gang's.
    """

    gang: str
    wants: Mapping[str, int] = field(hash=False)
    until: float
    priority: int = 0

    @property
    def nodes(self) -> frozenset[str]:
        """Return the names of the nodes that it covers."""
        return frozenset(self.wants)

    def hides_from(self, gang: Gang) -> bool:
        """Return whether the gang must not use these nodes.

        It may if it has a higher priority, or if some of its members are bound and fewer than it needs: what
        a running gang has lost is replaced, and a partially bound gang is completed.
        """
        if gang.key == self.gang or requests.priority(gang.group) > self.priority:
            return False
        return not gang.group.bound or gang.group.enough_bound

    def __str__(self) -> str:
        names = sorted(self.wants)
        more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
        return f"What comes free on {', '.join(names[:_NAMED])}{more} is kept for it for a while"


def hidden_by(reservation: BackfillReservation, snapshot: Snapshot) -> Snapshot:
    """Return the cluster as gangs see it from which the earmark hides: whole GPUs of its nodes look taken."""
    states = (snapshot.nodes[name] for name in sorted(reservation.wants) if name in snapshot.nodes)
    return snapshot.taking(
        Usage(f"kept for {reservation.gang}", state.node.name, _NOTHING, gpus=state.free_gpus)
        for state in states
        if state.free_gpus
    )


# --- turns ----------------------------------------------------------------------------------------------


@dataclass(slots=True)
class _Waiting:
    """A refused gang: since when it waits (less the time in which nothing could be seen), and whose it is."""

    since: float
    namespace: str
    priority: int


class Backfill:
    """Who has the earmark, and whose turn is next.

    Of the gangs that have waited `earmark_after_s`, those of the highest priority come first. Among them the
    namespaces take turns; in a namespace the longest wait is first. Each look does a bounded amount of work.
    """

    def __init__(self, settings: Settings, ledger: Ledger) -> None:
        self.current: BackfillReservation | None = None
        self._settings = settings
        self._ledger = ledger
        self._unseen = 0.0
        """Seconds in which nothing could be seen, so far."""
        self._waiting: dict[str, _Waiting] = {}
        self._young: dict[str, None] = {}
        """Gangs that have not waited long enough, by the time since which they wait."""
        self._due: dict[int, dict[str, dict[str, None]]] = {}
        """Priority → namespace → gangs. The namespace whose turn is next comes first."""
        self._failed: dict[str, frozenset[str]] = {}
        """Gang → nodes that did not come free enough during a term of its own."""
        self._look_at: float | None = None

    def waits(self, gang: Gang, now: float) -> None:
        """Note that the gang was refused. It waits since the first time."""
        priority, known = requests.priority(gang.group), self._waiting.get(gang.key)
        if known is None:
            self._put(gang.key, _Waiting(now - self._unseen, gang.name[0], priority))
        elif known.priority != priority:
            if self._drop_due(gang.key):
                self._due_of(priority, known.namespace)[gang.key] = None
            known.priority = priority

    def leaves(self, gang: Gang, now: float) -> None:
        """Note that the gang no longer waits: it was planned, or it is gone or changed."""
        if self._waiting.get(gang.key) is None:
            return
        self._young.pop(gang.key, None)
        self._drop_due(gang.key)
        del self._waiting[gang.key]
        self._failed.pop(gang.key, None)
        if self.current is not None and self.current.gang == gang.key:
            self._end_current()
            self._look_at = now

    def hides_from(self, gang: Gang) -> bool:
        """Return whether there is an earmark that hides its nodes from this gang."""
        return self.current is not None and self.current.hides_from(gang)

    def postpone(self, seconds: float) -> None:
        """Put off everything by the seconds in which nothing could be seen."""
        self._unseen += seconds

    def next_at(self) -> float | None:
        """Return when the next look is due, in seconds on the events' clock; None if nobody waits."""
        if self._look_at is not None:
            return self._look_at
        if self.current is not None:
            return self.current.until + self._unseen
        oldest = next(iter(self._young), None)
        if oldest is None:
            return None
        return self._waiting[oldest].since + self._settings.earmark_after_s + self._unseen

    def look(self, now: float, request_of: Callable[[str], Request | None]) -> tuple[str, str]:
        """End the term that is over and begin the next one, as far as one look goes.

        `request_of` returns what a gang asks for; None if no pod that ends would make it fit. Returns the
        keys of the gang whose term ended and of the one whose term began, "" for none.
        """
        self._look_at, ended, given = None, "", ""
        if self.current is not None and self.current.until + self._unseen <= now:
            ended = self.current.gang
            self._failed[ended] = self._failed.get(ended, frozenset()) | self._lacking(self.current)
            self._put(ended, self._waiting.pop(ended), now)
            self._end_current()
        more = self._note_due(now)
        if self.current is None:
            given = self._next_turn(now, request_of)
            more |= bool(self._due) and not given
        if more:
            self._look_at = now + LOOK_S
        return ended, given

    def _next_turn(self, now: float, request_of: Callable[[str], Request | None]) -> str:
        """Give the earmark to the next gang for which there is a domain; examine one gang at the most."""
        for _ in range(_DISMISSED):
            key = self._pop_due()
            if key is None:
                return ""
            request = request_of(key)
            if request is None:
                self._put(key, self._waiting.pop(key), now)
                continue
            wants = self._domain(key, request)
            if not wants:
                self._put(key, self._waiting.pop(key), now)
                return ""
            until = now + self._settings.earmark_s - self._unseen
            self.current = BackfillReservation(key, wants, until, self._waiting[key].priority)
            return key
        return ""

    def _domain(self, key: str, request: Request) -> Mapping[str, int]:
        avoid = self._failed.get(key, frozenset())
        wants = best_domain(
            request,
            self._ledger.snapshot(),
            self._ledger.staying(),
            [usage for each in request.running if (usage := self._ledger.usage(each.member.uid))],
            share=self._settings.earmark_share,
            avoid=avoid,
        )
        if avoid and not wants:
            del self._failed[key]  # all others have failed too: from its next turn on each is tried again
        return wants

    def _lacking(self, reservation: BackfillReservation) -> frozenset[str]:
        """Return the nodes on which too little came free; all of them if enough did, and yet nothing fits."""
        free = {
            name: state.free_gpu_count for name in reservation.wants if (state := self._ledger.state(name))
        }
        lacking = {name for name, gpus in reservation.wants.items() if free.get(name, 0) < gpus}
        return frozenset(lacking or reservation.wants)

    def _end_current(self) -> None:
        assert self.current is not None
        self._ledger.gain(self.current.nodes)
        self.current = None

    def _put(self, key: str, waiting: _Waiting, now: float | None = None) -> None:
        """Queue a gang that waits since `now`, or as long as it has waited."""
        if now is not None:
            waiting.since = now - self._unseen
        self._waiting[key], self._young[key] = waiting, None

    def _note_due(self, now: float) -> bool:
        """Move gangs that have waited long enough to those whose turn may come; whether more are left."""
        for _ in range(_DUE):
            key = next(iter(self._young), None)
            if key is None:
                return False
            waiting = self._waiting[key]
            if waiting.since + self._settings.earmark_after_s + self._unseen > now:
                return False
            del self._young[key]
            self._due_of(waiting.priority, waiting.namespace)[key] = None
        return True

    def _due_of(self, priority: int, namespace: str) -> dict[str, None]:
        return self._due.setdefault(priority, {}).setdefault(namespace, {})

    def _pop_due(self) -> str | None:
        """Take out the gang whose turn is next; its namespace goes to the end."""
        if not self._due:
            return None
        namespaces = self._due[max(self._due)]
        namespace = next(iter(namespaces))
        key = next(iter(namespaces[namespace]))
        gangs = namespaces.pop(namespace)
        namespaces[namespace] = gangs
        self._drop_due(key)
        return key

    def _drop_due(self, key: str) -> bool:
        """Take a gang out of those whose turn may come; whether it was one."""
        waiting = self._waiting[key]
        namespaces = self._due.get(waiting.priority, {})
        gangs = namespaces.get(waiting.namespace, {})
        if key not in gangs:
            return False
        del gangs[key]
        if not gangs:
            del namespaces[waiting.namespace]
        if not namespaces:
            del self._due[waiting.priority]
        return True


# --- the best domain ------------------------------------------------------------------------------------


def best_domain(
    request: Request,
    snapshot: Snapshot,
    staying: Mapping[str, Resources] = _NONE,
    own: Iterable[Usage] = (),
    share: float = 1.0,
    avoid: Iterable[str] = (),
) -> Mapping[str, int]:
    """Return the nodes to keep for the gang, with the GPUs that it would take of each; none if none can help.

    A domain is one part of the required scope. The best one lacks the fewest GPUs that must still come free.
    Pods that hold GPUs count as pods that end, with all that they take; pods without GPUs and members of the
    gang itself count as staying. Members are counted the largest first onto the nodes with most free GPUs: a
    good guess, since the planner decides once enough has come free.

    `staying`: by node, what pods without GPUs take. `own`: what bound members of the gang take. `avoid` are
    nodes to leave out. The domain has at most this `share` of the cluster's GPUs, or one node.
    """
    avoid = frozenset(avoid)
    parts: dict[str, list[NodeState]] = {}
    gpus = 0
    for state in snapshot.nodes.values():
        gpus += state.node.topology.gpu_count
        part = _part(state.node, request.required_scope, snapshot)
        if part and state.node.name not in avoid:
            parts.setdefault(part, []).append(state)
    if request.required_scope is not None and request.running:
        there = (snapshot.nodes[member.node].node for member in request.running)
        running = {_part(node, request.required_scope, snapshot) for node in there}
        parts = {part: states for part, states in parts.items() if part in running}
    mine: dict[str, list[Usage]] = {}
    for usage in own:
        mine.setdefault(usage.node, []).append(usage)
    filling = _Filling(request, staying, mine, _STEPS)
    best: tuple[int, list[str]] | None = None
    wants: Mapping[str, int] = {}
    for states in parts.values():
        taken = filling.fill(states)
        by_name = {state.node.name: state for state in states} if taken else {}
        covered = sum(by_name[name].node.topology.gpu_count for name in taken)
        if not taken or (len(taken) > 1 and covered > share * gpus):
            continue
        missing = sum(max(0, count - by_name[name].free_gpu_count) for name, count in taken.items())
        if best is None or (missing, sorted(taken)) < best:
            best, wants = (missing, sorted(taken)), taken
    return wants


def _part(node: Node, scope: str | None, snapshot: Snapshot) -> str:
    if scope is None:
        return "all"
    if scope in (Scope.NODE, Scope.GPU):
        return node.name
    if scope == Scope.NVLINK_DOMAIN:
        return next((node.labels[label] for label in DOMAIN_LABELS if node.labels.get(label)), node.name)
    return part_of(node, scope, snapshot.levels)


@dataclass(slots=True)
class _Filling:
    """Counts members onto nodes on which all pods have ended that may end.

    By node, `staying` is what pods without GPUs take, and `own` what bound members take. `steps` bounds the
    work.
    """

    request: Request
    staying: Mapping[str, Resources]
    own: Mapping[str, list[Usage]]
    steps: int

    def fill(self, states: Iterable[NodeState]) -> dict[str, int]:
        """Return the GPUs taken of each node used; none if too few members fit or the steps are used up."""
        open_nodes = sorted(states, key=lambda state: (-state.free_gpu_count, state.node.name))
        left_over: dict[str, tuple[int, Resources]] = {}
        taken: dict[str, int] = {}
        for role, count in _needed(self.request):
            left = count if role.gpus else 0
            for state in open_nodes if left else ():
                self.steps -= 1
                if self.steps < 0:
                    return {}
                name = state.node.name
                if role.gpu_resource not in state.node.gpu_resources or refusal(state.node, role) is not None:
                    continue
                if name not in left_over:
                    left_over[name] = self._could_be_free(state.node)
                gpus, free = left_over[name]
                here = max(0, min(left, gpus // role.gpus, member_room(role.resources, free)))
                if here:
                    left_over[name] = (gpus - here * role.gpus, free - role.resources.times(here))
                    taken[name] = taken.get(name, 0) + here * role.gpus
                    left -= here
                if not left:
                    break
            if left:
                return {}
        return taken

    def _could_be_free(self, node: Node) -> tuple[int, Resources]:
        """Return the healthy GPUs and the rest that the node has once all pods have ended that may end."""
        gpus, unindexed = ((1 << node.topology.gpu_count) - 1) & ~node.unhealthy, 0
        free = node.allocatable - self.staying.get(node.name, _NOTHING)
        for usage in self.own.get(node.name, ()):
            if holds_gpus(usage):
                gpus &= ~usage.gpus
                unindexed += usage.unindexed_gpus
                free -= usage.resources
        return gpus.bit_count() - unindexed, free


def _needed(request: Request) -> Iterator[tuple[Role, int]]:
    """Yield how many members of each role must fit, the largest role first: as few large ones as will do."""
    needed, left = [], request.min_member
    for role in sorted(request.roles, key=lambda role: role.gpus):
        needed.append((role, min(left, len(role.members))))
        left -= needed[-1][1]
    yield from needed[::-1]
