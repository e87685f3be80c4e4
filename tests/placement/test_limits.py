"""What a decision says when the search is cut short: the greedy plan, never a wrong claim."""

from __future__ import annotations

import random
from dataclasses import replace
from itertools import chain, repeat
from types import SimpleNamespace
from typing import Any, cast

import pytest

from muster.domain.causes.not_planned import NotDecided, TooManyRoles
from muster.domain.causes.out_of_place import NodesExcluded
from muster.domain.decision import Placed, Unplaceable
from muster.domain.request import Member
from muster.placement import place as planner
from muster.placement.explain import conflict
from muster.placement.gang.instance import Instance
from muster.placement.limits import MAX_UNLIKE_ROLES
from muster.placement.place import Limits, place
from muster.placement.search import search
from muster.placement.search.count import count
from muster.placement.search.plan import SearchResult
from muster.placement.search.region_count import MAX_OF_PAIRS, BestRegions, prices_to_try
from tests.placement.drawings import cluster, gang
from tests.placement.worlds import BLOCKS

CLUSTER = """
rack r1: a[v100-8x-gputopology-document, free 1110 0000] b[v100-8x-gputopology-document, free 1100 1000]
rack r2: c[v100-8x-gputopology-document, free 0110 0010] d[v100-8x-gputopology-document, free 1100 1001]
"""


def test_without_time_the_greedy_plan_is_given_and_not_called_optimal() -> None:
    snapshot, request = cluster(CLUSTER), gang("7 x 1 GPU + 1 x 2 GPU 1 cpu")
    proven, greedy = place(snapshot, request), place(snapshot, request, Limits(deterministic_time=0))
    assert isinstance(proven, Placed)
    assert isinstance(greedy, Placed)
    assert proven.optimal
    assert proven.gap is None
    assert not greedy.optimal
    assert greedy.gap is not None
    assert not greedy.truncated
    assert greedy.objective.crossings == proven.objective.crossings


def test_wall_clock_says_truncated() -> None:
    decision = place(cluster(CLUSTER), gang("7 x 1 GPU + 1 x 2 GPU 1 cpu"), Limits(seconds_left=lambda: 0.0))
    assert isinstance(decision, Placed)
    assert decision.truncated
    assert not decision.optimal


def test_once_the_wall_clock_is_spent_no_more_choices_of_parts_are_tried(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Where levels do not nest, each choice of zones has choices of blocks, and these of racks."""
    places = [f"zone z{i % 2} example.com/block b{i % 3} rack r{i * 2 % 5}: n{i}[4, cpu 4]" for i in range(9)]
    snapshot, request = (
        cluster("\n".join(places), BLOCKS),
        gang("8 x 1 GPU 1 cpu + 5 x 1 GPU 2 cpu by 4 rack"),
    )
    clock = chain(repeat(1.0, 8), repeat(0.0))
    levels_counted, original = list[int](), BestRegions._count_parts

    def count_call(best_regions: BestRegions, *arguments: Any) -> Any:
        levels_counted.append(1)
        return original(best_regions, *arguments)

    monkeypatch.setattr(BestRegions, "_count_parts", count_call)
    decision = place(snapshot, request, Limits(seconds_left=lambda: next(clock)))
    assert isinstance(decision, Unplaceable)
    assert decision.causes == (NotDecided(truncated=True),)
    assert len(levels_counted) < 20  # 29 without a look at the clock


def test_once_the_wall_clock_is_spent_no_fewer_members_are_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    # In segments that have begun each way to leave members out is a search of its own, and none finds a plan.
    snapshot = cluster("rack r1: a[2, free 01]\n rack r2: b[2]")
    request = gang("8 x 1 GPU by 4 rack + 4 x 1 GPU, min 4, running w-8@a/0")
    searched, original = list[int](), search.search

    def count_call(*args: object) -> SearchResult:
        searched.append(1)
        return original(*args)  # type: ignore[arg-type]  # passed on as it comes

    monkeypatch.setattr(search, "search", count_call)
    assert isinstance(place(snapshot, request), Unplaceable)
    in_time = len(searched)
    assert isinstance(place(snapshot, request, Limits(seconds_left=lambda: 0.0)), Unplaceable)
    assert len(searched) - in_time <= 1 < in_time


CROWDED = "rack r1: a[4] b[4]\n rack r2: c[4] d[4]"


@pytest.mark.parametrize(
    ("gang_text", "most"),
    [
        ("100 x 8 GPU + 8 x 1 GPU by 2 rack, min 4", 8),
        ("8 x 1 GPU by 4 rack + 100 x 8 GPU, min 4", 8),
        ("30 x 1 GPU by 2 node + 30 x 2 GPU + 9 x 1 GPU by 3 rack, min 2", 16),
        ("40 x 1 GPU by 4 rack + 40 x 1 GPU by 2 node, min 3", 16),
        ("60 x 1 GPU by 8 rack by 2 node + 60 x 1 GPU, min 3", 16),
    ],
)
def test_many_members_that_do_not_fit_are_no_reason_not_to_decide(gang_text: str, most: int) -> None:
    snapshot, request = cluster(CROWDED), gang(gang_text)
    decision = place(snapshot, request)
    assert isinstance(decision, Placed)
    assert decision.optimal
    assert len(decision.members) == most
    assert isinstance(place(snapshot, request, Limits(deterministic_time=0)), Placed)


def test_members_that_began_a_segment_are_no_reason_not_to_decide() -> None:
    """There each way to leave members out is a search of its own, and these are too many to try all."""
    request = gang("40 x 1 GPU + 40 x 1 GPU by 4 rack, min 3, running x-90@a/0")
    decision = place(cluster("rack r1: a[4, free 0111] b[4]\n rack r2: c[4] d[4]"), request)
    assert isinstance(decision, Placed)
    assert len(decision.members) == 15


def test_members_that_span_few_of_many_domains_are_no_reason_not_to_decide() -> None:
    """There are millions of ways to lie in twelve domains, which are not all listed."""
    decision = place(cluster(f": a[48 = {'+'.join(['4'] * 12)}]"), gang("12 x 4 GPU, max nvlink-domain=2"))
    assert isinstance(decision, Placed)


def test_refusals_of_many_members_in_segments_are_explained() -> None:
    request = gang("100 x 8 GPU + 8 x 1 GPU by 2 rack, min 9")
    decision = place(cluster(CROWDED), request)
    assert isinstance(decision, Unplaceable)
    assert not any(isinstance(cause, NotDecided) for cause in decision.causes)


def test_no_plan_and_no_proof_is_not_called_unplaceable_for_a_made_up_cause() -> None:
    # It fits, but only just: neither greedy nor bounds see whether.
    snapshot = cluster(": a[4, cpu 3] b[4, cpu 3] c[2, cpu 2]")
    request = gang("2 x 0 GPU 1.6 cpu + 3 x 1 GPU 0.5 cpu + 3 x 2 GPU 0.7 cpu")
    decision = place(snapshot, request, Limits(deterministic_time=0))
    assert isinstance(decision, Unplaceable)
    assert decision.causes == (NotDecided(truncated=False),)
    assert isinstance(place(snapshot, request), Placed)


@pytest.mark.parametrize("share", [1, 2])
def test_where_the_solver_does_not_find_how_few_racks_do_the_gang_is_placed_in_more(share: int) -> None:
    """Over two of thirty zones, or three: too many choices to look at each one."""
    rng, lines, roomiest = random.Random(1), list[str](), 0
    for zone in range(30):
        free = [["".join(rng.choices("01", (3, 1), k=8)) for _ in range(4)] for _ in range(16)]
        for rack, nodes in enumerate(free):
            drawn = " ".join(f"n{zone}-{rack}-{i}[8, free {bits}]" for i, bits in enumerate(nodes))
            lines.append(f"zone z{zone} rack r{zone}-{rack}: {drawn}")
        roomiest = max(roomiest, sum(bits.count("1") for nodes in free for bits in nodes))
    decision = place(cluster("\n".join(lines)), gang(f"{share * roomiest + 1} x 1 GPU"))
    assert isinstance(decision, Placed)
    crossed = dict(decision.objective.crossings)
    assert crossed["zone"] == share + 1
    assert crossed["rack"] <= 15 * share
    assert decision.optimal or decision.unproven in ("rack", "node")


def test_once_the_wall_clock_is_spent_no_more_is_counted_to_explain_a_refusal(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Of many roles each count takes a while, and there are many to be left out."""
    snapshot = cluster("rack r1: a[2]\n rack r2: b[2]")
    request = gang(" + ".join(f"3 x 1 GPU {cpu} cpu" for cpu in range(1, 9)) + ", min 20")
    calls: list[int] = []

    def count_once(*args: object) -> object:
        calls.append(1)
        return count(*args)  # type: ignore[arg-type]  # passed on as it comes

    monkeypatch.setattr(conflict, "count", count_once)
    assert isinstance(place(snapshot, request), Unplaceable)
    in_time = len(calls)
    decision = place(snapshot, request, Limits(seconds_left=lambda: 0.0))
    assert isinstance(decision, Unplaceable)
    assert decision.causes
    assert len(calls) - in_time == 0 < in_time


def test_more_roles_than_are_planned_together_are_refused_before_any_search(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(planner, "instance_of", None)  # nothing is looked at
    request = gang("1 x 1 GPU")
    roles = tuple(replace(request.roles[0], name=f"r{n}") for n in range(MAX_UNLIKE_ROLES + 1))
    decision = place(cluster(": a[8]"), replace(request, roles=roles))
    assert isinstance(decision, Unplaceable)
    assert decision.causes == (TooManyRoles(MAX_UNLIKE_ROLES + 1, MAX_UNLIKE_ROLES),)


def test_as_many_roles_as_are_allowed_are_planned() -> None:
    request = gang("1 x 1 GPU 1 cpu + 1 x 1 GPU 2 cpu + 1 x 1 GPU 3 cpu")
    assert isinstance(place(cluster(": a[8]"), request, Limits(most_roles=3)), Placed)
    assert isinstance(place(cluster(": a[8]"), request, Limits(most_roles=2)), Unplaceable)


@pytest.mark.parametrize("roles", [2, 8, 9, 40, 300])
def test_prices_are_few_for_any_number_of_roles(roles: int) -> None:
    instance = SimpleNamespace(
        roles=[SimpleNamespace(gpus=1)] * roles, asks=[SimpleNamespace(units=0, gpus=1)] * roles
    )
    role_prices = prices_to_try(cast(Instance, instance), (2,) * roles)
    assert len(role_prices) <= roles + 3 + MAX_OF_PAIRS
    assert all(len(price) == roles and any(price) for price in role_prices)


def test_a_pair_that_a_plugin_refused_is_left_out_and_named() -> None:
    snapshot, request = cluster(": a[8] b[8, free 1000 0000]"), gang("1 x 2 GPU")
    decision = place(snapshot, request, Limits(excluded={"w": {"a": "VolumeBinding"}}))
    assert isinstance(decision, Unplaceable)
    assert NodesExcluded("w", "VolumeBinding", 1) in decision.causes


def test_roles_that_differ_in_the_nodes_that_admit_them_alone_count_once() -> None:
    """A volume each, on a node each, as a StatefulSet that is made anew has them."""
    names = "abcd"
    roles = tuple(
        replace(gang("1 x 1 GPU").roles[0], name=name, members=(Member(name, name),)) for name in names
    )
    request = replace(gang("1 x 1 GPU"), roles=roles, min_member=len(names))
    elsewhere = {role: {node: "VolumeBinding" for node in names if node != role} for role in names}
    decision = place(cluster(": a[8] b[8] c[8] d[8]"), request, Limits(excluded=elsewhere, most_roles=1))
    assert isinstance(decision, Placed)
    assert {member.name: member.node for member in decision.members} == {name: name for name in names}
