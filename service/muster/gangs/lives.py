"""Moves gangs through their phases and gathers the instructions that follow. `life` has the table.

One rule keeps capacity honest: reservations begin in `plan_made`, and end only in `withdraw`, in `bindings`
or where the ledger sees a pod bound.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterable

from muster.domain.decision import Placed
from muster.domain.sentences import MAX_CHARACTERS, sentence
from muster.gangs import requests
from muster.gangs.calls import GivenBack
from muster.gangs.events import Decided
from muster.gangs.gang import Exclusion, Gang, Plan, Solving, usages
from muster.gangs.instructions import (
    EmitEvent,
    EventReason,
    Instruction,
    Outcome,
    PushVerdict,
    Solve,
)
from muster.gangs.ledger import Ledger, fits
from muster.gangs.life import Phase, Trigger, after
from muster.gangs.queue import Queue
from muster.gangs.roster import Group, Roster, planning_facts
from muster.gangs.settings import Settings

_SAID_ONCE = (EventReason.WAITING, EventReason.UNPLACEABLE)
"""Events whose numbers change with the cluster: one for the state, none for each number."""


class Lives:
    """All gangs, what they hold, and the queue to the planner."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.roster = Roster()
        self.ledger = Ledger()
        self.gangs: dict[str, Gang] = {}
        self.epoch: int | None = None
        self.synced = False
        self.frees = 0
        self.solving: Solving | None = None
        self._queue = Queue()
        self._generation = 0
        self._unplaceable: set[str] = set()
        self._timers: list[tuple[float, str]] = []
        self._out: list[Instruction] = []

    @property
    def active(self) -> bool:
        """Whether plans are made: the cluster is known and a shim listens."""
        return self.synced and self.epoch is not None

    def take_instructions(self) -> list[Instruction]:
        """What has gathered, with the next Solve where the planner is idle."""
        self._pump()
        out, self._out = self._out, []
        return out

    # --- members ------------------------------------------------------------------------------------

    def members_changed(self, gang: Gang, group: Group, now: float) -> None:
        """Look at a gang again whose pods changed."""
        same = gang.group.facts == group.facts
        gang.group, gang.stale = group, False
        if gang.phase is Phase.PERMITTED:
            self.bindings(gang, now)
        elif same:
            return
        elif gang.phase in (Phase.PLANNED, Phase.RESERVING):
            void = self._why_void(gang)
            if void:
                self.withdraw(gang, Trigger.MEMBERS_CHANGED, void, now)
        else:
            gang.attempts = 0
            self.settle(gang, now)

    def fresh(self, gang: Gang) -> Group:
        """The gang's group, counted again if it is stale."""
        if gang.stale:
            groups = {group.gang.key: group for group in self.roster.groups(gang.name)}
            gang.group, gang.stale = groups.get(gang.key, gang.group), False
        return gang.group

    def _why_void(self, gang: Gang) -> str:
        """Why the members do not bear the plan any more; "" where they do."""
        plan, group = gang.plan, gang.group
        assert plan is not None
        if group.causes:
            return sentence(group.causes)
        there = {pod.uid: pod for pod in group.unbound}
        for uid, pod in plan.pods.items():
            now = there.get(uid)
            if now is None:
                return f"pod {pod.name} went, was bound elsewhere or can't be scheduled any more"
            if planning_facts(now) != planning_facts(pod):
                return f"pod {pod.name} was changed"
        return sentence((group.waits_for,)) if group.waits_for is not None else ""

    def settle(self, gang: Gang, now: float) -> None:
        """Go where the members alone say."""
        group = self.fresh(gang)
        if not group.unbound:
            self._go(gang, Trigger.ALL_BOUND)
            gang.attempts, gang.reason, gang.verdict, gang.announced = 0, "", None, None
            gang.refusals = {}
        elif group.causes:
            self._go(gang, Trigger.ILL_FORMED)
            self.refuse(gang, EventReason.INVALID, sentence(group.causes))
        elif group.waits_for is not None:
            self._go(gang, Trigger.MEMBERS_MISSING)
            gang.reason = sentence((group.waits_for,))
            self._gate(gang)
            self.arm(gang, now + self.settings.waiting_s)
        else:
            self._go(gang, Trigger.COMPLETE)
            gang.overtaken = False
            gang.exclusions = {pair: out for pair, out in gang.exclusions.items() if out.until > now}
            self._enqueue(gang)

    def _gate(self, gang: Gang) -> None:
        """Take a refusal back: its pods are held in silence again."""
        if gang.verdict is not None and gang.verdict.outcome is not Outcome.WITHDRAWN:
            self._push(gang, gang.verdict.generation, Outcome.WITHDRAWN, gang.verdict.members, gang.reason)

    # --- planning -----------------------------------------------------------------------------------

    def _enqueue(self, gang: Gang) -> None:
        self._generation += 1
        gang.generation = self._generation
        gang.plan, gang.lost = None, ""
        self._queue.put(gang.key, requests.priority(gang.group), requests.created(gang.group))

    def again(self, gang: Gang, trigger: Trigger) -> None:
        """Plan a gang once more that is unplaceable, or whose answer came too late."""
        gang.overtaken = trigger is Trigger.OUTDATED
        self._go(gang, trigger)
        self._enqueue(gang)

    def pause(self, gang: Gang, now: float) -> None:
        """Answers are overtaken again and again: leave the planner to others for a moment."""
        self._go(gang, Trigger.OVERTAKEN)
        self.arm(gang, now + self.settings.recheck_s)

    def bears(self, gang: Gang) -> bool:
        """Whether what the plan takes is still there for it, whatever others have taken since."""
        plan = gang.plan
        return plan is not None and fits(self.ledger.without(set(plan.order)), usages(plan.placed, plan.pods))

    def freed(self) -> None:
        """Something came free: what did not fit is looked at again."""
        self.frees += 1
        for key in sorted(self._unplaceable):
            self.again(self.gangs[key], Trigger.FREED)

    def _pump(self) -> None:
        """Ask for the next plan, one at a time: its snapshot must hold what the one before took."""
        if self.solving is not None or not self.active:
            return
        key = self._queue.pop()
        if key is None:
            return
        gang = self.gangs[key]
        request = requests.request(gang.group, self.ledger, self.roster.policies)
        snapshot = self.ledger.snapshot()
        excluded = gang.excluded(request.roles, {pod.uid: pod for pod in gang.group.unbound})
        self.solving = Solving(key, gang.generation, request, snapshot, self.frees)
        self._out.append(Solve(key, gang.generation, request, snapshot, excluded))

    def plan_made(self, gang: Gang, solving: Solving, placed: Placed, event: Decided) -> None:
        """Reserve what the planner chose and tell the shim."""
        there = {pod.uid: pod for pod in gang.group.unbound}
        pods = {member.uid: there[member.uid] for member in placed.members}
        asked = [member.uid for role in solving.request.roles for member in role.members]
        order = tuple(uid for uid in asked if uid in pods)
        gang.plan = Plan(gang.generation, solving.request, placed, pods, order, event.trace_id)
        gang.reason = ""
        self.ledger.hold(usages(placed, pods))
        self._go(gang, Trigger.PLACED)
        self.arm(gang, event.now + self.settings.plan_s)
        required = min(solving.request.min_member, len(order))
        self._push(gang, gang.generation, Outcome.PLANNED, gang.plan.members, required=required)

    def nothing_fits(self, gang: Gang, text: str, again_at: float = math.inf) -> None:
        """The planner's no: the pods are let through once, to show it. `again_at` is when it is asked again
        though nothing changes."""
        self._go(gang, Trigger.NOTHING_FITS)
        self._unplaceable.add(gang.key)
        left_out = [
            f"{node} ({out.plugin}: {out.message[:80]})" for (_, node), out in gang.exclusions.items()
        ]
        if left_out:
            more = f" and {len(left_out) - 3} more" if len(left_out) > 3 else ""
            text = f"{text}. Left out for a while: {', '.join(left_out[:3])}{more}"
            again_at = min(again_at, *(out.until for out in gang.exclusions.values()))
        if again_at < math.inf:
            self.arm(gang, again_at)
        self.refuse(gang, EventReason.UNPLACEABLE, text)

    def refuse(self, gang: Gang, event: EventReason, text: str) -> None:
        """Show why: in the pods' condition for each new sentence, in an event for each new state."""
        gang.reason = text = _short(text)
        last = gang.verdict
        members = gang.waiting()
        said = last is not None and last.outcome is Outcome.REFUSED
        if last is None or not said or (last.reason, last.members) != (text, members):
            # The shim lets a pod through once for each generation.
            if not gang.generation or (last is not None and last.generation == gang.generation):
                self._generation += 1
                gang.generation = self._generation
            self._push(gang, gang.generation, Outcome.REFUSED, members, text)
        self.emit(gang, event, text)

    # --- plans end ----------------------------------------------------------------------------------

    def not_decided(self, gang: Gang, text: str, now: float) -> None:
        """The planner failed, or gave up with no proof: asked again after a pause, longer each time."""
        gang.attempts += 1
        self.nothing_fits(gang, text, now + self.settings.backoff(gang.attempts))

    def withdraw(
        self, gang: Gang, trigger: Trigger, why: str, now: float, pause: bool = False, learnt: bool = False
    ) -> None:
        """Void the plan, free what it holds, and plan again: at once where something was `learnt` that will
        not be asked twice, a few times in a row where something may have been, else after a `pause`."""
        why, plan, silent = _short(why), gang.plan, trigger is Trigger.SESSION_OVER
        members = gang.verdict.members if gang.verdict is not None else gang.waiting()
        generation = plan.generation if plan is not None else gang.generation
        held = [*gang.awaited, *(plan.order if plan is not None else ())]
        self._go(gang, trigger)
        gang.plan, gang.reason, gang.lost = None, why, ""
        if not silent:
            gang.attempts += not learnt
            self._push(gang, generation, Outcome.WITHDRAWN, members, why)
            self.emit(gang, EventReason.WITHDRAWN, f"plan withdrawn: {why}")
        if self.ledger.release(held):
            self.freed()
        if pause or (not learnt and gang.attempts > self.settings.prompt_retries):
            self.arm(gang, now + self.settings.backoff(gang.attempts))
        else:
            self.settle(gang, now)

    def exclude(self, gang: Gang, uid: str, back: GivenBack, now: float) -> bool:
        """Leave the node out for what asks like this member, longer each time; whether this is the first."""
        if gang.plan is None:
            return False
        pair = (requests.asks(gang.plan.pods[uid]), back.node)
        gang.refusals[pair] = gang.refusals.get(pair, 0) + 1
        until = now + self.settings.exclusion(gang.refusals[pair])
        gang.exclusions[pair] = Exclusion(until, back.plugin, back.message)
        return gang.refusals[pair] == 1

    def reserved(self, gang: Gang) -> None:
        """Its first member reserves: the plan's deadline stays."""
        gang.phase = after(gang.phase, Trigger.RESERVED)

    def permitted(self, gang: Gang, now: float) -> None:
        """From here on Bindings may be under way."""
        plan = gang.plan
        assert plan is not None
        self._go(gang, Trigger.PERMITTED)
        gang.lost = ""
        gang.awaited = dict.fromkeys(plan.order, now + self.settings.bind_s)
        self.arm(gang, now + self.settings.bind_s)

    def in_flight(self, gang: Gang, uid: str, now: float) -> None:
        """A new session's shim may have sent this member's Binding."""
        if gang.phase is not Phase.PERMITTED:
            self._go(gang, Trigger.IN_FLIGHT)
            gang.plan, gang.lost = None, ""
        gang.awaited[uid] = now + self.settings.bind_s
        self.arm(gang, min(gang.awaited.values()))

    def bindings(self, gang: Gang, now: float, late: bool = False) -> None:
        """Strike off the awaited members that are settled: seen bound, gone, given back, or (`late`) given
        up; when none is left, go on with what the members say."""
        unbound = {pod.uid for pod in self.fresh(gang).unbound}
        settled = [
            uid
            for uid, until in gang.awaited.items()
            if uid not in unbound or uid not in self.ledger.held or (late and until <= now)
        ]
        for uid in settled:
            if uid in unbound and uid in self.ledger.held:
                pod = next(pod for pod in gang.group.unbound if pod.uid == uid)
                gang.lost = f"pod {pod.name} was not seen bound within {self.settings.bind_s:g} s"
            del gang.awaited[uid]
        if self.ledger.release(settled):
            self.freed()
        if gang.awaited:
            self.arm(gang, min(gang.awaited.values()))
        elif gang.lost and gang.group.unbound:
            trigger = Trigger.TOO_LATE if late else Trigger.GIVEN_BACK
            self.withdraw(gang, trigger, gang.lost, now, pause=True)
        else:
            self.settle(gang, now)

    def finish(self, gang: Gang) -> dict[str, float]:
        """Forget a gang. Returns the members whose Bindings may still be under way, with their deadlines."""
        awaited = dict(gang.awaited)
        held = [uid for uid in (gang.plan.order if gang.plan is not None else ()) if uid not in awaited]
        gang.reason = "its pods are gone"
        self._gate(gang)
        self._go(gang, Trigger.ALL_GONE)
        del self.gangs[gang.key]
        self._queue.forget(gang.key)
        if self.ledger.release(held):
            self.freed()
        return awaited

    # --- what goes out ------------------------------------------------------------------------------

    def _go(self, gang: Gang, trigger: Trigger) -> None:
        gang.phase = after(gang.phase, trigger)
        gang.deadline = None
        if gang.phase is not Phase.PERMITTED:
            gang.awaited = {}
        self._unplaceable.discard(gang.key)
        self._queue.drop(gang.key)

    def _push(
        self,
        gang: Gang,
        generation: int,
        outcome: Outcome,
        members: tuple[tuple[str, str], ...],
        reason: str = "",
        required: int = 0,
    ) -> None:
        if not self.active:
            return
        namespace = gang.group.gang.namespace
        required = required or min(max(1, gang.group.needed), len(members))
        gang.verdict = PushVerdict(gang.key, generation, outcome, namespace, members, required, reason)
        self._out.append(gang.verdict)

    def emit(
        self, gang: Gang, reason: EventReason, message: str, pods: tuple[tuple[str, str], ...] = ()
    ) -> None:
        """One event on each of these pods, or on each waiting member, once for each change of state."""
        said = (reason, "" if reason in _SAID_ONCE else message)
        pods = pods or gang.waiting()
        if self.active and pods and gang.announced != said:
            gang.announced = said
            self._out.append(EmitEvent(gang.group.gang.namespace, pods, reason, message))

    def instruct(self, instruction: Instruction) -> None:
        """Have this done beside what the gangs ask for."""
        self._out.append(instruction)

    def new_session(self, gang: Gang, now: float) -> None:
        """Tell a shim that has just connected what it must know, and count its times from now."""
        gang.verdict = None
        if gang.phase is Phase.INVALID:
            self.refuse(gang, EventReason.INVALID, gang.reason)
        elif gang.phase is Phase.UNPLACEABLE:
            self.refuse(gang, EventReason.UNPLACEABLE, gang.reason)
        elif gang.phase is Phase.COLLECTING:
            self.arm(gang, now + self.settings.waiting_s)

    # --- time ---------------------------------------------------------------------------------------

    def arm(self, gang: Gang, when: float) -> None:
        """Look at the gang again then."""
        gang.deadline = when
        heapq.heappush(self._timers, (when, gang.key))

    def next_deadline(self) -> float | None:
        """When a Tick is due at the latest; it may come to nothing."""
        while self._timers:
            when, key = self._timers[0]
            gang = self.gangs.get(key)
            if gang is not None and gang.deadline == when:
                return when
            heapq.heappop(self._timers)
        return None

    def due(self, now: float) -> Iterable[Gang]:
        """The gangs whose deadline has passed, each once."""
        while (when := self.next_deadline()) is not None and when <= now:
            _, key = heapq.heappop(self._timers)
            gang = self.gangs[key]
            gang.deadline = None
            yield gang


def _short(text: str) -> str:
    """As long as our sentences are: what a plugin or the planner said may be of any length."""
    return text if len(text) <= MAX_CHARACTERS else text[: MAX_CHARACTERS - 1] + "…"
