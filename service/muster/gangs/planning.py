"""From the queue to a plan or a refusal: the part of the gangs' lives in which the planner is asked.

One rule keeps capacity honest: reservations begin in `plan_made`, with what a session has
in flight and where a member moves, and end only in
`Kept.let_go`, with an orphan, or where the ledger sees a pod bound.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Mapping
from dataclasses import replace

from muster.domain.decision import Placed
from muster.domain.pod import Batch, Pod
from muster.domain.reasons import (
    BadValue,
    Cause,
    ClaimsMissing,
    ClusterTooSmall,
    MembersDisagree,
    MemberTooLarge,
    RefusedEverywhere,
    TooManyRoles,
)
from muster.domain.request import Request, Role
from muster.domain.sentences import sentence
from muster.domain.snapshot import Snapshot
from muster.gangs import requests
from muster.gangs.alarms import Alarms
from muster.gangs.backlog import Backlog
from muster.gangs.calls import GivenBack
from muster.gangs.earmark import Earmark, Earmarks, hidden_by
from muster.gangs.events import Decided
from muster.gangs.gang import Alarm, Exclusion, Gang, Plan, Solving, usages
from muster.gangs.halves import is_half
from muster.gangs.instructions import EndSolve, EventReason, Instruction, Outcome, Solve
from muster.gangs.intree import MODELLED, InTree
from muster.gangs.kept import Kept
from muster.gangs.ledger import Ledger, fits
from muster.gangs.life import Phase, Trigger, after
from muster.gangs.needs import Needs
from muster.gangs.queue import namespace_of
from muster.gangs.roster import Group, Roster
from muster.gangs.settings import Settings
from muster.gangs.turns import Turns
from muster.gangs.voice import Kinds, Voice
from muster.placement.exclusions import ByRole
from muster.placement.order import scheduling_order

_WAITING = (Phase.PLANNING, Phase.UNPLACEABLE, Phase.WITHDRAWN)
"""Phases in which a gang that was refused still waits."""
_WOKEN_AT_ONCE = 250
"""Refused gangs that are queued again in one event, some 5 ms, or 40 ms if each has 32 terms. The
others follow in the next events."""
_AT_ONCE = 32
"""Gangs that are looked at for one event at most, until one is for the planner."""
_PROMPT = 16
"""Nodes that are tried one after another without a pause, as plugins refuse them."""
_NEVER = {
    cause.__name__
    for cause in (MemberTooLarge, ClusterTooSmall, ClaimsMissing, RefusedEverywhere, TooManyRoles)
}
"""Kinds of reasons that nothing that ends will change."""


class Planning:
    """All gangs, what they hold, and who is planned next."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.roster = Roster()
        self.ledger = Ledger()
        self.gangs: dict[str, Gang] = {}
        self.now = 0.0
        """Of the event or call that is being handled."""
        self.epoch: int | None = None
        self.synced = False
        self.silent = False
        self.solving: Solving | None = None
        self.numbers = itertools.count(1)
        """Of plans and refusals, over all gangs."""
        self.alarms = Alarms(self.gangs, lambda: self.now)
        self.voice = Voice(settings, self.alarms, self.numbers, lambda: self.active)
        self.backlog = Backlog(self.ledger)
        self.to_wake: dict[str, None] = {}
        """Keys of refused gangs that something may help and that are not in the queue again yet, in order."""
        self.kept = Kept(self.gangs, self.ledger)
        self.turns = Turns()
        self.earmarks = Earmarks(settings, self.ledger)
        self.in_tree = InTree()
        self.ahead: dict[str, int] = {}
        """Members of the gangs that are planned and not permitted yet."""

    @property
    def active(self) -> bool:
        """Whether anybody is told anything: the cluster is known and a shim listens."""
        return self.synced and self.epoch is not None

    @property
    def earmark(self) -> Earmark | None:
        """Return the earmark that is given now."""
        return self.earmarks.current

    def take_instructions(self) -> list[Instruction]:
        """What has gathered, with the next Solve where the planner is idle. What came free since this was
        last asked is looked at here, whatever freed it."""
        if self.ledger.gained or self.ledger.neighbours.marks:
            self.freed()
        self._pump()
        return self.voice.take()

    def fresh(self, gang: Gang) -> Group:
        """The gang's group, counted again if it is stale. Where owners are dealt to other gangs by now, it
        stays as it was until all of its name are looked at, which is soon."""
        group = self.counted(gang)
        if group is None:
            self.alarms.set(gang, self.now, Alarm.COUNT)
        return group or gang.group

    def counted(self, gang: Gang) -> Group | None:
        """The gang's group, counted again if it is stale; None where owners are dealt to others by now."""
        if gang.stale:
            # The key alone will not do: it does not tell that some pods have no owner.
            groups = {(group.gang.key, group.owners): group for group in self.roster.groups(gang.name)}
            same = groups.get((gang.key, gang.group.owners))
            if same is None:
                return None
            gang.group, gang.stale, gang.landed = same, False, 0
        return gang.group

    def enqueue(self, gang: Gang) -> None:
        """It waits for the planner from now on."""
        gang.generation = next(self.numbers)
        gang.plan, gang.lost = None, ""
        self.wait_for_planner(gang)

    def wait_for_planner(self, gang: Gang) -> None:
        """It has a place in the queue; its generation stays."""
        partial = is_half(gang)
        self.backlog.wait(gang, partial, first=partial and self.kept.covers(gang))

    def answered(self, gang: Gang, changed: bool) -> None:
        """In-tree plugins have answered for the gang, for the first time or anew."""
        if changed:
            gang.exclusions = {pair: out for pair, out in gang.exclusions.items() if out.plugin in MODELLED}
        if gang.alarms.pop(Alarm.ANSWERS, None) is not None:
            self.wait_for_planner(gang)
        elif changed and gang.phase is Phase.UNPLACEABLE and Alarm.COUNT not in gang.alarms:
            self.again(gang, Trigger.FREED)

    def again(self, gang: Gang, trigger: Trigger) -> None:
        """Plan a gang once more that is unplaceable, or whose answer came too late."""
        gang.overtaken = trigger is Trigger.OUTDATED
        self.go(gang, trigger)
        self.enqueue(gang)

    def pause(self, gang: Gang, now: float) -> None:
        """Answers are overtaken again and again: leave the planner to others for a moment."""
        self.go(gang, Trigger.OVERTAKEN)
        self.alarms.set(gang, now + self.settings.recheck_s)

    def bears(self, gang: Gang) -> bool:
        """Whether what the plan takes is still there for it, whatever others have taken since."""
        plan = gang.plan
        return plan is not None and fits(self.ledger.without(set(plan.order)), usages(plan.placed, plan.pods))

    def freed(self, anywhere: bool = False) -> None:
        """Something came free on the nodes that gained, or may have `anywhere`: what did not fit and may fit
        now is looked at again."""
        update_at = self.now + self.settings.numbers_s
        marks = self.ledger.neighbours.take_marks()
        woken = self.backlog.freed(self.ledger.take_gained(), marks, anywhere, update_at)
        self.to_wake |= dict.fromkeys(woken)

    def _wake(self) -> None:
        """Plan gangs again that something may help, so many for each event: the event loop is not held up.
        The planner is asked when all have their place in the queue, so that they keep their order."""
        for _ in range(min(_WOKEN_AT_ONCE, len(self.to_wake))):
            key = next(iter(self.to_wake))
            del self.to_wake[key]
            gang = self.gangs.get(key)
            if gang is None or gang.phase is not Phase.UNPLACEABLE:
                continue  # it was planned again meanwhile, for another reason
            if Alarm.COUNT not in gang.alarms:  # else it is planned again soon, once it is counted
                self.again(gang, Trigger.FREED)

    def _pump(self) -> None:
        """Ask for the next plan, one at a time: its snapshot must hold what the one before took."""
        self._wake()
        if self.solving is not None:
            if self.backlog.waiting and self.turns.late(self.now):
                self.voice.instruct(EndSolve(self.solving.gang, self.solving.generation))
            return
        if self.to_wake or not self.active or self.silent:
            return
        for _ in range(_AT_ONCE):
            gang = self._next()
            if gang is None or (not self._asks_in_tree(gang) and self._solve(gang)):
                return
        self.backlog.update_at = self.now  # a Tick goes on: one event must not take long

    def _next(self) -> Gang | None:
        """The gang that is planned now. None far ahead of the shim: what waits there for its turn was planned
        on old facts, its time runs, and what is more urgent comes after it. Half gangs do not wait for that:
        their grace may be over before."""
        far_ahead = sum(self.ahead.values()) >= self.settings.ahead
        key = self.backlog.next(far_ahead, self.turns.resting(self.now))
        while key is None and not far_ahead and (old := self.backlog.next_to_update()) is not None:
            gang = self.gangs.get(old)
            if gang is not None and gang.phase is Phase.UNPLACEABLE and Alarm.COUNT not in gang.alarms:
                self.again(gang, Trigger.FREED)
                key = self.backlog.next()
        return self.gangs[key] if key is not None else None

    def _asks_in_tree(self, gang: Gang) -> bool:
        """Have in-tree plugins asked about the gang first, if it needs that; whether it waits for answers."""
        self.fresh(gang)
        question = self.in_tree.ask(gang, self.now + self.settings.answers_s)
        if question is not None:
            self.voice.instruct(question)
        until = self.in_tree.awaits(gang.key)
        if until <= self.now:
            return False
        self.alarms.set(gang, until, Alarm.ANSWERS)
        return True

    def _solve(self, gang: Gang) -> bool:
        """Ask the planner about the gang; False if it was refused without, for what plugins answered."""
        request = requests.request(self.fresh(gang), self.ledger, self.roster.policies)
        snapshot = self.open_to(gang)
        causes = self.in_tree.causes(gang, request)
        request = self.in_tree.refine(gang.key, request)
        gang.arrived = None
        watched = requests.watched(gang.group, self.ledger) if request.constraints else None
        gang.needs = Needs.of(request, watched)
        self.in_tree.used(gang.key)
        if causes:
            self.refused(gang, causes, sentence(causes), self.now)
            return False
        excluded = self.excluded(gang, request.roles, {pod.uid: pod for pod in gang.group.unbound})
        self.solving = Solving(gang.key, gang.generation, request, snapshot)
        self.backlog.asked()
        self.turns.began(namespace_of(gang.key), self.now, self.settings.patience_s, gang.ended)
        self.voice.instruct(Solve(gang.key, gang.generation, request, snapshot, excluded))
        return True

    def excluded(self, gang: Gang, roles: Iterable[Role], pods: Mapping[str, Pod]) -> ByRole:
        """Return (role, node) → what refuses the pair: answers of in-tree plugins, and late refusals."""
        roles = tuple(roles)
        found = self.in_tree.excluded(gang.key, roles, self.ledger.nodes)
        late: dict[str, dict[str, str]] = {}
        for (role, node), by in gang.excluded(roles, pods).items():
            late.setdefault(role, {})[node] = by
        for role, nodes in late.items():
            found[role] = {**found.get(role, {}), **nodes}
        return ByRole(found)

    def open_to(self, gang: Gang) -> Snapshot:
        """The cluster as this gang may use it: what it holds is free, and what is kept for another is not."""
        own = gang.kept | gang.reserved
        snapshot = self.ledger.without(own) if own else self.ledger.snapshot()
        if self.earmark is None or not self.earmark.hides_from(gang):
            return snapshot
        return hidden_by(self.earmark, snapshot)

    def plan_made(self, gang: Gang, solving: Solving, placed: Placed, event: Decided) -> None:
        """Reserve what the planner chose and tell the shim."""
        there = {pod.uid: pod for pod in gang.group.unbound}
        pods = {member.uid: there[member.uid] for member in placed.members}
        order = scheduling_order(solving.request, placed, solving.snapshot)
        batch = self._batch(gang, len(order), solving.request.min_member)
        gang.plan = Plan(gang.generation, solving.request, placed, pods, order, batch, event.trace_id)
        gang.reason, gang.ended, gang.pause_s = "", 0, 0.0
        self.ledger.hold(usages(placed, pods))
        self.go(gang, Trigger.PLACED)
        gang.kept -= pods.keys()
        self.kept.let_go(gang, gang.kept)
        self.alarms.set(gang, event.now + self.settings.plan_for(len(order)))
        required = min(solving.request.min_member, len(order))
        self.voice.push(gang, gang.generation, Outcome.PLANNED, gang.plan.members, required=required)

    def _batch(self, gang: Gang, planned: int, least: int) -> Batch:
        """What its members are to carry of a plan of so many, of which `least` must fit. Pods that bear the
        name and that nobody has counted yet are taken as left out: what is not sure must not look split."""
        bound = len(gang.group.bound)
        return Batch(
            needed=0 if bound and gang.whole else bound + least,
            left_out=max(0, self.roster.size(gang.name) - bound - planned),
            newest=max(pod.created for pod in gang.group.unbound),
        )

    def nothing_fits(
        self, gang: Gang, kinds: Kinds, text: str, now: float, again_at: float = math.inf
    ) -> None:
        """The planner's no: the pods are let through once, to show it. `again_at` is when it is asked again
        though nothing changes."""
        self.go(gang, Trigger.NOTHING_FITS)
        self.backlog.refused(gang)
        if gang.exclusions:
            text, kinds = f"{text}. {_left_out(gang)}", (*kinds, "left out")
            # All other nodes have been tried by now.
            for pair, out in gang.exclusions.items():
                if out.until == math.inf:
                    ends = out.since + self.settings.exclusion(gang.refusals[pair])
                    until = max(ends, now + self.settings.exclusion_first_s)
                    gang.exclusions[pair] = replace(out, until=until)
            # An exclusion may have ended while the gang waited for the planner.
            again_at = max(now, min(again_at, *(out.until for out in gang.exclusions.values())))
        if again_at < math.inf:
            self.alarms.set(gang, again_at)
        self.earmarks.waits(gang, now)
        if self.earmark is not None and self.earmark.gang == gang.key:
            kinds, text = (*kinds, "earmark"), f"{text}. {self.earmark}"
        self.voice.refuse(gang, EventReason.UNPLACEABLE, kinds, text, now)

    def refused(self, gang: Gang, causes: Iterable[Cause], text: str, now: float) -> None:
        """The planner has causes why nothing fits."""
        self.nothing_fits(gang, tuple(map(kind, causes)), text, now)

    def ended(self, gang: Gang, text: str, now: float, took_s: float) -> None:
        """The planner was ended: the gang is asked about again after a pause, longer each time, and not
        because something came free, which happens all the time."""
        gang.ended += 1
        gang.pause_s = self.settings.pause(gang.pause_s, took_s)
        self.nothing_fits(gang, ("not decided",), text, now, now + gang.pause_s)
        self.backlog.leave(gang)

    def not_decided(self, gang: Gang, text: str, now: float) -> None:
        """The planner failed, or gave up with no proof: asked again after a pause, longer each time."""
        gang.attempts += 1
        again_at = now + self.settings.backoff(gang.attempts)
        self.nothing_fits(gang, ("not decided",), text, now, again_at)

    def exclude(self, gang: Gang, pod: Pod, back: GivenBack, now: float) -> bool:
        """Leave the node out for what asks like this member, until all other nodes have been tried and for a
        time that grows with each refusal; whether this is the first."""
        pair = (requests.asks(pod), back.node)
        gang.refusals[pair] = gang.refusals.get(pair, 0) + 1
        gang.exclusions[pair] = Exclusion(now, back.plugin, back.message)
        return gang.refusals[pair] == 1

    def pause_between_nodes(self, gang: Gang) -> float:
        """How long to wait before the next node is tried, in seconds: 0 at first, then ever longer."""
        tried = sum(gang.refusals.values())
        return 0.0 if tried <= _PROMPT else self.settings.backoff(1 + tried // (4 * _PROMPT))

    def go(self, gang: Gang, trigger: Trigger) -> None:
        """To the next phase; what was due in the one before is not any more."""
        gang.phase = after(gang.phase, trigger)
        self.roster.touched.add(gang.name[:3])
        gang.alarms.pop(Alarm.PHASE, None)
        if not gang.stale:  # else nobody would look any more at what has changed
            gang.alarms.pop(Alarm.COUNT, None)
        gang.alarms.pop(Alarm.ANSWERS, None)
        if gang.phase is not Phase.PERMITTED:
            gang.awaited = {}
        if gang.phase is Phase.PLANNED and gang.plan is not None:
            self.ahead[gang.key] = len(gang.plan.order)
        else:
            self.ahead.pop(gang.key, None)
        self.backlog.leave(gang)
        if gang.phase not in _WAITING:
            self.earmarks.leaves(gang, self.now)

    # --- the earmark --------------------------------------------------------------------------------

    def earmark_due(self, now: float) -> None:
        """Look who has the earmark from now on, and tell the gangs concerned."""
        ended, given = self.earmarks.look(now, self._request_for_earmark)
        if (gang := self.gangs.get(ended)) is not None and gang.phase is Phase.UNPLACEABLE:
            self.again(gang, Trigger.FREED)
        if (gang := self.gangs.get(given)) is not None and gang.phase is Phase.UNPLACEABLE:
            kinds, text = (*gang.kinds, "earmark"), f"{gang.reason}. {self.earmark}"
            self.voice.refuse(gang, EventReason.UNPLACEABLE, kinds, text, now)

    def _request_for_earmark(self, key: str) -> Request | None:
        """Return what the gang asks for; None if it can never fit, or if its waiting pods have just gone."""
        gang = self.gangs[key]
        if _NEVER & set(gang.kinds):
            return None
        group = self.fresh(gang)
        return requests.request(group, self.ledger, self.roster.policies) if group.unbound else None

    def say_numbers(self, gang: Gang, now: float) -> None:
        """The numbers in a refusal have changed since it was told."""
        if gang.phase in (Phase.INVALID, Phase.UNPLACEABLE):
            event = EventReason.INVALID if gang.phase is Phase.INVALID else EventReason.UNPLACEABLE
            self.voice.refuse(gang, event, gang.kinds, gang.reason, now)


def _left_out(gang: Gang) -> str:
    """Which plugins refused planned nodes, how many, and why."""
    nodes: dict[tuple[str, str], set[str]] = {}
    for (_, node), out in gang.exclusions.items():
        nodes.setdefault((out.plugin, out.message[:80]), set()).add(node)
    told = [
        f"{min(found) if len(found) == 1 else f'{len(found)} nodes'} ({plugin}: {why})"
        for (plugin, why), found in sorted(nodes.items(), key=lambda each: (-len(each[1]), each[0]))
    ]
    more = f" and {len(told) - 3} more" if len(told) > 3 else ""
    return f"Left out for a while: {', '.join(told[:3])}{more}"


def kind(cause: Cause) -> str:
    """What a cause says beside its numbers, and the places that they are of."""
    name = type(cause).__name__
    match cause:
        case BadValue():
            return f"{name} {cause.field} {cause.value}"
        case MembersDisagree():
            return f"{name} {cause.field}"
        case _:
            return name
