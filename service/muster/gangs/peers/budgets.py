"""PodDisruptionBudgets: which of them covers a pod, and how many pods each lets go.

A pod is matched when a reader asks, because in most clusters none ever asks. Matching one pod reads all
selectors of its namespace, so their number and size are bounded. In a namespace beyond a bound, no pod may be
a victim.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from muster.domain.peers import Selector, matches
from muster.domain.pod import Pod
from muster.domain.preemption import DisruptionBudget

MAX_BUDGETS = 64
"""Largest number of budgets of one namespace that are matched."""
MAX_SIZE = 128
"""Largest number of names and values in the selectors of one namespace that are matched."""


@dataclass(frozen=True, slots=True)
class Coverage:
    """The only budget that covers a pod; "" if none does. `protected` is the reason, as a clause, why budgets
    forbid each eviction of the pod; "" if there is none."""

    budget: str = ""
    protected: str = ""


NOT_COVERED = Coverage()


class Budgets:
    """The budgets of all namespaces. A key is a budget's namespace and name."""

    def __init__(self) -> None:
        self.allowed: dict[str, int] = {}
        """Key → number of pods that the budget lets go now."""
        self.unread = False
        """Whether the budgets are not known, because the account may not read them. Then no pod may be
        evicted."""
        self.changed_namespaces: set[str] = set()
        """Namespaces whose pods another budget may cover, since a reader cleared this set."""
        self.work = 0
        """What matching pods has cost so far: the sum of their `size`."""
        self._selectors: dict[str, dict[str, Selector]] = {}
        """Namespace → key → selector."""
        self._sizes = Counter[str]()
        """Namespace → number of names and values in its selectors."""

    def see(self, key: str, budget: DisruptionBudget | None) -> None:
        """Take in a budget's new state; None if it is gone."""
        namespace = key.partition("/")[0]
        selectors = self._selectors.setdefault(namespace, {})
        had_budget, old_selector = key in selectors, selectors.pop(key, None)
        self._sizes[namespace] -= _size(old_selector)
        self.allowed.pop(key, None)
        if budget is not None:
            selectors[key], self.allowed[key] = budget.selector, budget.allowed
            self._sizes[namespace] += _size(budget.selector)
        if not selectors:
            del self._selectors[namespace], self._sizes[namespace]
        if budget is None or not had_budget or budget.selector != old_selector:
            self.changed_namespaces.add(namespace)

    def size(self, namespace: str) -> int:
        """Return how many selectors, and names and values in them, are read to match a pod of the namespace.

        Return 0 if no pod is matched.
        """
        selectors, size = self._selectors.get(namespace, {}), self._sizes[namespace]
        return 0 if len(selectors) > MAX_BUDGETS or size > MAX_SIZE else len(selectors) + size

    def coverage(self, pod: Pod) -> Coverage:
        """Return which budget covers the pod. The eviction API evicts no pod that two budgets cover."""
        selectors = self._selectors.get(pod.namespace)
        if selectors is None:
            return NOT_COVERED
        size = self.size(pod.namespace)
        if not size:
            return Coverage(protected=f"namespace {pod.namespace} has too many PodDisruptionBudgets to match")
        self.work += size
        labels = dict(pod.labels)
        covering = (key for key in sorted(selectors) if matches(selectors[key], labels))
        first, second = next(covering, ""), next(covering, "")
        if second:
            both = f"PodDisruptionBudgets {first} and {second}"
            return Coverage(protected=f"pod {pod.name} is covered by {both}, so it can't be evicted")
        return Coverage(first)

    def protection(self, pods: Iterable[Pod]) -> str:
        """Return why budgets forbid each eviction of some of these pods, as a clause; "" if they do not."""
        if self.unread:
            return "the service may not read PodDisruptionBudgets"
        return next(filter(None, (self.coverage(pod).protected for pod in pods)), "")


def _size(selector: Selector) -> int:
    """Return the number of names and values in a selector."""
    return sum(1 + len(requirement.values) for requirement in selector or ())
