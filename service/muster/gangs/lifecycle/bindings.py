"""Bindings: answer the shim's calls from the plan, and follow each Binding until it is settled.

Each call is checked against the current plan first.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from muster.domain import allocation, exactness
from muster.domain.decision import MemberPlacement, Placed
from muster.domain.pod import Pod
from muster.domain.request import Role
from muster.domain.sentences import placed_sentence
from muster.domain.topology import mask_of
from muster.gangs.capacity.ledger import fits
from muster.gangs.lifecycle import planning, reconciliation, refusals
from muster.gangs.lifecycle.state import State
from muster.gangs.messages.calls import (
    BindingFate,
    Call,
    Filter,
    FilterAnswer,
    InTreeReport,
    Permit,
    PermitAnswer,
    PlanRef,
    Reserve,
    ReserveAnswer,
    Score,
    ScoreAnswer,
    StaleError,
    Unreserve,
)
from muster.gangs.messages.instructions import EventReason, Outcome
from muster.gangs.record.gang import Gang, LastPermit
from muster.gangs.record.phases import AcceptedPlan, Permitted, Phase, Planned, Reserving, Trigger, usages
from muster.placement import moves
from muster.placement.cluster.candidates import profile_refusal
from muster.placement.cluster.matching import serves


def settle_bindings(state: State, gang: Gang, permitted: Permitted, late: bool = False) -> None:
    """Remove settled members from `awaited_bindings`: members seen bound, gone, or, if `late`, given up.

    When no member is awaited any more, reconcile the gang. Until then, capacity that was given back is
    retained, because it is not known yet whether the gang is partially bound.
    """
    unbound = {pod.uid for pod in state.regroup_if_stale(gang).unbound}
    awaited = permitted.awaited_bindings
    settled = [uid for uid, until in awaited.items() if uid not in unbound or (late and until <= state.now)]
    for uid in settled:
        until, pod = awaited.pop(uid), state.roster.pods.get(uid)
        if pod is not None and pod.node:
            continue
        if uid in unbound and pod is not None:
            permitted.why_lost = f"pod {pod.name} was not seen bound in time"
            gang.last_permit.given_up_uids.add(uid)
        else:
            gang.last_permit.is_incomplete = True
        if uid not in unbound and pod is not None and pod.present:
            state.orphans[uid] = until  # the pod's labels changed: it belongs to another gang now
        else:
            state.retained.keep(gang, (uid,))
    if awaited:
        state.timers.set(gang, min(awaited.values()))
        return
    gang.was_complete |= reconciliation.all_bound(state, gang)
    reconciliation.note_partially_bound(state, gang)
    if permitted.why_lost and gang.group.unbound:
        trigger = Trigger.TOO_LATE if late else Trigger.GIVEN_BACK
        reconciliation.withdraw(state, gang, trigger, permitted.why_lost, pause=True)
    else:
        reconciliation.reconcile(state, gang)


def note_bound(state: State, gang: Gang, uid: str) -> None:
    """Note that one of several awaited members was bound. Enough members may be bound now."""
    assert isinstance(gang.in_phase, Permitted)
    del gang.in_phase.awaited_bindings[uid]
    gang.stale, gang.newly_bound_count = True, gang.newly_bound_count + 1
    if gang.was_complete:
        return
    if len(gang.group.bound) + gang.newly_bound_count < gang.group.fewest_needed:
        reconciliation.start_partial_grace(state, gang)
    else:
        state.regroup_if_stale(gang)
        reconciliation.note_partially_bound(state, gang)


def _give_back_member(state: State, gang: Gang, permitted: Permitted, uid: str, why: str) -> None:
    """Note that the Binding of this permitted member is no longer under way."""
    del permitted.awaited_bindings[uid]
    permitted.why_lost, gang.last_permit.is_incomplete = why, True
    state.retained.keep(gang, (uid,))
    settle_bindings(state, gang, permitted)


def _filter(state: State, call: Filter | Score) -> FilterAnswer:
    """Return the candidates of each member, the planned node first; for a refused gang, the reason."""
    gang = _find_gang(state, call.plan)
    plan = gang.plan
    if plan is None:
        return FilterAnswer(reason=gang.verdict.reason if gang.verdict is not None else gang.reason)
    if plan.filter_answer is None:
        places = plan.places
        devices = tuple(_devices(state, places[uid]) for uid in plan.order)
        # Another node may have no room for followers.
        nodes = {} if all(devices) or plan.placed.coming else _alternates(state, gang, plan)
        candidates = tuple(
            _candidates(state, places[uid], nodes.get(uid, (places[uid].node,))) for uid in plan.order
        )
        roles = {role.name: role for role in plan.request.roles}
        subrequests = tuple(_subrequest(state, roles[places[uid].role], places[uid]) for uid in plan.order)
        units = tuple(
            places[uid].units if member_devices else 0
            for uid, member_devices in zip(plan.order, devices, strict=True)
        )
        memory = units if any(units) else ()
        plan.filter_answer = FilterAnswer(candidates, "", devices, subrequests, memory)
        plan.annotations = _annotations(state, plan)  # now, because at Permit all members wait
    return plan.filter_answer


def _score(state: State, call: Score) -> ScoreAnswer:
    """Return scores: 100 for the planned node, and less for each later candidate."""
    candidates = _filter(state, call).candidates
    return ScoreAnswer(
        tuple(tuple(max(1, 100 - 10 * rank) for rank in range(len(nodes))) for nodes in candidates)
    )


def _reserve(state: State, call: Reserve) -> ReserveAnswer:
    """Claim the plan for a member on a node. If another node is planned, move the member if the plan still
    fits."""
    (gang, plan, uid), node = _find_member(state, call.plan, call.member), call.node
    is_planned_node = plan.places[uid].node == node
    if gang.phase is Phase.PERMITTED:
        why = "" if is_planned_node else "the gang is permitted already, with another node"
        return ReserveAnswer(is_planned_node, why)
    excluded = gang.exclusions.excludes(plan.pods[uid], node)
    moved = plan.placed if is_planned_node else None if excluded else _move(state, gang, plan, uid, node)
    if moved is None:
        name = plan.pods[uid].name
        return ReserveAnswer(False, f"node {node} would not keep the gang's plan whole for pod {name}")
    if gang.phase is Phase.PLANNED:
        gang.enter(Trigger.RESERVED, Reserving(plan))  # the plan's deadline stays
    if not is_planned_node:
        plan.placed, plan.annotations = moved, None
        state.ledger.hold(usages(moved, plan.pods))
    return ReserveAnswer(True)


def _permit(state: State, call: Permit) -> PermitAnswer:
    """Allow the gang's Bindings. A repeated call gets the same answer.

    If a member or node has changed, the plan was withdrawn and the call is stale. The plan's nodes and
    capacity are checked once more, because after Permit no pod is taken back from a node that is gone.
    """
    gang = _find_gang(state, call.plan)
    match gang.in_phase:
        case Permitted(answer=PermitAnswer() as answer, awaited_bindings=awaited):
            remaining_s = min(awaited.values(), default=call.now) - call.now
            return replace(answer, bind_within_s=max(0.0, remaining_s))
        case Reserving(plan):
            return _permit_reserving(state, gang, plan, call)
        case Planned():
            return PermitAnswer(False, "no member has reserved yet")
        case _:
            return PermitAnswer(False, gang.reason)


def _permit_reserving(state: State, gang: Gang, plan: AcceptedPlan, call: Permit) -> PermitAnswer:
    """Permit a gang whose members have all reserved; withdraw its plan if the plan no longer fits."""
    why = _why_refused(state, plan)
    if why or not reconciliation.plan_still_fits(state, plan):
        why = why or "others took what it was to have"
        reconciliation.withdraw(state, gang, Trigger.NODE_CHANGED, why)
        return PermitAnswer(False, why)
    written = plan.annotations or _annotations(state, plan)
    bind_s = state.settings.bind_for(len(plan.order), plan.device_members)
    annotations = tuple(allocation.with_times(values, call.wall_ns) for values in written)
    answer, until = PermitAnswer(True, bind_within_s=bind_s, annotations=annotations), call.now + bind_s
    state.transition(gang, Trigger.PERMITTED, Permitted(plan, answer, dict.fromkeys(plan.order, until)))
    gang.last_permit = LastPermit(is_incomplete=False)
    gang.was_complete &= bool(gang.group.bound)
    state.timers.set(gang, until)
    # Members of an elastic gang beyond the plan may remain unplaced.
    sentence = placed_sentence(plan.placed, plan.request, _not_exact(state, plan))
    state.publisher.emit(gang, EventReason.PLACED, sentence, plan.members)
    return answer


def _unreserve(state: State, call: Unreserve) -> None:
    """Take back a member that does not go to its planned node.

    Before Permit the plan becomes void. After Permit other Bindings may be under way. The member's Binding is
    then awaited for `session_s` if its fate is unknown. Otherwise its place is retained until the other
    Bindings are settled, and the gang is planned again.
    """
    if call.plan.epoch == state.epoch and call.uid in state.orphans:
        if call.fate is not BindingFate.UNKNOWN:
            reconciliation.drop_orphan(state, call.uid)
        return
    gang, pod = _find_given_back(state, call)
    uid, name = pod.uid, pod.name
    why, is_first_refusal = f"pod {name} was given back", False
    if call.plugin:
        is_first_refusal = refusals.exclude_node(state, gang, pod, call)
        state.in_tree.note_refusal(gang, call.plugin)
        why = f"node {call.node} was refused to pod {name} by {call.plugin}"
    if call.message:
        why = f"{why}: {call.message}"
    match gang.in_phase:
        case Planned() | Reserving():
            trigger = Trigger.NODE_REFUSED if call.plugin else Trigger.GIVEN_BACK
            pause_s = refusals.pause_between_nodes(state, gang) if is_first_refusal else 0.0
            pause = not call.plugin
            reconciliation.withdraw(
                state, gang, trigger, why, pause=pause, cause_is_excluded=is_first_refusal, pause_s=pause_s
            )
        case Permitted(awaited_bindings=awaited) if uid in awaited and call.fate is BindingFate.UNKNOWN:
            awaited[uid] = call.now + state.settings.session_s
            state.timers.set(gang, min(awaited.values()))
        case Permitted(awaited_bindings=awaited) as permitted if uid in awaited:
            _give_back_member(state, gang, permitted, uid, why)


def _report_in_tree(state: State, report: InTreeReport) -> None:
    """Take in the answers of in-tree plugins for a gang.

    Raises:
        StaleError: the epoch is not the current one, or no such question is open.
    """
    gang = state.gangs.get(report.gang)
    if gang is None or report.epoch != state.epoch:
        raise StaleError(f"gang {report.gang}: epoch {report.epoch} is not current, or the gang is gone")
    planning.take_in_tree_answers(state, gang, state.in_tree.take_report(report))


def _find_gang(state: State, ref: PlanRef) -> Gang:
    """Return the gang of a call.

    Raises:
        StaleError: epoch or generation is not current.
    """
    gang = state.gangs.get(ref.gang)
    verdict = gang.verdict if gang is not None else None
    if (
        gang is None
        or verdict is None
        or ref.epoch != state.epoch
        or ref.generation != verdict.generation
        or verdict.outcome is Outcome.WITHDRAWN
        or (verdict.outcome is Outcome.PLANNED and gang.plan is None)
    ):
        raise StaleError(f"gang {ref.gang}: epoch {ref.epoch}, generation {ref.generation} is not current")
    return gang


def _find_member(state: State, ref: PlanRef, member: int) -> tuple[Gang, AcceptedPlan, str]:
    """Return the gang, its plan, and the UID of the member with this index."""
    gang = _find_gang(state, ref)
    if gang.plan is None or not 0 <= member < len(gang.plan.order):
        raise StaleError(f"gang {ref.gang}: its current verdict plans no member {member}")
    return gang, gang.plan, gang.plan.order[member]


def _find_given_back(state: State, call: Unreserve) -> tuple[Gang, Pod]:
    """Return the gang and the member that is given back; the pod may be gone.

    A shim that connected while Bindings were under way has no verdict of the gang, so it names the pod by
    UID.
    """
    ref, gang = call.plan, state.gangs.get(call.plan.gang)
    awaited = gang.awaited_bindings if gang is not None else {}
    if gang is not None and ref.epoch == state.epoch and gang.verdict is None and call.uid in awaited:
        return gang, state.roster.pods[call.uid]
    gang, plan, uid = _find_member(state, ref, call.member)
    return gang, plan.pods[uid]


def _move(state: State, gang: Gang, plan: AcceptedPlan, uid: str, node: str) -> Placed | None:
    """Return the plan with this member on that node and all other members unmoved; None if that is
    impossible."""
    snapshot = state.snapshot_for(gang)
    moved = moves.move(snapshot, plan.request, plan.placed, uid, node)
    if moved is None:
        return None
    places = plan.places
    others_stay = all(
        place.node == (node if place.uid == uid else places[place.uid].node) for place in moved.members
    )
    is_complete = {place.uid for place in moved.members} == set(places)
    return moved if others_stay and is_complete and fits(snapshot, usages(moved, plan.pods)) else None


def _alternates(state: State, gang: Gang, plan: AcceptedPlan) -> dict[str, tuple[str, ...]]:
    """Return UID → the nodes where a member may go, the planned node first."""
    excluded = state.excluded_nodes(gang, plan.request.roles, plan.pods.values())
    alternates = moves.alternates(
        state.snapshot_for(gang),
        plan.request,
        plan.placed,
        limit=state.settings.alternates,
        excluded=excluded,
    )
    return dict(zip((place.uid for place in plan.placed.members), alternates, strict=True))


def _devices(state: State, place: MemberPlacement) -> tuple[str, ...]:
    """Return the devices of a member's GPUs; () where no DRA driver serves them."""
    devices = state.ledger.nodes[place.node].devices
    return tuple(str(devices[gpu]) for gpu in place.gpus) if devices else ()


def _subrequest(state: State, role: Role, place: MemberPlacement) -> int:
    """Return the number, from 1, of the subrequest by which a member gets its GPUs; 0 without subrequests."""
    if role.chosen_subrequest is not None:
        return role.chosen_subrequest.number
    gpus, untainted = mask_of(place.gpus), ~state.ledger.nodes[place.node].tainted
    return next(
        (
            subrequest.number
            for subrequest in role.subrequests
            if serves(subrequest, place.node, gpus, untainted)
        ),
        0,
    )


def _candidates(state: State, place: MemberPlacement, nodes: tuple[str, ...]) -> tuple[str, ...]:
    """Return the nodes where a member may go. The plan names devices of the planned node only, so a member
    with GPUs goes to no other node with devices."""
    if not place.gpus:
        return nodes
    if state.ledger.nodes[place.node].devices:
        return nodes[:1]
    return tuple(name for name in nodes if not state.ledger.nodes[name].devices)


def _annotations(state: State, plan: AcceptedPlan) -> tuple[dict[str, str], ...]:
    """Return the annotations of each member's Binding, without their time."""
    places, nodes = plan.places, state.ledger.nodes
    not_exact = _not_exact(state, plan)
    decision = allocation.write_decision(plan.placed, plan.batch, plan.trace_id, not_exact)
    return tuple(
        allocation.write(
            plan.pods[uid],
            places[uid],
            plan.generation,
            decision,
            nodes[places[uid].node].gpu_memory,
            _devices(state, places[uid]),
            exact=exactness.is_exact(nodes[places[uid].node], plan.pods[uid], places[uid]),
        )
        | allocation.write_nri(nodes[places[uid].node], plan.pods[uid], places[uid])
        for uid in plan.order
    )


def _not_exact(state: State, plan: AcceptedPlan) -> tuple[str, ...]:
    """Return the nodes where members may get other GPUs than planned."""
    nodes, places = state.ledger.nodes, plan.places
    return exactness.not_exact((nodes[places[uid].node], plan.pods[uid], places[uid]) for uid in plan.order)


def _why_refused(state: State, plan: AcceptedPlan) -> str:
    """Return a sentence on the first planned node that is gone or refuses its members now; "" if none
    does."""
    roles = {role.name: role for role in plan.request.roles}
    for name, role in sorted({(place.node, place.role) for place in plan.placed.members}):
        node = state.ledger.nodes.get(name)
        if node is None:
            return f"node {name} is gone"
        if (reason := profile_refusal(node, roles[role])) is not None:
            return f"node {name} can't take pods now: {reason}"
    return ""


ANSWERS: Mapping[type[Call[Any]], Callable[[State, Any], Any]] = {
    Filter: _filter,
    Score: _score,
    Reserve: _reserve,
    Permit: _permit,
    Unreserve: _unreserve,
    InTreeReport: _report_in_tree,
}
"""The functions that answer the calls."""
