"""Take the planner's answer, or discard it because the cluster has changed meanwhile."""

from __future__ import annotations

from dataclasses import replace

from muster.domain.causes.not_planned import Ended, NotDecided, PlannerDefect
from muster.domain.decision import Placed, Unplaceable
from muster.domain.request import Subrequest
from muster.domain.sentences import sentence
from muster.domain.topology import mask_of
from muster.gangs.capacity import requests
from muster.gangs.capacity.ledger import fits
from muster.gangs.lifecycle import node_changes, planning, reconciliation
from muster.gangs.lifecycle.state import State
from muster.gangs.messages import inputs
from muster.gangs.messages.instructions import Lane
from muster.gangs.record.gang import Ask, Gang, Solving
from muster.gangs.record.phases import Planning, Trigger
from muster.gangs.record.plan import usages
from muster.gangs.reporting.places import with_holders
from muster.placement.cluster.matching import serves


def decided(state: State, answer: inputs.Decided) -> None:
    """Handle the planner's answer: a plan, or causes why nothing fits."""
    open_question = _asked(state, answer)
    if open_question is None:
        return
    gang, phase, solving, took_s = open_question
    decision, request = requests.answer_now(answer.decision, solving.request)
    solving = replace(solving, request=request)
    if solving.lane is Lane.FOREGROUND and decision.truncated:
        gang.slow = True
        planning.enqueue_again(state, gang)
    elif isinstance(decision, Unplaceable):
        _refused(state, gang, phase, solving, decision, answer.now, took_s)
    elif {place.uid for place in decision.members} - {pod.uid for pod in gang.group.unbound}:
        text = "the planner placed pods that it was not asked for, which is a defect"
        planning.refuse_undecided(state, gang, solving.hint, text, answer.now)
    elif not state.active or _outdated(state, gang, solving, decision):
        if phase.overtaken:
            planning.pause_planning(state, gang, answer.now)
        else:
            planning.replan(state, gang, Trigger.OUTDATED)
    else:
        planning.accept_plan(state, gang, solving, decision, answer)


def _refused(
    state: State,
    gang: Gang,
    phase: Planning,
    solving: Solving,
    decision: Unplaceable,
    now: float,
    took_s: float,
) -> None:
    """Handle causes why nothing fits."""
    decision = with_holders(decision, solving.request.priority, state.ledger, state.roster.pods)
    gang.blocked, gang.helps = decision.causes, decision.relaxations
    overtaken = state.queue.overtaken(gang, solving) or state.in_tree.outdated(gang.key)
    if gang.arrived is not None:  # pods came that were not in the request
        reconciliation.reconcile(state, gang, now)
        return
    if any(isinstance(cause, Ended) for cause in decision.causes):
        planning.planner_was_ended(state, gang, solving.hint, sentence(decision), now, took_s)
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
        planning.refuse_undecided(state, gang, solving.hint, sentence(decision), now)
        return
    planning.refuse(state, gang, solving.hint, decision.causes, sentence(decision), now)
    if overtaken:
        # If capacity comes free or plugins answer all the time, other gangs come first.
        state.timers.set(gang, now + state.settings.recheck_s)


def solve_failed(state: State, failure: inputs.SolveFailed) -> None:
    """Handle a defect of the planner: refuse the gang, and ask about it again later."""
    open_question = _asked(state, failure)
    if open_question is not None:
        gang, _, solving, _ = open_question
        gang.blocked, gang.helps = (PlannerDefect(failure.error),), ()
        text = f"the planner failed, which is a defect: {failure.error}"
        planning.refuse_undecided(state, gang, solving.hint, text, failure.now)


def _asked(
    state: State, answer: inputs.Decided | inputs.SolveFailed
) -> tuple[Gang, Planning, Solving, float] | None:
    """Return the gang that waits for this answer, its phase, the question, and the seconds that it took.

    None if the answer is void.
    """
    gang, generation = answer.gang, answer.generation
    out = state.solving.values()
    solving = next(
        (candidate for candidate in out if (candidate.gang, candidate.generation) == (gang, generation)),
        None,
    )
    if solving is None:
        return None
    del state.solving[solving.lane]
    share = state.shares[solving.lane]
    if isinstance(answer, inputs.Decided):
        took_s = share.over(answer.now, answer.waited_s, answer.processor_s)
    else:
        took_s = share.over(answer.now)
    if solving.reserves:
        decision = answer.decision if isinstance(answer, inputs.Decided) else None
        planning.take_reservation(state, solving, decision, answer.now)
        return None
    record = state.gangs.get(gang)
    if record is None or record.generation != generation or not isinstance(record.in_phase, Planning):
        return None
    return record, record.in_phase, solving, took_s


def _changed(state: State, solving: Solving, decision: Placed) -> set[str]:
    """Return the nodes of the plan that have changed since the question."""
    names = {place.node for place in decision.members}
    pairs = {name: (solving.snapshot.nodes[name].node, state.ledger.nodes.get(name)) for name in names}
    request, policies = solving.request, state.ledger.policies
    return {
        name
        for name, (before, after) in pairs.items()
        if before != after and not node_changes.is_same(request, policies, before, after)
    }


def _outdated(state: State, gang: Gang, solving: Solving, decision: Placed) -> bool:
    """Return whether the cluster has changed in what the plan relies on."""
    nodes = state.ledger.nodes
    if changed := _changed(state, solving, decision):
        for name in changed & nodes.keys():
            node_changes.leave_out(gang, name, gang.group.unbound, state.now)
        return True
    pods = {pod.uid: pod for pod in gang.group.unbound}
    if state.in_tree.outdated(gang.key):
        refused = state.in_tree.excluded(gang.key, solving.request.roles, nodes)
        if any(place.node in refused.get(place.role, ()) for place in decision.members):
            return True
        may_have = state.in_tree.may_have(gang.key, solving.request.roles, nodes)
        for place in decision.members:
            gpus, untainted = mask_of(place.gpus), ~nodes[place.node].tainted
            choices = may_have.get(place.role, (Subrequest({}, len(place.gpus)),))
            if not any(serves(subrequest, place.node, gpus, untainted) for subrequest in choices):
                return True
    return not fits(state.open_to(gang), usages(decision, pods))
