"""The model's variables behind names that say what they mean."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from ortools.sat.python import cp_model

from muster.placement.model.problem import NodeClass, Pattern, Problem, Use, weakest_ranks


class Variables:
    """All variables of one model.

    `takes[c, p]`: how many nodes of class c take pattern p, 0 … size.
    `part[i]`, `zone[i]`, `rack[i]`, `domain[i]`: whether the gang touches it.
    `slower[k]`: whether a weakest link of rank k or worse is in use.
    `placed[role]`: members placed.
    """

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        self.model = model = cp_model.CpModel()
        self.takes = {
            (c, p): model.new_int_var(0, cls.size, f"takes/{c}/{p}")
            for c, cls in enumerate(problem.classes)
            for p in range(len(cls.patterns))
        }
        self.part = self._touched("part", lambda cls: cls.part)
        self.zone = self._touched("zone", lambda cls: cls.zone)
        self.rack = self._touched("rack", lambda cls: cls.rack)
        self.domain = self._touched("domain", lambda cls: cls.domain)
        self.ranks = weakest_ranks(problem)
        self.slower = [model.new_bool_var(f"slower/{k}") for k in range(1, max(self.ranks.values()) + 1)]
        self.placed = [
            model.new_int_var(0 if problem.partial else need, need, f"placed/{role}")
            for role, need in enumerate(problem.need)
        ]

    def _touched(self, name: str, index: Callable[[NodeClass], int]) -> dict[int, cp_model.IntVar]:
        indices = sorted({index(cls) for cls in self.problem.classes} - {-1})
        return {i: self.model.new_bool_var(f"{name}/{i}") for i in indices}

    def total(
        self, weight: Callable[[Pattern], int], classes: Iterable[int] | None = None
    ) -> cp_model.LinearExprT:
        """Σ over nodes of the weight of the pattern taken, over all classes or these."""
        chosen = range(len(self.problem.classes)) if classes is None else classes
        terms, weights = [], []
        for c in chosen:
            for p, pattern in enumerate(self.problem.classes[c].patterns):
                value = weight(pattern)
                if value:
                    terms.append(self.takes[c, p])
                    weights.append(value)
        return cp_model.LinearExpr.weighted_sum(terms, weights)

    def hint(self, use: Use) -> None:
        """Start the search from a known solution; what follows from `takes` the solver works out."""
        self.model.clear_hints()  # type: ignore[no-untyped-call]
        for key, variable in self.takes.items():
            self.model.add_hint(variable, use.get(key, 0))
        for touched, index in (
            (self.part, "part"),
            (self.zone, "zone"),
            (self.rack, "rack"),
            (self.domain, "domain"),
        ):
            used = {getattr(self.problem.classes[c], index) for c, _ in use}
            for i, variable in touched.items():
                self.model.add_hint(variable, i in used)
