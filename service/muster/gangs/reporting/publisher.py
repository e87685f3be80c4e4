"""What the shim and the users are told: verdicts and events, none of them twice.

A refusal is worth a scheduling cycle and a condition of each pod: it is given once for each kind of reason,
to those that have not had it. Where only its numbers change, they are told at a slow rate. Events are posted
on the gang's first pod and on its PodGroup or controller alone, however many members the gang has.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

from muster.domain.pod import Controller
from muster.domain.sentences import MAX_CHARACTERS
from muster.gangs.messages.instructions import EmitEvent, EventReason, Instruction, Outcome, PushVerdict
from muster.gangs.messages.settings import Settings
from muster.gangs.record.gang import Gang, Timer
from muster.gangs.record.timers import Timers

_ONCE_PER_STATE = (EventReason.WAITING, EventReason.UNPLACEABLE)
"""Events whose numbers change with the cluster: one for the state, none for each number."""

Kinds = tuple[str, ...]
"""What kinds of reasons a refusal has, whatever their numbers."""


class Publisher:
    """Gathers instructions. `listening` says whether anybody is there to carry them out."""

    def __init__(
        self, settings: Settings, timers: Timers, numbers: Iterator[int], listening: Callable[[], bool]
    ) -> None:
        self._settings = settings
        self._timers = timers
        self._numbers = numbers
        self._listening = listening
        self._out: list[Instruction] = []

    def instruct(self, instruction: Instruction) -> None:
        """Have this done."""
        self._out.append(instruction)

    def take(self) -> list[Instruction]:
        """What has gathered."""
        out, self._out = self._out, []
        return out

    def push(
        self,
        gang: Gang,
        generation: int,
        outcome: Outcome,
        members: tuple[tuple[str, str], ...],
        reason: str = "",
        required: int = 0,
    ) -> None:
        """A verdict, which replaces the gang's last one."""
        if self._listening():
            required = required or min(max(1, gang.group.needed), len(members))
            namespace = gang.group.gang.namespace
            gang.verdict = PushVerdict(gang.key, generation, outcome, namespace, members, required, reason)
            self._out.append(gang.verdict)

    def withdraw_verdict(self, gang: Gang) -> None:
        """Take a verdict back: the gang's pods are held in silence again."""
        if gang.verdict is not None and gang.verdict.outcome is not Outcome.WITHDRAWN:
            self.push(gang, gang.verdict.generation, Outcome.WITHDRAWN, gang.verdict.members, gang.reason)

    def refuse(self, gang: Gang, event: EventReason, kinds: Kinds, text: str, now: float) -> None:
        """Say why not, to the members that have not heard it. The shim lets a pod through once for each
        generation: a new one has all of them fail again, with the new sentence."""
        gang.reason = text = short(text)
        last, members = gang.verdict, gang.waiting()
        if last is not None and last.outcome is Outcome.REFUSED and gang.kinds == kinds:
            again_at = gang.refused_at + self._settings.numbers_s
            if text == last.reason or now < again_at:
                if text != last.reason:
                    self._timers.set(gang, again_at, Timer.REFUSAL)
                if not set(members) <= set(last.members):
                    self.push(gang, last.generation, Outcome.REFUSED, members, last.reason)
                return
        if not gang.generation or (last is not None and last.generation == gang.generation):
            gang.generation = next(self._numbers)
        gang.kinds, gang.refused_at = kinds, now
        self.push(gang, gang.generation, Outcome.REFUSED, members, text)
        self.emit(gang, event, text)

    def forget(self, gang: Gang) -> None:
        """Nothing of what was said of the gang holds any more, or nobody has heard it."""
        gang.verdict, gang.kinds, gang.refused_at = None, (), -math.inf

    def emit(
        self, gang: Gang, reason: EventReason, message: str, pods: tuple[tuple[str, str], ...] = ()
    ) -> None:
        """Post one event on the gang, once for each change of state.

        It is posted on the first of `pods` by name (the waiting members where none are given), and on the
        gang's PodGroup, or where it has none on the controller of that pod.
        """
        announcement = (reason, "" if reason in _ONCE_PER_STATE else message)
        pods = pods or gang.waiting()
        if self._listening() and pods and gang.announced != announcement:
            gang.announced = announcement
            namespace = gang.group.gang.namespace
            first = min(pods)
            self._out.append(EmitEvent(namespace, (first,), reason, message))
            if (group := gang.group.pod_group) is not None:
                where = ((group.name, group.uid),)
                self._out.append(EmitEvent(namespace, where, reason, message, "PodGroup", group.api_version))
            elif (by := _controller(gang, first[1])) is not None:
                where = ((by.name, by.uid),)
                self._out.append(EmitEvent(namespace, where, reason, message, by.kind, by.api_version))


def _controller(gang: Gang, uid: str) -> Controller | None:
    """Return the controller of a member; None for a bare pod, or where the pod has gone."""
    members = (*gang.group.unbound, *gang.group.bound)
    return next((pod.controller for pod in members if pod.uid == uid), None)


def short(text: str) -> str:
    """As long as our sentences are: what a plugin or the planner said may be of any length."""
    return text if len(text) <= MAX_CHARACTERS else text[: MAX_CHARACTERS - 1] + "…"
