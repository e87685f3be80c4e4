"""Find the best plan of a gang, level by level.

First all members are tried: with the preferred scopes in the order given, then with the required scope alone.
If not all members fit, as many as possible are placed, but at least `min_member`.

`presolve` first removes parts that are too small. Then, for each level, the exact methods are asked in the
order of METHODS, and the first method that accepts the level decides it. If several regions are equally good
after counting, each region is decided to the end, and the best plan is taken.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import NamedTuple

from muster.domain.constraints import Subgroup
from muster.domain.decision import Step
from muster.domain.quorums import Quorum, of_roles
from muster.domain.request import RolePreference
from muster.placement.gang.blocks import (
    MAX_TRIES,
    fewer_fit,
    has_begun_segment,
    ways_to_cut,
    ways_to_divide,
)
from muster.placement.gang.instance import Instance, room_of, unsupported_rule
from muster.placement.gpus.node_rules import Counts
from muster.placement.limits import Budget
from muster.placement.model.objective import MEMBERS, NODES, PREFERRED_SCOPE, ROLE_PREFERENCES, levels_of_plan
from muster.placement.search.count import count, no_part_holds
from muster.placement.search.one_role import DomainTables, SortedCapacities
from muster.placement.search.plan import (
    Declined,
    ExactMethod,
    Gap,
    Infeasible,
    PartialPlan,
    SearchResult,
    Solved,
    Unknown,
    Value,
)
from muster.placement.search.quality import LevelCore, LinkThresholds
from muster.placement.search.region_count import RegionCount
from muster.placement.search.roles import RoleAggregation, gather_roles_on_few_parts
from muster.placement.search.single_node import MembersWithoutGpus, SingleNode

# The levels above the parts: members and preferences


ALL, MOST, SUBSETS = "all-members", "most-members", "member-subsets"
"""Methods that decide the members: all members; the most that fit; subsets, tried one after another."""

ALL_SHARE, CHOICE_SHARE, TRY_SHARE = 0.75, 0.125, 0.03125
"""The largest shares of the solver's time if fewer members may be enough: for the plan of all members, for
counting the most members that fit, and for each try of a greedy choice. So there is always time for a subset
that is easy to place.
"""

MAX_WAYS = 4096
"""The most combinations of member counts by role that are tried."""

IN_ORDER = "scopes-in-order"
"""The method that decides the preferred scope."""


def best_for_most(instance: Instance, budget: Budget) -> tuple[Instance, SearchResult]:
    """Return the best plan for the most members that fit, and the instance for these members.

    If fewer than `min_member` members fit, `SearchResult.nodes` is empty.
    """
    request, all_members_plan = instance.request, SearchResult(())
    required = (request.required_scope,) if request.required_scope else ()
    partial = request.min_member < request.size
    with budget.phase("scan"):  # for one role, the search is as quick as this test
        cannot_fit_all = sum(map(bool, instance.need)) > 1 and no_part_holds(instance, request.required_scope)
    if not cannot_fit_all and request.starts(request.waiting_by_role):
        with budget.share(ALL_SHARE if partial else 1.0):
            all_members_plan = _best_for_counts(instance, required, instance.need, ALL, budget)
    if all_members_plan.nodes or not partial:
        return instance, all_members_plan
    return _FewerMembersSearch(instance, required, budget, proven=all_members_plan.gap is None).best_plan()


def _best_for_counts(
    instance: Instance, required: tuple[str, ...], need: Counts, method: str, budget: Budget
) -> SearchResult:
    """Return the best plan for exactly these members: in the first preferred scope that holds them, else
    without a preferred scope.
    """
    unproven: Gap | None = None
    steps: tuple[Step, ...] = (Step(MEMBERS.name, method),)
    if instance.request.preferred_scopes:
        steps += (Step(PREFERRED_SCOPE.name, IN_ORDER),)
    for scope in (*((scope,) for scope in instance.request.preferred_scopes), ()):
        if unsupported_rule(instance, scope):
            unproven = Gap(PREFERRED_SCOPE.name)
            continue
        plan = search(instance, (*required, *scope), need, budget)
        if plan.nodes or not scope:
            break
        unproven = unproven or (Gap(PREFERRED_SCOPE.name) if plan.gap else None)
    if plan.nodes and instance.request.role_preferences:
        steps += (Step(ROLE_PREFERENCES.name, IN_ORDER),)
        plan = _best_with_preferences(instance, (*required, *scope), need, plan, budget)
    return SearchResult(plan.nodes, unproven or plan.gap, (*steps, *plan.steps))


def _best_with_preferences(
    instance: Instance, scopes: tuple[str, ...], need: Counts, plan: SearchResult, budget: Budget
) -> SearchResult:
    """Return the best plan that keeps preferences of roles as far as possible, earlier preferences first.

    A preference that can be kept is required while later preferences are tried: as a subgroup, or as a scope
    of the gang if the preference is about all members. If time runs out, the plan so far is returned, and the
    level is unproven. The level is also unproven if a preferred scope is not supported.
    """
    unproven: Gap | None = None
    for preference in instance.request.role_preferences:
        for scope in preference.scopes:
            if budget.spent:
                return replace(plan, gap=unproven or plan.gap or Gap(ROLE_PREFERENCES.name))
            preferring, within = _with_preference(instance, scopes, preference, scope)
            if unsupported_rule(preferring, within):
                unproven = unproven or Gap(ROLE_PREFERENCES.name)
                continue
            tried = search(preferring, within, need, budget)
            if tried.nodes:
                instance, scopes, plan = preferring, within, tried
                break
            unproven = unproven or (Gap(ROLE_PREFERENCES.name) if tried.gap else None)
    return replace(plan, gap=unproven or plan.gap)


def _with_preference(
    instance: Instance, scopes: tuple[str, ...], preference: RolePreference, scope: str
) -> tuple[Instance, tuple[str, ...]]:
    """Return the instance and the gang's scopes with one more preference of roles."""
    members = {role.name for role in instance.roles if role.members}
    members |= {member.running.role for member in instance.running.members}
    if members <= preference.roles:
        return instance, (*scopes, scope)
    return instance.with_subgroup(Subgroup(preference.name, scope, preference.roles)), scopes


@dataclass(slots=True)
class _FewerMembersSearch:
    """The search for a plan with some members left out. `proven` is whether it is proven that no more members
    fit.
    """

    instance: Instance
    required: tuple[str, ...]
    budget: Budget
    proven: bool
    tried: dict[Counts, tuple[Instance, SearchResult]] = field(default_factory=dict)

    def best_plan(self) -> tuple[Instance, SearchResult]:
        """Return the best plan for the most members that fit, else of a greedy choice, and its instance."""
        counts = None if has_begun_segment(self.instance.request) else self._most_that_fit()
        if counts is None and (has_begun_segment(self.instance.request) or self.tried):
            counts = self._count_down()
        order = range(len(self.instance.request.roles))
        if counts is None and not self.proven:
            counts = self._choose_greedily(order) or self._choose_greedily(order[::-1])
        unproven = None if self.proven else Gap(MEMBERS.name)
        if counts is None:
            return self.instance, SearchResult((), unproven)
        smaller_instance, plan = self.tried[counts]
        return smaller_instance, replace(plan, gap=unproven or plan.gap)

    def _has_plan(self, counts: Counts, method: str) -> bool:
        """Return whether a plan for the first members of each role by rank is found, `counts` of them."""
        if counts not in self.tried:
            first_members = {
                role.name: n for role, n in zip(self.instance.request.roles, counts, strict=True)
            }
            smaller_instance = self.instance.with_first_members(first_members)
            self.tried[counts] = (
                smaller_instance,
                _best_for_counts(smaller_instance, self.required, smaller_instance.need, method, self.budget),
            )
        plan = self.tried[counts][1]
        self.proven &= bool(plan.nodes) or plan.gap is None
        return bool(plan.nodes)

    def _most_that_fit(self) -> Counts | None:
        """Return by role the most members that fit.

        The result is None if there is no plan for them: counting inside one node ignores constraints between
        nodes, so the number may be too large.
        """
        request = self.instance.request
        with self.budget.share(CHOICE_SHARE):
            fit = count(self.instance, self.required, self.budget, roles_in_order=True)
        self.proven = fit.proven
        counts = fit.counts or (0,) * len(request.roles)
        method = SUBSETS if len(list(islice(ways_to_cut(request), 2))) > 1 else MOST
        return counts if fit.members >= request.min_member and self._has_plan(counts, method) else None

    def _count_down(self) -> Counts | None:
        """Return by role the most members that fit, by trying totals from the largest down. Between equal
        totals, the most members of the earlier roles are tried first.

        With a single role the greedy choice is optimal if each smaller number of members fits too.
        """
        request = self.instance.request
        if len(request.roles) == 1 and fewer_fit(request) and request.quorum is None:
            return self._choose_greedily(range(1))
        with self.budget.share(CHOICE_SHARE):
            for tries, counts in enumerate(self._descending_counts()):
                if tries == MAX_TRIES or self.budget.spent:
                    self.proven = False
                    break
                if self._has_plan(counts, SUBSETS):
                    return counts
        return None

    def _descending_counts(self) -> Iterator[Counts]:
        """Yield the numbers of members by role with which the gang starts, the largest totals first."""
        caps, request = self._max_members_by_role(), self.instance.request
        totals = range(min(sum(caps), request.size - 1), request.min_member - 1, -1)
        all_counts = (counts for total in totals for counts in ways_to_divide(total, caps))
        for counts in islice(all_counts, MAX_WAYS):
            if self.budget.late:
                break
            if request.starts({role.name: n for role, n in zip(request.roles, counts, strict=True)}):
                yield counts
        self.proven &= not self.budget.late and next(all_counts, None) is None

    def _choose_greedily(self, order: Sequence[int]) -> Counts | None:
        """Return the most members of each role that fit next to the members of the roles before it, in this
        order of roles.

        The result is None if fewer than `min_member` members fit.
        """
        if (quorum := self.instance.request.quorum) is not None:
            return self._choose_subgroups_greedily(quorum, order)
        counts, caps = [0] * len(order), self._max_members_by_role()
        for role in order:
            low, high = 0, caps[role]
            counts[role] = high
            while low < high and not self.budget.late:
                with self.budget.share(TRY_SHARE):
                    fits = self._has_plan(tuple(counts), SUBSETS)
                low, high = (counts[role], high) if fits else (low, counts[role] - 1)
                counts[role] = (low + high + 1) // 2
            counts[role] = low
        return tuple(counts) if sum(counts) >= self.instance.request.min_member else None

    def _choose_subgroups_greedily(self, quorum: Quorum, order: Sequence[int]) -> Counts | None:
        """Return by role the members of subgroups that are added one after another: first the fewest members
        with which the gang starts, then further members.

        If an addition does not fit, its last subgroup is left out. In a subgroup, members are taken role by
        role, in this order of roles. The result is None if fewer than `min_member` members fit.
        """
        names, caps = [role.name for role in self.instance.request.roles], self._max_members_by_role()
        unplaced = {names[role]: caps[role] for role in order}
        counts, has_begun = dict.fromkeys(names, 0), False
        for _ in range(MAX_TRIES):
            addition = quorum.without_members(counts).fewest_members(unplaced, some=True)
            if addition is None or self.budget.late:
                break
            added_counts = of_roles(addition, unplaced)
            larger_counts = {name: count + added_counts[name] for name, count in counts.items()}
            with self.budget.share(TRY_SHARE):
                fits = quorum.starts(larger_counts) and self._has_plan(tuple(larger_counts.values()), SUBSETS)
            if fits:
                unplaced = {name: count - added_counts[name] for name, count in unplaced.items()}
                counts, has_begun = larger_counts, True
            else:
                last = [leaf for leaf, count in addition if count][-1]
                unplaced |= dict.fromkeys(last.roles & unplaced.keys(), 0)
        is_enough = has_begun and sum(counts.values()) >= self.instance.request.min_member
        return tuple(counts.values()) if is_enough else None

    def _max_members_by_role(self) -> Counts:
        """Return for each role an upper bound of the number of members that fit."""
        instance = self.instance
        return tuple(
            min(
                len(role.members),
                int(room_of(instance.columns, role)[instance.admits_without_rules[role.name]].sum()),
            )
            for role in instance.request.roles
        )


# The levels from the parts down


MAX_FINISHED = 8
"""The most equally good regions that are decided to the end, for gangs that share GPUs or have a policy.

For these gangs, enumerating the GPU choices of each node takes long.
"""

SearchOutcome = tuple[PartialPlan | None, Gap | None]
"""The best plan, None if no plan was found; and the first unproven level, None if all levels are proven.

Without a plan and without a gap, it is proven that no plan exists.
"""


def search(instance: Instance, scopes: tuple[str, ...], need: Counts, budget: Budget) -> SearchResult:
    """Return the best plan with all members in one part of every scope of `scopes`."""
    plan, gap = decide_levels(presolve(instance, scopes, need, budget), None, budget)
    if plan is None:
        return SearchResult((), gap)
    return SearchResult(gather_roles_on_few_parts(plan.instance, plan.nodes()), gap, plan.steps)


def presolve(instance: Instance, scopes: tuple[str, ...], need: Counts, budget: Budget) -> PartialPlan:
    """Return the plan with nothing decided yet. Parts that no plan for these members can use are left out."""
    with budget.phase("scan"):
        instance = instance.presolved_for_all_members(need)
    return PartialPlan(
        instance,
        scopes,
        need,
        levels_of_plan(instance.fabric_scopes, instance.policy_costs, instance.without_gpus),
    )


def decide_levels(plan: PartialPlan, incumbent: Value | None, budget: Budget) -> SearchOutcome:
    """Decide all remaining levels. Stop if the plan cannot beat the incumbent."""
    gap, declined = plan.gap, list[tuple[str, str]]()
    while plan.levels:
        method, answer, reasons, unproven = _first_answer(plan, incumbent, budget)
        gap, declined = gap or unproven, [*declined, *reasons]
        if isinstance(answer, Infeasible):
            return None, gap
        gap = gap or answer.gap
        if isinstance(answer, Unknown):
            return None, gap
        plans = list(answer.plans)
        if len(plans[0].levels) < len(plan.levels):
            plans = [_with_steps(plan, solved_plan, method, declined) for solved_plan in plans]
            declined = []
        if len(plans) > 1:
            return _decide_best_of(plans, gap, budget)
        plan = plans[0]
        gap = gap or plan.gap
        if incumbent is not None and plan.value > incumbent[: len(plan.value)]:
            return None, gap
    return plan, gap


class _FirstAnswer(NamedTuple):
    """The first method that accepted the level, and the method's answer."""

    method: ExactMethod
    answer: Solved | Infeasible | Unknown
    declined: list[tuple[str, str]]
    """(method, reason) of each method that declined."""
    unproven: Gap | None
    """The level that a declining method tried and could not prove."""


def _first_answer(plan: PartialPlan, incumbent: Value | None, budget: Budget) -> _FirstAnswer:
    """Ask the methods in their order for the next level.

    Raises:
        LookupError: All methods decline, which is a defect of METHODS.
    """
    declined, gap = list[tuple[str, str]](), None
    for method in METHODS:
        if not isinstance(plan.state, method.accepted_states):
            continue
        began = budget.now()
        answer = method.solve(plan, plan.levels[0], incumbent, budget)
        if not isinstance(answer, Declined):
            budget.note_decision(method.name, began)
            return _FirstAnswer(method, answer, declined, gap)
        if answer.reason:  # else the method is for a feature that this gang does not use
            declined.append((method.name, answer.reason))
        gap = gap or answer.gap
    raise LookupError(f"no method decides {plan.levels[0].name}: {declined}")


def _with_steps(
    previous: PartialPlan, plan: PartialPlan, method: ExactMethod, declined: list[tuple[str, str]]
) -> PartialPlan:
    """Add a `Step` for each level that was just decided. If the method has added steps itself, these stay."""
    done = previous.levels[: len(previous.levels) - len(plan.levels)]
    first_step, *later_steps = plan.steps[len(previous.steps) :] or [
        Step(level.name, method.name) for level in done
    ]
    first_step = replace(first_step, declined=(*declined, *first_step.declined))
    return replace(plan, steps=(*previous.steps, first_step, *later_steps))


def _decide_best_of(plans: list[PartialPlan], gap: Gap | None, budget: Budget) -> SearchOutcome:
    """Decide each of these equally good plans to the end, and return the best plan.

    If one of them could not be decided with proof, the best plan is not proven either.
    """
    best_plan: PartialPlan | None = None
    for i, plan in enumerate(plans):
        costs = plan.instance.policy_costs
        if costs and i == MAX_FINISHED:
            gap = gap or Gap(costs[0].value)
            break
        finished, unproven = decide_levels(plan, best_plan.value if best_plan else None, budget)
        gap = gap or unproven
        if finished is not None and (best_plan is None or finished.value < best_plan.value):
            best_plan = finished
    return best_plan, gap if best_plan is not None else gap or Gap(NODES.name)


METHODS: tuple[ExactMethod, ...] = (
    MembersWithoutGpus(decide_levels),
    SingleNode(decide_levels),
    RoleAggregation(decide_levels),
    SortedCapacities(),
    DomainTables(),
    RegionCount(),
    LinkThresholds(),
    LevelCore(),
)
"""The exact methods in the order in which they are asked: cheap methods first. The last method accepts any
problem.
"""
