"""PodDisruptionBudgets: what is read of them, how often they are passed on, and what without the right."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest

from local_cluster.patience import HANG_S
from muster.adapters.kube import decode
from muster.adapters.kube.budgets import ADVANCE_S, CHANGE_S, BudgetIntake
from muster.adapters.kube.client import KubeClient
from muster.adapters.kube.watch import Watcher
from muster.adapters.telemetry.metrics import Metrics
from muster.dialects.objects import PodDisruptionBudget
from muster.dialects.pods.budgets import read
from muster.dialects.pods.peers import MAX_REQUIREMENTS
from muster.domain.preemption import DisruptionBudget
from muster.domain.request import SelectorTerm
from muster.gangs.messages.inputs import BudgetSeen, BudgetsUnread, Input
from tests.adapters.at_work import at_work
from tests.adapters.changes import seen
from tests.adapters.fake_api import FakeApi
from tests.adapters.heard import Heard
from tests.adapters.test_kube_watch import QUICK

PATH = "/apis/policy/v1/poddisruptionbudgets"
WEB = {"matchLabels": {"app": "web"}}
ADVANCE = int(ADVANCE_S / CHANGE_S)


def budget(
    name: str = "web", selector: Any = WEB, namespace: str = "ns", generation: int = 1, **status: int
) -> dict[str, Any]:
    identity = {"name": name, "namespace": namespace, "uid": name, "resourceVersion": "1"}
    return {
        "metadata": {**identity, "generation": generation},
        "spec": {"selector": selector, "minAvailable": 1},
        "status": {"observedGeneration": 1, "disruptionsAllowed": 1, **status},
    }


def as_read(item: dict[str, Any]) -> DisruptionBudget:
    return read(msgspec.convert(item, PodDisruptionBudget))


ALLOWED: dict[str, tuple[dict[str, Any], int]] = {
    "two": (budget(disruptionsAllowed=2), 2),
    "nobody": (budget(disruptionsAllowed=0), 0),
    "a negative number": (budget(disruptionsAllowed=-1), 0),
    "the status is behind": (budget(generation=2), 0),
    "the status is ahead": (budget(observedGeneration=2), 1),
    "no status yet": ({"metadata": {"name": "web", "namespace": "ns", "generation": 1}}, 0),
}


@pytest.mark.parametrize(("item", "allowed"), ALLOWED.values(), ids=ALLOWED.keys())
def test_how_many_pods_a_budget_lets_go(item: dict[str, Any], allowed: int) -> None:
    assert as_read(item).allowed == allowed


SELECTORS: dict[str, tuple[Any, Any]] = {
    "labels": (WEB, (SelectorTerm("app", "In", ("web",)),)),
    "expressions": (
        {"matchExpressions": [{"key": "app", "operator": "NotIn", "values": ["b", "a"]}]},
        (SelectorTerm("app", "NotIn", ("a", "b")),),
    ),
    "empty: all pods": ({}, ()),
    "missing: no pod": (None, None),
    "ill-formed: no pod, as in the API server": (
        {"matchExpressions": [{"key": "app", "operator": "Like", "values": ["x"]}]},
        None,
    ),
    "too large: all pods": ({"matchLabels": {f"k{i}": "v" for i in range(MAX_REQUIREMENTS + 1)}}, ()),
}


@pytest.mark.parametrize(("selector", "expected"), SELECTORS.values(), ids=SELECTORS.keys())
def test_which_pods_a_budget_selects(selector: Any, expected: Any) -> None:
    assert as_read(budget(selector=selector)).selector == expected


class Bench:
    """`now` is the clock of the rate."""

    def __init__(self) -> None:
        self.now = 0.0
        self.inputs: list[Input] = []
        self.intake = BudgetIntake(self._put, lambda: self.now)

    async def _put(self, message: Input) -> None:
        self.inputs.append(message)

    async def sees(self, item: dict[str, Any]) -> None:
        await self.intake.on_budget(*seen(msgspec.convert(item, PodDisruptionBudget)))

    def passed(self) -> list[DisruptionBudget | None]:
        """What was passed on since the last call."""
        inputs, self.inputs = self.inputs, []
        assert all(isinstance(message, BudgetSeen) for message in inputs)
        return [message.budget for message in inputs if isinstance(message, BudgetSeen)]


async def test_a_status_without_effect_is_not_passed_on() -> None:
    bench = Bench()
    await bench.sees(budget(disruptionsAllowed=1))
    await bench.sees(budget(disruptionsAllowed=1, currentHealthy=7))
    assert bench.passed() == [as_read(budget())]
    await bench.sees(budget(disruptionsAllowed=0))
    assert bench.passed() == [as_read(budget(disruptionsAllowed=0))]
    await bench.intake.on_budget("ns/web", None)
    await bench.intake.on_budget("ns/web", None)
    assert bench.passed() == [None]


async def test_how_many_may_go_is_passed_on_at_once_whatever_the_rate_is() -> None:
    bench = Bench()
    for number in range(4 * ADVANCE):
        await bench.sees(budget(disruptionsAllowed=number))
    assert len(bench.passed()) == 4 * ADVANCE


async def test_a_namespace_whose_selectors_change_all_the_time_waits_alone() -> None:
    bench = Bench()
    for number in range(3 * ADVANCE):
        await bench.sees(budget(selector={"matchLabels": {"app": f"v{number}"}}))
    assert ADVANCE <= len(bench.passed()) <= ADVANCE + 1
    await bench.sees(budget(namespace="quiet"))
    assert bench.passed() == [as_read(budget(namespace="quiet"))]
    bench.now = ADVANCE_S
    assert bench.intake.sender is not None
    await asyncio.wait_for(bench.intake.sender, HANG_S)
    last_change = {"matchLabels": {"app": f"v{3 * ADVANCE - 1}"}}
    assert bench.passed() == [as_read(budget(selector=last_change))], "only the last change counts"


async def test_a_budget_that_goes_while_its_change_waits_is_gone() -> None:
    bench = Bench()
    for number in range(2 * ADVANCE):
        await bench.sees(budget(f"b{number}"))
    bench.passed()
    gone = f"ns/b{2 * ADVANCE - 1}"
    await bench.intake.on_budget(gone, None)
    bench.now = 10 * ADVANCE_S
    assert bench.intake.sender is not None
    await asyncio.wait_for(bench.intake.sender, HANG_S)
    assert None not in (passed := bench.passed())
    assert gone not in [item.key for item in passed if item is not None]


async def test_as_many_budgets_as_are_matched_come_at_once() -> None:
    bench = Bench()
    for number in range(ADVANCE + 1):
        await bench.sees(budget(f"b{number}"))
    assert len(bench.passed()) == ADVANCE + 1


async def test_without_the_right_the_gangs_are_told_and_nothing_fails(
    api: FakeApi, client: KubeClient
) -> None:
    heard = Heard()
    intake = BudgetIntake(heard.put)
    api.forbidden.add(PATH)
    watcher = Watcher(
        client, decode.DISRUPTION_BUDGETS, intake.on_budget, Metrics(), QUICK, on_absence=intake.on_absence
    )
    async with at_work(watcher):
        await asyncio.wait_for(watcher.synced.wait(), HANG_S)
        assert watcher.is_forbidden
        assert [message.unread for message in heard.events if isinstance(message, BudgetsUnread)] == [True]
        api.forbidden.discard(PATH)
        api.served[PATH] = [budget()]
        await heard.hears(lambda message: isinstance(message, BudgetsUnread) and not message.unread)
        assert [item.key for item in heard.events if isinstance(item, BudgetSeen)] == ["ns/web"]
