"""weakest_link: a pattern whose weakest link is of rank k is taken only where the plan admits rank k."""

from __future__ import annotations

from muster.placement.model.problem import Pattern
from muster.placement.model.variables import Variables

NAME = "weakest_link"


def add(variables: Variables) -> None:
    model, problem = variables.model, variables.problem
    for better, worse in zip(variables.slower, variables.slower[1:], strict=False):
        model.add_implication(worse, better).with_name(f"{NAME}/order")
    for k, slower in enumerate(variables.slower, start=1):

        def of_rank(pattern: Pattern, k: int = k) -> int:
            return int(variables.ranks[pattern.weakest] >= k)

        for c, cls in enumerate(problem.classes):
            if any(map(of_rank, cls.patterns)):
                model.add(variables.total(of_rank, [c]) <= cls.size * slower).with_name(f"{NAME}/{k}/{c}")
