"""What parts hold at most and at least, against the search that counts each part with a solver."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from muster.domain.decision import Placed
from muster.domain.request import Member, Request, Scope
from muster.placement.cluster.columns import Bools
from muster.placement.explain.bounds import by_filling, by_packings, by_sums
from muster.placement.explain.joint import most_together
from muster.placement.explain.one_role_in_segments import most_in_segments
from muster.placement.gang.instance import Instance, instance_of
from muster.placement.limits import Budget, Limits
from muster.placement.place import place
from muster.placement.search.classes import coarse
from muster.placement.search.max_members import most
from muster.placement.search.regions import regions
from tests.placement import naive
from tests.placement.constraints import TESTED
from tests.placement.drawings import cluster, gang
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


@pytest.mark.parametrize(
    ("drawn", "asked", "expected"),
    [
        (": a[8 = 4+4, cpu 6]", "8 x 1 GPU 1 cpu by 4 nvlink-domain", 6),
        (": a[8 = 4+4, free 1110 1110]", "8 x 1 GPU by 2 nvlink-domain", 5),
        ("rack r1: a[8] b[4]\nrack r2: c[8, free 1111 1110]", "24 x 1 GPU by 4 rack by 2 node", 19),
        ("rack r1: a[8, free 1111 1000] b[2]\nrack r2: c[4]", "16 x 1 GPU by 8 rack by 4 node", 6),
        (": a[8 = 4+4, free 1110 1110]", "4 x 2 GPU by 1 nvlink-domain", 2),
    ],
    ids=["cpu is short", "one short segment", "nested", "no whole segment", "a member in one domain"],
)
def test_the_most_of_one_role_in_segments(drawn: str, asked: str, expected: int) -> None:
    request = replace(gang(asked), min_member=1)
    instance = instance_of(cluster(drawn), request, {})
    counted = most_in_segments(instance, np.zeros(len(instance.columns.names), np.int64))
    placed = place(cluster(drawn), request)
    assert isinstance(placed, Placed)
    assert counted is not None
    assert counted[0] == len(placed.members) == expected


@pytest.mark.parametrize("examples", [30, pytest.param(150, marks=pytest.mark.slow)])
def test_the_most_of_one_role_in_segments_is_that_of_trying_everything(examples: int) -> None:
    settings(SETTINGS, max_examples=examples)(given(data=st.data())(as_by_trying_everything))()


def as_by_trying_everything(data: st.DataObject) -> None:
    snapshot, request = data.draw(worlds("segments", "levels"))
    role = max(request.roles, key=lambda role: len(role.segments))
    role = replace(role, members=(*role.members, *(Member(f"more{i}", f"more-{i}") for i in range(3))))
    asked = Request(request.gang, (role,), 1)
    instance = instance_of(snapshot, asked, {})
    counted = most_in_segments(instance, np.zeros(len(instance.columns.names), np.int64))
    assume(counted is not None and role.segments)
    found = naive.best(snapshot, asked)
    assert counted is not None
    assert counted[0] == (len(found[1].members) if found else 0)


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
