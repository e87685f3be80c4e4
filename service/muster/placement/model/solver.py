"""Run CP-SAT with one worker, deterministic time and a fixed seed, so that equal models have equal answers.

CP-SAT is imported without pandas. OR-Tools imports pandas for methods that make many variables at once, which
Muster does not call. pandas would add 84 MB to the image, and 40 MB of memory and most of a second to the
start of each planner.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator, Mapping, Sequence
from enum import Enum
from math import inf
from types import ModuleType

from muster.placement.limits import Budget

__all__ = ["SolveStatus", "cp_model", "run"]


class _NeverMade:
    """Stand for a class of pandas, for `isinstance` and in annotations. No object has this class."""

    def __init__(self) -> None:
        raise ModuleNotFoundError("Muster imports OR-Tools without pandas: no method that needs it is called")


@contextlib.contextmanager
def _without_pandas() -> Iterator[None]:
    """Let `import pandas` find two empty classes, unless pandas is loaded already."""
    if "pandas" in sys.modules:
        yield
        return
    pandas = ModuleType("pandas")
    vars(pandas).update(Index=type("Index", (_NeverMade,), {}), Series=type("Series", (_NeverMade,), {}))
    sys.modules["pandas"] = pandas
    try:
        yield
    finally:
        del sys.modules["pandas"]  # a later import of pandas finds the real one


with _without_pandas():
    from ortools.sat.python import cp_model


PARAMETERS = {
    "num_workers": 1,
    "random_seed": 0,
    "cp_model_presolve": False,
    "cp_model_probing_level": 0,
    "symmetry_level": 0,
    "add_cg_cuts": True,
    "add_mir_cuts": False,
    "add_zero_half_cuts": False,
    "add_clique_cuts": False,
    "add_rlt_cuts": False,
}
"""The best of 30 sets on the 123 hardest models of a benchmark (ortools 9.15), with 24 ms for each model.

Without cuts, 4 of the models are not solved in a second; with presolve, up to 14.
"""

FIRST_TRY = 0.03
"""Deterministic time after which a solve starts again with LINEAR.

With LINEAR a few models that take a second are solved in 20 ms, but most models take a quarter longer.
"""

LINEAR = {"linearization_level": 2}
"""Parameters of the second try."""


class SolveStatus(Enum):
    """How a solve ended."""

    SOLVED = "solved"
    INFEASIBLE = "infeasible"
    """It is proven that nothing fits."""
    UNKNOWN = "unknown"
    """The limits ended the search before the answer was known."""


Try = tuple[Mapping[str, int | bool], float]
"""Parameters that replace those of PARAMETERS, and the deterministic time that they get."""

TRIES: tuple[Try, ...] = (({}, FIRST_TRY), (LINEAR, inf))


def run(
    model: cp_model.CpModel, budget: Budget, tries: Sequence[Try] = TRIES
) -> tuple[SolveStatus, cp_model.CpSolver | None]:
    """Return how the solve ended, and the solver with its solution if there is one."""
    feasible: cp_model.CpSolver | None = None
    for extra_parameters, limit in tries:
        if budget.spent:
            break
        solver = cp_model.CpSolver()
        for name, value in {**PARAMETERS, **extra_parameters}.items():
            setattr(solver.parameters, name, value)
        solver.parameters.max_deterministic_time = min(limit, budget.deterministic_time)
        seconds = budget.seconds()
        if seconds is not None:
            solver.parameters.max_time_in_seconds = seconds
        status = solver.solve(model)
        budget.spend(solver.response_proto.deterministic_time)
        if status == cp_model.INFEASIBLE:
            return SolveStatus.INFEASIBLE, None
        if status == cp_model.OPTIMAL:
            return SolveStatus.SOLVED, solver
        if status == cp_model.FEASIBLE:
            feasible = solver
        if seconds is not None and solver.wall_time >= seconds:
            budget.truncated = True
            break
    return (SolveStatus.SOLVED, feasible) if feasible is not None else (SolveStatus.UNKNOWN, None)
