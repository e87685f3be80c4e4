"""Moves gangs through their phases, as their members and Bindings say. `life` has the table."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable

from muster.domain.sentences import sentence
from muster.gangs.gang import Alarm, Gang
from muster.gangs.givingup import GivingUp
from muster.gangs.halves import is_half, was_split
from muster.gangs.instructions import EventReason
from muster.gangs.life import Phase, Trigger, after
from muster.gangs.planning import kind
from muster.gangs.quiet import Change
from muster.gangs.roster import Group, planning_facts
from muster.gangs.voice import short

_COUNTED_LATER = (
    Phase.COLLECTING,
    Phase.RUNNING,
    Phase.UNPLACEABLE,
    Phase.INVALID,
    Phase.WITHDRAWN,
)
"""Phases in which pods that come one after another are counted once they have come. In the others what the
gang is at goes on, and they are counted after it."""


class Lives(GivingUp):
    """What happens to gangs beside the planner's answers."""

    # --- members --------------------------------------------------------------------------------------

    def members_changed(self, gang: Gang, group: Group, now: float) -> None:
        """Look at a gang again whose pods changed."""
        same = gang.group.facts == group.facts
        if group.bound and not gang.group.bound and gang.phase is not Phase.PERMITTED:
            gang.whole &= not was_split(group)  # it begins by another service's hand, or late
        if not gang.stale and {pod.uid for pod in group.unbound} - {pod.uid for pod in gang.group.unbound}:
            self.arrived(gang, now)
        gang.group, gang.stale, gang.landed = group, False, 0
        self._landed_late(gang)
        self.note_half(gang, now)
        self._review_kept(gang)
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

    def _landed_late(self, gang: Gang) -> None:
        """Whoever was given up and is bound after all was none that is missed."""
        if gang.late and not gang.awaited:
            gang.late = {
                uid for uid in gang.late if (pod := self.roster.pods.get(uid)) is None or not pod.node
            }
            gang.whole |= self.all_landed(gang)

    def _review_kept(self, gang: Gang) -> None:
        """No place is kept for a pod that is bound after all, or that is another gang's now."""
        unbound = {pod.uid for pod in gang.group.unbound} if gang.kept else set()
        others = {uid for uid in gang.kept - unbound if (pod := self.roster.pods.get(uid)) and pod.present}
        self.kept.let_go(gang, others)

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
        for uid in self.orphans.keys() & there.keys():
            return f"a Binding of pod {there[uid].name} may be under way"
        return sentence((group.waits_for,)) if group.waits_for is not None else ""

    def settle(self, gang: Gang, now: float) -> None:
        """Go where the members alone say, once no Binding of theirs is under way."""
        group = self.fresh(gang)
        self.note_half(gang, now)
        if gang.phase is Phase.GIVEN_UP and group.bound and gang.evicting:
            self.evict(gang, now)
        else:
            self._as_members_say(gang, group, now)
        self.fresh(gang)  # what is still stale is looked at again, in whatever phase it is now

    def _as_members_say(self, gang: Gang, group: Group, now: float) -> None:
        """`settle`, where the gang is not given up."""
        if gang.phase is Phase.COLLECTING and gang.arrived is None:
            self.arrived(gang, now)  # what it waited for has come
        if not is_half(gang):
            self.kept.let_go(gang, gang.kept)
        mine = self.orphans.keys() & {pod.uid for pod in group.unbound} if self.orphans else ()
        if mine:
            for uid in sorted(mine):
                self.in_flight(gang, uid, self.orphans.pop(uid))
            self.all_in_flight(gang)
            return
        if not group.unbound:
            self.go(gang, Trigger.ALL_BOUND)
            gang.attempts, gang.reason, gang.announced, gang.arrived = 0, "", None, None
            self.voice.forget(gang)
            gang.refusals, gang.exclusions = {}, {}
            if is_half(gang) and group.waits_for is not None:
                gang.reason = sentence((group.waits_for,))
        elif group.causes:
            self.go(gang, Trigger.ILL_FORMED)
            kinds = tuple(map(kind, group.causes))
            self.voice.refuse(gang, EventReason.INVALID, kinds, sentence(group.causes), now)
        elif group.waits_for is not None:
            self.go(gang, Trigger.MEMBERS_MISSING)
            gang.reason, gang.arrived = sentence((group.waits_for,)), None
            self.voice.gate(gang)
            self.alarms.set(gang, now + self.settings.waiting_s)
        elif (until := self._more_until(gang)) > now:
            self.go(gang, Trigger.IN_MOTION)
            gang.reason = ""
            self.alarms.set(gang, until, Alarm.COUNT)
        else:
            self.go(gang, Trigger.COMPLETE)
            gang.overtaken = False
            gang.exclusions = {pair: out for pair, out in gang.exclusions.items() if out.until > now}
            self.enqueue(gang)

    def begins(self, gang: Gang, now: float, others: Iterable[Gang]) -> None:
        """A gang is seen for the first time, or goes on with pods of `others` of its name, which have ended
        or gave these away. What is known of those counts, not what its pods tell."""
        self.gangs[gang.key] = gang
        begun = {pod.uid for pod in gang.group.bound}
        begun |= {pod.uid for pod in gang.group.unbound if pod.uid in self.orphans}
        forerunners = [
            before
            for before in others
            if begun & {pod.uid for pod in (*before.group.bound, *before.group.unbound)}
        ]
        self._goes_on_as(gang, forerunners)
        self.arrived(gang, now)
        self.settle(gang, now)
        if forerunners:
            theirs = {uid for before in forerunners for uid in before.awaited}
            gang.elsewhere = frozenset(theirs - {pod.uid for pod in (*gang.group.bound, *gang.group.unbound)})
            gone = any(uid not in self.roster.pods for uid in gang.elsewhere)
            gang.missed &= gone or any(before.missed or before.late for before in forerunners)

    def joined(self, gang: Gang, group: Group, others: Iterable[Gang]) -> None:
        """What is left of `others` of its name, or what they gave away, may be its own now. Of what ran whole
        nobody is evicted, also where this one was given up, and what was half still is."""
        bound = {pod.uid for pod in group.bound}
        forerunners = [
            before
            for before in others  # of a permitted one, those that were bound just now may not be counted yet
            if not bound.isdisjoint(pod.uid for pod in (*before.group.bound, *before.group.unbound))
        ]
        if not gang.group.bound:
            self._goes_on_as(gang, forerunners)
        if any(before.whole for before in forerunners):
            gang.whole, gang.evicting = True, frozenset()

    def _goes_on_as(self, gang: Gang, forerunners: Collection[Gang]) -> None:
        """Of a gang of which nothing was bound but what these had: what they were, and their grace."""
        if forerunners:
            gang.whole = any(before.whole for before in forerunners)
        for before in forerunners:
            if not gang.whole and Alarm.HALF in before.alarms:
                self.alarms.hand_on(before, gang, Alarm.HALF)

    def arrived(self, gang: Gang, now: float) -> None:
        """A pod of it came or went of which no plan that was asked for knows."""
        gang.arrived = (gang.arrived[0] if gang.arrived else now, now)

    def in_motion(self, gang: Gang, change: Change, now: float) -> None:
        """A pod came or went, and need not be looked at before others have done so."""
        gang.stale = True
        self.arrived(gang, now)
        if gang.phase is Phase.PLANNING and change.leaves():
            self.go(gang, Trigger.IN_MOTION)
        if gang.phase in _COUNTED_LATER:
            if gang.arrived is None or Alarm.COUNT not in gang.alarms:
                gang.arrived = (now, now)  # those that came before have been counted
            # What lay in the past would look as if the service had stood still since then.
            self.alarms.set(gang, max(now, self.settings.settled(gang.arrived)), Alarm.COUNT)

    def count_soon(self, gang: Gang, now: float) -> None:
        """Pods of it go one after another: what that means for others of its name has a moment's time."""
        if Alarm.COUNT not in gang.alarms:
            self.alarms.set(gang, now + self.settings.settle_s, Alarm.COUNT)

    def count(self, gang: Gang, now: float) -> None:
        """The pods that came or went one after another have done so."""
        if gang.phase in _COUNTED_LATER:
            self.settle(gang, now)

    def _more_until(self, gang: Gang) -> float:
        """Until when more pods are waited for. Nobody waits beside half a gang."""
        open_ended = gang.group.elastic or gang.group.doubtful
        if gang.arrived is None or not open_ended or is_half(gang):
            return -math.inf
        return self.settings.settled(gang.arrived)

    # --- plans end, or are carried out ----------------------------------------------------------------

    def withdraw(
        self,
        gang: Gang,
        trigger: Trigger,
        why: str,
        now: float,
        pause: bool = False,
        learnt: bool = False,
        pause_s: float = 0.0,
    ) -> None:
        """Void the plan, free what it holds, and plan again: at once where something was `learnt` that will
        not be asked twice, a few times in a row where something may have been, else after a `pause`.
        `pause_s` is a pause of so many seconds."""
        why, silent = short(why), trigger is Trigger.SESSION_OVER
        held = gang.reserved
        self.void(gang, trigger, why, silent)
        if not silent:
            gang.attempts += not learnt
            self.voice.emit(gang, EventReason.WITHDRAWN, f"plan withdrawn: {why}")
        self.fresh(gang)
        if is_half(gang):
            self.kept.keep(gang, held)
            for node in sorted({usage.node for usage in self.kept.places(gang)}):
                self.kept.let_go_of_taken(node)
        else:
            self.kept.let_go(gang, held | gang.kept)
        if pause_s:
            self.alarms.set(gang, now + pause_s)
        elif pause or (not learnt and gang.attempts > self.settings.prompt_retries):
            self.alarms.set(gang, now + self.settings.backoff(gang.attempts))
        else:
            self.settle(gang, now)

    def reserved(self, gang: Gang) -> None:
        """Its first member reserves: the plan's deadline stays."""
        gang.phase = after(gang.phase, Trigger.RESERVED)

    def permitted(self, gang: Gang, now: float) -> None:
        """From here on Bindings may be under way."""
        plan = gang.plan
        assert plan is not None
        self.go(gang, Trigger.PERMITTED)
        gang.lost, gang.missed, gang.late, gang.elsewhere = "", False, set(), frozenset()
        gang.whole &= bool(gang.group.bound)
        until = now + self.settings.bind_for(len(plan.order))
        gang.awaited = dict.fromkeys(plan.order, until)
        self.alarms.set(gang, until)

    def take_over(self, gang: Gang, now: float) -> None:
        """Bindings of pods that are its members now may be under way: wait for them."""
        if gang.phase in (Phase.PLANNED, Phase.RESERVING):
            self.withdraw(gang, Trigger.MEMBERS_CHANGED, self._why_void(gang), now)
        elif gang.phase not in (Phase.PERMITTED, Phase.GIVEN_UP):
            self.settle(gang, now)

    def in_flight(self, gang: Gang, uid: str, until: float) -> None:
        """This member's Binding may be under way, though not by the gang's present plan."""
        if gang.phase is not Phase.PERMITTED:
            self.go(gang, Trigger.IN_FLIGHT)
            gang.plan, gang.lost, gang.late = None, "", set()
            gang.whole &= bool(gang.group.bound)
        gang.missed |= uid not in gang.awaited
        gang.kept.discard(uid)
        gang.awaited[uid] = until
        self.alarms.set(gang, min(gang.awaited.values()))

    def all_in_flight(self, gang: Gang) -> None:
        """These are all. Where with those that are bound it has what it needs, none is missed yet."""
        there = (*gang.group.bound, *(pod for pod in gang.group.unbound if pod.uid in gang.awaited))
        gang.missed &= not gang.group.enough(there)

    def bindings(self, gang: Gang, now: float, late: bool = False) -> None:
        """Strike off the awaited members that are settled: seen bound, gone, or (`late`) given up; when none
        is left, go on with what the members say. Until then what was given back is kept: whether the gang
        is half is not known yet."""
        unbound = {pod.uid for pod in self.fresh(gang).unbound}
        settled = [
            uid for uid, until in gang.awaited.items() if uid not in unbound or (late and until <= now)
        ]
        for uid in settled:
            until, pod = gang.awaited.pop(uid), self.roster.pods.get(uid)
            if pod is not None and pod.node:
                continue
            if uid in unbound and pod is not None:
                gang.lost = f"pod {pod.name} was not seen bound in time"
                gang.late.add(uid)
            else:
                gang.missed = True
            if uid not in unbound and pod is not None and pod.present:
                self.orphans[uid] = until  # its labels changed: it is another gang's now
            else:
                self.kept.keep(gang, (uid,))
        if gang.awaited:
            self.alarms.set(gang, min(gang.awaited.values()))
            return
        gang.whole |= self.all_landed(gang)
        self.note_half(gang, now)
        if gang.lost and gang.group.unbound:
            trigger = Trigger.TOO_LATE if late else Trigger.GIVEN_BACK
            self.withdraw(gang, trigger, gang.lost, now, pause=True)
        else:
            self.settle(gang, now)

    def drop_orphan(self, uid: str) -> None:
        """No Binding of this pod is under way any more, if one was."""
        if self.orphans.pop(uid, None) is not None:
            self.ledger.release((uid,))

    def one_bound(self, gang: Gang, uid: str, now: float) -> None:
        """One awaited member of several is seen bound. Enough may be now, though others are still awaited."""
        del gang.awaited[uid]
        gang.stale, gang.landed = True, gang.landed + 1
        if gang.whole:
            return
        if len(gang.group.bound) + gang.landed < gang.group.least:
            self.begins_half(gang, now)
        else:
            self.fresh(gang)
            self.note_half(gang, now)

    def given_back(self, gang: Gang, uid: str, why: str, now: float) -> None:
        """No Binding of this permitted member is under way any more."""
        del gang.awaited[uid]
        gang.lost, gang.missed = why, True
        self.kept.keep(gang, (uid,))
        self.bindings(gang, now)

    def finish(self, gang: Gang) -> None:
        """Forget a gang. Bindings under way outlive it: until seen, gone or late they keep what they hold."""
        held = (gang.reserved | gang.kept) - gang.awaited.keys()
        for uid, until in gang.awaited.items():
            pod = self.roster.pods.get(uid)
            if pod is not None and pod.present and not pod.node:
                self.orphans[uid] = until
            else:
                held.add(uid)
        awaited = gang.awaited
        gang.reason = "its pods are gone"
        self.voice.gate(gang)
        self.go(gang, Trigger.ALL_GONE)
        gang.awaited = awaited  # for those that go on with its pods
        self.kept.let_go(gang, held)
        del self.gangs[gang.key]
        self.backlog.forget(gang)
        self.in_tree.forget(gang.key)

    # --- sessions and silence -------------------------------------------------------------------------

    def new_session(self, gang: Gang, now: float) -> None:
        """Tell a shim that has just connected what it must know, and count its times from now: the grace of
        half a gang too, and of one that was given up, which another service may have completed."""
        if gang.phase is Phase.GIVEN_UP:
            self._as_members_say(gang, self.fresh(gang), now)
        kinds = gang.kinds
        self.voice.forget(gang)
        if (question := self.in_tree.ask_again(gang)) is not None:
            self.voice.instruct(question)
        gang.alarms.pop(Alarm.HALF, None)
        self.fresh(gang)
        self.note_half(gang, now)
        if gang.phase is Phase.INVALID:
            self.voice.refuse(gang, EventReason.INVALID, kinds, gang.reason, now)
        elif gang.phase is Phase.UNPLACEABLE:
            self.voice.refuse(gang, EventReason.UNPLACEABLE, kinds, gang.reason, now)
        elif gang.phase is Phase.COLLECTING and gang.group.waits_for is not None:
            self.alarms.set(gang, now + self.settings.waiting_s)

    def move_on(self, seconds: float) -> None:
        """Nothing could be seen for so long: all that is due comes as much later."""
        self.alarms.move_on(seconds)
        self.earmarks.move_on(seconds)
        self.orphans = {uid: until + seconds for uid, until in self.orphans.items()}
        for gang in self.gangs.values():
            if gang.awaited:
                gang.awaited = {uid: until + seconds for uid, until in gang.awaited.items()}
                # One that was set again meanwhile still has the old time, which would look like a standstill.
                self.alarms.set(gang, min(gang.awaited.values()))
