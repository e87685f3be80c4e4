"""Refuse gangs that do not fit, and publish why."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import replace

from muster.domain.causes.ill_formed import BadValue, MembersDisagree
from muster.domain.causes.too_little import RoomTaken
from muster.domain.pod import Pod
from muster.domain.reasons import Cause
from muster.gangs.capacity import requests
from muster.gangs.capacity.queueing_hints import QueueingHint
from muster.gangs.lifecycle.state import State
from muster.gangs.messages.calls import Unreserve
from muster.gangs.messages.instructions import EventReason
from muster.gangs.record.gang import Exclusion, Gang, Timer
from muster.gangs.record.phases import Phase, Trigger, Unplaceable
from muster.gangs.reporting.publisher import Kinds

_ROOM = "NodeResourcesFit"
"""The plugin that counts what pods take, also those that are not bound yet."""
_ROOM_AFTER_S, _ROOM_EVERY_S = 1.0, 5.0
_PROMPT = 16
"""Nodes that are tried one after another without a pause, as plugins refuse them."""


def _refuse_as_unplaceable(
    state: State,
    gang: Gang,
    hint: QueueingHint,
    kinds: Kinds,
    text: str,
    now: float,
    again_at: float = math.inf,
) -> None:
    """Refuse the gang. Its pods pass PreEnqueue once, so that kube-scheduler shows the reason on each of
    them.

    `again_at`: when the gang is planned again although nothing changes.
    """
    state.go(gang, Trigger.NOTHING_FITS, Unplaceable())
    state.queue.refused(gang, hint)
    if gang.exclusions:
        text, kinds = f"{text}. {_left_out(gang)}", (*kinds, "left out")
        state.short_of_room[gang.key] = None
        # All other nodes have been tried by now.
        for pair, out in gang.exclusions.items():
            if out.until == math.inf:
                ends = out.since + state.settings.exclusion(gang.refusals[pair])
                until = max(ends, now + state.settings.exclusion_first_s)
                gang.exclusions[pair] = replace(out, until=until)
        # An exclusion may have ended while the gang waited for the planner.
        again_at = max(now, min(again_at, *(out.until for out in gang.exclusions.values())))
    if again_at < math.inf:
        state.timers.set(gang, again_at)
    state.backfill.waits(gang, now)
    if state.backfill_reservation is not None and state.backfill_reservation.gang == gang.key:
        kinds, text = (*kinds, "backfill"), f"{text}. {state.backfill_reservation}"
    state.publisher.refuse(gang, EventReason.UNPLACEABLE, kinds, text, now)


def refuse(
    state: State, gang: Gang, hint: QueueingHint, causes: Iterable[Cause], text: str, now: float
) -> None:
    """Refuse the gang with the planner's causes."""
    kinds = tuple(kind(cause) for cause in causes if not isinstance(cause, RoomTaken))
    _refuse_as_unplaceable(state, gang, hint, kinds, text, now)


def planner_was_ended(
    state: State, gang: Gang, hint: QueueingHint, text: str, now: float, took_s: float
) -> None:
    """Refuse a gang whose planning was stopped by a limit.

    It is planned again after a pause that grows each time. Capacity that comes free does not end the pause:
    that happens all the time.
    """
    gang.ended += 1
    gang.pause_s = state.settings.pause(gang.pause_s, took_s)
    _refuse_as_unplaceable(state, gang, hint, ("not decided",), text, now, now + gang.pause_s)
    state.queue.leave(gang)


def refuse_undecided(state: State, gang: Gang, hint: QueueingHint, text: str, now: float) -> None:
    """Refuse a gang that the planner could not decide; plan it again after a pause that grows each time."""
    gang.attempts += 1
    again_at = now + state.settings.backoff(gang.attempts)
    _refuse_as_unplaceable(state, gang, hint, ("not decided",), text, now, again_at)


def exclude_node(state: State, gang: Gang, pod: Pod, call: Unreserve) -> bool:
    """Exclude the node for pods that ask for the same as this member; return whether that is new.

    The exclusion lasts until all other nodes were tried, and then for a time that grows with each refusal.
    """
    pair = (requests.asks(pod), call.node)
    gang.refusals[pair] = gang.refusals.get(pair, 0) + 1
    gang.exclusions[pair] = Exclusion(call.now, call.plugin, call.message)
    if call.plugin == _ROOM:
        state.short_of_room[gang.key] = None
    return gang.refusals[pair] == 1


def try_full_nodes(state: State, now: float) -> None:
    """Try again the nodes that the scheduler refused as full: a pod that was not bound is gone.

    The pod may have had a place that only the scheduler knew, while its volumes were bound. The scheduler
    gets a second to see the same. A gang tries a node again at most every five seconds, so that clients that
    delete pods all the time gain nothing.
    """
    refused, state.short_of_room = state.short_of_room, {}
    for gang in (state.gangs[key] for key in refused if key in state.gangs):
        for pair, out in gang.exclusions.items():
            if out.plugin == _ROOM:
                until = min(out.until, max(now + _ROOM_AFTER_S, out.since + _ROOM_EVERY_S))
                gang.exclusions[pair] = replace(out, until=until)
        first = min((out.until for out in gang.exclusions.values()), default=math.inf)
        waits = gang.phase in (Phase.UNPLACEABLE, Phase.WITHDRAWN)
        if waits and first < gang.timers.get(Timer.PHASE, math.inf):
            state.timers.set(gang, first)


def pause_between_nodes(state: State, gang: Gang) -> float:
    """Return how many seconds to wait before the next node is tried: 0 at first, then longer each time."""
    tried = sum(gang.refusals.values())
    return 0.0 if tried <= _PROMPT else state.settings.backoff(1 + tried // (4 * _PROMPT))


def refresh_refusal(state: State, gang: Gang, now: float) -> None:
    """Report the refusal again, because its numbers have changed."""
    if gang.phase in (Phase.INVALID, Phase.UNPLACEABLE):
        event = EventReason.INVALID if gang.phase is Phase.INVALID else EventReason.UNPLACEABLE
        state.publisher.refuse(gang, event, gang.kinds, gang.reason, now)


def _left_out(gang: Gang) -> str:
    """Return a sentence on the nodes that plugins refused: which, how many, and why."""
    nodes: dict[tuple[str, str], set[str]] = {}
    for (_, node), out in gang.exclusions.items():
        nodes.setdefault((out.plugin, out.message[:80]), set()).add(node)
    listed = [
        f"{min(found) if len(found) == 1 else f'{len(found)} nodes'} ({plugin}: {why})"
        for (plugin, why), found in sorted(nodes.items(), key=lambda each: (-len(each[1]), each[0]))
    ]
    more = f" and {len(listed) - 3} more" if len(listed) > 3 else ""
    return f"Left out for a while: {', '.join(listed[:3])}{more}"


def kind(cause: Cause) -> str:
    """Return the facts of a cause apart from its numbers and the places where they were counted."""
    name = type(cause).__name__
    match cause:
        case BadValue():
            return f"{name} {cause.field} {cause.value}"
        case MembersDisagree():
            return f"{name} {cause.field}"
        case _:
            return name
