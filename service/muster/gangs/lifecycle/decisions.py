"""Take the planner's answer, or discard it because the cluster has changed meanwhile."""

from __future__ import annotations

from dataclasses import replace

from muster.domain.causes.not_planned import Ended, NotDecided, PlannerDefect
from muster.domain.decision import Decision, Placed, Unplaceable
from muster.domain.pod import Batch
from muster.domain.request import Subrequest
from muster.domain.sentences import sentence
from muster.domain.topology import mask_of
from muster.gangs.capacity import requests
from muster.gangs.capacity.ledger import fits
from muster.gangs.capacity.queueing_hints import QueueingHint
from muster.gangs.lifecycle import node_changes, planning, reconciliation
from muster.gangs.lifecycle.state import State
from muster.gangs.messages import inputs
from muster.gangs.messages.instructions import EventReason, Lane, Outcome
from muster.gangs.record.gang import Ask, Gang, Solving
from muster.gangs.record.phases import Phase, Planned, Planning, Trigger, Withdrawn
from muster.gangs.record.plan import Plan, usages
from muster.gangs.reporting.places import with_holders
from muster.placement.cluster.matching import chosen, serves
from muster.placement.order import scheduling_order


def decided(state: State, answer: inputs.Decided) -> None:
    """Handle the planner's answer: a plan, or causes why nothing fits."""
    open_question = _close_question(state, answer)
    if open_question is None:
        return
    gang, phase, solving, took_s = open_question
    decision, request = requests.answer_now(answer.decision, solving.solve.request)
    solving = replace(solving, solve=replace(solving.solve, request=request))
    if solving.solve.lane is Lane.FOREGROUND and decision.truncated:
        gang.slow = True
        planning.enqueue_again(state, gang)
    elif isinstance(decision, Unplaceable):
        _take_refusal(state, gang, phase, solving, decision, answer.now, took_s)
    elif {place.uid for place in decision.members} - {pod.uid for pod in gang.group.unbound}:
        text = "the planner placed pods that it was not asked for, which is a defect"
        _refuse_undecided(state, gang, solving.hint, text, answer.now)
    elif not state.active or _is_outdated(state, gang, solving, decision):
        if phase.overtaken:  # twice in a row: other gangs have the planner first
            state.go(gang, Trigger.OVERTAKEN, Withdrawn())
            state.timers.set(gang, answer.now + state.settings.recheck_s)
        else:
            planning.replan(state, gang, Trigger.OUTDATED)
    else:
        _accept_plan(state, gang, solving, decision, answer)


def _take_refusal(
    state: State,
    gang: Gang,
    phase: Planning,
    solving: Solving,
    decision: Unplaceable,
    now: float,
    took_s: float,
) -> None:
    """Handle causes why nothing fits."""
    decision = with_holders(decision, solving.solve.request.priority, state.ledger, state.roster.pods)
    gang.blocked, gang.helps = decision.causes, decision.relaxations
    overtaken = state.queue.overtaken(gang, solving) or state.in_tree.outdated(gang.key)
    if gang.arrived is not None:  # pods came that were not in the request
        reconciliation.reconcile(state, gang, now)
        return
    if any(isinstance(cause, Ended) for cause in decision.causes):
        _planner_was_ended(state, gang, solving.hint, sentence(decision), now, took_s)
        return
    gang.ended, gang.pause_s = 0, 0.0
    if solving.partial:  # other members than those it was asked about may fit
        gang.ask_next = Ask.ALL
        planning.enqueue_again(state, gang)
        return
    if overtaken and not phase.overtaken:
        planning.replan(state, gang, Trigger.OUTDATED)
        return
    if any(isinstance(cause, NotDecided) for cause in decision.causes):
        _refuse_undecided(state, gang, solving.hint, sentence(decision), now)
        return
    planning.refuse(state, gang, solving.hint, planning.kinds_of(decision.causes), sentence(decision), now)
    if overtaken:
        # If capacity comes free or plugins answer all the time, other gangs come first.
        state.timers.set(gang, now + state.settings.recheck_s)


def solve_failed(state: State, failure: inputs.SolveFailed) -> None:
    """Handle a defect of the planner: refuse the gang, and ask about it again later."""
    open_question = _close_question(state, failure)
    if open_question is not None:
        gang, _, solving, _ = open_question
        gang.blocked, gang.helps = (PlannerDefect(failure.error),), ()
        text = f"the planner failed, which is a defect: {failure.error}"
        _refuse_undecided(state, gang, solving.hint, text, failure.now)


def _close_question(
    state: State, answer: inputs.Decided | inputs.SolveFailed
) -> tuple[Gang, Planning, Solving, float] | None:
    """Return the gang that waits for this answer, its phase, the question, and the seconds that it took.

    None if the answer is void.
    """
    identity = (answer.gang, answer.generation)
    questions = state.solving.values()
    solving = next((q for q in questions if (q.solve.gang, q.solve.generation) == identity), None)
    if solving is None:
        return None
    del state.solving[solving.solve.lane]
    share = state.shares[solving.solve.lane]
    if isinstance(answer, inputs.Decided):
        took_s = share.over(answer.now, answer.waited_s, answer.processor_s)
    else:
        took_s = share.over(answer.now)
    if solving.solve.reserves:
        decision = answer.decision if isinstance(answer, inputs.Decided) else None
        _take_reservation(state, solving, decision, answer.now)
        return None
    gang = state.gangs.get(answer.gang)
    if gang is None or gang.generation != answer.generation or not isinstance(gang.in_phase, Planning):
        return None
    return gang, gang.in_phase, solving, took_s


def _find_changed_nodes(state: State, solving: Solving, decision: Placed) -> set[str]:
    """Return the nodes of the plan that have changed since the question."""
    names = {place.node for place in decision.members}
    pairs = {name: (solving.solve.snapshot.nodes[name].node, state.ledger.nodes.get(name)) for name in names}
    request, policies = solving.solve.request, state.ledger.policies
    return {
        name
        for name, (before, after) in pairs.items()
        if before != after and not node_changes.is_same(request, policies, before, after)
    }


def _is_outdated(state: State, gang: Gang, solving: Solving, decision: Placed) -> bool:
    """Return whether the cluster has changed in what the plan relies on."""
    nodes = state.ledger.nodes
    if changed := _find_changed_nodes(state, solving, decision):
        for name in changed & nodes.keys():
            node_changes.leave_out(gang, name, gang.group.unbound, state.now)
        return True
    pods = {pod.uid: pod for pod in gang.group.unbound}
    if state.in_tree.outdated(gang.key):
        refused = state.in_tree.excluded(gang.key, solving.solve.request.roles, nodes)
        if any(place.node in refused.get(place.role, ()) for place in decision.members):
            return True
        may_have = state.in_tree.may_have(gang.key, solving.solve.request.roles, nodes)
        for place in decision.members:
            gpus, untainted = mask_of(place.gpus), ~nodes[place.node].tainted
            choices = may_have.get(place.role, (Subrequest({}, len(place.gpus)),))
            if not any(serves(subrequest, place.node, gpus, untainted) for subrequest in choices):
                return True
    return not fits(state.open_to(gang), usages(decision, pods))


def _accept_plan(
    state: State, gang: Gang, solving: Solving, decision: Placed, answer: inputs.Decided
) -> None:
    """Reserve what the planner chose, and send the plan to the shim."""
    pod_by_uid = {pod.uid: pod for pod in gang.group.unbound}
    pods = {member.uid: pod_by_uid[member.uid] for member in decision.members}
    order = scheduling_order(solving.solve.request, decision, solving.solve.snapshot)
    # Any members of several subgroups are not a start of some of them: the plan holds as a whole.
    least = len(order) if solving.solve.request.quorum else min(solving.solve.request.min_member, len(order))
    batch = _batch(state, gang, len(order), least)
    request = chosen(solving.solve.snapshot, solving.solve.request, decision.members)
    plan = Plan(gang.generation, request, decision, pods, order, batch, answer.trace_id)
    gang.reason, gang.ended, gang.pause_s, gang.slow = "", 0, 0.0, False
    state.ledger.hold(usages(decision, pods))
    state.go(gang, Trigger.PLACED, Planned(plan))
    gang.retained -= pods.keys()
    state.retained.release(gang, gang.retained)
    state.timers.set(gang, answer.now + state.settings.plan_for(len(order)))
    state.publisher.push(gang, gang.generation, Outcome.PLANNED, plan.members, required=least)


def _batch(state: State, gang: Gang, planned: int, least: int) -> Batch:
    """Return what each Binding records about this plan: `planned` members, at least `least` must fit.

    A later service reads it to tell whether a crash split the gang. Pods that bear the gang's name and were
    not counted yet are recorded as left out, so that an uncertain case never looks split.
    """
    bound = len(gang.group.bound)
    return Batch(
        needed=0 if bound and gang.was_complete else bound + least,
        left_out=max(0, state.roster.size(gang.name) - bound - planned),
        newest=max(pod.created for pod in gang.group.unbound),
    )


def _planner_was_ended(
    state: State, gang: Gang, hint: QueueingHint, text: str, now: float, took_s: float
) -> None:
    """Refuse a gang whose planning was stopped by a limit.

    It is planned again after a pause that grows each time. Capacity that comes free does not end the pause:
    that happens all the time.
    """
    gang.ended += 1
    gang.pause_s = state.settings.pause(gang.pause_s, took_s)
    planning.refuse(state, gang, hint, ("not decided",), text, now, now + gang.pause_s)
    state.queue.leave(gang)


def _refuse_undecided(state: State, gang: Gang, hint: QueueingHint, text: str, now: float) -> None:
    """Refuse a gang that the planner could not decide; plan it again after a pause that grows each time."""
    gang.attempts += 1
    again_at = now + state.settings.backoff(gang.attempts)
    planning.refuse(state, gang, hint, ("not decided",), text, now, again_at)


def _take_reservation(state: State, solving: Solving, decision: Decision | None, now: float) -> None:
    """Reserve what a gang would have if all pods that may end had ended, and tell it.

    It gets no reservation if it would have nothing even then, or if the planner did not decide.
    """
    reserves = state.backfill.answered(solving.solve.gang, solving.solve.request, decision, now)
    gang = state.gangs.get(solving.solve.gang)
    if reserves and gang is not None and gang.phase is Phase.UNPLACEABLE:
        kinds, text = (*gang.kinds, "backfill"), f"{gang.reason}. {state.backfill.current}"
        state.publisher.refuse(gang, EventReason.UNPLACEABLE, kinds, text, now)
