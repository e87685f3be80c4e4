"""Every choice of victims, tried in the order of its cost, by the plainest code."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from itertools import combinations, product
from typing import NamedTuple

from muster.domain.clearing import BlockerKind, Clearing, ClearQuestion, NoClearing, Occupant
from muster.domain.constraints import AntiAffinity
from muster.domain.request import Request
from muster.domain.snapshot import NodeState, Snapshot
from muster.placement.clearing import clear
from muster.placement.limits import Limits
from tests.placement import naive
from tests.placement.brute_force import in_turn
from tests.placement.clearing.questions import Question
from tests.placement.naive_parts import without_unmatched_gpus


def assert_cheapest(case: Question) -> None:
    """The answer has a proof, costs as little as any choice, and no victim can be spared."""
    snapshot, question = case
    answer, cost = clear(snapshot, question, Limits(deterministic_time=60)), cheapest(snapshot, question)
    assert answer.proven, answer
    assert isinstance(answer, Clearing) == (cost is not None), (answer, cost)
    if isinstance(answer, NoClearing):
        assert_blocked(case, answer)
        return
    priority = -math.inf if answer.priority is None else answer.priority
    assert (priority, answer.loss, len(answer.victims)) == cost, answer
    gone = {pod.usage.pod_uid for victim in answer.victims for pod in victim.pods}
    for victim in answer.victims:
        uids = {pod.usage.pod_uid for pod in victim.pods}
        for spared in [uids] if victim.ends else [{uid} for uid in uids]:
            assert not fits(without(snapshot, question, gone - spared), question.request)


class Cost(NamedTuple):
    """What victims cost, the most important level first."""

    priority: float
    loss: int
    units: int


class Loss(NamedTuple):
    """Pods of one unit that go, and what that costs."""

    pods: tuple[Occupant, ...]
    cost: Cost


NOBODY = Loss((), Cost(-math.inf, 0, 0))


def fits(snapshot: Snapshot, request: Request) -> bool:
    """Whether some plan exists, by trying every one."""
    return any(
        naive.best_value_and_plan(without_unmatched_gpus(snapshot, candidate), candidate) is not None
        for candidate in in_turn(request)
    )


def without(snapshot: Snapshot, question: ClearQuestion, pods: set[str]) -> Snapshot:
    """The cluster without these pods, and without those that end anyway."""
    occupancy = question.occupancy
    staying = [
        occupant.usage
        for occupant in occupancy.occupants
        if occupant.usage.pod_uid not in pods
        and not (occupant.ends and occupant.unit and occupancy.now <= occupant.ends + occupancy.linger_s)
    ]
    nodes = {
        name: NodeState.of(state.node, [usage for usage in staying if usage.node == name])
        for name, state in snapshot.nodes.items()
    }
    return replace(snapshot, nodes=nodes)


def cheapest(snapshot: Snapshot, question: ClearQuestion) -> Cost | None:
    """The least cost of victims with whose end the gang fits; None if there are none."""
    request, budgets = question.request, question.occupancy.budgets
    losses = [list(_losses(snapshot, question, key)) for key in question.occupancy.units]
    choices = [(_sum(choice), _uids(choice), choice) for choice in product(*losses)]
    choices.sort(key=lambda choice: (choice[0], sorted(choice[1])))
    too_small: list[set[str]] = []
    if not fits(without(snapshot, question, set().union(*(uids for _, uids, _ in choices))), request):
        return None
    for cost, uids, choice in choices:
        covered = Counter(pod.budget for loss in choice for pod in loss.pods if pod.budget)
        if any(count > budgets[budget] for budget, count in covered.items()):
            continue
        if any(uids <= smaller for smaller in too_small):
            continue
        if fits(without(snapshot, question, uids), request):
            return cost
        too_small.append(uids)
    return None


def _sum(choice: tuple[Loss, ...]) -> Cost:
    return Cost(
        max((loss.cost.priority for loss in choice), default=-math.inf),
        sum(loss.cost.loss for loss in choice),
        sum(loss.cost.units for loss in choice),
    )


def _uids(choice: tuple[Loss, ...]) -> set[str]:
    return {pod.usage.pod_uid for loss in choice for pod in loss.pods}


def _losses(snapshot: Snapshot, question: ClearQuestion, key: str) -> Iterator[Loss]:
    """Every way in which the unit may lose pods: none, some, all."""
    occupancy, unit = question.occupancy, question.occupancy.units[key]
    members = [occupant for occupant in occupancy.occupants if occupant.unit == key]
    running = [occupant for occupant in members if not occupant.ends]
    yield NOBODY
    near = {
        node
        for rule in question.request.constraints
        if not isinstance(rule, AntiAffinity)
        for node in rule.existing
    }
    if (
        unit.protected
        or unit.protected_until > occupancy.now
        or unit.priority >= question.priority
        or not running
        or any(occupant.started > occupancy.now + 60 or occupant.usage.node in near for occupant in members)
    ):
        return
    restart = occupancy.restart_s
    saved = max([0.0, *(pod.saved for pod in members if pod.saved <= occupancy.now)])
    ended = 0
    for pod in running:
        lost = max(0.0, occupancy.now - pod.started)
        lost = min(lost, occupancy.now - saved if saved else unit.checkpoint_s)
        ended += _minutes(snapshot, pod, lost + restart)
    yield Loss(tuple(running), Cost(unit.priority, ended, 1))
    for count in range(1, len(running) - unit.min_members + 1):
        for pods in combinations(running, count):
            staying = Counter(pod.subgroup for pod in running if pod not in pods)
            names = {pod.subgroup for pod in pods}
            if all(staying[name] >= unit.min_by_subgroup.get(name, 0) for name in names):
                loss = sum(_minutes(snapshot, pod, restart) for pod in pods)
                yield Loss(pods, Cost(unit.priority, loss, 1))


def _minutes(snapshot: Snapshot, pod: Occupant, seconds: float) -> int:
    gpus: float = pod.usage.gpus.bit_count() + pod.usage.unindexed_gpus
    if pod.usage.units:
        gpus = gpus * pod.usage.units / max(snapshot.nodes[pod.usage.node].node.gpu_memory)
    return max(1, math.ceil(gpus * seconds / 60))


def assert_blocked(case: Question, answer: NoClearing) -> None:
    """The blockers are true: the gang fits once they go too, or it would not fit on empty nodes either."""
    snapshot, question = case
    units, occupants = question.occupancy.units, question.occupancy.occupants
    everyone = {pod.usage.pod_uid for pod in occupants if pod.unit}
    assert answer.even_empty == (not fits(without(snapshot, question, everyone), question.request))
    assert answer.even_empty == (not answer.blockers)
    victims = {
        pod.usage.pod_uid for key in units for loss in _losses(snapshot, question, key) for pod in loss.pods
    }
    names = {blocker.name for blocker in answer.blockers if blocker.kind is not BlockerKind.BUDGET}
    blocking = {pod.usage.pod_uid for pod in occupants if pod.unit and units[pod.unit].name in names}
    if not answer.even_empty:
        assert fits(without(snapshot, question, victims | blocking), question.request)
    for blocker in answer.blockers:
        if blocker.kind is BlockerKind.BUDGET:
            assert blocker.pods > blocker.allowed == question.occupancy.budgets[blocker.name]
            assert not names
