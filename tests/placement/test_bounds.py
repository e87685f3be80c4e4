"""What parts hold at most and at least, against a solver that counts each part."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from muster.domain.decision import Placed
from muster.domain.request import Member, Request, Scope
from muster.placement.cluster.columns import Ints
from muster.placement.cluster.matching import GangCluster
from muster.placement.gang.blocks import has_begun_segment, ways_to_cut
from muster.placement.gang.instance import Instance, instance_of
from muster.placement.gpus.node_rules import Counts
from muster.placement.limits import Budget, Limits
from muster.placement.model.solve import most_members
from muster.placement.place import place
from muster.placement.search.classes import coarse_problem
from muster.placement.search.count import (
    count,
    count_in_segments,
    lower_bounds_by_filling,
    upper_bounds_by_packings,
    upper_bounds_by_sums,
)
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
for kind_tested in TESTED:
    FEATURES |= kind_tested.families
NARROW = (Scope.GPU, Scope.NVLINK_DOMAIN, Scope.NODE)


def draw_instance(data: st.DataObject, name: str) -> tuple[Instance, tuple[str, ...]]:
    """A instance, and its scope if that is wider than a node."""
    world: World = data.draw(worlds(*FEATURES[name]))
    scope = world.request.required_scope
    return instance_of(GangCluster(world.snapshot, world.request), {}), () if scope in (None, *NARROW) else (
        scope,
    )


@pytest.mark.parametrize("name", FEATURES)
@SETTINGS
@given(data=st.data())
def test_bounds_hold(name: str, data: st.DataObject) -> None:
    """Of each part alone: no bound is below what it holds, or above; what is called exact is just that."""
    instance, scopes = draw_instance(data, name)
    need = instance.need
    part = regions(instance, scopes, need)
    rows = np.flatnonzero(part >= 0)
    assume(len(rows))
    part = part[rows]
    upper = upper_bounds_by_sums(instance, rows, part, need)
    lower = (
        lower_bounds_by_filling(instance, rows, part, need)
        if instance.binds_only_by_scopes and not instance.sliced
        else np.zeros_like(upper)
    )
    for code in range(int(part.max()) + 1):
        alone = sum(by_solver(instance, rows[part == code]))
        assert lower[code] <= alone <= upper[code]
        problem, _ = coarse_problem(
            instance, rows[part == code], need, (), np.zeros(int((part == code).sum()), np.int64)
        )
        if not problem.classes:
            assert alone == 0
            continue
        active = next(r for r, count in enumerate(need) if count)
        packed_counts, exact = upper_bounds_by_packings(problem, instance.common_unit(active))
        assert alone == packed_counts[0] if exact else alone <= packed_counts[0]


@pytest.mark.parametrize(
    ("drawn", "gang_text", "expected"),
    [
        (": a[8 = 4+4, cpu 6]", "8 x 1 GPU 1 cpu by 4 nvlink-domain", 6),
        (": a[8 = 4+4, free 1110 1110]", "8 x 1 GPU by 2 nvlink-domain", 5),
        ("rack r1: a[8] b[4]\nrack r2: c[8, free 1111 1110]", "24 x 1 GPU by 4 rack by 2 node", 19),
        ("rack r1: a[8, free 1111 1000] b[2]\nrack r2: c[4]", "16 x 1 GPU by 8 rack by 4 node", 6),
        (": a[8 = 4+4, free 1110 1110]", "4 x 2 GPU by 1 nvlink-domain", 2),
    ],
    ids=["cpu is short", "one short segment", "nested", "no whole segment", "a member in one domain"],
)
def test_the_most_of_one_role_in_segments(drawn: str, gang_text: str, expected: int) -> None:
    request = replace(gang(gang_text), min_member=1)
    instance = instance_of(GangCluster(cluster(drawn), request), {})
    counted = count_in_segments(instance, ())
    decision = place(cluster(drawn), request)
    assert isinstance(decision, Placed)
    assert counted is not None
    assert counted.members == len(decision.members) == expected


@pytest.mark.parametrize("examples", [30, pytest.param(150, marks=pytest.mark.slow)])
def test_the_most_of_one_role_in_segments_is_that_of_trying_everything(examples: int) -> None:
    settings(SETTINGS, max_examples=examples)(given(data=st.data())(as_by_trying_everything))()


def as_by_trying_everything(data: st.DataObject) -> None:
    snapshot, request = data.draw(worlds("segments", "levels"))
    role = max(request.roles, key=lambda role: len(role.segments))
    role = replace(role, members=(*role.members, *(Member(f"more{i}", f"more-{i}") for i in range(3))))
    one_role_request = Request(request.gang, (role,), 1)
    instance = instance_of(GangCluster(snapshot, one_role_request), {})
    counted = count_in_segments(instance, ())
    assume(counted is not None and role.segments)
    best_plan = naive.best_value_and_plan(snapshot, one_role_request)
    assert counted is not None
    assert counted.members == (len(best_plan[1].members) if best_plan else 0)


@pytest.mark.parametrize("name", FEATURES)
@SETTINGS
@given(data=st.data(), share=st.sampled_from([None, 1.0, 0.5]))
def test_the_most_is_that_of_a_solver_for_each_part(
    name: str, data: st.DataObject, share: float | None
) -> None:
    instance, scopes = draw_instance(data, name)
    assume(not has_begun_segment(instance.request))
    most = max(over_all_parts(instance, scopes), key=lambda counts: (sum(counts), counts))
    target = None if share is None else max(1, round(share * sum(instance.need)))
    fit = count(instance, scopes, Budget(Limits(deterministic_time=10)), target)
    assert fit.proven
    if target is None:
        assert fit.members == sum(most)
        ordered = count(instance, scopes, Budget(Limits(deterministic_time=10)), roles_in_order=True)
        assert ordered.proven
        assert (ordered.counts or (0,) * len(most)) == most
    else:
        assert (fit.members >= target) == (sum(most) >= target)


def over_all_parts(instance: Instance, scopes: tuple[str, ...]) -> Iterator[Counts]:
    """Yield what a solver finds for each part, by role, over all ways to leave members out."""
    request = instance.request
    yield (0,) * len(request.roles)
    for members in ways_to_cut(request):
        fewer = instance.with_first_members(members)
        part = regions(fewer, scopes, fewer.need)
        for code in range(int(part.max(initial=-1)) + 1):
            yield tuple(fewer.by_role(by_solver(fewer, np.flatnonzero(part == code))).values())


def by_solver(instance: Instance, rows: Ints) -> Counts:
    """The most members that these nodes hold: the largest sum, then most of the earlier roles."""
    nothing = (0,) * len(instance.need)
    problem, _ = coarse_problem(instance, rows, instance.need, ())
    if not problem.classes:
        return nothing
    budget = Budget(Limits(deterministic_time=10))
    counts, proven = most_members(replace(problem, partial=True), budget, roles_in_order=True)
    assert proven
    return counts or nothing
