"""Refusals: tell users why a gang does not fit, and queue the gang again when a change may help it.

kube-scheduler may refuse a planned node too. Then equal pods avoid that node for some time.
"""

from __future__ import annotations

import math

from muster.domain.pod import Pod
from muster.gangs.capacity.queueing_hints import QueueingHint
from muster.gangs.lifecycle import victims
from muster.gangs.lifecycle.state import State
from muster.gangs.messages.calls import Unreserve
from muster.gangs.messages.instructions import EventReason
from muster.gangs.record import phases
from muster.gangs.record.exclusions import ROOM, ROOM_AFTER_S, ROOM_EVERY_S
from muster.gangs.record.gang import Gang, Timer
from muster.gangs.record.phases import Phase, Trigger
from muster.gangs.record.victims import VictimsQuestion
from muster.gangs.reporting.publisher import Kinds

_WOKEN_AT_ONCE = 250
"""Number of refused gangs that one input queues again: about 20 ms. The next inputs queue the others."""
_NODES_WITHOUT_PAUSE = 16
"""Number of nodes that a gang tries without a pause between them, as plugins refuse one after another."""


def refuse(
    state: State,
    gang: Gang,
    hint: QueueingHint,
    kinds: Kinds,
    text: str,
    again_at: float = math.inf,
    question: VictimsQuestion | None = None,
) -> None:
    """Refuse the gang: `hint` says what it must have to fit, and `text` tells users why it does not fit.

    Its pods pass PreEnqueue once, so that kube-scheduler shows the reason on each pod. `again_at`: when the
    gang is planned again even if nothing changes. `question`: the question for its victims.
    """
    notes = ""
    if gang.exclusions.by_pair:
        notes, kinds = f". {gang.exclusions}", (*kinds, "left out")
        # An exclusion may have ended while the gang waited for the planner.
        first_end = gang.exclusions.set_ends(state.now, state.unbound_gone_at, state.settings)
        again_at = min(again_at, max(state.now, state.unbound_gone_at + ROOM_AFTER_S, first_end))
    if state.backfill.current is not None and state.backfill.current.gang == gang.key:
        notes, kinds = f"{notes}. {state.backfill.current}", (*kinds, "backfill")
    state.transition(gang, Trigger.NOTHING_FITS, phases.Unplaceable(kinds, text, notes))
    state.queue.add_refused(gang, hint)
    if again_at < math.inf:
        state.timers.set(gang, again_at)
    state.backfill.add_waiting(gang)
    victims.begin(state, gang, question)
    victims.publish(state, gang)


def refresh_refusal(state: State, gang: Gang) -> None:
    """Report the refusal again, because its numbers have changed."""
    if gang.phase is Phase.INVALID:
        state.publisher.refuse(gang, EventReason.INVALID, gang.refusal_kinds, gang.reason)
    elif gang.phase is Phase.UNPLACEABLE:
        victims.publish_now(state, gang)


def note_gangs_to_wake(state: State, anywhere: bool = False) -> None:
    """Note the refused gangs that changes since the last call may help: `requeue_woken` queues them.

    `anywhere`: any node may have more free capacity.
    """
    changes = state.ledger.take_changes()
    changes.anywhere = anywhere
    for question in state.open_questions.values():
        question.since.add(changes)
    state.to_wake |= dict.fromkeys(state.queue.gangs_helped_by(changes, state.now + state.settings.numbers_s))


def requeue_woken(state: State) -> None:
    """Queue the gangs that a change may help, at most a fixed number for one input.

    The limit keeps the event loop free. The planner is asked only after all these gangs are queued, so that
    the first in order is planned first.
    """
    for _ in range(min(_WOKEN_AT_ONCE, len(state.to_wake))):
        key = next(iter(state.to_wake))
        del state.to_wake[key]
        gang = state.gangs.get(key)
        if gang is None or gang.phase is not Phase.UNPLACEABLE:
            continue  # it was planned again meanwhile for another reason
        if Timer.REGROUP not in gang.timers:  # else the gang is planned again once it is regrouped
            state.replan(gang, Trigger.FREED)


def exclude_node(state: State, gang: Gang, pod: Pod, call: Unreserve) -> bool:
    """Exclude the node for pods with the same requests as this member. Return whether this is the first
    refusal.

    The exclusion lasts until all other nodes were tried, and then for a time that grows with each refusal.
    """
    if call.plugin == ROOM:
        state.short_of_room[gang.key] = call.now
    return gang.exclusions.add_refused(pod, call)


def pause_between_nodes(state: State, gang: Gang) -> float:
    """Return for how many seconds to wait before the next node is tried: 0 at first, then longer each
    time."""
    tried = sum(gang.exclusions.refusals.values())
    return (
        0.0
        if tried <= _NODES_WITHOUT_PAUSE
        else state.settings.backoff(1 + tried // (4 * _NODES_WITHOUT_PAUSE))
    )


def try_full_nodes(state: State) -> None:
    """Try again the nodes that kube-scheduler refused as full: a pod that was not bound is gone.

    The pod may have had a place that only kube-scheduler knew, while its volumes were bound. kube-scheduler
    gets a second to see that the pod has gone. A gang that pauses between two nodes continues with untried
    nodes. Otherwise a client that deletes pods all the time could keep the gang at the first node.
    """
    state.unbound_gone_at = state.now
    refused_at, state.short_of_room = state.short_of_room, {}
    for key, since in refused_at.items():
        gang = state.gangs.get(key)
        if gang is not None and gang.phase in (Phase.UNPLACEABLE, Phase.WITHDRAWN):
            state.timers.set_earlier(gang, max(state.now + ROOM_AFTER_S, since + ROOM_EVERY_S))
