"""Group equal nodes into classes, so that the solver needs one variable for them.

The coarse problem counts parts and nodes: nodes of a class have equal maximal packings. The fine problem
decides the levels below: nodes of a class have equal GPU sets.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np

from muster.domain.request import Scope
from muster.placement.cluster.columns import Bools, Ints, count_up
from muster.placement.cluster.fabric import Shape
from muster.placement.gang.instance import Instance
from muster.placement.gang.on_node import fit_with_penalty
from muster.placement.gang.packings import PackingsByRow, packings_on
from muster.placement.gpus.choices import sets_under
from muster.placement.gpus.gpusets import SET_VALUES, sets_of
from muster.placement.gpus.node_rules import Counts, NodeRule
from muster.placement.limits import Budget, takes_gpus
from muster.placement.model.objective import BEST_FIT, DAMAGE, UNUSABLE, WIDE, WithoutGpus
from muster.placement.model.problem import FREE, Patterns, Problem
from muster.placement.model.solve import counted_scope

REGION = "region"
"""In `Problem.parts`: the region that a cell lies in."""

PATTERN_FIELDS = (*SET_VALUES, "gpus", "packing", "choice")
"""The columns of a table of patterns after the member counts by role."""


@dataclass(frozen=True, slots=True, eq=False)
class Cells:
    """The cells of some rows: the nodes of a cell lie in the same part of each counted scope.

    `cell_by_row` is the cell of each of these rows. `parts` maps a scope to [cell] the part.
    """

    cell_by_row: Ints
    parts: Mapping[str, Ints]


def parts_by_row(instance: Instance, scope: str, rows: Ints) -> Ints:
    """Return the part of a scope for each of these rows.

    FREE marks nodes that cost no part: nodes in no multi-node NVLink domain, and nodes in parts that running
    members touch already. A node without the label is a part of its own.
    """
    if scope in instance.rules.cells:
        return instance.rules.cells[scope][rows]
    topology = instance.columns.topology
    codes = topology.index(scope) if scope == WIDE else topology.index_or_own(scope)
    if instance.running:
        touching = instance.running.touched_rows(scope, gpus=instance.has_gpus)
        codes = np.where(np.isin(codes, codes[list(touching)]), FREE, codes)
    return codes[rows]


def cells_of(instance: Instance, rows: Ints, scopes: Iterable[str], region: Ints | None = None) -> Cells:
    """Return the cells of these rows. `region`, if given, has the region of each row; rows of different
    regions then lie in different cells.
    """
    code = np.zeros(len(rows), np.int64)
    parts: dict[str, Ints] = {}
    for scope in (*scopes, *instance.rules.cells, *(() if region is None else (REGION,))):
        part = parts_by_row(instance, scope, rows) if scope != REGION or region is None else region
        values, dense = np.unique(part, return_inverse=True)
        code = np.unique(code * len(values) + dense, return_inverse=True)[1]
        # Parts of levels are renumbered from 0. Parts of rules keep their codes, because the rules refer to
        # them.
        parts[scope] = (
            part if scope in instance.rules.cells else dense - int(len(values) > 0 and values[0] == FREE)
        )
    _, first, cell_by_row = np.unique(code, return_index=True, return_inverse=True)
    return Cells(cell_by_row, {scope: part[first] for scope, part in parts.items()})


def coarse_problem(
    instance: Instance, rows: Ints, need: Counts, scopes: Iterable[str], region: Ints | None = None
) -> tuple[Problem, bool]:
    """Return the problem of counting parts and nodes on these rows, and whether the packings are complete.

    `region`, if given, has the region of each row, and becomes the parts of REGION.
    """
    index, lists, complete = _maximal_packings(instance, rows, need)
    kinds: dict[bytes, int] = {}
    keys = (packings.tobytes() for packings in lists)
    kind_of = np.array([kinds.setdefault(key, len(kinds)) if key else -1 for key in keys], np.int64)
    kind = kind_of[index]
    if instance.running:  # a node with running members counts as 0 nodes
        is_touched = _already_touched(instance, rows)
        kind = np.where(is_touched & (kind >= 0), kind + len(kinds), kind)
    has_kind = kind >= 0
    cells = cells_of(instance, rows[has_kind], scopes, None if region is None else region[has_kind])
    lists = [np.frombuffer(key, np.int64) for key in kinds] * (2 if instance.running else 1)
    patterns = Patterns.of_counts(lists, len(need))
    if instance.without_gpus is WithoutGpus.SOME_MEMBERS:  # only patterns of members with GPUs touch a node
        with_gpus = np.array([takes_gpus(role) for role in instance.roles])
        gpus: Ints = np.asarray((patterns.counts[:, :, with_gpus] > 0).any(axis=2), np.int64)
        patterns = replace(patterns, gpus=gpus, nodes=gpus.copy())
    if instance.running:
        patterns.nodes[len(kinds) :] = 0
    problem = _problem(need, patterns, rows[has_kind], kind[has_kind], cells, exact=False)
    rules = tuple(rule(problem.parts) for rule in instance.rules.model)
    gpu_only_scopes = frozenset(
        instance.fabric_scopes if instance.without_gpus is WithoutGpus.SOME_MEMBERS else ()
    )
    unit = _units_by_cell(instance, rows[has_kind], cells.cell_by_row)
    return replace(problem, rules=rules, unit=unit, gpu_only_scopes=gpu_only_scopes), complete


def _already_touched(instance: Instance, rows: Ints) -> Bools:
    """Return [row] bool, for these rows: whether running members touch the node."""
    return np.isin(rows, list(instance.running.touched_rows(Scope.NODE, gpus=instance.has_gpus)))


def _maximal_packings(instance: Instance, rows: Ints, need: Counts) -> tuple[Ints, list[Ints], bool]:
    """Return the maximal packings of each node: an index by row, the lists, and whether they are complete.

    If members without GPUs touch no parts, the lists include the maximal packings of these members alone.
    """
    packings = packings_on(instance, rows, need)
    if instance.without_gpus is not WithoutGpus.SOME_MEMBERS:
        return (
            packings.index,
            [packings_of_kind.maximal for packings_of_kind in packings.lists],
            packings.complete,
        )
    with_gpus = np.array([takes_gpus(role) for role in instance.roles])
    without_gpus = packings_on(instance, rows, tuple(np.where(with_gpus, 0, need).tolist()))
    count = len(without_gpus.lists)
    pairs, index = np.unique(packings.index * count + without_gpus.index, return_inverse=True)
    lists = []
    for code in pairs.tolist():
        i, j = divmod(code, count)
        maximal = packings.lists[i].maximal
        touching = maximal[(maximal[:, with_gpus] > 0).any(axis=1)]
        lists.append(np.concatenate([touching, without_gpus.lists[j].maximal]))
    return index, lists, packings.complete and without_gpus.complete


def _units_by_cell(instance: Instance, rows: Ints, cell: Ints) -> Ints | None:
    """Return [role, cell] the unit: the role's members on each node of the cell are a multiple of the unit.

    The result is None if all units are 1. It is also None without rules of the model, because members are
    then not counted by cell.
    """
    if not instance.rules.model or not len(cell):
        return None
    units = np.array([instance.rules.units_of(role) for role in range(len(instance.roles))])
    if (units == 1).all():
        return None
    by_role = np.zeros((len(units), int(cell.max()) + 1), np.int64)
    for units_by_cell, units_by_rule in zip(by_role, units, strict=True):
        np.gcd.at(units_by_cell, cell, units_by_rule[instance.rules.in_node[rows]])
    return by_role


def rows_and_cells(problem: Problem) -> tuple[Ints, Ints]:
    """Return the row and the cell of each node of the problem."""
    rows = np.concatenate([problem.nodes(c) for c in range(problem.classes)])
    return rows, np.repeat(problem.cell, problem.size)


@dataclass(frozen=True, slots=True, eq=False)
class NodeTable:
    """The patterns of one node as a table."""

    patterns: Ints
    """[pattern, column] Counts by role, PATTERN_FIELDS, then further costs."""
    key: bytes
    """The bytes of `patterns`, to compare tables."""
    values: Mapping[str, Ints]
    """Field → [packing]: further values, which do not depend on the GPU set."""

    @classmethod
    def of(cls, instance: Instance, patterns: Ints, key: bytes, values: Mapping[str, Ints]) -> NodeTable:
        """Return the table with these `packing_values`. Priced damage replaces the damage in `patterns`."""
        other_values, roles = dict(values), len(instance.roles)
        damage = other_values.pop(DAMAGE.field, None)
        if damage is not None:
            packing = patterns[:, roles + PATTERN_FIELDS.index("packing")]
            patterns = patterns.copy()
            patterns[:, roles + PATTERN_FIELDS.index("damage")] = damage[packing]
            key = patterns.tobytes()
        return cls(patterns, key, other_values)

    @property
    def identity(self) -> tuple[bytes, ...]:
        """Bytes that are equal only for equal tables."""
        return (self.key, *(by_packing.tobytes() for by_packing in self.values.values()))


def packing_values(instance: Instance, rows: Ints, counts: Ints) -> dict[str, Ints]:
    """Return field → [row, packing]: the values of a node that depend on its packing alone.

    `counts` is [packing, role].
    """
    values = {BEST_FIT.field: fit_with_penalty(instance, rows, counts)}
    if instance.prices is not None:
        values[DAMAGE.field] = instance.prices.damage_of_gpus(
            rows, instance.gpus(counts), instance.cpu(counts)
        )
    if instance.without_gpus is not WithoutGpus.NO_MEMBER:
        values[UNUSABLE.field] = instance.unusable_gpus(rows, counts)
    return values


def fine_problem(instance: Instance, problem: Problem, budget: Budget) -> tuple[Problem, bool]:
    """Return the problem with all patterns on the nodes of the coarse problem, and whether the patterns are
    complete.

    Once the wall clock is spent, nodes with a rule are left out, because their GPU sets take long. The first
    node is never left out.
    """
    rows, _ = rows_and_cells(problem)
    packings_by_row = packings_on(instance, rows, problem.need)
    values = _values_by_row(instance, rows, packings_by_row)
    columns, gpus = instance.columns, tuple(role.gpus for role in instance.roles)
    shape, free = columns.shape[rows].tolist(), columns.free_gpus[rows].tolist()
    in_wide = columns.topology.in_wide[rows].tolist()
    rule_index, node_rules = instance.rules.in_node[rows].tolist(), instance.rules.node_rules
    tables: list[NodeTable | None] = []
    complete = packings_by_row.complete
    for i in range(len(rows)):
        rule, packings = node_rules[rule_index[i]], packings_by_row.of(i).all
        node = (columns.shapes[shape[i]], free[i], in_wide[i])
        if rule is None:
            table, key = node_patterns(packings, gpus, *node)
        elif tables and budget.late:
            complete = False
            tables.append(None)
            continue
        else:
            table, key, all_sets = patterns_under_rule(packings, rule, *node)
            complete &= all_sets
        tables.append(NodeTable.of(instance, table, key, values[i]))
    return with_tables(instance, problem, tables), complete


def with_tables(
    instance: Instance,
    problem: Problem,
    tables: Sequence[NodeTable | None],
    extra_fields: tuple[str, ...] = (),
) -> Problem:
    """Return the problem with the patterns of these tables, one table for each node. A node whose table is
    None is left out.

    `extra_fields` are the names of the costs after PATTERN_FIELDS.
    """
    rows, cell = rows_and_cells(problem)
    is_touched = _already_touched(instance, rows).tolist()
    kinds: dict[tuple[tuple[bytes, ...], bool], int] = {}
    by_kind: list[NodeTable] = []
    kind = np.full(len(rows), -1, np.int64)
    for i, table in enumerate(tables):
        if table is not None:
            key = (table.identity, is_touched[i])
            if key not in kinds:
                kinds[key] = len(kinds)
                by_kind.append(table)
            kind[i] = kinds[key]
    patterns = _patterns(by_kind, len(problem.need), extra_fields)
    if instance.without_gpus is WithoutGpus.SOME_MEMBERS:
        patterns = replace(patterns, nodes=np.asarray(patterns.gpus > 0, np.int64))
    for (_, is_already_touched), k in kinds.items():
        if is_already_touched:
            patterns.nodes[k] = 0
    has_kind = kind >= 0
    cells = Cells(cell[has_kind], problem.parts)
    problem_of_tables = _problem(problem.need, patterns, rows[has_kind], kind[has_kind], cells, exact=True)
    return replace(
        problem_of_tables,
        at_most=problem.at_most,
        rules=problem.rules,
        gpu_only_scopes=problem.gpu_only_scopes,
    )


@lru_cache(maxsize=1 << 15)
def node_patterns(
    packings: tuple[Counts, ...], gpus: Counts, shape: Shape, free: int, in_wide: bool
) -> tuple[Ints, bytes]:
    """Return the patterns of one node [pattern, counts by role and PATTERN_FIELDS] int64, and their bytes."""
    sets = sets_of(shape, free)
    counts = np.array(packings, np.int64).reshape(len(packings), len(gpus))
    size = counts @ np.array(gpus, np.int64)
    choices = sets.choices[size]
    packing = np.repeat(np.arange(len(packings)), choices)
    choice = count_up(choices)
    set_index = (size[packing], choice)
    values = {name: getattr(sets, name)[set_index] for name in SET_VALUES}
    if in_wide:
        values["domains"] = np.zeros(len(packing), np.int64)
    fields = (*values.values(), size[packing], packing, choice)
    table = np.concatenate([counts[packing], np.stack(fields, axis=1)], axis=1)
    return table, table.tobytes()


@lru_cache(maxsize=1 << 14)
def patterns_under_rule(
    packings: tuple[Counts, ...], rule: NodeRule, shape: Shape, free: int, in_wide: bool
) -> tuple[Ints, bytes, bool]:
    """Return the patterns of a node with a rule, their bytes, and whether the patterns are complete."""
    sets = [sets_under(rule, shape, free, counts) for counts in packings]
    rows = [
        (*counts, *(getattr(gpus, name) for name in SET_VALUES), gpus.mask.bit_count(), packing, choice)
        for packing, counts in enumerate(packings)
        for choice, (gpus, _) in enumerate(sets[packing][0])
    ]
    table = np.array(rows, np.int64).reshape(len(rows), len(rule.gpus) + len(PATTERN_FIELDS))
    if in_wide:
        table[:, len(rule.gpus) + PATTERN_FIELDS.index("domains")] = 0
    return table, table.tobytes(), all(complete for _, complete in sets)


def _values_by_row(instance: Instance, rows: Ints, packings: PackingsByRow) -> list[dict[str, Ints]]:
    """Return for each row the `packing_values` of the row's packings."""
    by_row: list[dict[str, Ints]] = [{}] * len(rows)
    for m, node_packings in enumerate(packings.lists):
        indices = np.flatnonzero(packings.index == m)
        counts = np.array(node_packings.all, np.int64).reshape(len(node_packings.all), len(instance.roles))
        values = packing_values(instance, rows[indices], counts)
        for k, i in enumerate(indices.tolist()):
            by_row[i] = {name: values_by_row[k] for name, values_by_row in values.items()}
    return by_row


def _patterns(kinds: list[NodeTable], roles: int, extra_fields: tuple[str, ...]) -> Patterns:
    """Return the patterns of these kinds of nodes, given as one table for each kind."""
    width = max((len(table.patterns) for table in kinds), default=0)
    tables = np.zeros((len(kinds), width, roles + len(PATTERN_FIELDS) + len(extra_fields)), np.int64)
    names = (*kinds[0].values,) if kinds else (BEST_FIT.field,)
    values = {name: np.zeros((len(kinds), width), np.int64) for name in names}
    valid = np.zeros((len(kinds), width), bool)
    for kind, table in enumerate(kinds):
        count, packing = len(table.patterns), table.patterns[:, roles + PATTERN_FIELDS.index("packing")]
        tables[kind, :count] = table.patterns
        valid[kind, :count] = True
        for name, by_packing in table.values.items():
            values[name][kind, :count] = by_packing[packing]
    costs = {name: tables[:, :, roles + i] for i, name in enumerate((*PATTERN_FIELDS, *extra_fields))}
    fields = {name: costs.pop(name) for name in ("weakest", "gpus", "packing", "choice")}
    return Patterns(tables[:, :, :roles], valid, valid.astype(np.int64), costs=costs | values, **fields)


def _problem(
    need: Counts, patterns: Patterns, rows: Ints, kind: Ints, cells: Cells, *, exact: bool
) -> Problem:
    """Return the problem whose classes are the nodes of one cell and kind. `kind` is by row, like `rows`."""
    kinds = len(patterns.valid)
    code = cells.cell_by_row * kinds + kind
    order = np.lexsort((rows, code))
    codes, start, size = np.unique(code[order], return_index=True, return_counts=True)
    cell, kind = np.divmod(codes, kinds) if kinds else (codes, codes)
    return Problem(
        need, patterns, cell, kind, size, start, rows[order], patterns.valid[kind], cells.parts, exact
    )


def without_surplus_parts(problem: Problem) -> Bools:
    """Return [class, pattern] bool: the open patterns, without those of surplus equal parts.

    A plan touches at most `limit` parts of the narrowest limited scope. So `limit` parts of each group of
    equal parts are enough. Parts are equal if they have the same classes, in the same parts of the wider
    scopes and of the rules.
    """
    scope, limit = counted_scope(problem)
    if scope is None or limit is None:
        return problem.open
    part = problem.part(scope)
    order = np.lexsort((problem.kind, part))
    part, begins = part[order], np.flatnonzero(np.diff(part[order], prepend=part[order][:1] - 1))
    bounds = list(zip(begins.tolist(), [*begins[1:].tolist(), problem.classes], strict=True))
    other_parts = [problem.part(other_scope) for other_scope in problem.parts if other_scope != scope]
    other_parts += [rule.part[problem.cell] for rule in problem.rules]
    labels = [problem.kind[order], problem.size[order]]
    if problem.gpu_only_scopes:  # members with GPUs may be ruled out in some of the parts
        labels.append(problem.classes_without_gpus(problem.gpu_only_scopes)[order].astype(np.int64))
    labels += [
        labels_of_rule[problem.cell][order]
        for rule in problem.rules
        for labels_of_rule in rule.distinguished_by
    ]
    labels += [_relative_codes(codes[order], part, begins) for codes in other_parts]
    table = np.stack(labels)
    needed_classes = np.zeros(problem.classes, bool)
    equal_parts: dict[bytes, int] = {}
    for begin, end in bounds:
        key = table[:, begin:end].tobytes()
        equal_parts[key] = equal_parts.get(key, 0) + 1
        needed_classes[order[begin:end]] = part[begin] == FREE or equal_parts[key] <= max(1, limit)
    return problem.open_patterns_of(needed_classes, scope)


def _relative_codes(codes: Ints, part: Ints, begins: Ints) -> Ints:
    """Return codes by class (sorted by part), renumbered so that equal parts have equal codes.

    Codes that occur in no other part differ even between equal parts. So they are counted from the part's
    first.
    """
    if not len(codes):
        return codes
    has_code = codes >= 0
    top = int(codes.max(initial=0)) + 1
    low, high = np.full(top, np.iinfo(np.int64).max), np.full(top, -2)
    np.minimum.at(low, codes[has_code], part[has_code])
    np.maximum.at(high, codes[has_code], part[has_code])
    in_one_part = has_code & (low[np.maximum(codes, 0)] == high[np.maximum(codes, 0)])
    first = np.repeat(
        np.minimum.reduceat(np.where(in_one_part, codes, top), begins), np.diff([*begins, len(codes)])
    )
    return np.where(in_one_part, top + 1 + codes - first, codes)
