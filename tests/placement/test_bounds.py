"""What parts hold at most and at least, against the search that counts each part with a solver."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from muster.domain.request import Scope
from muster.placement.cluster.columns import Bools
from muster.placement.explain.bounds import by_filling, by_packings, by_sums
from muster.placement.explain.joint import most_together
from muster.placement.gang.instance import Instance, instance_of
from muster.placement.limits import Budget, Limits
from muster.placement.search.classes import coarse
from muster.placement.search.max_members import most
from muster.placement.search.regions import regions
from tests.placement.constraints import TESTED
from tests.placement.worlds import World, worlds

SETTINGS = settings(max_examples=25, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
FEATURES = {
    "plain": (),
    "roles with scopes of their own": ("role scope",),
    "segments": ("segments", "ranks"),
    "at most so many in one part, levels": ("max per", "levels"),
    "segments, and at most so many": ("max per", "segments"),
    "members that run": ("running", "max per", "role scope"),
    "slices": ("slices",),
}
for each in TESTED:
    FEATURES |= each.families
NARROW = (Scope.GPU, Scope.NVLINK_DOMAIN, Scope.NODE)


def drawn(data: st.DataObject, name: str) -> tuple[Instance, tuple[str, ...]]:
    """A instance, and its scope if that is wider than a node."""
    world: World = data.draw(worlds(*FEATURES[name]))
    scope = world.request.required_scope
    return instance_of(world.snapshot, world.request, {}), () if scope in (None, *NARROW) else (scope,)


@pytest.mark.parametrize("name", FEATURES)
@SETTINGS
@given(data=st.data())
def test_bounds_hold(name: str, data: st.DataObject) -> None:
    """Of each part alone: no bound is below what it holds, or above; what is called exact is just that."""
    instance, scopes = drawn(data, name)
    need = instance.need
    part = regions(instance, scopes, need)
    rows = np.flatnonzero(part >= 0)
    assume(len(rows))
    part = part[rows]
    upper = by_sums(instance, rows, part, need)
    lower = (
        by_filling(instance, rows, part, need)
        if instance.plain and not instance.sliced
        else np.zeros_like(upper)
    )
    for one in range(int(part.max()) + 1):
        inside = np.isin(np.arange(len(instance.columns.names)), rows[part == one])
        alone = most(_only(instance, inside), scopes, need, Budget(Limits(deterministic_time=10))).members
        assert lower[one] <= alone <= upper[one]
        problem, _ = coarse(instance, rows[part == one], need, (), np.zeros(int(inside.sum()), np.int64))
        if not problem.classes:
            assert alone == 0
            continue
        active = next(r for r, count in enumerate(need) if count)
        held, exact = by_packings(problem, instance.common_unit(active))
        assert alone == held[0] if exact else alone <= held[0]


@pytest.mark.parametrize("name", FEATURES)
@SETTINGS
@given(data=st.data(), share=st.sampled_from([None, 1.0, 0.5]))
def test_the_most_is_that_of_the_search(name: str, data: st.DataObject, share: float | None) -> None:
    instance, scopes = drawn(data, name)
    budget = Budget(Limits(deterministic_time=10))
    there = most(instance, scopes, instance.need, budget).members
    part = regions(instance, scopes, instance.need)
    wanted = None if share is None else max(1, round(share * sum(instance.need)))
    found = most_together(instance, scopes[0] if scopes else None, part, instance.need, budget, wanted)
    assert found.proven
    if wanted is None:
        assert found.members == there
    else:
        assert (found.members >= wanted) == (there >= wanted)


def _only(instance: Instance, inside: Bools) -> Instance:
    """The instance with these nodes alone."""
    return replace(instance, room=instance.room * inside)
