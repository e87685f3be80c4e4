"""Plan: queue gangs for the planners, ask each about one gang at a time, and refuse gangs.

Reservations begin in three places only: where `decisions` accepts a plan, with the Bindings that a new
session reports, and where a member moves to another node. They end when the reservation is released, when an
orphaned Binding is dropped, or when the ledger sees the pod bound.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import replace

from muster.domain.causes.ill_formed import BadValue, MembersDisagree
from muster.domain.causes.too_little import RoomTaken
from muster.domain.pod import Pod
from muster.domain.reasons import Cause
from muster.domain.sentences import sentence
from muster.gangs.capacity import requests
from muster.gangs.capacity.queueing_hints import QueueingHint
from muster.gangs.lifecycle.state import State
from muster.gangs.messages.calls import Unreserve
from muster.gangs.messages.instructions import EndSolve, EventReason, Instruction, Lane, Solve
from muster.gangs.pending.in_tree import MODELLED
from muster.gangs.pending.scheduling_queue import namespace_of
from muster.gangs.record.gang import (
    NODE_CHANGED,
    ROOM,
    ROOM_AFTER_S,
    ROOM_EVERY_S,
    Ask,
    Exclusion,
    Gang,
    Solving,
    Timer,
)
from muster.gangs.record.phases import Phase, Planning, Trigger, Unplaceable
from muster.gangs.reporting.publisher import Kinds
from muster.gangs.reservations import with_scores

_PROMPT = 16
"""Nodes that are tried one after another without a pause, as plugins refuse them."""


def refuse(
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
        text, kinds = f"{text}. {_describe_exclusions(gang)}", (*kinds, "left out")
        # All other nodes have been tried by now.
        for pair, out in gang.exclusions.items():
            if out.until == math.inf:
                ends = out.since + state.settings.exclusion(gang.refusals[pair])
                until = max(ends, now + state.settings.exclusion_first_s)
                gang.exclusions[pair] = replace(out, until=until)
        # An exclusion may have ended while the gang waited for the planner.
        first_end = min(out.ends(state.unbound_gone_at) for out in gang.exclusions.values())
        again_at = min(again_at, max(now, state.unbound_gone_at + ROOM_AFTER_S, first_end))
    if again_at < math.inf:
        state.timers.set(gang, again_at)
    state.backfill.waits(gang, now)
    if state.backfill.current is not None and state.backfill.current.gang == gang.key:
        kinds, text = (*kinds, "backfill"), f"{text}. {state.backfill.current}"
    state.publisher.refuse(gang, EventReason.UNPLACEABLE, kinds, text, now)


def exclude_node(state: State, gang: Gang, pod: Pod, call: Unreserve) -> bool:
    """Exclude the node for pods that ask for the same as this member; return whether that is new.

    The exclusion lasts until all other nodes were tried, and then for a time that grows with each refusal.
    """
    pair = (requests.asks(pod), call.node)
    gang.refusals[pair] = gang.refusals.get(pair, 0) + 1
    gang.exclusions[pair] = Exclusion(call.now, call.plugin, call.message)
    if call.plugin == ROOM:
        state.short_of_room[gang.key] = call.now
    return gang.refusals[pair] == 1


def try_full_nodes(state: State, now: float) -> None:
    """Try again the nodes that the scheduler refused as full: a pod that was not bound is gone.

    The pod may have had a place that only the scheduler knew, while its volumes were bound. The scheduler
    gets a second to see the same. A gang that pauses between two nodes goes on with those that it did not
    try: clients that delete pods all the time can't keep it at the first.
    """
    state.unbound_gone_at = now
    refused_at, state.short_of_room = state.short_of_room, {}
    for key, since in refused_at.items():
        gang = state.gangs.get(key)
        if gang is not None and gang.phase in (Phase.UNPLACEABLE, Phase.WITHDRAWN):
            state.timers.set_earlier(gang, max(now + ROOM_AFTER_S, since + ROOM_EVERY_S))


def pause_between_nodes(state: State, gang: Gang) -> float:
    """Return how many seconds to wait before the next node is tried: 0 at first, then longer each time."""
    tried = sum(gang.refusals.values())
    return 0.0 if tried <= _PROMPT else state.settings.backoff(1 + tried // (4 * _PROMPT))


def refresh_refusal(state: State, gang: Gang, now: float) -> None:
    """Report the refusal again, because its numbers have changed."""
    if gang.phase in (Phase.INVALID, Phase.UNPLACEABLE):
        event = EventReason.INVALID if gang.phase is Phase.INVALID else EventReason.UNPLACEABLE
        state.publisher.refuse(gang, event, gang.kinds, gang.reason, now)


def _describe_exclusions(gang: Gang) -> str:
    """Return a sentence on the nodes that plugins refused: which, how many, and why."""
    nodes: dict[tuple[str, str], set[str]] = {}
    for (_, node), out in gang.exclusions.items():
        nodes.setdefault((out.plugin, out.message[:80]), set()).add(node)
    listed = [
        f"{min(names) if len(names) == 1 else f'{len(names)} nodes'} ({plugin}: {why})"
        for (plugin, why), names in sorted(nodes.items(), key=lambda item: (-len(item[1]), item[0]))
    ]
    more = f" and {len(listed) - 3} more" if len(listed) > 3 else ""
    return f"Left out for a while: {', '.join(listed[:3])}{more}"


def kinds_of(causes: Iterable[Cause]) -> Kinds:
    """Return the facts of causes apart from their numbers and the places where they were counted."""
    return tuple(_kind(cause) for cause in causes if not isinstance(cause, RoomTaken))


def _kind(cause: Cause) -> str:
    name = type(cause).__name__
    match cause:
        case BadValue():
            return f"{name} {cause.field} {cause.value}"
        case MembersDisagree():
            return f"{name} {cause.field}"
        case _:
            return name


_WOKEN_AT_ONCE = 250
"""Refused gangs that are queued again for one input: about 20 ms. The others follow with the next inputs."""
_COUNTED_AT_ONCE = 2048
"""Members counted for one input (about 10 ms) from which on the planner is asked with the next one."""
_AT_ONCE = 32
"""Gangs that are looked at for one input, at most, until one needs the planner."""


def enqueue(state: State, gang: Gang) -> None:
    """Queue the gang for the planner, with a new generation."""
    gang.generation = next(state.numbers)
    enqueue_again(state, gang)


def enqueue_again(state: State, gang: Gang) -> None:
    """Give the gang a place in the queue, with the generation that it has."""
    _queue(state, gang, Lane.BACKGROUND if gang.slow else Lane.FOREGROUND)


def _queue(state: State, gang: Gang, lane: Lane) -> None:
    state.queue.wait(gang, lane, first=state.retained.covers(gang))


def in_tree_answered(state: State, gang: Gang, changed: bool) -> None:
    """Go on with a gang for which in-tree plugins have answered. `changed`: the answers are new."""
    if changed:
        gang.exclusions = {
            pair: out for pair, out in gang.exclusions.items() if out.plugin in (*MODELLED, NODE_CHANGED)
        }
    if gang.timers.pop(Timer.IN_TREE, None) is not None:
        enqueue_again(state, gang)
    elif changed and gang.phase is Phase.UNPLACEABLE and Timer.RECOUNT not in gang.timers:
        replan(state, gang, Trigger.FREED)


def replan(state: State, gang: Gang, trigger: Trigger) -> None:
    """Queue an unplaceable gang again, or one whose answer came too late."""
    state.go(gang, trigger, Planning(overtaken=trigger is Trigger.OUTDATED))
    enqueue(state, gang)


def capacity_freed(state: State, anywhere: bool = False) -> None:
    """Find the refused gangs that the nodes that gained may help, to be queued again.

    `anywhere`: any node may have gained.
    """
    update_at = state.now + state.settings.numbers_s
    gained, peers = state.ledger.take_gained(), state.ledger.existing_pods.take_changes()
    for solving in state.solving.values():
        solving.since.add(gained, peers, anywhere)
    woken = state.queue.freed(gained, peers, anywhere, update_at)
    state.to_wake |= dict.fromkeys(woken)


def _requeue_woken(state: State) -> None:
    """Queue the gangs that a change may help, at most a fixed number for one input.

    The bound keeps the event loop free. The planner is asked only after all of them are queued, so that their
    order holds.
    """
    for _ in range(min(_WOKEN_AT_ONCE, len(state.to_wake))):
        key = next(iter(state.to_wake))
        del state.to_wake[key]
        gang = state.gangs.get(key)
        if gang is None or gang.phase is not Phase.UNPLACEABLE:
            continue  # it was planned again meanwhile for another reason
        if Timer.RECOUNT not in gang.timers:  # else it is planned again soon, once it is counted
            replan(state, gang, Trigger.FREED)


def _ask_planners(state: State) -> None:
    """Ask each idle planner about its next gang, and end a background decision that others wait for.

    A plan counts only if what it uses is still free when it comes: the other planner may have taken it.
    """
    if not (state.to_group or state.to_tell):
        _requeue_woken(state)
    if state.members_counted >= _COUNTED_AT_ONCE:
        state.queue.update_at = state.now  # a Tick goes on: one input must not take long
    elif not state.catches_up and state.active and not state.interrupted:
        # A slow gang comes first, because of its priority. Last come those that the foreground passes on.
        for lane in (Lane.BACKGROUND, Lane.FOREGROUND, Lane.BACKGROUND):
            # The foreground is asked even if no gang waits: it updates the numbers of refused gangs.
            has_work = lane is Lane.FOREGROUND or state.queue.waiting(lane)
            if has_work and lane not in state.solving:
                _ask(state, lane)
    if state.background_ends_at is not None and state.shares[Lane.BACKGROUND].late(state.now):
        solving = state.solving[Lane.BACKGROUND]
        state.publisher.instruct(EndSolve(solving.solve.gang, solving.solve.generation))


def _ask(state: State, lane: Lane) -> None:
    """Ask this planner about the next gang, if one waits for it."""
    for _ in range(_AT_ONCE):
        gang = _next_gang(state, lane)
        if gang is None:
            return
        if lane is Lane.FOREGROUND and namespace_of(gang.key) in state.shares[lane].resting(state.now):
            _queue(state, gang, Lane.BACKGROUND)
            continue
        state.fresh(gang)
        if not _ask_in_tree(state, gang) and _solve(state, gang, lane):
            return
    state.queue.update_at = state.now  # a Tick goes on: one input must not take long


def _next_gang(state: State, lane: Lane) -> Gang | None:
    """Return the gang that this planner decides about now, or None.

    While many planned members still wait for the shim, only partially bound gangs are planned. A plan made
    too early stands on old facts and its deadline runs; but the grace of a partially bound gang runs too.
    """
    far_ahead, held_namespaces = state.far_ahead()
    if lane is Lane.BACKGROUND:
        key = state.queue.next(lane, far_ahead, state.shares[lane].resting(state.now), paused=held_namespaces)
    else:
        background = state.solving.get(Lane.BACKGROUND)
        floor = background.floor if background is not None else None
        key = state.queue.next(lane, far_ahead, floor=floor, paused=held_namespaces)
    if lane is Lane.FOREGROUND and not far_ahead and not state.queue.waiting(lane):
        key = key or _next_to_update(state)
    return state.gangs[key] if key is not None else None


def _next_to_update(state: State) -> str | None:
    """Return a refused gang that is planned again only for its numbers, or None."""
    while (old := state.queue.next_to_update()) is not None:
        gang = state.gangs.get(old)
        if gang is not None and gang.phase is Phase.UNPLACEABLE and Timer.RECOUNT not in gang.timers:
            replan(state, gang, Trigger.FREED)
            if (key := state.queue.next(Lane.FOREGROUND)) is not None:
                return key
    return None


def _ask_in_tree(state: State, gang: Gang) -> bool:
    """Ask in-tree plugins about the gang if it needs that; return whether it must wait for their answers."""
    question = state.in_tree.ask(gang, state.now + state.settings.answers_s)
    if question is not None:
        state.publisher.instruct(question)
    until = state.in_tree.awaits(gang.key)
    if until <= state.now:
        return False
    state.timers.set(gang, until, Timer.IN_TREE)
    state.queue.lacks(gang)
    return True


def _solve(state: State, gang: Gang, lane: Lane) -> bool:
    """Ask this planner about the gang.

    Return False if the gang was refused without asking, because of what in-tree plugins answered.
    """
    request = requests.request(gang.group, state.ledger, state.roster.policies)
    snapshot = state.open_to(gang)
    causes = state.in_tree.causes(gang, request)
    if not causes:  # else they cost the event loop time for nothing
        request = state.in_tree.refine(gang.key, request, state.ledger.nodes)
        request = state.in_tree.limited(gang.key, request, snapshot)
    gang.arrived = None
    interest = requests.peer_interest(gang.group, state.ledger) if request.constraints else None
    hint = QueueingHint.of(request, interest)
    state.in_tree.used(gang.key)
    if causes:
        gang.blocked, gang.helps = tuple(causes), ()
        refuse(state, gang, hint, kinds_of(causes), sentence(causes), state.now)
        return False
    ask, gang.ask_next = gang.ask_next or _first_question(state, gang, request.priority), None
    tried_request = requests.least_of(request) if ask is Ask.LEAST else request
    excluded = state.excluded(gang, tried_request.roles, {pod.uid: pod for pod in gang.group.unbound})
    floor = None
    if lane is Lane.BACKGROUND and namespace_of(gang.key) not in state.shares[lane].resting(state.now):
        # What overtook its last plan could overtake each one: its equals wait this time.
        overtaken = isinstance(gang.in_phase, Planning) and gang.in_phase.overtaken
        floor = gang.group.priority + overtaken
    solve = Solve(gang.key, gang.generation, tried_request, snapshot, excluded, lane)
    _begin(state, Solving(solve, hint, floor, requests.asks_for_less(tried_request, request)), gang.ended)
    return True


def _begin(state: State, solving: Solving, ended: int = 0) -> None:
    """Ask a planner. `ended`: how often in a row a decision about the gang was ended."""
    solve = solving.solve
    state.solving[solve.lane] = solving
    state.shares[solve.lane].began(namespace_of(solve.gang), state.now, state.settings.patience_s, ended)
    state.publisher.instruct(solve)


def _first_question(state: State, gang: Gang, priority: int) -> Ask:
    """Return with which members the gang is planned.

    While a gang that is as important lacks members which it needs, these are those alone that this one needs:
    the first of two gangs must not take what both need. The others have their turn once these are bound.
    """
    shares = not gang.group.enough_bound and state.queue.any_lacking(priority)
    return Ask.LEAST if shares else Ask.ALL


def take_instructions(state: State) -> list[Instruction]:
    """Return the instructions so far, with the next Solve for each idle planner.

    Capacity that came free since the last call is looked at here, whatever freed it.
    """
    if state.ledger.gained or state.ledger.existing_pods.changes:
        capacity_freed(state)
    _ask_planners(state)
    return state.publisher.take()


def review_backfill(state: State, now: float) -> None:
    """End the backfill reservation if its term is over, and ask where that of the next gang would lie."""
    gang = state.gangs.get(state.backfill.look(now))
    if gang is not None and gang.phase is Phase.UNPLACEABLE:
        replan(state, gang, Trigger.FREED)
    idle = state.active and Lane.BACKGROUND not in state.solving and not state.queue.waiting(Lane.BACKGROUND)
    for _ in range(_AT_ONCE if idle else 0):
        key = state.backfill.next_turn()
        if key is None or _ask_for_reservation(state, state.gangs[key]):
            return
        state.backfill.has_none(key, now)


def _ask_for_reservation(state: State, gang: Gang) -> bool:
    """Ask the background planner where the gang would lie if all pods that may end had ended.

    Return False if it can never fit, or if no pod of it waits.
    """
    group = state.fresh(gang)
    if not group.unbound or any(cause.stays for cause in gang.blocked):
        return False
    request = requests.request(group, state.ledger, state.roster.policies)
    if state.in_tree.causes(gang, request):
        return False
    request = requests.least_of(state.in_tree.refine(gang.key, request, state.ledger.nodes))
    snapshot = state.backfill.after_all_ended(gang)
    request = state.in_tree.limited(gang.key, request, snapshot)
    scored_request = with_scores(request, state.ledger.snapshot())
    excluded = state.excluded(gang, scored_request.roles, {pod.uid: pod for pod in group.unbound})
    number, lane = next(state.numbers), Lane.BACKGROUND
    solve = Solve(gang.key, number, scored_request, snapshot, excluded, lane, reserves=True)
    _begin(state, Solving(solve, QueueingHint.of(request)))
    return True
