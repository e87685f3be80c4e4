"""Find the cheapest victims by sums of resources: a relaxation, since members are not given GPUs.

A unit of running pods ends as a whole, or it loses some pods. The members must fit on each node by the sum of
each resource. Whether they really fit is decided elsewhere. If they do not, `VictimModel.require` says so: at
least one more pod of a set must go.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from math import inf

import numpy as np

from muster.placement.limits import Budget
from muster.placement.model.build import LinearExpr, LinearExprT, Model, QuorumRule
from muster.placement.model.problem import Bools, Ints
from muster.placement.model.solver import FIRST_TRY, LINEAR, SolveStatus, Try, run

TRIES: tuple[Try, ...] = (
    ({}, FIRST_TRY),
    (
        {
            **LINEAR,
            "cp_model_presolve": True,
            "add_mir_cuts": True,
            "add_zero_half_cuts": True,
            "add_clique_cuts": True,
            "add_rlt_cuts": True,
        },
        inf,
    ),
)
"""The first try solves most racks. The second try proved five large models in at most 3.4 s. With LINEAR
alone, three of them were not proven in 8 s.
"""


@dataclass(frozen=True, slots=True, eq=False)
class PodLimit:
    """At most `limit` pods may go: of a disruption budget, or of a subgroup.

    `by_unit` has the number of pods that go with each unit that ends. `pods` are those that may go alone.
    """

    limit: int
    by_unit: Mapping[int, int]
    pods: Sequence[int]


@dataclass(frozen=True, slots=True, eq=False)
class VictimProblem:
    """The nodes of one region, the pods on them that may go, and the members that must fit."""

    asks: Ints
    """[role, resource] What a member asks for."""
    need: tuple[int, ...]
    """[role] The number of members."""
    min_members: int
    """How many of all members must fit."""
    quorum: QuorumRule | None
    free: Ints
    """[resource, node] The free amount, at least 0."""
    room: Ints
    """[role, node] How many members of the role alone the node holds once all these pods are gone."""
    freed: Ints
    """[resource, pod] What becomes free with the pod."""
    node: Ints
    """[pod]"""
    unit: Ints
    """[pod]"""
    end_cost: Sequence[int]
    """[unit] The cost of its end."""
    shrink_cost: int
    """The cost of each unit that loses some of its pods, apart from the cost of the pods."""
    pod_cost: Sequence[int]
    """[pod] The cost of its end while its unit runs on."""
    spare: Sequence[int]
    """[unit] How many pods the unit may lose while it runs on."""
    limits: Sequence[PodLimit]


@dataclass(frozen=True, slots=True)
class Choice:
    """Victims: the units that end, and the pods that other units lose. No victims cost less than `bound`."""

    units: tuple[int, ...]
    pods: tuple[int, ...]
    cost: int
    bound: int


class VictimModel:
    """The CP-SAT model of a problem. `below`: only victims that cost less are of interest."""

    def __init__(self, problem: VictimProblem, below: int | None) -> None:
        self._problem = problem
        self._model = model = Model()
        self._ends = [model.new_bool_var(f"ends/{u}") for u in range(len(problem.end_cost))]
        self._goes = {
            p: model.new_bool_var(f"goes/{p}")
            for p, u in enumerate(problem.unit.tolist())
            if problem.spare[u]
        }
        costs: list[tuple[LinearExprT, int]] = [*zip(self._ends, problem.end_cost, strict=True)]
        costs += [(goes, problem.pod_cost[p]) for p, goes in self._goes.items()]
        costs += self._add_shrinking()
        cost = LinearExpr.weighted_sum([variable for variable, _ in costs], [amount for _, amount in costs])
        for limit in problem.limits:
            ending = [count * self._ends[u] for u, count in limit.by_unit.items()]
            alone = [self._goes[p] for p in limit.pods if p in self._goes]
            model.add(LinearExpr.sum([*ending, *alone]) <= limit.limit)
        self._add_members()
        if below is not None:
            model.add(cost <= below - 1)
        model.minimize(cost)

    def _add_shrinking(self) -> list[tuple[LinearExprT, int]]:
        """Let a unit end or lose pods, but not both. Return the cost of each unit's being shrunk."""
        by_unit: dict[int, list[LinearExprT]] = {}
        for p, goes in self._goes.items():
            by_unit.setdefault(int(self._problem.unit[p]), []).append(goes)
        costs: list[tuple[LinearExprT, int]] = []
        for u, pods in by_unit.items():
            shrinks = self._model.new_bool_var(f"shrinks/{u}")
            self._model.add(shrinks + self._ends[u] <= 1)
            self._model.add(LinearExpr.sum(pods) <= self._problem.spare[u] * shrinks)
            costs.append((shrinks, self._problem.shrink_cost))
        return costs

    def _gone(self, pod: int) -> LinearExprT:
        """Return whether the pod goes, alone or with its unit."""
        end = self._ends[int(self._problem.unit[pod])]
        return end + self._goes[pod] if pod in self._goes else end

    def _add_members(self) -> None:
        """Let the members fit on the nodes, by the sum of each resource."""
        problem, model = self._problem, self._model
        placed: list[list[LinearExprT]] = [[] for _ in problem.need]
        pods_by_node: list[list[int]] = [[] for _ in range(problem.free.shape[1])]
        for p, n in enumerate(problem.node.tolist()):
            pods_by_node[n].append(p)
        binds = _binding_rows(problem)
        for n, pods in enumerate(pods_by_node):
            members = [(k, int(room)) for k, room in enumerate(problem.room[:, n].tolist()) if room]
            variables = {k: model.new_int_var(0, room, f"members/{n}/{k}") for k, room in members}
            for k, variable in variables.items():
                placed[k].append(variable)
            for resource in np.flatnonzero(binds[:, n]).tolist():
                members_ask = [int(problem.asks[k, resource]) * variable for k, variable in variables.items()]
                freed = [int(problem.freed[resource, p]) * self._gone(p) for p in pods]
                model.add(
                    LinearExpr.sum(members_ask) <= LinearExpr.sum([*freed, int(problem.free[resource, n])])
                )
        totals = [model.new_int_var(0, need, f"placed/{k}") for k, need in enumerate(problem.need)]
        for total, variables_of_role in zip(totals, placed, strict=True):
            model.add(LinearExpr.sum(variables_of_role) >= total)
        model.add(LinearExpr.sum(totals) >= problem.min_members)
        if problem.quorum is not None:
            problem.quorum.add(model, totals)

    def require(self, pods: Collection[int]) -> None:
        """Add that at least one of these pods goes."""
        self._model.add(LinearExpr.sum([self._gone(p) for p in sorted(pods)]) >= 1)

    def cheapest(self, budget: Budget) -> tuple[SolveStatus, Choice | None]:
        """Return the cheapest victims that time allows to find."""
        status, solver = run(self._model, budget, TRIES)
        if solver is None:
            return status, None
        units = tuple(u for u, ends in enumerate(self._ends) if solver.boolean_value(ends))
        pods = tuple(p for p, goes in self._goes.items() if solver.boolean_value(goes))
        cost, bound = round(solver.objective_value), round(solver.best_objective_bound)
        return status, Choice(units, pods, cost, min(cost, bound))


def _binding_rows(problem: VictimProblem) -> Bools:
    """Return [resource, node] whether the resource may limit the members on the node.

    For a single role, one resource often limits the members more than another, whichever pods go.
    """
    binds = np.asarray(problem.asks.T @ problem.room > problem.free)
    active = np.flatnonzero(problem.need)
    if len(active) != 1:
        return binds
    ask = problem.asks[active[0]]
    lines = np.flatnonzero(ask)
    free, freed = (amounts[lines] / ask[lines, None] for amounts in (problem.free, problem.freed))
    scarcest = int((free.sum(axis=1) + freed.sum(axis=1)).argmin())
    pods_less_free = np.zeros(free.shape, np.int64)
    np.add.at(pods_less_free.T, problem.node, (freed < freed[scarcest]).T)
    is_implied = (free >= free[scarcest]) & (pods_less_free == 0)
    is_implied[scarcest] = False
    binds[lines] &= ~is_implied
    return binds
