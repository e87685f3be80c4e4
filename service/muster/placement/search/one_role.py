"""Decide a gang of one role over the tree zones > racks > nodes > sets of GPUs, without a solver.

*Domains* are the parts of the narrowest level, for example racks. A *domain rule* limits the number of
members in each domain: to multiples of a number (segments), or to a maximum. The steps:

1. One part (`SortedCapacities`). *Regions* hold the gang: the parts of the required scopes. If one zone holds
   the gang, each such zone becomes a region of its own; then the same for racks.
2. Several parts (`regions_of_several_parts`). If no zone holds the gang, each choice of the fewest zones is a
   region.
3. Domains and nodes (`capacities`). Sums of sorted capacities give the fewest domains and nodes. They exclude
   member counts that no such plan has. In a plan with the fewest nodes, each domain uses the fewest nodes
   that hold its members. So a domain has one variable: its number of members.
4. Sets of GPUs (`gpu_sets`). For each node, the sets that the node may give to 0, 1, 2 … members are listed.
5. Levels below the nodes (`best_plan`). All levels but the weakest link are sums, so `combine_levels` makes
   one weighted cost of them. A table gives the least cost of m members in each domain, node after node. A
   second table, over domains, gives the least cost of all members. The weakest link is not a sum. So
   thresholds are tried from the fastest link down, and the first threshold with a plan gives the best plan.

With slices or a policy, enumerating the GPU sets of a node takes long. So each domain gets a lower bound from
such a table, and domains are searched in the order of their bounds (`best_by_branch_and_bound`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import combinations
from math import comb, lcm
from operator import itemgetter
from typing import ClassVar

import numpy as np

from muster.domain.request import Scope
from muster.placement.cluster.columns import Bools, Ints
from muster.placement.cluster.fabric import Shape
from muster.placement.gang.instance import Instance
from muster.placement.gang.on_node import context_on, fit_with_penalty, gpus_on, node_kinds
from muster.placement.gang.packings import distinct_columns
from muster.placement.gpus.choices import CHOICE_VALUES, NODE_TIME, PACKING_TIME, Choices, sets_under
from muster.placement.gpus.choices import choices as node_choices
from muster.placement.gpus.gpusets import SET_VALUES, sets_of
from muster.placement.gpus.node_rules import NodeRule
from muster.placement.limits import Budget, takes_gpus
from muster.placement.model.objective import (
    BEST_FIT,
    POLICY_LEVELS,
    UNUSABLE,
    WEAKEST_LINK,
    Level,
    quality_levels,
    value_of,
)
from muster.placement.model.problem import fewest_that_hold
from muster.placement.search.capacities import DomainOptions, options_of_regions
from muster.placement.search.classes import parts_by_row
from muster.placement.search.plan import (
    Declined,
    DomainRules,
    EqualRegions,
    Gap,
    Infeasible,
    MethodAnswer,
    NodePlan,
    PartialPlan,
    Solved,
    Undecided,
    Value,
    node_plan_of,
)
from muster.placement.search.region_count import MAX_PART_CHOICES
from muster.placement.search.regions import regions, renumber
from muster.placement.search.single_node import BETTER_ELSEWHERE, lower_bounds, split_by_level
from muster.placement.search.tables import NEVER, CombinedCost, Table, combine_levels

TOO_LARGE = "the tables are too large"
"""Why the method with tables declines. The next method then decides."""


class SortedCapacities:
    """Find by sorted capacities the levels at which a single part suffices, and which parts do."""

    name: ClassVar = "sorted-capacities"
    accepted_states: ClassVar = (Undecided,)

    def solve(self, plan: PartialPlan, level: Level, incumbent: Value | None, budget: Budget) -> MethodAnswer:
        """Decide the levels at which one part suffices, for one role whose rules are domain rules."""
        instance, active = plan.instance, plan.active
        if len(active) != 1:
            return Declined("several roles")
        if level is UNUSABLE:
            return Declined(BETTER_ELSEWHERE)
        (role,) = active
        with budget.phase("scan"):
            domain_rules = domain_rules_of(instance, role, plan.need[role])
            if isinstance(domain_rules, str):
                return Declined(domain_rules)
            region = regions(instance, plan.scopes, plan.need)
            holding = narrowest_regions(instance, region, role, plan.need[role], domain_rules)
        if holding is None:
            return Infeasible()
        decided = len(instance.fabric_scopes) - len(holding.uncounted_scopes)
        return Solved((replace(plan, state=holding, levels=plan.levels[decided:]),))


class DomainTables:
    """Decide domains, nodes and all levels below by tables, for one role."""

    name: ClassVar = "domain-tables"
    accepted_states: ClassVar = (EqualRegions,)

    def solve(self, plan: PartialPlan, level: Level, incumbent: Value | None, budget: Budget) -> MethodAnswer:
        """Decide the parts still to be counted, the nodes, and all levels below."""
        with budget.phase("sets"):
            return decide_domains(plan, budget)


def domain_rules_of(instance: Instance, role: int, need: int) -> DomainRules | str:
    """Return the domain rules of a role, or the reason if the role has other rules too."""
    rules = instance.rules
    if instance.running:
        return "running members bind the role"
    step = instance.unit(role)
    if step != instance.common_unit(role) or need % step:
        return "rules bind members on a node"
    if not rules.model:
        return DomainRules(step)
    rows, max_members = np.flatnonzero(instance.room[role] > 0), None
    domain = (
        instance.columns.topology.index_or_own(instance.fabric_scopes[-1]) if instance.fabric_scopes else None
    )
    for rule in (make(rules.cells) for make in rules.model):
        if role not in rule.bound_roles:
            continue
        if domain is None or not rule.in_numbers or not _are_equal_partitions(domain[rows], rule.part[rows]):
            return "rules bind more than domains"
        step = lcm(step, rule.step)
        if len(rule.max_members):
            limit = rule.max_members[rule.part]
            max_members = limit if max_members is None else np.minimum(max_members, limit)
    return "segments are not full" if need % step else DomainRules(step, domain, max_members)


def _are_equal_partitions(domain: Ints, part: Ints) -> bool:
    """Return whether nodes that share a domain are the nodes that share a part."""
    if not len(part) or (part < 0).any():
        return False
    return _is_nested(domain, part) and len(np.unique(domain)) == len(np.unique(part))


def _is_nested(domain: Ints, part: Ints) -> bool:
    return len(np.unique(domain * (int(part.max(initial=0)) + 1) + part)) == len(np.unique(domain))


# Steps 1 and 2: regions


def narrowest_regions(
    instance: Instance, region: Ints, role: int, need: int, domain_rules: DomainRules
) -> EqualRegions | None:
    """Return the narrowest regions that hold the members; None if no region holds them.

    If one zone holds the members, the regions become single zones; then the same for racks.
    """
    cap = np.minimum(instance.room[role], need)
    rows = np.flatnonzero((region >= 0) & (cap > 0))
    holding = _regions_that_hold(rows, region[rows], cap[rows], need, domain_rules)
    if not len(holding.rows):
        return None
    for i, scope in enumerate(instance.fabric_scopes):
        part = parts_by_row(instance, scope, holding.rows)
        narrower_regions = _regions_that_hold(
            holding.rows, _codes_of_pairs(holding.region, part), holding.cap, need, domain_rules
        )
        if not len(narrower_regions.rows):
            return replace(holding, uncounted_scopes=instance.fabric_scopes[i:])
        holding = narrower_regions
    return holding


def _regions_that_hold(
    rows: Ints, region: Ints, cap: Ints, need: int, domain_rules: DomainRules
) -> EqualRegions:
    """Return the regions whose nodes together hold the members, renumbered from 0."""
    holds = domain_rules.capacity(rows, cap, region) >= need
    if holds.all():
        return EqualRegions(rows, region, cap, (), domain_rules)
    in_region = holds[region]
    region = (np.cumsum(holds) - 1)[region[in_region]]
    return EqualRegions(rows[in_region], region, cap[in_region], (), domain_rules)


def _codes_of_pairs(region: Ints, part: Ints) -> Ints:
    """Return a code for each pair of a region and a part."""
    if not region.any():
        return part
    part_of_region = np.zeros(int(region.max()) + 1, np.int64)
    part_of_region[region] = part
    if (part_of_region[region] == part).all():  # no region has several parts
        return region
    return renumber(region * (int(part.max(initial=0)) + 1) + part)


def regions_of_several_parts(instance: Instance, regions: EqualRegions, need: int) -> EqualRegions | Declined:
    """Return each choice of the fewest zones as a region of its own; the same for each other uncounted scope
    but the narrowest.
    """
    domain_rules = regions.domain_rules
    for scope in regions.uncounted_scopes[:-1]:
        rows, region, cap = regions.rows, regions.region, regions.cap
        part = parts_by_row(instance, scope, rows)
        if domain_rules.domain is not None and not _is_nested(domain_rules.domain[rows], part):
            return Declined("rules bind a domain that lies in several wider parts")
        pair = renumber(_codes_of_pairs(region, part))
        room, region_of = domain_rules.capacity(rows, cap, pair), np.zeros(int(pair.max()) + 1, np.int64)
        region_of[pair] = region
        parts = [np.flatnonzero(region_of == code) for code in range(int(region.max()) + 1)]
        fewest = min(fewest_that_hold(room[pairs_of_region], need) for pairs_of_region in parts)
        if sum(comb(len(pairs_of_region), fewest) for pairs_of_region in parts) > MAX_PART_CHOICES:
            return Declined("there are too many choices of wider parts")
        choices = [
            choice for pairs_of_region in parts for choice in combinations(pairs_of_region.tolist(), fewest)
        ]
        nodes = [
            np.flatnonzero(np.isin(pair, choice)) for choice in choices if room[list(choice)].sum() >= need
        ]
        index = np.concatenate(nodes)
        code = np.repeat(np.arange(len(nodes)), [len(nodes_of_choice) for nodes_of_choice in nodes])
        regions = replace(regions, rows=rows[index], region=code, cap=cap[index])
    return regions


# Step 3: domains and nodes


def decide_domains(plan: PartialPlan, budget: Budget) -> Solved | Declined:
    """Decide the parts still to be counted, the nodes, and all levels below."""
    instance, single_parts, (role,) = plan.instance, plan.state, plan.active
    assert isinstance(single_parts, EqualRegions)
    if instance.policy_costs and (
        single_parts.uncounted_scopes or not instance.binds_only_by_scopes or instance.prices
    ):
        return Declined("slices or policies, and several domains, rules or priced damage")
    regions = regions_of_several_parts(instance, single_parts, plan.need[role])
    if isinstance(regions, Declined):
        return regions
    scope = regions.uncounted_scopes[-1] if regions.uncounted_scopes else None
    domain = parts_by_row(instance, scope, regions.rows) if scope else regions.region
    if takes_gpus(instance.roles[role]) and _must_count_nvlink_domains(instance, regions, domain):
        return Declined("NVLink domains over several nodes are to be counted")
    options = options_of_regions(regions, domain, plan.need[role], budget)
    all_proven, plans = True, list[tuple[Value, tuple[NodePlan, ...]]]()
    for possible in options:
        if plans and budget.late:
            all_proven = False
            break
        if instance.policy_costs:
            planned, proven = best_by_branch_and_bound(instance, role, possible, budget)
            all_proven &= proven
        else:
            sets = gpu_sets(instance, role, possible)
            planned = best_plan(instance, possible, sets) if sets else None
        if planned is None:
            return Declined(TOO_LARGE)
        plans.append((planned.value, planned.nodes(instance, role)))
    if not plans:
        return Declined(TOO_LARGE)
    _, nodes = min(plans, key=itemgetter(0))
    gap = None if all_proven else Gap(quality_levels(instance.policy_costs)[0].name)
    return Solved((plan.complete(nodes),), gap)


def _must_count_nvlink_domains(instance: Instance, regions: EqualRegions, domain: Ints) -> bool:
    """Return whether plans with equally many domains can touch different numbers of multi-node NVLink
    domains. If not, these need not be counted.

    They cannot if no node is in a multi-node NVLink domain, or if each domain is such an NVLink domain. Nor
    can they if plans touch a single domain, and each domain lies in one NVLink domain.
    """
    topology, rows = instance.columns.topology, regions.rows
    if not topology.in_wide[rows].any():
        return False
    wide_domain = topology.index(Scope.NVLINK_DOMAIN)[rows]
    if regions.uncounted_scopes:
        return not _are_equal_partitions(domain, wide_domain)
    return bool((wide_domain < 0).any()) or not _is_nested(domain, wide_domain)


# Step 4: sets of GPUs


SET_FIELDS = (*SET_VALUES, "valid")
"""The values of a GPU set, and whether the set exists."""


@dataclass(frozen=True, slots=True, eq=False)
class NodeSets:
    """The GPU sets that nodes may give to their members: arrays [node, members, choice].

    Later choices have larger rings and slower links.
    """

    values: Mapping[str, Ints]
    """By field of the levels. The best fit is equal for all choices."""
    valid: Bools
    """Whether the set exists and may be in a best plan."""

    def cost(self, level: Level, choice: Ints) -> Ints:
        """Return [node, members] the cost of these choices [node, members] at a level."""
        return level.sign * np.take_along_axis(self.values[level.field], choice[:, :, None], 2)[:, :, 0]

    def tells_apart(self, level: Level) -> bool:
        """Return whether valid sets have different values at the level."""
        values = self.values[level.field][self.valid]
        return bool(len(values)) and values.min() < values.max()

    def choices_as_fast_as(self, threshold: int) -> tuple[Ints, Bools]:
        """Return [node, members] the best choice whose weakest link is at least `threshold`, and whether such
        a choice exists.
        """
        fast = self.valid & (self.values[WEAKEST_LINK.field] >= threshold)
        return fast.shape[2] - 1 - fast[:, :, ::-1].argmax(axis=2), np.asarray(fast.any(axis=2))


def gpu_sets(instance: Instance, role: int, options: DomainOptions) -> NodeSets | None:
    """Return the GPU sets that each node may give; None if the sets of a node with a rule are too many."""
    rows, columns = options.rows, instance.columns
    counts = packings(instance, role, options)
    sizes, packing_tuples = tuple(instance.gpus(counts).tolist()), tuple(map(tuple, counts.tolist()))
    node_properties = (columns.free_gpus, columns.shape, instance.rules.in_node, columns.topology.in_wide)
    index, first = distinct_columns(np.stack([values[rows].astype(np.int64) for values in node_properties]))
    tables = list[Ints]()
    for free, shape, rule, in_wide in zip(
        *(values[rows[first]].tolist() for values in node_properties), strict=True
    ):
        node_rule = instance.rules.node_rules[rule]
        table = (
            _set_values_by_size(columns.shapes[shape], free, sizes)
            if node_rule is None
            else _set_values_under_rule(node_rule, columns.shapes[shape], free, packing_tuples)
        )
        if table is None:
            return None
        if in_wide:  # a table may be shared, so it is copied
            table = np.where(np.array(SET_FIELDS)[:, None, None] == "domains", 0, table)
        tables.append(table)
    width = max((table.shape[2] for table in tables), default=1)
    values = np.zeros((len(SET_FIELDS), len(tables), len(counts), width), np.int64)
    for i, table in enumerate(tables):
        values[:, i, : table.shape[1], : table.shape[2]] = table
    by_field = dict(zip(SET_FIELDS, values[:, index], strict=True))
    if instance.prices:
        priced = instance.prices.damage_of_gpus(rows, instance.gpus(counts), instance.cpu(counts))
        by_field["damage"] = np.broadcast_to(priced[:, :, None], by_field["damage"].shape)
    return possible_sets(instance, role, options, by_field, by_field.pop("valid") > 0)


def possible_sets(
    instance: Instance, role: int, options: DomainOptions, values: Mapping[str, Ints], valid: Bools
) -> NodeSets:
    """Return these GPU sets, without the sets for member counts that no plan has."""
    fit = fit_with_penalty(instance, options.rows, packings(instance, role, options))
    fit_of_sets = np.broadcast_to(fit[:, :, None], valid.shape)
    return NodeSets({**values, BEST_FIT.field: fit_of_sets}, valid & options.possible[:, :, None])


def packings(instance: Instance, role: int, options: DomainOptions) -> Ints:
    """Return [members, role] the members of a node by role, for each number of members."""
    return np.asarray(np.arange(options.max_per_node + 1)[:, None] * (np.arange(len(instance.roles)) == role))


@lru_cache(maxsize=1 << 14)
def _set_values_by_size(shape: Shape, free: int, sizes: tuple[int, ...]) -> Ints:
    """Return the values of a node's GPU sets, [field, size, choice], for the sizes that the node has."""
    sets = sets_of(shape, free)
    valid = np.arange(sets.masks.shape[1]) < sets.choices[:, None]
    table = np.stack([getattr(sets, name) for name in SET_VALUES] + [valid.astype(np.int64)])
    return table[:, [size for size in sizes if size < len(valid)]]


@lru_cache(maxsize=1 << 14)
def _set_values_under_rule(
    rule: NodeRule, shape: Shape, free: int, packings: tuple[tuple[int, ...], ...]
) -> Ints | None:
    """Return the values of the GPU sets of a node with a rule, [field, packing, choice]; None if the sets are
    too many to enumerate.
    """
    sets, complete = zip(*(sets_under(rule, shape, free, counts) for counts in packings), strict=True)
    if not all(complete):
        return None
    table = np.zeros((len(SET_FIELDS), len(sets), max(1, *map(len, sets))), np.int64)
    for i, sets_of_packing in enumerate(sets):
        for choice, (gpus, _) in enumerate(sets_of_packing):
            table[:, i, choice] = [*(getattr(gpus, name) for name in SET_VALUES), 1]
    return table


# Step 5: the levels below the nodes


@dataclass(frozen=True, slots=True, eq=False)
class TablePlan:
    """A plan for one role: the members on each node of `options`, and the choice of GPUs [node, members]."""

    options: DomainOptions
    members: Ints
    choice: Ints
    value: Value

    def nodes(self, instance: Instance, role: int) -> tuple[NodePlan, ...]:
        """Return the plan node by node. GPUs are chosen once for equal nodes."""
        used_nodes = np.flatnonzero(self.members)
        used_nodes = used_nodes[np.argsort(self.options.rows[used_nodes])]
        rows, members = self.options.rows[used_nodes], self.members[used_nodes]
        kinds = np.stack([*node_kinds(instance, rows), self.choice[used_nodes, members], members], axis=1)
        plan_by_kind, nodes = dict[tuple[int, ...], NodePlan](), list[NodePlan]()
        for row, kind in zip(rows.tolist(), map(tuple, kinds.tolist()), strict=True):
            if kind not in plan_by_kind:
                *_, choice, count = kind
                counts = tuple(count if r == role else 0 for r in range(len(instance.roles)))
                plan_by_kind[kind] = node_plan_of(instance, row, counts, choice)
            nodes.append(replace(plan_by_kind[kind], row=row))
        return tuple(nodes)


def best_plan(instance: Instance, options: DomainOptions, sets: NodeSets) -> TablePlan | None:
    """Return the best plan with the fewest domains and nodes.

    The result is None if there is no such plan, or if the combined costs do not fit into 64 bits.
    """
    levels = quality_levels(instance.policy_costs)
    levels_above_links = levels[: levels.index(WEAKEST_LINK)]
    sums = [level for level in levels if level is not WEAKEST_LINK]
    best_sums: dict[str, int] | None = None  # of the levels above the links
    if any(sets.tells_apart(level) for level in levels_above_links):
        choice, possible = np.zeros(sets.valid.shape[:2], np.int64), np.asarray(sets.valid.any(axis=2))
        members = _cheapest_members(options, sets, (*levels_above_links, BEST_FIT), choice, possible)
        if members is None:
            return None
        best_sums = _level_sums(sets, levels_above_links, choice, members)
    for threshold in np.unique(sets.values[WEAKEST_LINK.field][sets.valid])[::-1].tolist():
        choice, possible = sets.choices_as_fast_as(threshold)
        if not _may_hold_all(options, possible):
            continue
        members = _cheapest_members(options, sets, sums, choice, possible)
        if members is not None and (
            best_sums is None or _level_sums(sets, levels_above_links, choice, members) == best_sums
        ):
            worth = {**_level_sums(sets, sums, choice, members), WEAKEST_LINK.field: threshold}
            return TablePlan(options, members, choice, value_of(levels, worth))
    return None


def _level_sums(sets: NodeSets, levels: Sequence[Level], choice: Ints, members: Ints) -> dict[str, int]:
    """Return by field the value of a plan with `members` [node] at levels that are sums over nodes."""
    used_nodes = np.flatnonzero(members)
    set_index = (used_nodes, members[used_nodes], choice[used_nodes, members[used_nodes]])
    return {level.field: int(sets.values[level.field][set_index].sum()) for level in levels}


def _may_hold_all(options: DomainOptions, possible: Bools) -> bool:
    """Return whether the roomiest nodes of the roomiest domains hold the members."""
    cap = np.where(possible, np.arange(possible.shape[1]), 0).max(axis=1)
    by_place = np.zeros((len(options.open), options.width), np.int64)
    by_place[options.domain, options.index_in_domain] = cap
    room = np.sort(by_place, axis=1)[:, -options.nodes :].sum(axis=1)
    return int(np.sort(room)[-options.capacities.limit :].sum()) >= options.capacities.need


def _cheapest_members(
    options: DomainOptions, sets: NodeSets, levels: Sequence[Level], choice: Ints, possible: Bools
) -> Ints | None:
    """Return [node] the members of each node in the cheapest plan.

    The result is None if there is no plan, or if the combined costs do not fit into 64 bits.
    """
    varied = [level for level in levels if sets.values[level.field].any()]
    cost = combine_levels([sets.cost(level, choice) for level in varied], possible, options.nodes)
    if cost is None:
        return None
    table = DomainTable.of(options, cost)
    by_domain = options.cheapest(
        table.total, cost.per_node_offset, cost.per_node_offset * options.nodes + cost.max_total
    )
    return None if by_domain is None else table.members(by_domain)


@dataclass(frozen=True, slots=True, eq=False)
class DomainTable:
    """The cheapest ways to fill each domain. The `table` counts members in units of `unit` members."""

    options: DomainOptions
    table: Table
    unit: int

    @classmethod
    def of(cls, options: DomainOptions, cost: CombinedCost) -> DomainTable:
        """Return the table for these costs. Each used node costs `per_node_offset` more."""
        valid = cost.cost < NEVER
        unit = int(np.gcd.reduce(np.flatnonzero(valid.any(axis=0)), initial=0)) or 1
        by_place = np.full((len(options.open), options.width, options.max_per_node // unit + 1), NEVER)
        by_place[options.domain, options.index_in_domain] = np.where(
            valid, cost.cost + cost.per_node_offset, NEVER
        )[:, ::unit]
        min_units, max_units = (int(amount) // unit for amount in options.capacities.member_counts[[0, -1]])
        return cls(options, Table.of(by_place, min_units, max_units), unit)

    @property
    def total(self) -> Ints:
        """[domain, amount] The least cost of `member_counts[amount]` members in the domain."""
        amounts = self.options.capacities.member_counts
        return np.where(amounts % self.unit == 0, self.table.total[:, amounts // self.unit], NEVER)

    def members(self, by_domain: Ints) -> Ints:
        """Return [node] the members of each node, if domains take `by_domain` members."""
        domains = np.flatnonzero(by_domain)
        by_place = np.zeros((len(by_domain), self.options.width), np.int64)
        by_place[domains] = self.table.split(domains, by_domain[domains] // self.unit) * self.unit
        return np.asarray(by_place[self.options.domain, self.options.index_in_domain])


# Slices and policies: GPU sets of a node take long to enumerate


def best_by_branch_and_bound(
    instance: Instance, role: int, options: DomainOptions, budget: Budget
) -> tuple[TablePlan | None, bool]:
    """Return the best plan in one of these domains, and whether it is proven best.

    Domains are searched in the order of their lower bounds, until no further domain can be better (branch and
    bound). If time runs out, the result is the best plan so far.
    """
    incumbent, complete = None, True
    for bound, domain in sorted(_bounds_by_domain(instance, role, options)):
        if incumbent is not None and bound >= incumbent.value:
            break
        if budget.spent and (incumbent is not None or budget.truncated):
            return incumbent, False
        single_domain = options.of_domain(domain)
        sets, all_sets = _sets_by_node(instance, role, single_domain, budget)
        complete &= all_sets
        plan = best_plan(instance, single_domain, sets)
        if plan is not None and (incumbent is None or plan.value < incumbent.value):
            incumbent = plan
    return incumbent, complete


def _bounds_by_domain(instance: Instance, role: int, options: DomainOptions) -> Iterator[tuple[Value, int]]:
    """Yield a lower bound of the value of plans in each domain that holds the members, and the domain."""
    counts = packings(instance, role, options)
    bounds = lower_bounds(instance, options.rows, tuple(map(tuple, counts.tolist())))
    bounds_by_level = split_by_level(instance, bounds, fit_with_penalty(instance, options.rows, counts))
    link = [*bounds_by_level].index(WEAKEST_LINK)
    fastest = np.zeros(len(options.open), np.int64)
    np.minimum.at(
        fastest, options.domain, np.where(options.possible, bounds_by_level.pop(WEAKEST_LINK), 0).min(axis=1)
    )
    sums = list(bounds_by_level.values())
    cost = combine_levels(sums, options.possible, options.nodes)
    if cost is None:  # the numbers are too large, so the bound is of the levels above the links alone
        sums = sums[:link]
        cost = combine_levels(sums, options.possible, options.nodes)
    if cost is None:
        yield from (((), domain) for domain in range(len(options.open)))
        return
    table = DomainTable.of(options, cost)
    fits = table.total[:, 0] < NEVER  # each domain takes all members
    members = table.members(np.where(fits, options.capacities.need, 0))
    used_nodes = np.flatnonzero(members)
    keys = [
        np.bincount(options.domain[used_nodes], level[used_nodes, members[used_nodes]], len(fits)).astype(
            np.int64
        )
        for level in sums
    ]
    if len(sums) > link:
        keys.insert(link, fastest)
    for domain in np.flatnonzero(fits).tolist():
        yield tuple(int(key[domain]) for key in keys), domain


def _sets_by_node(
    instance: Instance, role: int, options: DomainOptions, budget: Budget
) -> tuple[NodeSets, bool]:
    """Return the GPU sets of these nodes, enumerated node by node, and whether the sets are complete."""
    by_node, counts = list[Choices](), tuple(map(tuple, packings(instance, role, options).tolist()))
    for row, high, low in zip(
        options.rows.tolist(), options.cap.tolist(), options.min_members.tolist(), strict=True
    ):
        few = counts[low : high + 1]
        by_node.append(node_choices(instance.asks, few, gpus_on(instance, row), context_on(instance, row)))
        budget.spend(NODE_TIME + PACKING_TIME * len(few))
    names = [POLICY_LEVELS[cost].field for cost in instance.policy_costs]
    width = max((int(np.bincount(node.packing).max()) for node in by_node if len(node.packing)), default=1)
    shape = (len(by_node), options.max_per_node + 1, width)
    values: dict[str, Ints] = {name: np.zeros(shape, np.int64) for name in (*names, *CHOICE_VALUES)}
    valid = np.zeros(shape, bool)
    for i, node in enumerate(by_node):
        begins = np.searchsorted(node.packing, node.packing)
        set_index = (i, node.packing + int(options.min_members[i]), np.arange(len(node.packing)) - begins)
        values_of_node = [*node.costs, *(getattr(node, name) for name in CHOICE_VALUES)]
        for name, values_of_sets in zip(values, values_of_node, strict=True):
            values[name][set_index] = values_of_sets
        valid[set_index] = True
    return possible_sets(instance, role, options, values, valid), all(node.complete for node in by_node)
