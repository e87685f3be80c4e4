"""The list of constraints is complete, and each of what a request asks for can be dropped by itself."""

from __future__ import annotations

from dataclasses import replace

from muster.domain.constraints import NODE, PER_SCOPE, Affinity, AntiAffinity, MaxPer, TopologySpread
from muster.placement.explain.assumptions import binds_members
from muster.placement.gang.constraints import CONSTRAINTS, constraints_of
from muster.placement.gang.constraints.constraint import ByScope
from muster.placement.gang.constraints.max_per import MAX_PER
from tests.placement.constraints import TESTED
from tests.placement.drawings import gang

W = frozenset("w")
EVERYTHING = replace(
    gang("8 x 1 GPU within zone by 4 rack + 2 x 1 GPU within rack, share rack=w+x"),
    per_scope=tuple(kind(*number) for kind in PER_SCOPE for number in (("rack", 6), ("node", 4))),
    constraints=(
        AntiAffinity("apart", NODE, W, W),
        Affinity("near", "disk", W, W),
        TopologySpread("even", "disk", 1, W, W),
    ),
)
ROLES = (replace(role, room={"a": 1}, match_attributes=("root",)) for role in EVERYTHING.roles)
EVERYTHING = replace(EVERYTHING, roles=tuple(ROLES))


def test_each_has_a_place_of_its_own() -> None:
    assert len({constraint.order for constraint in CONSTRAINTS}) == len(CONSTRAINTS)


def test_planner_and_tests_know_each_number_by_scope() -> None:
    planned = [constraint.kind for constraint in CONSTRAINTS if isinstance(constraint, ByScope)]
    assert sorted(planned, key=PER_SCOPE.index) == [tested.kind for tested in TESTED] == [*PER_SCOPE]


def test_each_is_dropped_by_itself() -> None:
    entries = list(constraints_of(EVERYTHING))
    listed = [constraint for constraint, *_ in entries]
    assert listed == sorted(listed, key=CONSTRAINTS.index)
    assert set(listed) == set(CONSTRAINTS)
    request = EVERYTHING
    for count in range(len(entries), 0, -1):
        constraint, role, subject = entries[count - 1]
        request = constraint.request_without(request, role, subject)
        assert list(constraints_of(request)) == entries[: count - 1]
    assert not binds_members(request)


def test_what_is_dropped_twice_is_gone() -> None:
    once = MAX_PER.request_without(EVERYTHING, "", "rack")
    assert [rule for rule in once.per_scope if isinstance(rule, MaxPer)] == [MaxPer("node", 4)]
    assert MAX_PER.request_without(once, "", "rack") == once
