"""Define the data that exact methods take and return: a partial plan, its search state, and the answer.

A method is asked for the next level of a partial plan. The method decides this level, and as many levels
after it as possible.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import NamedTuple, Protocol

import numpy as np

from muster.domain.decision import Step
from muster.placement.cluster.columns import Bools, Ints
from muster.placement.gang.instance import Instance
from muster.placement.gang.on_node import context_on, gpus_on
from muster.placement.gpus.choices import choices, sets_under
from muster.placement.gpus.gpusets import GpuSet, best_sets
from muster.placement.gpus.node_rules import Counts, MembersByDomain, domains_of_members
from muster.placement.limits import Budget
from muster.placement.model.objective import Level
from muster.placement.model.problem import Problem, Use
from muster.placement.model.solve import DecidedLevel

GAP_WITHOUT_BOUND = 1.0
"""The gap if no bound is known: it counts as 100 %."""

Value = tuple[int, ...]
"""The values of a plan at some levels, the most important first. Smaller values are better."""


class Gap(NamedTuple):
    """The first level that is not proven best, and the largest fraction by which its value could be better.

    `fraction` is |value − bound| / max(1, |bound|).
    """

    level: str
    fraction: float = GAP_WITHOUT_BOUND


@dataclass(frozen=True, slots=True)
class NodePlan:
    """The plan of one node: members by role, and the GPUs for all of them."""

    row: int
    counts: Counts
    gpus: GpuSet
    by_domain: MembersByDomain = ()
    """`by_domain[role]` is the number of members in each NVLink domain of the node, or None if no rule binds
    the role's members to domains. () stands for None for all roles.
    """
    shared: int = 0
    """The mask of the GPUs that members share."""


@dataclass(frozen=True, slots=True)
class SearchResult:
    """The best plan for a number of members by role: the plan of each node, and how each level was decided.

    `gap` is the gap of the first level not proven best, None if all levels are proven. If `nodes` is empty,
    no plan was found; without a gap, it is proven that there is no plan.
    """

    nodes: tuple[NodePlan, ...]
    gap: Gap | None = None
    steps: tuple[Step, ...] = ()


def node_plan_of(instance: Instance, row: int, counts: Counts, choice: int) -> NodePlan:
    """Return the plan of a node that takes these members on a GPU set. `choice` is the set's index in the
    order of `best_sets`.
    """
    if instance.policy_costs:
        sets = choices(instance.asks, (counts,), gpus_on(instance, row), context_on(instance, row))
        # A packing that is examined alone is searched more exactly than in a list of packings, so it can have
        # fewer choices. `min` keeps the index valid.
        gpus, shared = sets.as_gpu_set(min(choice, len(sets.packing) - 1))
        return NodePlan(row, counts, gpus, members_by_domain(instance, row, counts, gpus.mask), shared)
    gpu_sets, _ = gpu_sets_on(instance, row, counts)
    return NodePlan(row, counts, *gpu_sets[choice])


def gpu_sets_on(
    instance: Instance, row: int, counts: Counts, allowed: int = -1
) -> tuple[tuple[tuple[GpuSet, MembersByDomain], ...], bool]:
    """Return the sets of whole GPUs that the node may give to these members, and whether no set is missing.

    The order is that of `best_sets`. With each set comes how many members lie in which NVLink domain.
    """
    rule, shape, free = instance.node_rule(row)
    if rule is not None:
        return sets_under(rule, shape, free, counts, allowed)
    size = sum(count * role.gpus for count, role in zip(counts, instance.roles, strict=True))
    return tuple((gpus, ()) for gpus in best_sets(shape, free, size, allowed)), True


def members_by_domain(instance: Instance, row: int, counts: Counts, mask: int) -> MembersByDomain:
    """Return for each role its members by NVLink domain on the chosen GPUs; () if no rule binds members to
    domains.
    """
    rule, shape, _ = instance.node_rule(row)
    return domains_of_members(rule, counts, shape, mask) if rule is not None and rule.binds_domains else ()


# The interface of exact methods


@dataclass(frozen=True, slots=True)
class Undecided:
    """Nothing is decided yet."""


@dataclass(frozen=True, slots=True, eq=False)
class DomainRules:
    """The domain rules of a role: each limits the number of members in a domain.

    This number is a multiple of `step`, and at most `max_members`.
    """

    step: int = 1
    domain: Ints | None = None
    """[row] The node's domain; None if no rule is about domains."""
    max_members: Ints | None = None
    """[row] The most members of the node's domain; None without such a limit."""

    def capacity(self, rows: Ints, cap: Ints, group: Ints) -> Ints:
        """Return [group] how many members each group of nodes holds. A group consists of whole domains."""
        if self.domain is None:
            return np.bincount(group, cap).astype(np.int64)
        pair, first, index = np.unique(
            group * (int(self.domain.max(initial=0)) + 1) + self.domain[rows],
            return_index=True,
            return_inverse=True,
        )
        room = np.bincount(index, cap, len(pair)).astype(np.int64)
        if self.max_members is not None:
            room = np.minimum(room, self.max_members[rows[first]])
        return np.bincount(group[first], room // self.step * self.step).astype(np.int64)


@dataclass(frozen=True, slots=True, eq=False)
class EqualRegions:
    """Regions for one role that are equal at all levels decided so far.

    `uncounted_scopes` are the scopes, widest first, whose parts are still to be counted: at such a scope, no
    single part holds all members.
    """

    rows: Ints
    """[node] The row."""
    region: Ints
    """[node] The region, from 0."""
    cap: Ints
    """[node] How many members the node takes."""
    uncounted_scopes: tuple[str, ...]
    domain_rules: DomainRules


@dataclass(frozen=True, slots=True, eq=False)
class OpenPatterns:
    """The problem with the patterns that the decided levels leave open, and a solution if one is known."""

    problem: Problem
    use: Use | None

    def with_only(self, still_open: Bools) -> OpenPatterns:
        """Return the problem with only these patterns and the patterns of the solution."""
        problem, use = self.problem.narrow_with_use(still_open, self.use or {})
        return OpenPatterns(problem, None if self.use is None else use)

    def nodes(self, instance: Instance) -> tuple[NodePlan, ...]:
        """Return the solution node by node."""
        counts, choice = self.problem.patterns.counts, self.problem.patterns.choice
        return tuple(
            node_plan_of(instance, row, tuple(counts[kind, p].tolist()), int(choice[kind, p]))
            for row, kind, p in self.problem.used_nodes(self.use or {})
        )


@dataclass(frozen=True, slots=True)
class Complete:
    """A plan whose levels are all decided."""

    plan: tuple[NodePlan, ...]

    def nodes(self, instance: Instance) -> tuple[NodePlan, ...]:
        """Return the plan node by node."""
        return self.plan


SearchState = Undecided | EqualRegions | DecidedLevel | OpenPatterns | Complete
"""How far the search of a plan has come. A `DecidedLevel` says that parts and nodes are counted."""


@dataclass(frozen=True, slots=True, eq=False)
class PartialPlan:
    """A plan whose first levels are decided.

    `state` is the state of the search, and `levels` are the levels still to be decided. `value` is the value
    at the quality levels that are decided. `gap` is the gap of the first level not proven best.
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

    def nodes(self) -> tuple[NodePlan, ...]:
        """Return the plan of each node, once all levels are decided."""
        assert not isinstance(self.state, Undecided | EqualRegions | DecidedLevel), self.levels
        return self.state.nodes(self.instance)

    def with_level(self, plans: OpenPatterns, value: int) -> PartialPlan:
        """Return the plan with one more quality level decided."""
        return replace(self, levels=self.levels[1:], state=plans, value=(*self.value, value))

    def complete(self, nodes: tuple[NodePlan, ...], value: Value = ()) -> PartialPlan:
        """Return the plan with all levels decided."""
        return replace(self, levels=(), state=Complete(nodes), value=value)


@dataclass(frozen=True, slots=True, eq=False)
class Solved:
    """Plans that are equal at all levels decided so far, and the `gap` of the first level not proven best."""

    plans: tuple[PartialPlan, ...]
    gap: Gap | None = None


@dataclass(frozen=True, slots=True)
class Infeasible:
    """It is proven that there is no plan."""


@dataclass(frozen=True, slots=True)
class Unknown:
    """No plan was found, but it is not proven that there is no plan. `gap` names the level."""

    gap: Gap


@dataclass(frozen=True, slots=True)
class Declined:
    """The method does not apply. `reason` says why to users; "" if the gang does not use the feature that the
    method is for.

    `gap` names the level that the method tried and could not prove.
    """

    reason: str
    gap: Gap | None = None


MethodAnswer = Solved | Infeasible | Unknown | Declined


Decide = Callable[[PartialPlan, Value | None, Budget], tuple[PartialPlan | None, Gap | None]]
"""The type of `search.decide_levels`, which decides all remaining levels of a plan."""


class ExactMethod(Protocol):
    """An exact method: it decides the next level of a plan with proof, or declines."""

    @property
    def name(self) -> str:
        """The name of the method, as `--explain` shows it."""

    @property
    def accepted_states(self) -> tuple[type, ...]:
        """The search states that the method accepts (types of `PartialPlan.state`). The method is asked in no
        other state.
        """

    def solve(self, plan: PartialPlan, level: Level, incumbent: Value | None, budget: Budget) -> MethodAnswer:
        """Decide the next level, `level`, and any number of levels after it.

        `incumbent` is the value of the best plan so far. A method may stop at a plan with a worse value.
        """
