"""The shim's calls, answered from the plan. Each asks first whether it still speaks of the current plan."""

from __future__ import annotations

from dataclasses import replace

from muster.domain import allocation
from muster.domain.decision import Placed
from muster.domain.pod import Pod
from muster.domain.sentences import placed_sentence
from muster.gangs.calls import (
    BindingFate,
    FilterAnswer,
    GivenBack,
    InTreeReport,
    PermitAnswer,
    PlanRef,
    ReserveAnswer,
    ScoreAnswer,
    StaleError,
)
from muster.gangs.gang import Gang, Plan, usages
from muster.gangs.instructions import EventReason, Outcome
from muster.gangs.ledger import fits
from muster.gangs.life import Phase, Trigger
from muster.gangs.lives import Lives
from muster.gangs.requests import asks
from muster.placement import moves
from muster.placement.cluster.candidates import profile_refusal


def filter_(lives: Lives, ref: PlanRef) -> FilterAnswer:
    """Candidates of each member, the planned node first; for a refused gang why."""
    gang = _current(lives, ref)
    plan = gang.plan
    if plan is None:
        return FilterAnswer(reason=gang.verdict.reason if gang.verdict is not None else gang.reason)
    if plan.filter_answer is None:
        snapshot = lives.open_to(gang)
        excluded = lives.excluded(gang, plan.request.roles, plan.pods)
        found = moves.alternates(
            snapshot, plan.request, plan.placed, limit=lives.settings.alternates, excluded=excluded
        )
        nodes = dict(zip((place.uid for place in plan.placed.members), found, strict=True))
        plan.filter_answer = FilterAnswer(tuple(nodes[uid] for uid in plan.order))
        plan.annotations = _annotations(lives, plan)  # now: at Permit the whole gang waits
    return plan.filter_answer


def score(lives: Lives, ref: PlanRef) -> ScoreAnswer:
    """100 for the planned node, then less by each step down the candidates."""
    answer = filter_(lives, ref)
    return ScoreAnswer(
        tuple(tuple(max(1, 100 - 10 * rank) for rank in range(len(nodes))) for nodes in answer.candidates)
    )


def reserve(lives: Lives, now: float, ref: PlanRef, member: int, node: str) -> ReserveAnswer:
    """Claim: as planned, or moved in place where the member landed on another node."""
    gang, plan, uid = _planned(lives, ref, member)
    at_home = plan.places[uid].node == node
    if gang.phase is Phase.PERMITTED:
        return ReserveAnswer(at_home, "" if at_home else "the gang is permitted already, with another node")
    excluded = (asks(plan.pods[uid]), node) in gang.exclusions
    moved = plan.placed if at_home else None if excluded else _moved(lives, gang, plan, uid, node)
    if moved is None:
        name = plan.pods[uid].name
        return ReserveAnswer(False, f"node {node} would not keep the gang's plan whole for pod {name}")
    if gang.phase is Phase.PLANNED:
        lives.reserved(gang)
    if not at_home:
        plan.placed, plan.annotations = moved, None
        lives.ledger.hold(usages(moved, plan.pods))
    return ReserveAnswer(True)


def permit(lives: Lives, now: float, ref: PlanRef, wall_ns: int) -> PermitAnswer:
    """Let the gang go; return the same answer if it is asked again.

    A change of a member or node withdraws the plan, and the call is stale then. What the plan stands on is
    looked at once more all the same: from here on nothing takes a pod back from a node that is gone.
    """
    gang = _current(lives, ref)
    plan = gang.plan
    if plan is None:
        return PermitAnswer(False, gang.reason)
    if plan.permit_answer is not None:
        left = min(gang.awaited.values(), default=now) - now
        return replace(plan.permit_answer, bind_within_s=max(0.0, left))
    if gang.phase is not Phase.RESERVING:
        return PermitAnswer(False, f"no member has reserved: the gang is {gang.phase}")
    why = _refusing_node(lives, plan)
    if why or not lives.bears(gang):
        why = why or "others took what it was to have"
        lives.withdraw(gang, Trigger.NODE_CHANGED, why, now)
        return PermitAnswer(False, why)
    written = plan.annotations or _annotations(lives, plan)
    plan.permit_answer = PermitAnswer(
        True,
        bind_within_s=lives.settings.bind_for(len(plan.order)),
        annotations=tuple(allocation.timed(values, wall_ns) for values in written),
    )
    lives.permitted(gang, now)
    # Of an elastic gang others may be left, which are not placed.
    lives.voice.emit(gang, EventReason.PLACED, placed_sentence(plan.placed, plan.request), plan.members)
    return plan.permit_answer


def unreserve(lives: Lives, now: float, ref: PlanRef, back: GivenBack) -> None:
    """A member does not go where it was planned.

    Before Permit the plan is void. After it, other members may be on their way: this one's place is freed (or
    kept until the cluster says, where its Binding may have landed), and the gang is planned again once the
    others are settled.
    """
    if ref.epoch == lives.epoch and back.uid in lives.orphans:
        if back.fate is not BindingFate.UNKNOWN:
            lives.drop_orphan(back.uid)
        return
    gang, pod = _given_back(lives, ref, back)
    uid, name = pod.uid, pod.name
    why, learnt = f"pod {name} was given back", False
    if back.plugin:
        learnt = lives.exclude(gang, pod, back, now)
        lives.in_tree.refused(gang, back.plugin)
        why = f"node {back.node} was refused to pod {name} by {back.plugin}"
    if back.message:
        why = f"{why}: {back.message}"
    if gang.phase in (Phase.PLANNED, Phase.RESERVING):
        trigger = Trigger.NODE_REFUSED if back.plugin else Trigger.GIVEN_BACK
        pause_s = lives.pause_between_nodes(gang) if learnt else 0.0
        lives.withdraw(gang, trigger, why, now, pause=not back.plugin, learnt=learnt, pause_s=pause_s)
    elif gang.phase is Phase.PERMITTED and uid in gang.awaited:
        if back.fate is BindingFate.UNKNOWN:
            gang.awaited[uid] = now + lives.settings.session_s
            lives.alarms.set(gang, min(gang.awaited.values()))
            return
        lives.given_back(gang, uid, why, now)


def in_tree(lives: Lives, report: InTreeReport) -> None:
    """Take in what the in-tree plugins answer for a gang.

    Raises:
        StaleError: the epoch is not the current one, no such question is open, or a part is out of order.
    """
    gang = lives.gangs.get(report.gang)
    if gang is None or report.epoch != lives.epoch:
        raise StaleError(f"gang {report.gang}: epoch {report.epoch} is not current, or the gang is gone")
    lives.answered(gang, lives.in_tree.take(report))


def _current(lives: Lives, ref: PlanRef) -> Gang:
    gang = lives.gangs.get(ref.gang)
    verdict = gang.verdict if gang is not None else None
    if (
        gang is None
        or verdict is None
        or ref.epoch != lives.epoch
        or ref.generation != verdict.generation
        or verdict.outcome is Outcome.WITHDRAWN
        or (verdict.outcome is Outcome.PLANNED and gang.plan is None)
    ):
        raise StaleError(f"gang {ref.gang}: epoch {ref.epoch}, generation {ref.generation} is not current")
    return gang


def _planned(lives: Lives, ref: PlanRef, member: int) -> tuple[Gang, Plan, str]:
    """The gang, its plan and the UID of the member that the wire's index means."""
    gang = _current(lives, ref)
    if gang.plan is None or not 0 <= member < len(gang.plan.order):
        raise StaleError(f"gang {ref.gang}: its current verdict plans no member {member}")
    return gang, gang.plan, gang.plan.order[member]


def _given_back(lives: Lives, ref: PlanRef, back: GivenBack) -> tuple[Gang, Pod]:
    """The gang and the member, which may be gone. A session that began while Bindings were under way has
    heard no verdict of the gang: its shim names the pod."""
    gang = lives.gangs.get(ref.gang)
    if gang is not None and ref.epoch == lives.epoch and gang.verdict is None and back.uid in gang.awaited:
        return gang, lives.roster.pods[back.uid]
    gang, plan, uid = _planned(lives, ref, back.member)
    return gang, plan.pods[uid]


def _moved(lives: Lives, gang: Gang, plan: Plan, uid: str, node: str) -> Placed | None:
    """The plan with this member on that node and all others where they are; None where that can't be."""
    snapshot = lives.open_to(gang)
    moved = moves.move(snapshot, plan.request, plan.placed, uid, node)
    if moved is None:
        return None
    places = plan.places
    stays = all(
        place.node == (node if place.uid == uid else places[place.uid].node) for place in moved.members
    )
    whole = {place.uid for place in moved.members} == set(places)
    return moved if stays and whole and fits(snapshot, usages(moved, plan.pods)) else None


def _annotations(lives: Lives, plan: Plan) -> tuple[dict[str, str], ...]:
    """What each member's Binding carries, all but its time."""
    places, nodes = plan.places, lives.ledger.nodes
    decision = allocation.write_decision(plan.placed, plan.batch, plan.trace_id)
    return tuple(
        allocation.write(
            plan.pods[uid], places[uid], plan.generation, decision, nodes[places[uid].node].gpu_memory
        )
        for uid in plan.order
    )


def _refusing_node(lives: Lives, plan: Plan) -> str:
    """Return which planned node is gone, not ready or shut to its members; "" for none."""
    roles = {role.name: role for role in plan.request.roles}
    for name, role in sorted({(place.node, place.role) for place in plan.placed.members}):
        node = lives.ledger.nodes.get(name)
        if node is None:
            return f"node {name} is gone"
        if (by := profile_refusal(node, roles[role])) is not None:
            return f"node {name} can't take pods now: {by}"
    return ""
