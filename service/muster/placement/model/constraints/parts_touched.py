"""parts_touched: a part, zone, rack or NVLink domain counts as touched as soon as one node in it is used."""

from __future__ import annotations

from collections.abc import Callable

from ortools.sat.python import cp_model

from muster.placement.model.problem import NodeClass, Pattern
from muster.placement.model.variables import Variables

NAME = "parts_touched"


def add(variables: Variables) -> None:
    _link(variables, variables.part, lambda cls: cls.part, _any)
    _link(variables, variables.zone, lambda cls: cls.zone, _any)
    _link(variables, variables.rack, lambda cls: cls.rack, _any)
    _link(variables, variables.domain, lambda cls: cls.domain, _with_gpus)


def _any(_: Pattern) -> int:
    return 1


def _with_gpus(pattern: Pattern) -> int:
    """A member without GPUs touches no NVLink domain."""
    return int(pattern.gpus > 0)


def _link(
    variables: Variables,
    touched: dict[int, cp_model.IntVar],
    index: Callable[[NodeClass], int],
    counts: Callable[[Pattern], int],
) -> None:
    classes: dict[int, list[int]] = {}
    for c, cls in enumerate(variables.problem.classes):
        if index(cls) in touched:
            classes.setdefault(index(cls), []).append(c)
    for i, inside in classes.items():
        for c in inside:
            size = variables.problem.classes[c].size
            taken = variables.total(counts, [c])
            variables.model.add(taken <= size * touched[i]).with_name(f"{NAME}/{touched[i].name}/{c}")
        # So that "touched" never says more than it means, and a hint is complete.
        variables.model.add(variables.total(counts, inside) >= touched[i]).with_name(
            f"{NAME}/{touched[i].name}"
        )
