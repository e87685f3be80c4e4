"""Define what the exact methods exchange: plans, what is known of them, and answers.

A method is asked for the next level of a partial plan. It decides this level, and as many after it as it can.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import NamedTuple, Protocol

from muster.domain.decision import Step
from muster.placement.cluster.columns import Bools, Ints
from muster.placement.gang.instance import Counts, Instance
from muster.placement.gang.on_node import costs_on, gpus_on
from muster.placement.gpus.choices import choices, sets_under
from muster.placement.gpus.gpusets import GpuSet, best_sets
from muster.placement.gpus.node_rules import Spread, lying_in
from muster.placement.limits import Budget
from muster.placement.model.objective import Level
from muster.placement.model.problem import Problem, Use
from muster.placement.model.solve import DecidedLevel

GAP_WITHOUT_BOUND = 1.0
"""The gap if no bound is known."""

Value = tuple[int, ...]
"""The value of a plan at the levels below the nodes, each to be made small."""


class Gap(NamedTuple):
    """The first level that is not proven best, and by how much it could be better at most.

    `share` is |value − bound| / max(1, |bound|).
    """

    level: str
    share: float = GAP_WITHOUT_BOUND


@dataclass(frozen=True, slots=True)
class NodeShare:
    """What one node takes: members by role, and the GPUs for all of them."""

    row: int
    counts: Counts
    gpus: GpuSet
    spread: Spread = ()
    """By role: its members by NVLink domain. () and None mean that they may lie anywhere."""
    shared: int = 0
    """The mask of those GPUs that slices go to."""


@dataclass(frozen=True, slots=True)
class SearchResult:
    """The best plan for given members: the shares of nodes, and how each level was decided.

    `gap` is that of the first level not proven best, None if all are proven. Without shares nothing fits,
    which is proven if there is no gap.
    """

    shares: tuple[NodeShare, ...]
    gap: Gap | None = None
    steps: tuple[Step, ...] = ()


def share_of(instance: Instance, row: int, counts: Counts, choice: int) -> NodeShare:
    """Return the share of a node that takes these members on the GPU set of this choice, as `best_sets`
    orders them.
    """
    if instance.costs:
        sets = choices(instance.asks, (counts,), gpus_on(instance, row), costs_on(instance, row))
        # Alone, a packing may have been examined more closely than among others, so it has fewer choices.
        gpus, shared = sets.as_gpu_set(min(choice, len(sets.packing) - 1))
        return NodeShare(row, counts, gpus, members_by_domain(instance, row, counts, gpus.mask), shared)
    gpu_sets, _ = sets_on(instance, row, counts)
    return NodeShare(row, counts, *gpu_sets[choice])


def sets_on(
    instance: Instance, row: int, counts: Counts, allowed: int = -1
) -> tuple[tuple[tuple[GpuSet, Spread], ...], bool]:
    """Return the sets of whole GPUs that the node may give to these members, and whether these are all.

    The order is that of `best_sets`. With each set comes how the members lie in it.
    """
    rule, shape, free = instance.node_rule(row)
    if rule is not None:
        return sets_under(rule, shape, free, counts, allowed)
    size = sum(count * role.gpus for count, role in zip(counts, instance.roles, strict=True))
    return tuple((gpus, ()) for gpus in best_sets(shape, free, size, allowed)), True


def members_by_domain(instance: Instance, row: int, counts: Counts, mask: int) -> Spread:
    """Return how members lie on the chosen GPUs of the node; () if no rule binds them to domains."""
    rule, shape, _ = instance.node_rule(row)
    return lying_in(rule, counts, shape, mask) if rule is not None and rule.binds_domains else ()


# The interface of exact methods


@dataclass(frozen=True, slots=True)
class Undecided:
    """Nothing is decided yet."""


@dataclass(frozen=True, slots=True, eq=False)
class EqualRegions:
    """Regions that are equally good so far.

    `rows` [node] are the nodes, `region` [node] is the region of each from 0, and `cap` [node] is how many
    members it takes. `uncounted` are the levels, widest first, that are still to be counted: no single part
    of them holds all members.
    """

    rows: Ints
    region: Ints
    cap: Ints
    uncounted: tuple[str, ...]


@dataclass(frozen=True, slots=True, eq=False)
class OpenPatterns:
    """The problem with all patterns of single nodes and with some levels decided, and a solution of it if one
    is known.
    """

    problem: Problem
    use: Use | None

    def keeping(self, still_open: Bools) -> OpenPatterns:
        """Return the problem with only these patterns. What the solution uses is always kept."""
        problem, use = self.problem.keeping_use(still_open, self.use or {})
        return OpenPatterns(problem, None if self.use is None else use)

    def shares(self, instance: Instance) -> tuple[NodeShare, ...]:
        """Return the solution node by node."""
        counts, choice = self.problem.patterns.counts, self.problem.patterns.choice
        return tuple(
            share_of(instance, row, tuple(counts[kind, p].tolist()), int(choice[kind, p]))
            for row, kind, p in self.problem.used_nodes(self.use or {})
        )


@dataclass(frozen=True, slots=True)
class Complete:
    """A plan whose levels are all decided."""

    plan: tuple[NodeShare, ...]

    def shares(self, instance: Instance) -> tuple[NodeShare, ...]:
        """Return the plan node by node."""
        return self.plan


SearchState = Undecided | EqualRegions | DecidedLevel | OpenPatterns | Complete
"""What is known of a plan. With `DecidedLevel`, parts and nodes are counted."""


@dataclass(frozen=True, slots=True, eq=False)
class PartialPlan:
    """A plan whose first levels are decided.

    `state` is what is known about it, and `levels` are those that are left. `value` is its value at the
    levels of quality that are decided. `gap` is that of the first level not proven best.
    """

    instance: Instance
    scopes: tuple[str, ...]
    need: Counts
    levels: tuple[Level, ...]
    state: SearchState = field(default_factory=Undecided)
    value: Value = ()
    gap: Gap | None = None
    steps: tuple[Step, ...] = ()

    @property
    def active(self) -> tuple[int, ...]:
        """The roles with members to place."""
        return tuple(role for role, count in enumerate(self.need) if count)

    def shares(self) -> tuple[NodeShare, ...]:
        """Return the plan node by node, once no levels are left."""
        assert not isinstance(self.state, Undecided | EqualRegions | DecidedLevel), self.levels
        return self.state.shares(self.instance)

    def with_level(self, plans: OpenPatterns, value: int) -> PartialPlan:
        """Return the plan with one more level of quality decided."""
        return replace(self, levels=self.levels[1:], state=plans, value=(*self.value, value))

    def complete(self, shares: tuple[NodeShare, ...], value: Value = ()) -> PartialPlan:
        """Return the plan with all levels decided."""
        return replace(self, levels=(), state=Complete(shares), value=value)


@dataclass(frozen=True, slots=True, eq=False)
class Solved:
    """The plans that are equally good as far as they are decided, and the `gap` of the first level not
    proven.
    """

    plans: tuple[PartialPlan, ...]
    gap: Gap | None = None


@dataclass(frozen=True, slots=True)
class Infeasible:
    """It is proven that nothing fits."""


@dataclass(frozen=True, slots=True)
class Unknown:
    """No plan was found, but it is not proven that none exists. `gap` names the level."""

    gap: Gap


@dataclass(frozen=True, slots=True)
class Declined:
    """The method does not apply, for this reason. `gap` is what it tried and could not prove."""

    reason: str
    gap: Gap | None = None


Answer = Solved | Infeasible | Unknown | Declined


Decide = Callable[[PartialPlan, Value | None, Budget], tuple[PartialPlan | None, Gap | None]]
"""Decide all levels that are left of a plan: see search."""


class Exact(Protocol):
    """An exact method: it decides the next level of a plan with proof, or declines."""

    @property
    def name(self) -> str:
        """The name of the method, as `--explain` shows it."""

    @property
    def accepted_states(self) -> tuple[type, ...]:
        """The types of `PartialPlan.state` with which the method can begin."""

    def solve(self, plan: PartialPlan, level: Level, incumbent: Value | None, budget: Budget) -> Answer:
        """Decide the next level, `level`, and any number of levels after it.

        `incumbent` is the value of the best plan so far. A plan that is worse need not be finished.
        """
