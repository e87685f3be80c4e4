"""Planning: choose the next gang for each planner, and ask the planner about it.

Each planner has one open question at a time. Before a gang is planned, in-tree plugins may be asked about it.
"""

from __future__ import annotations

from muster.domain.sentences import sentence
from muster.gangs.capacity import requests
from muster.gangs.capacity.queueing_hints import QueueingHint
from muster.gangs.lifecycle import refusals
from muster.gangs.lifecycle.state import State
from muster.gangs.messages.instructions import EndSolve, Lane, Solve
from muster.gangs.pending.in_tree import MODELLED
from muster.gangs.pending.scheduling_queue import namespace_of
from muster.gangs.record.exclusions import NODE_CHANGED
from muster.gangs.record.gang import Gang, PlannerQuestion, Timer
from muster.gangs.record.phases import Phase, Trigger
from muster.gangs.reporting.publisher import kinds_of

_REGROUPED_AT_ONCE = 2048
"""If one input regroups this many members (about 10 ms), the planner is asked with the next input."""
MAX_GANGS_PER_INPUT = 32
"""Largest number of gangs that one input looks at until a gang needs the planner."""


def ask_planners(state: State) -> None:
    """Ask each idle planner about its next gang. End a background decision if other gangs wait for too long.

    This first queues the gangs that changes since the last call may help. The two planners run concurrently,
    so a plan is accepted only if its capacity is still free.
    """
    if state.ledger.gained_nodes or state.ledger.existing_pods.changes.concern_peers:
        refusals.note_gangs_to_wake(state)
    if not (state.to_regroup or state.to_tell):
        refusals.requeue_woken(state)
    if state.members_regrouped >= _REGROUPED_AT_ONCE:
        state.queue.update_at = state.now  # a Tick continues: one input must not take long
    elif not state.catches_up and state.active and not state.interrupted:
        # The background planner comes first: a slow gang may have the highest priority. It comes again for
        # gangs that `_ask` passes on from the foreground planner.
        for lane in (Lane.BACKGROUND, Lane.FOREGROUND, Lane.BACKGROUND):
            # The foreground planner has work even if no gang waits: it updates the numbers of refused gangs.
            has_work = lane is Lane.FOREGROUND or state.queue.count_waiting(lane)
            if has_work and lane not in state.open_questions:
                _ask(state, lane)
    if state.background_ends_at is not None and state.shares[Lane.BACKGROUND].becomes_late(state.now):
        question = state.open_questions[Lane.BACKGROUND]
        state.publisher.instruct(EndSolve(question.gang, question.solve.generation))


def _ask(state: State, lane: Lane) -> None:
    """Ask this planner about the next gang that waits for it and needs an answer."""
    for _ in range(MAX_GANGS_PER_INPUT):
        gang = _next_gang(state, lane)
        if gang is None:
            return
        if lane is Lane.FOREGROUND and _is_above_share(state, gang, lane):
            state.enqueue_again(gang, Lane.BACKGROUND)
            continue
        state.regroup_if_stale(gang)
        if not _ask_in_tree(state, gang) and _solve(state, gang, lane):
            return
    state.queue.update_at = state.now  # a Tick continues: one input must not take long


def _is_above_share(state: State, gang: Gang, lane: Lane) -> bool:
    """Return whether the gang's namespace has used more than its share of this planner."""
    return namespace_of(gang.key) in state.shares[lane].resting_namespaces(state.now)


def _next_gang(state: State, lane: Lane) -> Gang | None:
    """Return the gang that this planner decides about now; None if no gang waits that may be planned.

    While many planned members wait for the shim, only partially bound gangs are planned, because their grace
    periods run. Other plans would become outdated, and reach their deadlines.
    """
    planned_enough, throttled_namespaces = state.check_ahead_limit()
    if lane is Lane.BACKGROUND:
        key = state.queue.pop_next(
            lane,
            planned_enough,
            state.shares[lane].resting_namespaces(state.now),
            paused=throttled_namespaces,
        )
    else:
        background = state.open_questions.get(Lane.BACKGROUND)
        floor = background.floor if background is not None else None
        key = state.queue.pop_next(lane, planned_enough, floor=floor, paused=throttled_namespaces)
    if lane is Lane.FOREGROUND and not planned_enough and not state.queue.count_waiting(lane):
        key = key or _next_to_update(state)
    return state.gangs[key] if key is not None else None


def _next_to_update(state: State) -> str | None:
    """Queue the next refused gang that is planned again only to update the numbers in its refusal.

    Return its key; None if there is no such gang.
    """
    while state.queue.to_update:
        gang = state.gangs.get(state.queue.to_update.pop())
        if gang is not None and gang.phase is Phase.UNPLACEABLE and Timer.REGROUP not in gang.timers:
            state.replan(gang, Trigger.NUMBERS_OLD)
            if (key := state.queue.pop_next(Lane.FOREGROUND)) is not None:
                return key
    return None


def _ask_in_tree(state: State, gang: Gang) -> bool:
    """Ask in-tree plugins about the gang if they may refuse nodes. Return whether it must wait for
    answers."""
    question = state.in_tree.ask(gang, state.now + state.settings.answers_s)
    if question is not None:
        state.publisher.instruct(question)
    until = state.in_tree.awaits_until(gang.key)
    if until <= state.now:
        return False
    state.timers.set(gang, until, Timer.IN_TREE)
    state.queue.note_lacking(gang)
    return True


def take_in_tree_answers(state: State, gang: Gang, changed: bool) -> None:
    """Continue with a gang for which in-tree plugins have answered. `changed`: the answers are new."""
    if changed:
        gang.exclusions.keep(lambda _, exclusion: exclusion.plugin in (*MODELLED, NODE_CHANGED))
    if gang.timers.pop(Timer.IN_TREE, None) is not None:
        state.enqueue_again(gang)
    elif changed and gang.phase is Phase.UNPLACEABLE and Timer.REGROUP not in gang.timers:
        state.replan(gang, Trigger.FREED)


def _solve(state: State, gang: Gang, lane: Lane) -> bool:
    """Ask this planner about the gang.

    Return False if the gang was refused without a question: in-tree plugins refuse its members everywhere.
    """
    request = requests.request(gang.group, state.ledger)
    snapshot = state.snapshot_for(gang)
    answers = state.in_tree.answers(gang.key)
    causes = answers.causes(gang.key, request)
    if not causes:  # `refine` is slow: skip it for a gang that is refused anyway
        request = answers.with_gpu_limits(answers.refine(request), snapshot)
    gang.change_window = None
    interest = requests.peer_interest(gang.group, state.ledger) if request.constraints else None
    hint = QueueingHint.of(request, interest)
    state.in_tree.mark_used(gang.key)
    if causes:
        gang.refusal_causes, gang.relaxations = tuple(causes), ()
        refusals.refuse(state, gang, hint, kinds_of(causes), sentence(causes))
        return False
    tried_request = request
    if not (gang.plan_all_members_next or gang.group.enough_bound) and state.queue.any_lacking(
        request.priority
    ):
        # Another gang still lacks required members. So plan only the required members of this gang now, and
        # its other members later.
        tried_request = requests.least_of(request)
    gang.plan_all_members_next = False
    excluded = state.excluded_nodes(gang, tried_request.roles, gang.group.unbound)
    floor = None
    if lane is Lane.BACKGROUND and not _is_above_share(state, gang, lane):
        # Gangs of a priority below `floor` wait. If the cluster changed while the last plan was computed,
        # raise the floor by one: then gangs of equal priority can't change the cluster again meanwhile.
        floor = gang.group.priority + gang.was_overtaken
    solve = Solve(gang.key, gang.generation, tried_request, snapshot, excluded, lane)
    send_question(
        state,
        PlannerQuestion(solve, hint, floor, requests.asks_for_less(tried_request, request)),
        gang.ended_decisions,
    )
    return True


def send_question(state: State, question: PlannerQuestion, ended_decisions: int = 0) -> None:
    """Send a question to its planner. `ended_decisions` as in `Gang`."""
    solve = question.solve
    state.open_questions[solve.lane] = question
    state.shares[solve.lane].note_begin(
        namespace_of(solve.gang), state.now, state.settings.patience_s, ended_decisions
    )
    state.publisher.instruct(solve)
