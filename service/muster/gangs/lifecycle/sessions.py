"""Begin and end sessions with the shim."""

from __future__ import annotations

from muster.domain.node import Usage
from muster.gangs.lifecycle import eviction, inflight, plans, reconciliation
from muster.gangs.lifecycle.node_changes import Nodes
from muster.gangs.lifecycle.pod_changes import Pods
from muster.gangs.lifecycle.state import State
from muster.gangs.messages import inputs
from muster.gangs.messages.instructions import EventReason
from muster.gangs.record.gang import Gang, Timer
from muster.gangs.record.phases import Permitted, Phase, Trigger


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
        for gang in list(self._state.gangs.values()):
            if gang.phase in (Phase.PLANNED, Phase.RESERVING):
                plans.withdraw(self._state, gang, Trigger.SESSION_OVER, "the scheduler's session ended", now)

    def activate(self, now: float) -> None:
        """Begin to plan if the cluster is known and a shim is connected."""
        state = self._state
        if state.synced:
            self._pods.group_all(now)
        if not state.active:
            return
        for node in state.ledger.nodes.values():
            self._nodes.report_problems(node)
        self._pods.differences.post_all()
        under_way = self._take_in_flight(now)
        for key in sorted(state.gangs):
            gang = state.gangs[key]
            if isinstance(permitted := gang.in_phase, Permitted):
                for uid in permitted.awaited.keys() - under_way:
                    permitted.awaited[uid] = now + state.settings.session_s
                state.timers.set(gang, min(permitted.awaited.values(), default=now))
            _begin_session(state, gang, now)

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


def _begin_session(state: State, gang: Gang, now: float) -> None:
    """Tell a new shim what it must know about the gang, and restart the gang's timers.

    The grace of a partially bound gang starts again, even if it was given up: another service may have
    completed it meanwhile.
    """
    if gang.phase is Phase.GIVEN_UP:
        reconciliation.reconcile_members(state, gang, state.fresh(gang), now)
    kinds = gang.kinds
    state.publisher.forget(gang)
    if (question := state.in_tree.ask_again(gang)) is not None:
        state.publisher.instruct(question)
    gang.timers.pop(Timer.PARTIAL, None)
    state.fresh(gang)
    eviction.note_partially_bound(state, gang, now)
    if gang.phase is Phase.INVALID:
        state.publisher.refuse(gang, EventReason.INVALID, kinds, gang.reason, now)
    elif gang.phase is Phase.UNPLACEABLE:
        state.publisher.refuse(gang, EventReason.UNPLACEABLE, kinds, gang.reason, now)
    elif gang.phase is Phase.COLLECTING and gang.group.waits_for is not None:
        state.timers.set(gang, now + state.settings.waiting_s)
