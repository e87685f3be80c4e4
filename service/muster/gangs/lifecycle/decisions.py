"""Decisions: take a planner's answer, and then accept its plan, refuse the gang, or ask again.

An answer is discarded if the cluster has changed meanwhile. Reservations begin in three places only: in
`_accept_plan`, with the Bindings that a new session reports, and where a member moves to another node. A
reservation ends when it is released, when an orphaned Binding is dropped, or when the ledger sees the pod
bound.
"""

from __future__ import annotations

from dataclasses import replace

from muster.domain.causes.not_planned import Ended, NotDecided, PlannerDefect
from muster.domain.decision import Placed, Unplaceable
from muster.domain.node import Usage
from muster.domain.pod import Batch
from muster.domain.request import Subrequest
from muster.domain.sentences import sentence
from muster.gangs.capacity import requests
from muster.gangs.capacity.ledger import fits, is_same_for
from muster.gangs.capacity.queueing_hints import QueueingHint
from muster.gangs.lifecycle import backfill, reconciliation, refusals, victims
from muster.gangs.lifecycle.state import State
from muster.gangs.messages import inputs
from muster.gangs.messages.instructions import Lane, Outcome
from muster.gangs.record.gang import Gang, PlannerQuestion
from muster.gangs.record.phases import AcceptedPlan, Phase, Planned, Trigger, Withdrawn, usages
from muster.gangs.reporting.places import with_holders
from muster.gangs.reporting.publisher import kinds_of
from muster.placement.cluster.matching import request_of_plan, serves
from muster.placement.order import scheduling_order


def take_answer(state: State, answer: inputs.SolveAnswered) -> None:
    """Handle the planner's answer: a plan, or causes why nothing fits."""
    closed_question = _close_question(state, answer)
    if closed_question is None:
        return
    question, took_s = closed_question
    if question.solve.reserves:
        backfill.take_answer(state, question, answer.decision)
        return
    gang = _find_waiting_gang(state, answer)
    if gang is None:
        return
    decision, request = requests.without_followers_in_answer(answer.decision, question.request)
    question = replace(question, solve=replace(question.solve, request=request))
    if question.solve.lane is Lane.FOREGROUND and decision.truncated:
        gang.slow = True
        state.enqueue_again(gang)
        return
    if isinstance(decision, Unplaceable):
        _take_refusal(state, gang, question, decision, took_s)
        return
    pods = {pod.uid: pod for pod in gang.group.unbound}
    if {place.uid for place in decision.members} - pods.keys():
        text = "the planner placed pods that it was not asked for, which is a defect"
        _refuse_undecided(state, gang, question.hint, text)
        return
    plan_usages = usages(decision, pods)
    if state.active and not _is_outdated(state, gang, question, decision, plan_usages):
        _accept_plan(state, gang, question, decision, plan_usages, answer.trace_id)
    elif gang.was_overtaken:  # twice in a row: other gangs have the planner first
        state.transition(gang, Trigger.OVERTAKEN, Withdrawn())
        state.timers.set(gang, state.now + state.settings.recheck_s)
    else:
        state.replan(gang, Trigger.OUTDATED)


def take_failure(state: State, failure: inputs.SolveFailed) -> None:
    """Handle a defect of the planner: refuse the gang, and ask about it again later."""
    closed_question = _close_question(state, failure)
    if closed_question is None:
        return
    question, _ = closed_question
    if question.solve.reserves:
        backfill.take_answer(state, question, None)
    elif (gang := _find_waiting_gang(state, failure)) is not None:
        gang.refusal_causes, gang.relaxations = (PlannerDefect(failure.error),), ()
        text = f"the planner failed, which is a defect: {failure.error}"
        _refuse_undecided(state, gang, question.hint, text)


def _close_question(
    state: State, answer: inputs.SolveAnswered | inputs.SolveFailed
) -> tuple[PlannerQuestion, float] | None:
    """Close the question that is answered. Return the question and how long its planner took, in seconds.

    Return None if no such question is open.
    """
    for lane, question in state.open_questions.items():
        if (question.gang, question.solve.generation) == (answer.gang, answer.generation):
            del state.open_questions[lane]
            if isinstance(answer, inputs.SolveFailed):
                return question, state.shares[lane].note_end(state.now)
            return question, state.shares[lane].note_end(state.now, answer.waited_s, answer.processor_s)
    return None


def _find_waiting_gang(state: State, answer: inputs.SolveAnswered | inputs.SolveFailed) -> Gang | None:
    """Return the gang that waits for this answer; None if no gang waits for the answer any more."""
    gang = state.gangs.get(answer.gang)
    if gang is None or gang.generation != answer.generation or gang.phase is not Phase.PLANNING:
        return None
    return gang


def _is_outdated(
    state: State, gang: Gang, question: PlannerQuestion, decision: Placed, plan_usages: tuple[Usage, ...]
) -> bool:
    """Return whether a fact that the plan relies on has changed. `plan_usages`: the capacity that the plan
    takes."""
    nodes = state.ledger.nodes
    if changed := _find_changed_nodes(state, question, decision):
        for name in changed & nodes.keys():
            gang.exclusions.add_voided(name, gang.group.unbound, state.now)
        return True
    if state.in_tree.has_new_answers(gang.key):
        answers = state.in_tree.answers(gang.key)
        refused = answers.excluded_nodes(question.request.roles)
        if any(place.node in refused.get(place.role, ()) for place in decision.members):
            return True
        subrequests_by_role = answers.subrequests_by_role(question.request.roles)
        for place, usage in zip(decision.members, plan_usages, strict=True):
            subrequests = subrequests_by_role.get(place.role, (Subrequest({}, len(place.gpus)),))
            untainted = ~nodes[place.node].tainted
            if not any(serves(subrequest, place.node, usage.gpus, untainted) for subrequest in subrequests):
                return True
    return not fits(state.snapshot_for(gang), plan_usages)


def _find_changed_nodes(state: State, question: PlannerQuestion, decision: Placed) -> set[str]:
    """Return the nodes of the plan that have changed since the question."""
    names = {place.node for place in decision.members}
    pairs = {name: (question.snapshot.nodes[name].node, state.ledger.nodes.get(name)) for name in names}
    request, policies = question.request, state.ledger.policies
    return {
        name
        for name, (old_node, new_node) in pairs.items()
        if old_node != new_node and not is_same_for(request, policies, old_node, new_node)
    }


def _accept_plan(
    state: State,
    gang: Gang,
    question: PlannerQuestion,
    decision: Placed,
    plan_usages: tuple[Usage, ...],
    trace_id: str,
) -> None:
    """Reserve the capacity of a plan, `plan_usages`, and send the plan to the shim."""
    pod_by_uid = {pod.uid: pod for pod in gang.group.unbound}
    pods = {member.uid: pod_by_uid[member.uid] for member in decision.members}
    order = scheduling_order(question.request, decision, question.snapshot)
    # With a quorum, some members of each subgroup may be too few for any subgroup to start. So all planned
    # members are required.
    least = len(order) if question.request.quorum else min(question.request.min_member, len(order))
    batch = _batch(state, gang, len(order), least)
    request = request_of_plan(question.snapshot, question.request, decision.members)
    plan = AcceptedPlan(gang.generation, request, decision, pods, order, batch, trace_id)
    gang.reason, gang.ended_decisions, gang.pause_s, gang.slow = "", 0, 0.0, False
    state.ledger.hold(plan_usages)
    state.transition(gang, Trigger.PLACED, Planned(plan))
    gang.retained_uids -= pods.keys()
    state.retained.release(gang, gang.retained_uids)
    state.timers.set(gang, state.now + state.settings.plan_for(len(order)))
    state.publisher.push(gang, gang.generation, Outcome.PLANNED, plan.members, required=least)


def _batch(state: State, gang: Gang, planned: int, least: int) -> Batch:
    """Return the record of this plan for each Binding: of `planned` members, `least` must be bound.

    After a crash, the next service reads this record to tell whether the gang was split. Pods with the gang's
    name that were not grouped yet are recorded as left out, so that an uncertain case never looks split.
    """
    bound = len(gang.group.bound)
    return Batch(
        needed=0 if bound and gang.was_complete else bound + least,
        left_out=max(0, state.roster.size(gang.name) - bound - planned),
        newest=max(pod.created for pod in gang.group.unbound),
    )


def _take_refusal(
    state: State, gang: Gang, question: PlannerQuestion, decision: Unplaceable, took_s: float
) -> None:
    """Handle causes why nothing fits."""
    decision = with_holders(decision, question.request.priority, state.ledger, state.roster.pods)
    gang.refusal_causes, gang.relaxations = decision.causes, decision.relaxations
    kinds, text = kinds_of(decision.causes), sentence(decision)
    is_outdated = state.queue.is_overtaken(gang, question) or state.in_tree.has_new_answers(gang.key)
    if gang.change_window is not None:  # pods came that were not in the request
        reconciliation.reconcile(state, gang)
        return
    if any(isinstance(cause, Ended) for cause in decision.causes):
        # The pause grows each time. Capacity that comes free does not end the pause, because capacity comes
        # free all the time.
        gang.ended_decisions += 1
        gang.pause_s = state.settings.pause(gang.pause_s, took_s)
        refusals.refuse(state, gang, question.hint, ("not decided",), text, state.now + gang.pause_s)
        state.queue.remove(gang)
        return
    gang.ended_decisions, gang.pause_s = 0, 0.0
    if question.partial:  # the question was about the fewest members, and other members may fit
        gang.plan_all_members_next = True
        state.enqueue_again(gang)
        return
    if is_outdated and not gang.was_overtaken:
        state.replan(gang, Trigger.OUTDATED)
        return
    if any(isinstance(cause, NotDecided) for cause in decision.causes):
        _refuse_undecided(state, gang, question.hint, text)
        return
    victims_question = victims.question_for(state, gang, question, decision)
    refusals.refuse(state, gang, question.hint, kinds, text, question=victims_question)
    if is_outdated:
        # If capacity comes free or plugins answer all the time, other gangs come first.
        state.timers.set(gang, state.now + state.settings.recheck_s)


def _refuse_undecided(state: State, gang: Gang, hint: QueueingHint, text: str) -> None:
    """Refuse a gang without a decision. The gang is planned again after a pause that grows each time."""
    gang.failed_attempts += 1
    again_at = state.now + state.settings.backoff(gang.failed_attempts)
    refusals.refuse(state, gang, hint, ("not decided",), text, again_at)
