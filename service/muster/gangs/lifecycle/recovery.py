"""Recovery: begin and end sessions with the shim, handle Ticks, and resume after interrupted watches."""

from __future__ import annotations

import math
from itertools import islice

from muster.domain.node import Usage
from muster.gangs.lifecycle import arrivals, backfill, bindings, reconciliation, refusals
from muster.gangs.lifecycle.arrivals import PodHandler
from muster.gangs.lifecycle.node_changes import NodeHandler
from muster.gangs.lifecycle.state import State
from muster.gangs.messages import inputs
from muster.gangs.messages.instructions import EventReason
from muster.gangs.record.gang import Gang, Timer
from muster.gangs.record.phases import (
    Collecting,
    GivenUp,
    Permitted,
    Phase,
    Planned,
    Planning,
    Reserving,
    Trigger,
    Unplaceable,
    Withdrawn,
)

TOLD_AT_ONCE = 256
"""Number of gangs that one input reports to a new shim: about 10 ms."""


class SessionHandler:
    """Handle the beginning and the end of sessions."""

    def __init__(self, state: State, pods: PodHandler, nodes: NodeHandler) -> None:
        self._state = state
        self._pods = pods
        self._nodes = nodes
        self._in_flight: tuple[Usage, ...] = ()
        """Bindings that the current session reported, until `activate` has taken them in."""

    def open_session(self, session: inputs.SessionOpened) -> None:
        """End the previous session, and begin this session."""
        self._state.in_tree.begin_session(session.answers_in_tree)
        self.close_session()
        self._state.epoch, self._in_flight = session.epoch, session.in_flight
        self.activate()

    def close_session(self) -> None:
        """Withdraw the plans of the session that ended.

        Members of permitted gangs keep their places until they are seen bound or given up.
        """
        self._state.epoch = None
        self._state.to_tell.clear()
        for gang in list(self._state.gangs.values()):
            self._state.publisher.forget(gang)
            if gang.phase in (Phase.PLANNED, Phase.RESERVING):
                reconciliation.withdraw(
                    self._state, gang, Trigger.SESSION_OVER, "the scheduler's session ended"
                )

    def activate(self) -> None:
        """Begin to plan if the cluster is known and a shim is connected."""
        state = self._state
        if not state.active:
            return
        for node in state.ledger.nodes.values():
            self._nodes.report_problems(node)
        self._pods.differences.post_all()
        under_way = self._take_in_flight()
        for gang in list(state.gangs.values()):
            if isinstance(permitted := gang.in_phase, Permitted):
                for uid in permitted.awaited_bindings.keys() - under_way:
                    permitted.awaited_bindings[uid] = state.now + state.settings.session_s
                state.timers.set(gang, min(permitted.awaited_bindings.values(), default=state.now))
            if gang.phase is Phase.GIVEN_UP or Timer.PARTIAL in gang.timers or gang.is_partially_bound:
                _begin_grace(state, gang)
            state.to_tell[gang.key] = None

    def catch_up(self) -> None:
        """Report the next few gangs that a new shim does not know yet."""
        state = self._state
        for key in list(islice(state.to_tell, TOLD_AT_ONCE if state.active and not state.to_regroup else 0)):
            del state.to_tell[key]
            if (gang := state.gangs.get(key)) is not None:
                _tell(state, gang)

    def _take_in_flight(self) -> frozenset[str]:
        """Hold the capacity of the Bindings that the shim reported as under way.

        Return the UIDs of all pods that it reported.
        """
        state = self._state
        in_flight, self._in_flight = self._in_flight, ()
        under_way = frozenset(usage.pod_uid for usage in in_flight)
        key_by_uid = self._pods.gangs_of(under_way)
        for usage in in_flight:
            uid = usage.pod_uid
            pod = state.roster.pods.get(uid)
            if uid in state.ledger.bound or (pod is not None and not pod.present):
                continue
            state.ledger.hold((usage,))
            gang = state.gangs.get(key_by_uid.get(uid, ""))
            until = state.now + state.settings.bind_for(gang.group.present if gang else 1)
            if gang is not None and gang.phase is not Phase.GIVEN_UP:
                reconciliation.add_binding_in_flight(state, gang, uid, until)
            else:
                state.orphans[uid] = until
        for key in set(key_by_uid.values()):
            reconciliation.note_all_bindings_known(state.gangs[key])
        return under_way


def _begin_grace(state: State, gang: Gang) -> None:
    """Restart the grace period of a partially bound gang, even if the gang was given up.

    Another service may have completed the gang meanwhile.
    """
    if gang.phase is Phase.GIVEN_UP:
        reconciliation.reconcile_members(state, gang, state.regroup_if_stale(gang))
    gang.timers.pop(Timer.PARTIAL, None)
    state.regroup_if_stale(gang)
    reconciliation.note_partially_bound(state, gang)


def _tell(state: State, gang: Gang) -> None:
    """Report the gang's present state to a new shim."""
    if (question := state.in_tree.ask_again(gang)) is not None:
        state.publisher.instruct(question)
    state.regroup_if_stale(gang)
    reconciliation.note_partially_bound(state, gang)
    if gang.phase in (Phase.INVALID, Phase.UNPLACEABLE):
        refusals.refresh_refusal(state, gang)
    elif gang.phase is Phase.COLLECTING and gang.group.waits_for is not None:
        state.timers.set(gang, state.now + state.settings.waiting_s)


def _handle_timer(state: State, gang: Gang, timer: Timer, same: bool) -> None:
    """Handle an expired timer. `same`: the gang is still in the phase in which the timer expired."""
    match timer:
        case Timer.PARTIAL:
            reconciliation.end_partial_grace(state, gang)
        case Timer.LOST:
            state.retained.release(gang, gang.retained_uids & gang.lost_members.keys())
            reconciliation.review_losses(state, gang)  # waiting replacements keep their precedence
        case Timer.REPORT_REFUSAL:
            refusals.refresh_refusal(state, gang)
        case Timer.REGROUP if same:
            arrivals.end_series(state, gang)
        case Timer.IN_TREE if same:
            state.enqueue_again(gang)
        case Timer.PHASE if same:
            _handle_phase_timer(state, gang)
        case Timer.REGROUP | Timer.IN_TREE | Timer.PHASE:
            pass  # the phase has ended


def _handle_phase_timer(state: State, gang: Gang) -> None:
    """Handle the expired timer of the gang's phase."""
    match gang.in_phase:
        case Collecting():
            state.publisher.emit(gang, EventReason.WAITING, gang.reason)
            state.publisher.show_waiting(gang)
        case Planning():
            state.publisher.take_back_waiting(gang)
        case Planned() | Reserving():
            reconciliation.withdraw(
                state, gang, Trigger.TOO_LATE, "its pods were not ready to bind in time", pause=True
            )
        case Permitted() as permitted:
            bindings.settle_bindings(state, gang, permitted, late=True)
        case GivenUp() as given_up:
            reconciliation.evict(state, gang, given_up, again=True)
        case Withdrawn():
            reconciliation.reconcile(state, gang)
        case Unplaceable():
            gang.exclusions.end_expired(state.now, state.unbound_gone_at)
            state.replan(gang, Trigger.FREED)
        case _:
            pass


_STOOD_STILL_S = 2.0
"""If a Tick comes this many seconds late, the process stood still: recent changes have not been seen yet."""


MAX_TIMERS_PER_TICK = 128
"""Number of timers that one Tick handles: about 10 ms. After a start, the timers of thousands of gangs expire
together. The next Tick handles further timers, after the inputs that came meanwhile."""


class Clock:
    """Handle Ticks and interrupted watches. Times are in seconds of the inputs' clock."""

    def __init__(self, state: State, pods: PodHandler) -> None:
        self._state = state
        self._pods = pods
        self._unfinished_at = -math.inf
        """When the last Tick came, if it left timers to the next Tick; else -inf."""

    def interrupt(self, resource: str) -> None:
        """Pause all timers: the watch of this resource is interrupted."""
        self._state.interrupted.setdefault(resource, self._state.now)

    def resume(self, resource: str) -> None:
        """Note that a watch resumed. When no watch is interrupted any more, postpone all deadlines.

        The time of the interruption does not count, because the changes of this time are seen only now.
        """
        interrupted = self._state.interrupted
        if resource not in interrupted:
            return
        since = min(interrupted.values())
        del interrupted[resource]
        if not interrupted:
            _postpone(self._state, self._state.now - since)
        else:
            interrupted |= dict.fromkeys(interrupted, since)

    def tick(self) -> None:
        """Handle everything that is due."""
        state = self._state
        if state.interrupted:
            return
        due = min((state.timers.next_at() or state.now, *state.orphans.values()))
        if state.now - max(due, self._unfinished_at) > _STOOD_STILL_S:
            _postpone(state, state.now - due + _STOOD_STILL_S)
            return
        if state.queue.update_at is not None and state.queue.update_at <= state.now:
            state.queue.update()
        if (look_at := state.backfill.next_at()) is not None and look_at <= state.now:
            backfill.review(state)
        for uid in [uid for uid, until in state.orphans.items() if until <= state.now]:
            reconciliation.drop_orphan(state, uid)
        for gang, timer in list(islice(state.timers.pop_due(), MAX_TIMERS_PER_TICK)):
            phase = gang.phase
            if gang.stale and gang.key in state.gangs:
                self._pods.regroup({gang.name})
            if gang.key in state.gangs:
                _handle_timer(state, gang, timer, same=gang.phase is phase)
        self._unfinished_at = state.now if (state.timers.next_at() or math.inf) <= state.now else -math.inf

    def next_deadline(self) -> float | None:
        """Return when the next Tick is due, in seconds of the inputs' clock; None if no Tick is needed."""
        state = self._state
        deadlines = (
            state.timers.next_at(),
            state.queue.update_at,
            state.background_ends_at,
            state.backfill.next_at(),
            state.now if state.catches_up else None,
            *state.orphans.values(),
        )
        return min((when for when in deadlines if when is not None), default=None)


def _postpone(state: State, seconds: float) -> None:
    """Postpone all deadlines by the seconds in which the service could not see the cluster."""
    state.timers.postpone(seconds)
    state.backfill.postpone(seconds)
    state.orphans = {uid: until + seconds for uid, until in state.orphans.items()}
    for gang in state.gangs.values():
        if isinstance(permitted := gang.in_phase, Permitted):
            awaited = permitted.awaited_bindings
            permitted.awaited_bindings = {uid: until + seconds for uid, until in awaited.items()}
            # A timer that was set meanwhile has the old deadline, which would look like a standstill.
            state.timers.set(gang, min(permitted.awaited_bindings.values()))
