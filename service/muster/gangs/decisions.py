"""What the planner answered: taken, or thrown away because the cluster has changed under it."""

from __future__ import annotations

from muster.domain.decision import Placed, Unplaceable
from muster.domain.reasons import Ended, NotDecided
from muster.domain.sentences import sentence
from muster.gangs import events
from muster.gangs.gang import Gang, Solving, usages
from muster.gangs.ledger import fits
from muster.gangs.life import Phase, Trigger
from muster.gangs.lives import Lives


def decided(lives: Lives, event: events.Decided) -> None:
    """The planner answered: a plan, or that nothing fits."""
    found = _asked(lives, event)
    if found is None:
        return
    gang, solving, took_s = found
    decision = event.decision
    if isinstance(decision, Unplaceable):
        overtaken = lives.backlog.overtaken(gang) or lives.in_tree.outdated(gang.key)
        if gang.arrived is not None:  # of pods that it was not asked about
            lives.settle(gang, event.now)
            return
        if any(isinstance(cause, Ended) for cause in decision.causes):
            lives.ended(gang, sentence(decision), event.now, took_s)
            return
        gang.ended, gang.pause_s = 0, 0.0
        if overtaken and not gang.overtaken:
            lives.again(gang, Trigger.OUTDATED)
            return
        if any(isinstance(cause, NotDecided) for cause in decision.causes):
            lives.not_decided(gang, sentence(decision), event.now)
            return
        lives.refused(gang, decision.causes, sentence(decision), event.now)
        if overtaken:
            # Where something comes free or plugins answer all the time, others get their turn first.
            lives.alarms.set(gang, event.now + lives.settings.recheck_s)
    elif {place.uid for place in decision.members} - {pod.uid for pod in gang.group.unbound}:
        text = "the planner placed pods that it was not asked for, which is a defect"
        lives.not_decided(gang, text, event.now)
    elif not lives.active or _outdated(lives, gang, solving, decision):
        if gang.overtaken:
            lives.pause(gang, event.now)
        else:
            lives.again(gang, Trigger.OUTDATED)
    else:
        lives.plan_made(gang, solving, decision, event)


def solve_failed(lives: Lives, event: events.SolveFailed) -> None:
    """The planner has a defect: the gang is shown as refused, and asked about again."""
    found = _asked(lives, event)
    if found is not None:
        text = f"the planner failed, which is a defect: {event.error}"
        lives.not_decided(found[0], text, event.now)


def _asked(lives: Lives, answer: events.Decided | events.SolveFailed) -> tuple[Gang, Solving, float] | None:
    """The gang that waits for this answer, what was asked, and how many seconds it took; None when the
    answer is void."""
    gang, generation = answer.gang, answer.generation
    solving = lives.solving
    if solving is None or (solving.gang, solving.generation) != (gang, generation):
        return None
    lives.solving = None
    took_s = lives.turns.over(answer.now, answer.waited_s if isinstance(answer, events.Decided) else 0.0)
    record = lives.gangs.get(gang)
    if record is None or record.generation != generation or record.phase is not Phase.PLANNING:
        return None
    return record, solving, took_s


def _outdated(lives: Lives, gang: Gang, solving: Solving, decision: Placed) -> bool:
    """Whether the cluster has changed since in what the plan stands on."""
    nodes, seen = lives.ledger.nodes, solving.snapshot.nodes
    if any(nodes.get(place.node) != seen[place.node].node for place in decision.members):
        return True
    pods = {pod.uid: pod for pod in gang.group.unbound}
    if lives.in_tree.outdated(gang.key):
        refused = lives.in_tree.excluded(gang.key, solving.request.roles, nodes)
        if any(place.node in refused.get(place.role, ()) for place in decision.members):
            return True
    return not fits(lives.open_to(gang), usages(decision, pods))
