"""The backfill reservation: ask where the gang that has waited longest would lie, and reserve that place."""

from __future__ import annotations

from muster.domain.decision import Decision
from muster.gangs.capacity import requests
from muster.gangs.capacity.queueing_hints import QueueingHint
from muster.gangs.lifecycle import planning
from muster.gangs.lifecycle.state import State
from muster.gangs.messages.instructions import EventReason, Lane, Solve
from muster.gangs.pending.reservations import with_scores
from muster.gangs.record.gang import Gang, PlannerQuestion
from muster.gangs.record.phases import Phase, Trigger


def review(state: State) -> None:
    """End the backfill reservation if its term is over. Ask where the reservation of the next gang would
    lie."""
    gang = state.gangs.get(state.backfill.review())
    if gang is not None and gang.phase is Phase.UNPLACEABLE:
        state.replan(gang, Trigger.FREED)
    lane = Lane.BACKGROUND
    is_idle = state.active and lane not in state.open_questions and not state.queue.count_waiting(lane)
    for _ in range(planning.MAX_GANGS_PER_INPUT if is_idle else 0):
        key = state.backfill.next_turn()
        if key is None or _ask(state, state.gangs[key]):
            return
        state.backfill.skip_turn(key)


def _ask(state: State, gang: Gang) -> bool:
    """Ask the background planner where the gang would lie if all pods with GPUs had ended.

    Return False if the gang can never fit, or if none of its pods waits.
    """
    group = state.regroup_if_stale(gang)
    if not group.unbound or any(cause.stays for cause in gang.refusal_causes):
        return False
    request = requests.request(group, state.ledger)
    answers = state.in_tree.answers(gang.key)
    if answers.causes(gang.key, request):
        return False
    snapshot = state.backfill.snapshot_after_all_ended(gang)
    request = answers.with_gpu_limits(requests.least_of(answers.refine(request)), snapshot)
    scored_request = with_scores(request, state.ledger.snapshot())
    excluded = state.excluded_nodes(gang, scored_request.roles, group.unbound)
    number, lane = next(state.numbers), Lane.BACKGROUND
    solve = Solve(gang.key, number, scored_request, snapshot, excluded, lane, reserves=True)
    planning.send_question(state, PlannerQuestion(solve, QueueingHint.of(request)))
    return True


def take_answer(state: State, question: PlannerQuestion, decision: Decision | None) -> None:
    """Reserve the place that a gang would have if all pods with GPUs had ended, and publish the reservation.

    The gang gets no reservation if it would not fit even then, or if the planner did not decide.
    """
    is_reserved = state.backfill.take_answer(question.gang, question.request, decision)
    gang = state.gangs.get(question.gang)
    if is_reserved and gang is not None and gang.phase is Phase.UNPLACEABLE:
        kinds, text = (*gang.refusal_kinds, "backfill"), f"{gang.reason}. {state.backfill.current}"
        state.publisher.refuse(gang, EventReason.UNPLACEABLE, kinds, text)
