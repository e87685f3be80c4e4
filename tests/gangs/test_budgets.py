"""Which disruption budget covers a pod, and which namespaces have too many budgets to tell."""

from __future__ import annotations

from dataclasses import replace

import pytest

from muster.domain.peers import Selector
from muster.domain.preemption import DisruptionBudget
from muster.domain.request import SelectorTerm
from muster.gangs.coordinator import Coordinator
from muster.gangs.messages.inputs import BudgetSeen, BudgetsUnread
from muster.gangs.peers.budgets import MAX_BUDGETS, MAX_SIZE, Budgets, Coverage
from tests.gangs.world import pod

WEB: Selector = (SelectorTerm("app", "In", ("web",)),)
NO_BATCH: Selector = (SelectorTerm("app", "NotIn", ("batch",)),)
ALL: Selector = ()
HAS_X: Selector = (SelectorTerm("x", "Exists"),)
WEB_POD = pod("p", labels=(("app", "web"), ("tier", "front")))


def budget(name: str, selector: Selector = WEB, allowed: int = 1, namespace: str = "ns") -> DisruptionBudget:
    return DisruptionBudget(namespace, name, selector, allowed)


def of(*seen: DisruptionBudget) -> Budgets:
    budgets = Budgets()
    for seen_budget in seen:
        budgets.see(seen_budget.key, seen_budget)
    return budgets


COVERAGES: dict[str, tuple[Budgets, Coverage]] = {
    "no budget": (of(), Coverage()),
    "one": (of(budget("a")), Coverage("ns/a")),
    "the other does not match": (of(budget("a"), budget("b", HAS_X)), Coverage("ns/a")),
    "an empty selector covers all pods": (of(budget("a", ALL)), Coverage("ns/a")),
    "a missing selector covers none": (of(budget("a", None)), Coverage()),
    "another namespace": (of(budget("a", namespace="other")), Coverage()),
    "two": (
        of(budget("b", NO_BATCH), budget("a"), budget("c", ALL)),
        Coverage(
            protected="pod p is covered by PodDisruptionBudgets ns/a and ns/b, so it can't be evicted"
        ),
    ),
    "as many as are matched": (of(*(budget(f"b{i}", None) for i in range(MAX_BUDGETS))), Coverage()),
    "more than are matched": (
        of(*(budget(f"b{i}", None) for i in range(MAX_BUDGETS + 1))),
        Coverage(protected="namespace ns has too many PodDisruptionBudgets to match"),
    ),
    "more values than are matched": (
        of(*(budget(f"b{i}", (SelectorTerm("x", "In", ("v",) * 32),)) for i in range(MAX_SIZE // 32))),
        Coverage(protected="namespace ns has too many PodDisruptionBudgets to match"),
    ),
}  # fmt: skip


@pytest.mark.parametrize(("budgets", "coverage"), COVERAGES.values(), ids=COVERAGES.keys())
def test_which_budget_covers_a_pod(budgets: Budgets, coverage: Coverage) -> None:
    assert budgets.coverage(WEB_POD) == coverage


def test_matching_a_pod_costs_what_is_read_of_selectors() -> None:
    budgets = of(budget("a"), budget("b", None), *(budget(f"{i}", None, 1, "many") for i in range(65)))
    for namespace in ("ns", "many", "other"):
        budgets.coverage(replace(WEB_POD, namespace=namespace))
    assert [budgets.size("ns"), budgets.size("many"), budgets.size("other"), budgets.work] == [4, 0, 0, 4]


def test_a_namespace_that_had_too_many_is_matched_again() -> None:
    budgets = of(*(budget(f"b{i}", (SelectorTerm("x", "In", ("v",) * 32),)) for i in range(MAX_SIZE)))
    for number in range(1, MAX_SIZE):
        budgets.see(f"ns/b{number}", None)
    assert budgets.coverage(WEB_POD) == Coverage()
    budgets.see("ns/b0", budget("b0"))
    assert budgets.coverage(WEB_POD) == Coverage("ns/b0")
    budgets.see("ns/b0", None)
    assert (budgets.coverage(WEB_POD), budgets.allowed) == (Coverage(), {})
    assert not budgets._selectors
    assert not budgets._sizes


def test_only_a_change_of_its_pods_concerns_a_namespace() -> None:
    budgets = of(budget("a", allowed=1))
    assert budgets.changed_namespaces == {"ns"}
    budgets.changed_namespaces.clear()
    budgets.see("ns/a", budget("a", allowed=0))
    assert (budgets.allowed, budgets.changed_namespaces) == ({"ns/a": 0}, set())
    budgets.see("ns/a", budget("a", ALL))
    assert budgets.changed_namespaces == {"ns"}


def test_a_budget_without_selector_that_goes_concerns_its_namespace() -> None:
    budgets = of(budget("a", None))
    budgets.changed_namespaces.clear()
    budgets.see("ns/a", budget("a"))
    assert budgets.changed_namespaces == {"ns"}
    budgets.changed_namespaces.clear()
    budgets.see("ns/a", None)
    assert budgets.changed_namespaces == {"ns"}


def test_the_coordinator_keeps_the_budgets() -> None:
    coordinator = Coordinator()
    coordinator.handle(BudgetSeen(1.0, "ns/a", budget("a", allowed=3)))
    coordinator.handle(BudgetsUnread(2.0, True))
    budgets = coordinator.state.ledger.budgets
    assert (budgets.coverage(WEB_POD), budgets.allowed, budgets.unread) == (
        Coverage("ns/a"), {"ns/a": 3}, True,
    )  # fmt: skip
    coordinator.handle(BudgetSeen(3.0, "ns/a", None))
    coordinator.handle(BudgetsUnread(4.0, False))
    assert (budgets.coverage(WEB_POD), budgets.allowed, budgets.unread) == (Coverage(), {}, False)
