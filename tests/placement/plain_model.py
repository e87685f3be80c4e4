"""One plain CP-SAT model of the whole problem, as wide as a cluster: the planner's second oracle.

It counts members by node and by the NVLink domains inside it. It decides members, the preferred scope, the
GPUs that gangs without GPUs make unusable, and the parts touched, widest first, down to nodes. It knows
roles, scopes of gangs, roles and subgroups, segments and limits. It leaves out GPU sets, slices, policies,
members that run, rules by GPU, and rules between pods.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from ortools.sat.python import cp_model

from muster.domain.request import Request, Role
from muster.domain.snapshot import NodeState, Snapshot
from tests.placement.naive import admits, by_rank, clique, crossing_scopes
from tests.placement.naive_parts import label

NVLINK = "nvlink-domain"


class Worth(NamedTuple):
    """The levels down to nodes; smaller is better."""

    members: int
    by_role: tuple[int, ...]
    preferred: int
    unusable: int
    """Of gangs without GPUs alone."""
    parts: tuple[int, ...]


@dataclass(frozen=True)
class Unit:
    """Consecutive members of a role, as many as its smallest segment has: nothing tells them apart."""

    role: Role
    first: int
    size: int
    on: Mapping[str, cp_model.IntVar]
    """Members by node."""
    gpus: Mapping[tuple[str, int], cp_model.IntVar]
    """GPUs by node and NVLink domain inside it."""

    @property
    def members(self) -> cp_model.LinearExpr | int:
        """How many are placed."""
        return sum(self.on.values())


class PlainModel:
    """The problem of one gang on one cluster."""

    def __init__(self, snapshot: Snapshot, request: Request, deterministic_time: float) -> None:
        self.snapshot, self.request, self.time = snapshot, request, deterministic_time
        self.model = cp_model.CpModel()
        self.states = list(snapshot.nodes.values())
        self.units = [unit for role in request.roles for unit in self._units(role)]
        for unit in self.units:
            self.model.add(unit.members <= unit.size)
        self._rooms()
        self._last_ranks_stay_out()
        for scope, units in self._groups():
            self._together(scope, units)
        for rule in request.per_scope:
            for nodes in self._parts(rule.scope).values():
                self.model.add(self._members_on(self.units, nodes) <= rule.members)

    def best_worth(self) -> tuple[Worth | None, bool]:
        """Return what the best plan is worth, None if there is none, and whether that is proven."""
        request = self.request
        every = sum(unit.members for unit in self.units)
        self.model.add(every >= max(1, min(request.min_member, request.size)))
        by_role = [sum(u.members for u in self.units if u.role is role) for role in request.roles]
        scopes = [scope for scope in crossing_scopes(self.snapshot, request) if scope != NVLINK]
        roles = len(by_role)
        values: list[int] = []
        proven = True
        for i in range(roles + 3 + len(scopes)):
            if i <= roles:
                level = [-every, *(-count for count in by_role)][i]
            elif i == roles + 1:
                level = self._preferred_scope_index()
            else:
                units = [
                    unit
                    for unit in self.units
                    if unit.role.gpus and values[1 + request.roles.index(unit.role)]
                ]
                level = (
                    self._count_touched_parts(scopes[i - roles - 3], units or self.units)
                    if i > roles + 2
                    else 0
                )
                if i == roles + 2 and not units:
                    level = self._unusable()
            value, certain = self._minimize(level)
            proven &= certain
            if value is None:
                return None, proven
            values.append(value)
        preferred, unusable, *parts = values[roles + 1 :]
        return Worth(values[0], tuple(values[1 : roles + 1]), preferred, unusable, tuple(parts)), proven

    def _minimize(self, level: cp_model.LinearExpr | int) -> tuple[int | None, bool]:
        """Minimize a level, and keep it at what was found."""
        solver = cp_model.CpSolver()
        solver.parameters.num_workers = 1
        solver.parameters.max_deterministic_time = self.time
        self.model.minimize(level)
        status = solver.solve(self.model)
        if status not in (cp_model.OPTIMAL, cp_model.FEASIBLE):
            return None, status == cp_model.INFEASIBLE
        self.model.clear_hints()  # type: ignore[no-untyped-call]
        for unit in self.units:
            for variable in (*unit.on.values(), *unit.gpus.values()):
                self.model.add_hint(variable, solver.value(variable))
        value = solver.value(level)
        self.model.add(level <= value)
        return value, status == cp_model.OPTIMAL

    def _units(self, role: Role) -> Iterable[Unit]:
        """The role in pieces; GPUs lie in the free ones of the domains inside each node."""
        size = min((segment.size for segment in role.segments), default=max(1, len(role.members)))
        for first in range(0, len(by_rank(role.members)), size):
            count = min(size, len(role.members) - first)
            on: dict[str, cp_model.IntVar] = {}
            gpus: dict[tuple[str, int], cp_model.IntVar] = {}
            for state in self.states:
                name = state.node.name
                on[name] = self.model.new_int_var(0, count if admits(state, role) else 0, "")
                inside = [(name, i) for i in range(len(_islands(state)))] if role.gpus else []
                for cell in inside:
                    gpus[cell] = self.model.new_int_var(0, count * role.gpus, "")
                if role.gpus:
                    self.model.add(sum(gpus[cell] for cell in inside) == role.gpus * on[name])
            yield Unit(role, first, count, on, gpus)

    def _rooms(self) -> None:
        """What nodes and their domains have free."""
        for state in self.states:
            name = state.node.name
            cpu = sum(unit.role.resources.cpu_milli * unit.on[name] for unit in self.units)
            self.model.add(cpu <= state.free.cpu_milli)
            for i, free in enumerate(_islands(state)):
                gpus_taken = [unit.gpus[name, i] for unit in self.units if unit.role.gpus]
                self.model.add(sum(gpus_taken) <= free)

    def _last_ranks_stay_out(self) -> None:
        for unit, following in zip(self.units, self.units[1:], strict=False):
            if unit.role is following.role:
                full = self.model.new_bool_var("")
                self.model.add(unit.members >= unit.size * full)
                self.model.add(following.members <= following.size * full)

    def _groups(self) -> Iterable[tuple[str, Sequence[Unit]]]:
        """Those that one part of a scope must hold."""
        if self.request.required_scope:
            yield self.request.required_scope, self.units
        for group in self.request.subgroups:
            yield group.scope, [unit for unit in self.units if unit.role.name in group.roles]
        for role in self.request.roles:
            role_units = [unit for unit in self.units if unit.role is role]
            if role.required_scope:
                yield role.required_scope, role_units
            for segment in role.segments:
                for start in range(0, len(role.members), segment.size):
                    yield segment.scope, [u for u in role_units if start <= u.first < start + segment.size]

    def _together(self, scope: str, units: Sequence[Unit], if_: cp_model.IntVar | None = None) -> None:
        """One part of the scope holds all of these, always or if a variable says so."""
        cells = self._cells(scope)
        is_chosen = {part: self.model.new_bool_var("") for part in cells}
        self.model.add(sum(is_chosen.values()) <= 1)
        free = 0 if if_ is None else 1 - if_
        for unit in units:
            for state in self.states:
                name, islands = state.node.name, range(len(_islands(state)))
                around = [
                    is_chosen[part] for part, inside in cells.items() if any(c[0] == name for c in inside)
                ]
                self.model.add(unit.on[name] <= unit.size * (sum(around) + free))
                for i in islands if scope == NVLINK and unit.role.gpus else ():
                    holding = [is_chosen[part] for part, inside in cells.items() if (name, i) in inside]
                    most = unit.size * unit.role.gpus
                    self.model.add(unit.gpus[name, i] <= most * (sum(holding) + free))

    def _cells(self, scope: str) -> Mapping[str, set[tuple[str, int]]]:
        """Each part that may hold members → its nodes, and their domains inside."""
        cells: dict[str, set[tuple[str, int]]] = {}
        for state in self.states:
            name, count = state.node.name, max(1, len(_islands(state)))
            if scope == NVLINK and not clique(state):
                for i in range(len(_islands(state))):
                    cells[f"{name}/{i}"] = {(name, i)}
                continue
            part = name if scope == "node" else label(self.snapshot, state, scope)
            if part:
                cells.setdefault(part, set()).update((name, i) for i in range(count))
        return cells

    def _parts(self, scope: str) -> Mapping[str, list[str]]:
        """Each part that counts as touched → its nodes; a node without the label is one."""
        nodes_of_part: dict[str, list[str]] = {}
        for state in self.states:
            name = state.node.name
            part = name if scope == "node" else label(self.snapshot, state, scope) or f"alone {name}"
            nodes_of_part.setdefault(part, []).append(name)
        return nodes_of_part

    def _members_on(self, units: Iterable[Unit], nodes: Sequence[str]) -> cp_model.LinearExpr | int:
        return sum(unit.on[name] for unit in units for name in nodes)

    def _preferred_scope_index(self) -> cp_model.LinearExpr | int:
        """Which preferred scope holds all, by its place in the list; the last number: none does."""
        scopes = self.request.preferred_scopes
        is_chosen = [self.model.new_bool_var("") for _ in range(len(scopes) + 1)]
        self.model.add_exactly_one(is_chosen)
        for scope, holds in zip(scopes, is_chosen, strict=False):
            self._together(scope, self.units, holds)
        return sum(i * holds for i, holds in enumerate(is_chosen))

    def _unusable(self) -> cp_model.LinearExpr | int:
        """How many GPUs members make unusable that are all without GPUs. Each of the two numbers of a node is
        as small as what it must reach."""
        terms: list[cp_model.LinearExpr | cp_model.IntVar] = []
        for state in self.states:
            count, name = state.node.topology.gpu_count, state.node.name
            free = state.free_gpu_count
            gpus_held, usable = (
                self.model.new_int_var(0, count, ""),
                self.model.new_int_var(0, 1000 * free, ""),
            )
            gpus_lost = self.model.new_int_var(0, free, "")
            if not count:
                continue
            for unit in self.units:
                self.model.add(unit.on[name] <= unit.size * gpus_held)
            before = 1000 * free
            for ask, amount, every in (
                ("cpu_milli", state.free.cpu_milli, state.node.allocatable.cpu_milli),
                ("memory_bytes", state.free.memory_bytes >> 20, state.node.allocatable.memory_bytes >> 20),
            ):
                amount_taken = sum(
                    (getattr(u.role.resources, ask) >> 20 * (ask != "cpu_milli")) * u.on[name]
                    for u in self.units
                )
                self.model.add(1000 * gpus_held * every >= 1000 * amount_taken * count - every + 1)
                self.model.add(usable * every <= 1000 * (amount - amount_taken) * count)
                before = min(before, 1000 * max(0, amount) * count // every)
            self.model.add(1000 * gpus_lost >= before - usable - 125)
            terms += [gpus_held, gpus_lost]
        return sum(terms)

    def _count_touched_parts(self, scope: str, units: Iterable[Unit]) -> cp_model.LinearExpr | int:
        """How many parts of the scope these units touch."""
        indicators = []
        for nodes in self._parts(scope).values():
            touched = self.model.new_bool_var("")
            for unit in units:
                for name in nodes:
                    self.model.add(unit.on[name] <= unit.size * touched)
            indicators.append(touched)
        return sum(indicators)


def _islands(state: NodeState) -> list[int]:
    """The free GPUs of each NVLink domain that the node has; labels make it one."""
    masks = [-1] if clique(state) else state.node.topology.islands
    return [(mask & state.free_gpus).bit_count() for mask in masks if state.node.topology.gpu_count]
