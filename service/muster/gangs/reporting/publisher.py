"""Publish verdicts to the shim and events to users, each once.

A refusal costs a scheduling cycle and a condition of each pod. So a refusal is published once for each set of
causes, to the members that have not received it. If only its numbers change, it is published again after
`numbers_s`. Events are posted only on the gang's first pod and on its PodGroup or controller, however many
members the gang has.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from zlib import crc32

from muster.domain.causes.ill_formed import BadValue, MembersDisagree
from muster.domain.causes.not_planned import RefusedEverywhere
from muster.domain.causes.too_little import RoomTaken
from muster.domain.pod import Controller
from muster.domain.reasons import Cause
from muster.domain.sentences import MAX_CHARACTERS
from muster.gangs.messages.instructions import (
    EmitEvent,
    EventReason,
    Instruction,
    Moved,
    Outcome,
    PushVerdict,
    ShowWaiting,
)
from muster.gangs.messages.settings import GangSettings
from muster.gangs.record.gang import Gang, Timer, Timers, blocking_causes
from muster.gangs.record.phases import Phase

_ONCE_PER_KINDS = (EventReason.WAITING, EventReason.UNPLACEABLE)
"""Events that are posted once for each set of kinds of causes: their numbers change with the cluster."""

Kinds = tuple[str, ...]
"""The kinds of causes in a refusal, without their numbers."""


class Publisher:
    """Collect instructions. `listening` returns whether a shim is connected to carry them out."""

    def __init__(
        self, settings: GangSettings, timers: Timers, numbers: Iterator[int], listening: Callable[[], bool]
    ) -> None:
        self._settings = settings
        self._timers = timers
        self._numbers = numbers
        self.listening = listening
        self._out: list[Instruction] = []

    @property
    def now(self) -> float:
        """Return the time of the input or call that is being handled."""
        return self._timers.now()

    def instruct(self, instruction: Instruction) -> None:
        """Add an instruction."""
        self._out.append(instruction)

    def take(self) -> list[Instruction]:
        """Return the gathered instructions, and start anew."""
        instructions, self._out = self._out, []
        return instructions

    def note_move(self, gang: Gang, why: str) -> None:
        """Add the instruction `Moved`: the gang has entered another phase."""
        group, link = gang.group, ""
        if gang.phase is Phase.PLANNING:
            link = next((pod.traceparent for pod in group.unbound if pod.traceparent), "")
        name, namespace = group.gang.name, group.gang.namespace
        self._out.append(Moved(self.now, gang.key, name, namespace, gang.phase, why, link))

    def push(
        self,
        gang: Gang,
        generation: int,
        outcome: Outcome,
        members: tuple[tuple[str, str], ...],
        reason: str = "",
        required: int = 0,
    ) -> None:
        """Publish a verdict, which replaces the gang's last verdict."""
        if self.listening():
            required = required or min(max(1, gang.group.needed), len(members))
            namespace = gang.group.gang.namespace
            gang.verdict = PushVerdict(gang.key, generation, outcome, namespace, members, required, reason)
            self._out.append(gang.verdict)

    def withdraw_verdict(self, gang: Gang) -> None:
        """Withdraw the gang's verdict: the shim holds the gang's pods again, without a reason."""
        if gang.verdict is not None and gang.verdict.outcome is not Outcome.WITHDRAWN:
            self.push(gang, gang.verdict.generation, Outcome.WITHDRAWN, gang.verdict.members, gang.reason)

    def refuse(self, gang: Gang, event: EventReason, kinds: Kinds, text: str) -> None:
        """Publish why the gang does not fit, to the members that have not received it.

        The shim lets each pod through PreEnqueue once for each generation. So with a new generation
        kube-scheduler sets the new sentence on all pods.
        """
        self.take_back_waiting(gang)
        gang.reason = text = shorten(text)
        last, members = gang.verdict, gang.waiting_members()
        if last is not None and last.outcome is Outcome.REFUSED and gang.refusal_kinds == kinds:
            again_at = gang.refused_at + self._settings.numbers_s
            if text == last.reason or self.now < again_at:
                if text != last.reason:
                    self._timers.set(gang, again_at, Timer.REPORT_REFUSAL)
                if not set(members) <= set(last.members):
                    self.push(gang, last.generation, Outcome.REFUSED, members, last.reason)
                return
        if not gang.generation or (last is not None and last.generation == gang.generation):
            gang.generation = next(self._numbers)
        gang.refusal_kinds, gang.refused_at = kinds, self.now
        self.push(gang, gang.generation, Outcome.REFUSED, members, text)
        self.emit(gang, event, text)

    def forget(self, gang: Gang) -> None:
        """Forget what was published about the gang: no shim received it, or the gang runs now.

        Whether its pods have the condition of waiting is unknown from then on.
        """
        gang.verdict, gang.waiting_shown_at, gang.waiting_taken_back = None, -math.inf, False

    def show_waiting(self, gang: Gang) -> None:
        """Set a condition on the waiting pods of an incomplete gang: the cause for which it waits.

        No scheduling cycle sets this condition, because the shim holds these pods before the first cycle. New
        pods get the condition now. Other pods get it again after `numbers_s`, because a write may fail, and
        an additional delay that spreads the gangs over several Ticks.
        """
        cause = gang.group.waits_for
        if cause is None or not self.listening():
            return
        again_s = self._settings.numbers_s * (1 + crc32(gang.key.encode()) / 2**33)
        renew = self.now >= gang.waiting_shown_at + again_s
        if renew:
            gang.waiting_shown_at, gang.waiting_taken_back = self.now, False
        self._timers.set(gang, gang.waiting_shown_at + again_s)
        namespace, reason = gang.group.gang.namespace, type(cause).__name__
        self._out.append(ShowWaiting(namespace, gang.waiting_members(), reason, shorten(gang.reason), renew))

    def take_back_waiting(self, gang: Gang) -> None:
        """Take back the condition that says why the gang waits: it is complete, or its pods get another
        reason."""
        if self.listening() and not gang.waiting_taken_back:
            gang.waiting_shown_at, gang.waiting_taken_back = -math.inf, True
            self._out.append(ShowWaiting(gang.group.gang.namespace, gang.waiting_members()))

    def emit(
        self, gang: Gang, reason: EventReason, message: str, pods: tuple[tuple[str, str], ...] = ()
    ) -> None:
        """Post an event on the gang, unless it was the gang's last event. Numbers alone make no other event.

        The event is posted on the first of `pods` by name; by default `pods` are the waiting members. It is
        also posted on the gang's PodGroup, or, without a PodGroup, on the controller of that pod.
        """
        event = (reason, "; ".join(kinds_of(blocking_causes(gang))) if reason in _ONCE_PER_KINDS else message)
        pods = pods or gang.waiting_members()
        if self.listening() and pods and gang.last_event != event:
            gang.last_event = event
            namespace = gang.group.gang.namespace
            first = min(pods)
            self._out.append(EmitEvent(namespace, (first,), reason, message))
            if (group := gang.group.pod_group) is not None:
                objects = ((group.owner.name if group.owner else group.name, group.uid),)
                self._out.append(
                    EmitEvent(namespace, objects, reason, message, group.kind, group.api_version)
                )
            elif (controller := _controller(gang, first[1])) is not None:
                objects = ((controller.name, controller.uid),)
                self._out.append(
                    EmitEvent(namespace, objects, reason, message, controller.kind, controller.api_version)
                )


def _controller(gang: Gang, uid: str) -> Controller | None:
    """Return the controller of a member; None for a bare pod, or if the pod is gone."""
    members = (*gang.group.unbound, *gang.group.bound)
    return next((pod.controller for pod in members if pod.uid == uid), None)


def shorten(text: str) -> str:
    """Return the text, cut to the largest length of our sentences: plugins may return any length."""
    return text if len(text) <= MAX_CHARACTERS else text[: MAX_CHARACTERS - 1] + "…"


def kinds_of(causes: Iterable[Cause]) -> Kinds:
    """Return the kinds of causes: what differs between causes apart from numbers and domains."""
    return tuple(_kind(cause) for cause in causes if not isinstance(cause, RoomTaken))


def _kind(cause: Cause) -> str:
    name = type(cause).__name__
    match cause:
        case BadValue():
            return f"{name} {cause.field} {cause.value}"
        case MembersDisagree():
            return f"{name} {cause.field}"
        case RefusedEverywhere():
            return f"{name} {cause.by}"
        case _:
            return name
