"""Gangs that start with some of their subgroups: which ones, what breaks a plan, and what a refusal says."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest

from muster.domain.causes.not_planned import MembersMissing
from muster.domain.causes.too_little import SubgroupsNeeded
from muster.domain.constraints import Subgroup
from muster.domain.decision import Placed, Unplaceable
from muster.domain.node import Resources
from muster.domain.quorums import Leaf, Quorum
from muster.domain.request import GangId, Member, Request, Role, Slice
from muster.placement.place import Limits, place
from muster.placement.search import search
from muster.placement.search.plan import SearchResult
from muster.placement.verify import verify
from tests.placement.drawings import RESOURCE, cluster

FOUR = cluster("rack r1: a[4] b[4]\nrack r2: c[4] d[4]")


def role(name: str, size: int, gpus: int) -> Role:
    members = tuple(Member(f"{name}{i}", f"{name}-{i}") for i in range(size))
    return Role(name, members, Resources(), gpus, RESOURCE)


def leaf(name: str, least: int) -> Leaf:
    return Leaf(frozenset(name), least)


def gang(quorum: Quorum, *roles: Role) -> Request:
    return Request(GangId("default", "kai", "g"), roles, 1, quorum=quorum)


def replicas(least: int, *sizes: int, gpus: int = 2, only: bool = False) -> Request:
    """Replicas a, b, … of these sizes, each whole or not at all."""
    sizes_by_name = list(zip("abcdefgh", sizes, strict=False))
    quorum = Quorum(least, tuple(leaf(name, size) for name, size in sizes_by_name), only)
    return gang(quorum, *(role(name, size, gpus) for name, size in sizes_by_name))


def members_by_role(request: Request) -> dict[str, int]:
    plan = place(FOUR, request)
    assert isinstance(plan, Placed)
    assert plan.optimal
    return dict(Counter(member.role for member in plan.members))


TREE = Quorum(1, (Quorum(2, (leaf("a", 1), leaf("b", 4))), Quorum(1, (leaf("c", 2), leaf("d", 3)))))
PLANS: dict[str, tuple[Request, dict[str, int]]] = {
    "all fit": (replicas(1, 3, 3), {"a": 3, "b": 3}),
    "three of four fit": (replicas(2, 3, 2, 2, 4), {"b": 2, "c": 2, "d": 4}),
    "no member of half a replica": (replicas(1, 5, 5), {"a": 5}),
    "no more than asked for": (replicas(1, 3, 4, only=True), {"b": 4}),
    "one side of a tree": (
        gang(TREE, role("a", 1, 1), role("b", 5, 4), role("c", 2, 4), role("d", 2, 2)),
        {"c": 2},
    ),
    "both sides": (
        gang(TREE, role("a", 1, 1), role("b", 5, 2), role("c", 2, 2), role("d", 3, 1)),
        {"a": 1, "b": 4, "c": 2, "d": 3},
    ),
    "as many as fit of an elastic one": (
        gang(Quorum(1, (leaf("a", 2), leaf("b", 1))), role("a", 6, 4), role("b", 1, 5)),
        {"a": 4},
    ),
    "two roles in one subgroup": (
        gang(Quorum(1, (Leaf(frozenset("ab"), 3), leaf("c", 1))), role("a", 2, 4), role("b", 3, 4)),
        {"a": 2, "b": 2},
    ),
}


@pytest.mark.parametrize(("request_", "expected"), PLANS.values(), ids=PLANS)
def test_the_most_members_of_enough_subgroups_start(request_: Request, expected: dict[str, int]) -> None:
    assert members_by_role(request_) == expected


@pytest.mark.parametrize("request_", [request_of_plan for request_of_plan, _ in PLANS.values()], ids=PLANS)
def test_without_a_budget_subgroups_start_one_after_another(request_: Request) -> None:
    plan = place(FOUR, request_, Limits(deterministic_time=1e-9))
    assert isinstance(plan, Placed)


def test_the_best_fit_goes_by_the_roles_that_start() -> None:
    """A role with slices has no room anywhere, so free GPUs count whole: x has one, and y has two."""
    drawn = "x[4, share, mem 16 16 16 16, left 16 15 15 15] y[4, share, mem 16 16 16 16, left 16 16 0 0]"
    shared = replace(role("b", 1, 0), slice=Slice(20))
    plan = place(
        cluster(f": {drawn}"), gang(Quorum(1, (leaf("a", 1), leaf("b", 1))), role("a", 1, 0), shared)
    )
    assert isinstance(plan, Placed)
    assert [member.node for member in plan.members] == ["x"]
    assert plan.objective.best_fit == 2 + 8  # one of four GPUs, all cpu


def test_a_level_of_one_subgroup_leaves_it_out_where_it_does_not_hold() -> None:
    two_replicas = replicas(1, 5, 5)
    subgroup = Subgroup("the level of subgroup a", "rack", frozenset("a"))
    assert members_by_role(replace(two_replicas, subgroups=(subgroup,))) == {"b": 5}


def test_many_replicas_of_which_few_fit() -> None:
    """A budget for one decision is enough to prove which of 2^30 choices is the best."""
    wide = cluster("rack r1: " + " ".join(f"n{i}[8]" for i in range(12)))
    names = [chr(ord("A") + i) for i in range(30)]
    quorum = Quorum(10, tuple(leaf(name, 8) for name in names))
    plan = place(wide, gang(quorum, *(role(name, 8, 1) for name in names)), Limits())
    assert isinstance(plan, Placed)
    assert plan.optimal
    assert set(Counter(member.role for member in plan.members).values()) == {8}
    assert len(plan.members) == 96


BROKEN: dict[str, tuple[Request, str, str]] = {
    # name: the gang, the members of a broken plan, the sentence
    "too few subgroups": (replicas(2, 1, 2, gpus=1), "a0 b0", "fewer subgroups start than the gang needs"),
    "half a subgroup": (replicas(1, 1, 2, gpus=1), "a0 b0", "a subgroup that does not start has members"),
    "more than asked for": (
        replicas(1, 1, 1, gpus=1, only=True),
        "a0 b0",
        "2 subgroups start, 1 are asked for",
    ),
    "half of a tree": (
        gang(TREE, role("a", 1, 1), role("b", 4, 1), role("c", 2, 1), role("d", 3, 1)),
        "a0 c0 c1",
        "a subgroup that does not start has members",
    ),
}


@pytest.mark.parametrize(("request_", "members", "sentence"), BROKEN.values(), ids=BROKEN)
def test_plans_that_start_other_subgroups_are_refused(request_: Request, members: str, sentence: str) -> None:
    whole = place(FOUR, replace(request_, quorum=None, min_member=request_.size))
    assert isinstance(whole, Placed)
    members_left = tuple(placement for placement in whole.members if placement.uid in members.split())
    assert members_left
    assert sentence in verify(FOUR, request_, replace(whole, members=members_left))


def test_a_refusal_is_about_the_subgroups_with_the_fewest_members() -> None:
    decision = place(FOUR, replicas(2, 9, 1, 8))
    assert isinstance(decision, Unplaceable)
    assert decision.causes[-1] == SubgroupsNeeded(2, 3, ("b", "c"))
    assert len(decision.causes) > 1


def test_subgroups_whose_members_are_not_there_are_named() -> None:
    two_replicas = replicas(2, 2, 1)
    decision = place(FOUR, replace(two_replicas, roles=(role("a", 1, 1), role("b", 1, 1))))
    assert decision == Unplaceable(two_replicas.gang, (MembersMissing(1, 2, "a"),))


def test_a_minimum_between_whole_replicas_waits_for_the_next_one() -> None:
    pair = Quorum(1, (Leaf(frozenset("a"), 0, unit=2),))
    pair_request = replace(gang(pair, role("a", 3, 1)), min_member=3)
    assert place(FOUR, pair_request) == Unplaceable(pair_request.gang, (MembersMissing(3, 4, "a"),))
    assert isinstance(place(FOUR, replace(pair_request, roles=(role("a", 4, 1),))), Placed)


def test_numbers_with_which_the_gang_does_not_start_are_looked_at_no_longer_than_there_is_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fits_never(self: search._FewerMembersSearch, counts: tuple[int, ...], method: str) -> bool:
        self.tried[counts] = (self.instance, SearchResult(()))
        return False

    looked_at = list[dict[str, int]]()
    starts = Request.starts

    def count_call(self: Request, counts: dict[str, int]) -> bool:
        looked_at.append(counts)
        return starts(self, counts)

    monkeypatch.setattr(search._FewerMembersSearch, "_has_plan", fits_never)
    monkeypatch.setattr(Request, "starts", count_call)
    limits = Limits(seconds_left=lambda: float(len(looked_at) < 100))
    decision = place(FOUR, replicas(4, 4, 4, 4, 4, 4, 4, 4, 4, gpus=1), limits)
    assert isinstance(decision, Unplaceable)
    assert len(looked_at) in range(100, 110)


def test_what_still_must_come_keeps_who_comes_back_and_how_many_can_start() -> None:
    leaf_before = Leaf(frozenset("a"), 1, unit=2, begun=1, back=1, max_members=3)
    assert leaf_before.without_members({"a": 1}) == Leaf(frozenset("a"), 0, unit=2, max_members=2)
    assert leaf_before.without_members({}) == leaf_before
    assert leaf("a", 2).without_members({"a": 1}) == leaf("a", 1)
