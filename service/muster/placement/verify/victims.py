"""Check that the victims of a clearing may be victims, and that the plan holds on what they leave."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from muster.domain.clearing import CLOCK_SKEW_S, Clearing, ClearQuestion, Occupancy, Occupant, Victim
from muster.domain.snapshot import NodeState, Snapshot
from muster.placement.verify.judge import verify


def verify_clearing(snapshot: Snapshot, question: ClearQuestion, clearing: Clearing) -> tuple[str, ...]:
    """Return the errors in the clearing, one sentence each; () if it is valid.

    `snapshot` is the cluster with all pods. The plan is not checked if subrequests are open in the request:
    its values are those of one subrequest.
    """
    occupancy = question.occupancy
    pods = [pod for victim in clearing.victims for pod in victim.pods]
    wrong = [f"pod {pod.name} is a victim twice" for pod, count in Counter(pods).items() if count > 1]
    by_unit: dict[str, list[Occupant]] = {victim.unit: [] for victim in clearing.victims}
    for occupant in occupancy.occupants:
        if occupant.unit in by_unit:
            by_unit[occupant.unit].append(occupant)
    for victim in clearing.victims:
        wrong += _check_victim(question, victim, by_unit[victim.unit])
    for budget, count in sorted(Counter(pod.budget for pod in pods if pod.budget).items()):
        allowed = occupancy.budgets.get(budget, 0)
        if count > allowed:
            wrong.append(f"{count} victims are covered by budget {budget}, which allows {allowed}")
    going = {
        pod
        for pod in occupancy.occupants
        if pod.ends and pod.unit in occupancy.units and occupancy.now <= pod.ends + occupancy.linger_s
    }
    wrong += [f"pod {pod.name} is not about to end" for pod in clearing.going if pod not in going]
    cleared, unaccounted = _snapshot_without(snapshot, occupancy, {*pods, *going})
    open_choice = any(role.subrequests for role in question.request.roles)
    of_plan = () if open_choice else verify(cleared, question.request, clearing.plan)
    return (*wrong, *unaccounted, *of_plan)


def _check_victim(question: ClearQuestion, victim: Victim, members: list[Occupant]) -> list[str]:
    """Return why the unit may not lose these pods. `members` are all its pods."""
    occupancy, priority = question.occupancy, question.priority
    unit = occupancy.units.get(victim.unit)
    if unit is None:
        return [f"unit {victim.unit} is not known"]
    wrong = []
    if unit.priority >= priority:
        wrong.append(f"{unit.name} has priority {unit.priority}, the gang {priority}")
    if unit.protected or any(pod.started > occupancy.now + CLOCK_SKEW_S for pod in members):
        wrong.append(f"{unit.name} is protected: {unit.protected or 'a pod started in the future'}")
    if unit.protected_until > occupancy.now:
        wrong.append(f"{unit.name} has not run for its minimum time")
    running = {pod for pod in members if not pod.ends}
    if not victim.pods or not running.issuperset(victim.pods):
        wrong.append(f"a victim is no running pod of {unit.name}")
    staying = running.difference(victim.pods)
    if victim.ends:
        return [*wrong, *([f"{unit.name} ends, but keeps pods"] if staying else [])]
    counts = Counter(pod.subgroup for pod in staying)
    too_few = len(staying) < unit.min_members or any(
        counts[subgroup] < minimum
        for subgroup, minimum in unit.min_by_subgroup.items()
        if any(pod.subgroup == subgroup for pod in victim.pods)
    )
    return [*wrong, *([f"{unit.name} would keep too few pods, and does not end"] if too_few else [])]


def _snapshot_without(
    snapshot: Snapshot, occupancy: Occupancy, gone: set[Occupant]
) -> tuple[Snapshot, list[str]]:
    """Return the cluster without these pods, and a sentence for each of their nodes that has given away
    something else than its occupants say."""
    names = {pod.usage.node for pod in gone} & snapshot.nodes.keys()
    on_node: dict[str, list[Occupant]] = {name: [] for name in names}
    for occupant in occupancy.occupants:
        if occupant.usage.node in names:
            on_node[occupant.usage.node].append(occupant)
    nodes, wrong = dict(snapshot.nodes), []
    for name, occupants in sorted(on_node.items()):
        state = nodes[name]
        if NodeState.of(state.node, [occupant.usage for occupant in occupants]) != state:
            wrong.append(f"the occupants of node {name} are not all that it has given away")
        staying = [occupant.usage for occupant in occupants if occupant not in gone]
        nodes[name] = NodeState.of(state.node, staying)
    return replace(snapshot, nodes=nodes), wrong
