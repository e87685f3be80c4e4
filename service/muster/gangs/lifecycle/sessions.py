"""Begin and end sessions with the shim."""

from __future__ import annotations

from itertools import islice

from muster.domain.node import Usage
from muster.gangs.lifecycle import eviction, inflight, plans, reconciliation
from muster.gangs.lifecycle.node_changes import Nodes
from muster.gangs.lifecycle.pod_changes import Pods
from muster.gangs.lifecycle.state import State
from muster.gangs.messages import inputs
from muster.gangs.messages.instructions import EventReason
from muster.gangs.record.gang import Gang, Timer
from muster.gangs.record.partial import is_partially_bound
from muster.gangs.record.phases import Permitted, Phase, Trigger

TOLD_AT_ONCE = 256
"""Gangs that a new shim is told of for one input: about 10 ms."""


class Sessions:
    """Handle the beginning and the end of sessions."""

    def __init__(self, state: State, pods: Pods, nodes: Nodes) -> None:
        self._state = state
        self._pods = pods
        self._nodes = nodes
        self._in_flight: tuple[Usage, ...] = ()
        """Bindings that the current session reported, until `activate` has taken them in."""

    def opened(self, given: inputs.SessionOpened) -> None:
        """End the session before, and begin this one."""
        self._state.in_tree.begin(given.answers_in_tree)
        self.closed(given.now)
        self._state.epoch, self._in_flight = given.epoch, given.in_flight
        self.activate(given.now)

    def closed(self, now: float) -> None:
        """Withdraw the plans of the session that ended.

        Members of permitted gangs keep their places until they are seen bound or given up.
        """
        self._state.epoch = None
        self._state.to_tell.clear()
        for gang in list(self._state.gangs.values()):
            self._state.publisher.forget(gang)
            if gang.phase in (Phase.PLANNED, Phase.RESERVING):
                plans.withdraw(self._state, gang, Trigger.SESSION_OVER, "the scheduler's session ended", now)

    def activate(self, now: float) -> None:
        """Begin to plan if the cluster is known and a shim is connected."""
        state = self._state
        if not state.active:
            return
        for node in state.ledger.nodes.values():
            self._nodes.report_problems(node)
        self._pods.differences.post_all()
        under_way = self._take_in_flight(now)
        for gang in list(state.gangs.values()):
            if isinstance(permitted := gang.in_phase, Permitted):
                for uid in permitted.awaited.keys() - under_way:
                    permitted.awaited[uid] = now + state.settings.session_s
                state.timers.set(gang, min(permitted.awaited.values(), default=now))
            if gang.phase is Phase.GIVEN_UP or Timer.PARTIAL in gang.timers or is_partially_bound(gang):
                _begin_grace(state, gang, now)
            state.to_tell[gang.key] = None

    def catch_up(self, now: float) -> None:
        """Tell the shim of some of the gangs that it does not know yet."""
        state = self._state
        for key in list(islice(state.to_tell, TOLD_AT_ONCE if state.active and not state.to_group else 0)):
            del state.to_tell[key]
            if (gang := state.gangs.get(key)) is not None:
                _tell(state, gang, now)

    def _take_in_flight(self, now: float) -> frozenset[str]:
        """Hold the capacity of the Bindings that the shim reported as under way.

        Return the UIDs of all pods that it reported.
        """
        state = self._state
        in_flight, self._in_flight = self._in_flight, ()
        for usage in in_flight:
            uid = usage.pod_uid
            pod = state.roster.pods.get(uid)
            if uid in state.ledger.bound or (pod is not None and not pod.present):
                continue
            state.ledger.hold((usage,))
            gang = state.gangs.get(self._pods.gang_of(uid))
            until = now + state.settings.bind_for(gang.group.present if gang else 1)
            if gang is not None and gang.phase is not Phase.GIVEN_UP:
                inflight.add_binding_in_flight(state, gang, uid, until)
            else:
                state.orphans[uid] = until
        under_way = frozenset(usage.pod_uid for usage in in_flight)
        for key in {self._pods.gang_of(uid) for uid in under_way} & state.gangs.keys():
            inflight.all_bindings_known(state, state.gangs[key])
        return under_way


def _begin_grace(state: State, gang: Gang, now: float) -> None:
    """Begin the grace of a partially bound gang again, even if it was given up.

    Another service may have completed it meanwhile.
    """
    if gang.phase is Phase.GIVEN_UP:
        reconciliation.reconcile_members(state, gang, state.fresh(gang), now)
    gang.timers.pop(Timer.PARTIAL, None)
    state.fresh(gang)
    eviction.note_partially_bound(state, gang, now)


def _tell(state: State, gang: Gang, now: float) -> None:
    """Tell a new shim what it must know about the gang as it is now."""
    if (question := state.in_tree.ask_again(gang)) is not None:
        state.publisher.instruct(question)
    state.fresh(gang)
    eviction.note_partially_bound(state, gang, now)
    if gang.phase is Phase.INVALID:
        state.publisher.refuse(gang, EventReason.INVALID, gang.kinds, gang.reason, now)
    elif gang.phase is Phase.UNPLACEABLE:
        state.publisher.refuse(gang, EventReason.UNPLACEABLE, gang.kinds, gang.reason, now)
    elif gang.phase is Phase.COLLECTING and gang.group.waits_for is not None:
        state.timers.set(gang, now + state.settings.waiting_s)
