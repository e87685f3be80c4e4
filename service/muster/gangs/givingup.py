"""Half a gang: the grace that it has, and what is done when it is over. `halves` says what is half."""

from __future__ import annotations

from muster.gangs.gang import Alarm, Gang
from muster.gangs.halves import is_half, was_whole
from muster.gangs.instructions import EventReason, Evict
from muster.gangs.life import Phase, Trigger
from muster.gangs.planning import Planning
from muster.gangs.settings import Partial, Settings
from muster.gangs.voice import short


class GivingUp(Planning):
    """What ends plans, and whole gangs."""

    def __init__(self, settings: Settings) -> None:
        super().__init__(settings)
        self.orphans: dict[str, float] = {}
        """Bindings that may be under way of pods that no permitted gang awaits: UID → when to give it up."""

    def void(self, gang: Gang, trigger: Trigger, why: str, silent: bool = False) -> None:
        """The plan is no more."""
        self.go(gang, trigger)
        gang.plan, gang.reason, gang.lost = None, why, ""
        if not silent:
            self.voice.gate(gang)

    def note_half(self, gang: Gang, now: float) -> None:
        """Its bound members have changed: it is half from now on, or no longer."""
        gang.whole |= was_whole(gang.group)
        if not is_half(gang):
            gang.alarms.pop(Alarm.HALF, None)
        else:
            self.begins_half(gang, now)

    def begins_half(self, gang: Gang, now: float) -> None:
        """Some are bound, and not all yet: from the first of them the gang's grace counts."""
        if gang.phase is not Phase.GIVEN_UP and Alarm.HALF not in gang.alarms:
            self.alarms.set(gang, now + self.settings.partial_for(gang.group.needed), Alarm.HALF)

    def all_landed(self, gang: Gang) -> bool:
        """Return whether all members that were let go with it have been bound, also those that are pods of
        another gang now."""
        if gang.awaited or gang.missed or gang.late:
            return False
        return all((pod := self.roster.pods.get(uid)) and pod.node for uid in gang.elsewhere)

    def half_too_long(self, gang: Gang, now: float) -> None:
        """The grace is over: evict what is bound, or let the rest wait like any gang. Without a session,
        another service may have the shim and complete the gang; one that opens gives a grace anew."""
        group = self.fresh(gang)
        gang.whole |= self.all_landed(gang)
        if not is_half(gang) or gang.phase is Phase.GIVEN_UP or not self.active:
            return
        if self.settings.partial is Partial.KEEP:
            gang.whole = True
            self.kept.let_go(gang, gang.kept)
            return
        why = f"only {len(group.bound)} of {group.needed} members could be bound in time"
        if len(group.bound) >= group.needed:
            short_of = next(group.roles_short(group.bound))
            fit = f"{short_of.present} of {short_of.needed}"
            why = f"only {fit} members of role {short_of.role} could be bound"
        held = (gang.reserved | gang.kept) - gang.awaited.keys()
        self.orphans |= gang.awaited
        self.void(gang, Trigger.PARTIAL_TOO_LONG, short(why))
        both = (*((pod.name, pod.uid) for pod in group.bound), *gang.waiting())
        self.voice.emit(gang, EventReason.WITHDRAWN, f"gang given up: {why}; what is bound is evicted", both)
        self.kept.let_go(gang, held)
        self.evict(gang, now, again=True)

    def evict(self, gang: Gang, now: float, again: bool = False) -> None:
        """Have the bound members of a gang that is given up evicted: those that were not asked for yet, and
        from time to time all `again`, until they are gone."""
        asked = frozenset() if again else gang.evicting
        pods = tuple((pod.name, pod.uid) for pod in gang.group.bound if pod.uid not in asked)
        if pods and self.active:
            gang.evicting = asked.union(uid for _, uid in pods)
            self.voice.instruct(Evict(gang.group.gang.namespace, pods, gang.reason))
        if Alarm.PHASE not in gang.alarms:
            self.alarms.set(gang, now + self.settings.partial_s)
