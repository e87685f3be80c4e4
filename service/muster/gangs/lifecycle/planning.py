"""Planning: ask each planner about one gang at a time, take its answer, and refuse gangs.

An answer is discarded if the cluster has changed meanwhile. Reservations begin in three places only: in
`_accept_plan`, with the Bindings that a new session reports, and where a member moves to another node. A
reservation ends when it is released, when an orphaned Binding is dropped, or when the ledger sees the pod
bound.
"""

from __future__ import annotations

import math
from dataclasses import replace

from muster.domain.causes.not_planned import Ended, NotDecided, PlannerDefect
from muster.domain.decision import Decision, Placed, Unplaceable
from muster.domain.node import Usage
from muster.domain.pod import Batch, Pod
from muster.domain.request import Subrequest
from muster.domain.sentences import sentence
from muster.gangs.capacity import requests
from muster.gangs.capacity.ledger import fits, is_same_for
from muster.gangs.capacity.queueing_hints import QueueingHint
from muster.gangs.lifecycle import reconciliation
from muster.gangs.lifecycle.state import State
from muster.gangs.messages import inputs
from muster.gangs.messages.calls import Unreserve
from muster.gangs.messages.instructions import EndSolve, EventReason, Lane, Outcome, Solve
from muster.gangs.pending.in_tree import MODELLED
from muster.gangs.pending.reservations import with_scores
from muster.gangs.pending.scheduling_queue import namespace_of
from muster.gangs.record import phases
from muster.gangs.record.exclusions import NODE_CHANGED, ROOM, ROOM_AFTER_S, ROOM_EVERY_S
from muster.gangs.record.gang import Gang, Solving, Timer
from muster.gangs.record.phases import AcceptedPlan, Phase, Planned, Trigger, Withdrawn, usages
from muster.gangs.reporting.places import with_holders
from muster.gangs.reporting.publisher import Kinds, kinds_of
from muster.placement.cluster.matching import request_of_plan, serves
from muster.placement.order import scheduling_order

_NODES_WITHOUT_PAUSE = 16
"""Number of nodes that a gang tries without a pause between them, as plugins refuse one after another."""


def refuse(
    state: State, gang: Gang, hint: QueueingHint, kinds: Kinds, text: str, again_at: float = math.inf
) -> None:
    """Refuse the gang: `hint` says what it must have to fit, and `text` tells users why it does not fit.

    Its pods pass PreEnqueue once, so that kube-scheduler shows the reason on each pod. `again_at`: when the
    gang is planned again even if nothing changes.
    """
    state.transition(gang, Trigger.NOTHING_FITS, phases.Unplaceable())
    state.queue.add_refused(gang, hint)
    if gang.exclusions.by_pair:
        text, kinds = f"{text}. {gang.exclusions}", (*kinds, "left out")
        # An exclusion may have ended while the gang waited for the planner.
        first_end = gang.exclusions.set_ends(state.now, state.unbound_gone_at, state.settings)
        again_at = min(again_at, max(state.now, state.unbound_gone_at + ROOM_AFTER_S, first_end))
    if again_at < math.inf:
        state.timers.set(gang, again_at)
    state.backfill.add_waiting(gang)
    if state.backfill.current is not None and state.backfill.current.gang == gang.key:
        kinds, text = (*kinds, "backfill"), f"{text}. {state.backfill.current}"
    state.publisher.refuse(gang, EventReason.UNPLACEABLE, kinds, text)


def exclude_node(state: State, gang: Gang, pod: Pod, call: Unreserve) -> bool:
    """Exclude the node for pods with the same requests as this member. Return whether this is the first
    refusal.

    The exclusion lasts until all other nodes were tried, and then for a time that grows with each refusal.
    """
    if call.plugin == ROOM:
        state.short_of_room[gang.key] = call.now
    return gang.exclusions.add_refused(pod, call)


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


def pause_between_nodes(state: State, gang: Gang) -> float:
    """Return for how many seconds to wait before the next node is tried: 0 at first, then longer each
    time."""
    tried = sum(gang.exclusions.refusals.values())
    return (
        0.0
        if tried <= _NODES_WITHOUT_PAUSE
        else state.settings.backoff(1 + tried // (4 * _NODES_WITHOUT_PAUSE))
    )


def refresh_refusal(state: State, gang: Gang) -> None:
    """Report the refusal again, because its numbers have changed."""
    if gang.phase in (Phase.INVALID, Phase.UNPLACEABLE):
        event = EventReason.INVALID if gang.phase is Phase.INVALID else EventReason.UNPLACEABLE
        state.publisher.refuse(gang, event, gang.refusal_kinds, gang.reason)


_WOKEN_AT_ONCE = 250
"""Number of refused gangs that one input queues again: about 20 ms. The next inputs queue the others."""
_COUNTED_AT_ONCE = 2048
"""If one input counts this many members (about 10 ms), the planner is asked with the next input."""
_MAX_GANGS_PER_INPUT = 32
"""Largest number of gangs that one input looks at until a gang needs the planner."""


def take_in_tree_answers(state: State, gang: Gang, changed: bool) -> None:
    """Continue with a gang for which in-tree plugins have answered. `changed`: the answers are new."""
    if changed:
        gang.exclusions.keep(lambda _, exclusion: exclusion.plugin in (*MODELLED, NODE_CHANGED))
    if gang.timers.pop(Timer.IN_TREE, None) is not None:
        state.enqueue_again(gang)
    elif changed and gang.phase is Phase.UNPLACEABLE and Timer.RECOUNT not in gang.timers:
        state.replan(gang, Trigger.FREED)


def note_gangs_to_wake(state: State, anywhere: bool = False) -> None:
    """Note the refused gangs that changes since the last call may help: `_requeue_woken` queues them.

    `anywhere`: any node may have more free capacity.
    """
    changes = state.ledger.take_changes()
    changes.anywhere = anywhere
    for solving in state.solving.values():
        solving.since.add(changes)
    state.to_wake |= dict.fromkeys(state.queue.gangs_helped_by(changes, state.now + state.settings.numbers_s))


def _requeue_woken(state: State) -> None:
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
        if Timer.RECOUNT not in gang.timers:  # else the gang is planned again once it is counted
            state.replan(gang, Trigger.FREED)


def ask_planners(state: State) -> None:
    """Ask each idle planner about its next gang. End a background decision if other gangs wait for too long.

    This first queues the gangs that changes since the last call may help. The two planners run concurrently,
    so a plan is accepted only if its capacity is still free.
    """
    if state.ledger.gained_nodes or state.ledger.existing_pods.changes.concern_peers:
        note_gangs_to_wake(state)
    if not (state.to_group or state.to_tell):
        _requeue_woken(state)
    if state.members_counted >= _COUNTED_AT_ONCE:
        state.queue.update_at = state.now  # a Tick continues: one input must not take long
    elif not state.catches_up and state.active and not state.interrupted:
        # The background planner comes first: a slow gang may have the highest priority. It comes again for
        # gangs that `_ask` passes on from the foreground planner.
        for lane in (Lane.BACKGROUND, Lane.FOREGROUND, Lane.BACKGROUND):
            # The foreground planner has work even if no gang waits: it updates the numbers of refused gangs.
            has_work = lane is Lane.FOREGROUND or state.queue.count_waiting(lane)
            if has_work and lane not in state.solving:
                _ask(state, lane)
    if state.background_ends_at is not None and state.shares[Lane.BACKGROUND].becomes_late(state.now):
        solving = state.solving[Lane.BACKGROUND]
        state.publisher.instruct(EndSolve(solving.solve.gang, solving.solve.generation))


def _ask(state: State, lane: Lane) -> None:
    """Ask this planner about the next gang that waits for it and needs an answer."""
    for _ in range(_MAX_GANGS_PER_INPUT):
        gang = _next_gang(state, lane)
        if gang is None:
            return
        if lane is Lane.FOREGROUND and _is_above_share(state, gang, lane):
            state.enqueue_again(gang, Lane.BACKGROUND)
            continue
        state.refresh_group(gang)
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
        background = state.solving.get(Lane.BACKGROUND)
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
        if gang is not None and gang.phase is Phase.UNPLACEABLE and Timer.RECOUNT not in gang.timers:
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
        refuse(state, gang, hint, kinds_of(causes), sentence(causes))
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
    _send_solve(
        state,
        Solving(solve, hint, floor, requests.asks_for_less(tried_request, request)),
        gang.ended_decisions,
    )
    return True


def _send_solve(state: State, solving: Solving, ended_decisions: int = 0) -> None:
    """Send a question to its planner. `ended_decisions` as in `Gang`."""
    solve = solving.solve
    state.solving[solve.lane] = solving
    state.shares[solve.lane].note_begin(
        namespace_of(solve.gang), state.now, state.settings.patience_s, ended_decisions
    )
    state.publisher.instruct(solve)


def review_backfill(state: State) -> None:
    """End the backfill reservation if its term is over. Ask where the reservation of the next gang would
    lie."""
    gang = state.gangs.get(state.backfill.review())
    if gang is not None and gang.phase is Phase.UNPLACEABLE:
        state.replan(gang, Trigger.FREED)
    lane = Lane.BACKGROUND
    is_idle = state.active and lane not in state.solving and not state.queue.count_waiting(lane)
    for _ in range(_MAX_GANGS_PER_INPUT if is_idle else 0):
        key = state.backfill.next_turn()
        if key is None or _ask_for_reservation(state, state.gangs[key]):
            return
        state.backfill.skip_turn(key)


def _ask_for_reservation(state: State, gang: Gang) -> bool:
    """Ask the background planner where the gang would lie if all pods with GPUs had ended.

    Return False if the gang can never fit, or if none of its pods waits.
    """
    group = state.refresh_group(gang)
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
    _send_solve(state, Solving(solve, QueueingHint.of(request)))
    return True


def take_answer(state: State, answer: inputs.SolveAnswered) -> None:
    """Handle the planner's answer: a plan, or causes why nothing fits."""
    closed_question = _close_question(state, answer)
    if closed_question is None:
        return
    solving, took_s = closed_question
    if solving.solve.reserves:
        _take_reservation(state, solving, answer.decision)
        return
    gang = _find_waiting_gang(state, answer)
    if gang is None:
        return
    decision, request = requests.without_followers_in_answer(answer.decision, solving.solve.request)
    solving = replace(solving, solve=replace(solving.solve, request=request))
    if solving.solve.lane is Lane.FOREGROUND and decision.truncated:
        gang.slow = True
        state.enqueue_again(gang)
        return
    if isinstance(decision, Unplaceable):
        _take_refusal(state, gang, solving, decision, took_s)
        return
    pods = {pod.uid: pod for pod in gang.group.unbound}
    if {place.uid for place in decision.members} - pods.keys():
        text = "the planner placed pods that it was not asked for, which is a defect"
        _refuse_undecided(state, gang, solving.hint, text)
        return
    plan_usages = usages(decision, pods)
    if state.active and not _is_outdated(state, gang, solving, decision, plan_usages):
        _accept_plan(state, gang, solving, decision, plan_usages, answer.trace_id)
    elif gang.was_overtaken:  # twice in a row: other gangs have the planner first
        state.transition(gang, Trigger.OVERTAKEN, Withdrawn())
        state.timers.set(gang, state.now + state.settings.recheck_s)
    else:
        state.replan(gang, Trigger.OUTDATED)


def _take_refusal(state: State, gang: Gang, solving: Solving, decision: Unplaceable, took_s: float) -> None:
    """Handle causes why nothing fits."""
    decision = with_holders(decision, solving.solve.request.priority, state.ledger, state.roster.pods)
    gang.refusal_causes, gang.relaxations = decision.causes, decision.relaxations
    kinds, text = kinds_of(decision.causes), sentence(decision)
    is_outdated = state.queue.is_overtaken(gang, solving) or state.in_tree.has_new_answers(gang.key)
    if gang.change_window is not None:  # pods came that were not in the request
        reconciliation.reconcile(state, gang)
        return
    if any(isinstance(cause, Ended) for cause in decision.causes):
        # The pause grows each time. Capacity that comes free does not end the pause, because capacity comes
        # free all the time.
        gang.ended_decisions += 1
        gang.pause_s = state.settings.pause(gang.pause_s, took_s)
        refuse(state, gang, solving.hint, ("not decided",), text, state.now + gang.pause_s)
        state.queue.remove(gang)
        return
    gang.ended_decisions, gang.pause_s = 0, 0.0
    if solving.partial:  # the question was about the fewest members, and other members may fit
        gang.plan_all_members_next = True
        state.enqueue_again(gang)
        return
    if is_outdated and not gang.was_overtaken:
        state.replan(gang, Trigger.OUTDATED)
        return
    if any(isinstance(cause, NotDecided) for cause in decision.causes):
        _refuse_undecided(state, gang, solving.hint, text)
        return
    refuse(state, gang, solving.hint, kinds, text)
    if is_outdated:
        # If capacity comes free or plugins answer all the time, other gangs come first.
        state.timers.set(gang, state.now + state.settings.recheck_s)


def take_failure(state: State, failure: inputs.SolveFailed) -> None:
    """Handle a defect of the planner: refuse the gang, and ask about it again later."""
    closed_question = _close_question(state, failure)
    if closed_question is None:
        return
    solving, _ = closed_question
    if solving.solve.reserves:
        _take_reservation(state, solving, None)
    elif (gang := _find_waiting_gang(state, failure)) is not None:
        gang.refusal_causes, gang.relaxations = (PlannerDefect(failure.error),), ()
        text = f"the planner failed, which is a defect: {failure.error}"
        _refuse_undecided(state, gang, solving.hint, text)


def _close_question(
    state: State, answer: inputs.SolveAnswered | inputs.SolveFailed
) -> tuple[Solving, float] | None:
    """Close the question that is answered. Return the question and how long its planner took, in seconds.

    Return None if no such question is open.
    """
    for lane, solving in state.solving.items():
        if (solving.solve.gang, solving.solve.generation) == (answer.gang, answer.generation):
            del state.solving[lane]
            if isinstance(answer, inputs.SolveFailed):
                return solving, state.shares[lane].note_end(state.now)
            return solving, state.shares[lane].note_end(state.now, answer.waited_s, answer.processor_s)
    return None


def _find_waiting_gang(state: State, answer: inputs.SolveAnswered | inputs.SolveFailed) -> Gang | None:
    """Return the gang that waits for this answer; None if no gang waits for the answer any more."""
    gang = state.gangs.get(answer.gang)
    if gang is None or gang.generation != answer.generation or gang.phase is not Phase.PLANNING:
        return None
    return gang


def _find_changed_nodes(state: State, solving: Solving, decision: Placed) -> set[str]:
    """Return the nodes of the plan that have changed since the question."""
    names = {place.node for place in decision.members}
    pairs = {name: (solving.solve.snapshot.nodes[name].node, state.ledger.nodes.get(name)) for name in names}
    request, policies = solving.solve.request, state.ledger.policies
    return {
        name
        for name, (old_node, new_node) in pairs.items()
        if old_node != new_node and not is_same_for(request, policies, old_node, new_node)
    }


def _is_outdated(
    state: State, gang: Gang, solving: Solving, decision: Placed, plan_usages: tuple[Usage, ...]
) -> bool:
    """Return whether a fact that the plan relies on has changed. `plan_usages`: the capacity that the plan
    takes."""
    nodes = state.ledger.nodes
    if changed := _find_changed_nodes(state, solving, decision):
        for name in changed & nodes.keys():
            gang.exclusions.add_voided(name, gang.group.unbound, state.now)
        return True
    if state.in_tree.has_new_answers(gang.key):
        answers = state.in_tree.answers(gang.key)
        refused = answers.excluded_nodes(solving.solve.request.roles)
        if any(place.node in refused.get(place.role, ()) for place in decision.members):
            return True
        subrequests_by_role = answers.subrequests_by_role(solving.solve.request.roles)
        for place, usage in zip(decision.members, plan_usages, strict=True):
            subrequests = subrequests_by_role.get(place.role, (Subrequest({}, len(place.gpus)),))
            untainted = ~nodes[place.node].tainted
            if not any(serves(subrequest, place.node, usage.gpus, untainted) for subrequest in subrequests):
                return True
    return not fits(state.snapshot_for(gang), plan_usages)


def _accept_plan(
    state: State,
    gang: Gang,
    solving: Solving,
    decision: Placed,
    plan_usages: tuple[Usage, ...],
    trace_id: str,
) -> None:
    """Reserve the capacity of a plan, `plan_usages`, and send the plan to the shim."""
    pod_by_uid = {pod.uid: pod for pod in gang.group.unbound}
    pods = {member.uid: pod_by_uid[member.uid] for member in decision.members}
    order = scheduling_order(solving.solve.request, decision, solving.solve.snapshot)
    # With a quorum, some members of each subgroup may be too few for any subgroup to start. So all planned
    # members are required.
    least = len(order) if solving.solve.request.quorum else min(solving.solve.request.min_member, len(order))
    batch = _batch(state, gang, len(order), least)
    request = request_of_plan(solving.solve.snapshot, solving.solve.request, decision.members)
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
    name that were not counted yet are recorded as left out, so that an uncertain case never looks split.
    """
    bound = len(gang.group.bound)
    return Batch(
        needed=0 if bound and gang.was_complete else bound + least,
        left_out=max(0, state.roster.size(gang.name) - bound - planned),
        newest=max(pod.created for pod in gang.group.unbound),
    )


def _refuse_undecided(state: State, gang: Gang, hint: QueueingHint, text: str) -> None:
    """Refuse a gang without a decision. The gang is planned again after a pause that grows each time."""
    gang.failed_attempts += 1
    again_at = state.now + state.settings.backoff(gang.failed_attempts)
    refuse(state, gang, hint, ("not decided",), text, again_at)


def _take_reservation(state: State, solving: Solving, decision: Decision | None) -> None:
    """Reserve the place that a gang would have if all pods with GPUs had ended, and publish the reservation.

    The gang gets no reservation if it would not fit even then, or if the planner did not decide.
    """
    is_reserved = state.backfill.take_answer(solving.solve.gang, solving.solve.request, decision)
    gang = state.gangs.get(solving.solve.gang)
    if is_reserved and gang is not None and gang.phase is Phase.UNPLACEABLE:
        kinds, text = (*gang.refusal_kinds, "backfill"), f"{gang.reason}. {state.backfill.current}"
        state.publisher.refuse(gang, EventReason.UNPLACEABLE, kinds, text)
