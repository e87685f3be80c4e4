"""Where a member may go instead, re-planning it there, and the first-fit baseline."""

from __future__ import annotations

from dataclasses import replace

from local_cluster.demo.baseline import first_fit
from muster.domain.constraints import AntiAffinity
from muster.domain.decision import Placed
from muster.placement.moves import alternates, move
from muster.placement.place import place
from muster.placement.verify import verify
from tests.placement.drawings import cluster, gang

RACKS = """
rack r1: a[8, free 1111 0000] b[8, free 1100 0000] c[8, free 1111 1111]
rack r2: d[8, free 1111 0000]
"""


def plan_of(drawing: str, request: str):  # type: ignore[no-untyped-def]
    snapshot, gang_request = cluster(drawing), gang(request)
    plan = place(snapshot, gang_request)
    assert isinstance(plan, Placed)
    return snapshot, gang_request, plan


def test_alternates_planned_node_first_then_the_nearest() -> None:
    snapshot, request, plan = plan_of(RACKS, "2 x 2 GPU")
    assert {member.node for member in plan.members} == {"a"}
    assert alternates(snapshot, request, plan) == (("a", "b", "c", "d"),) * 2
    assert alternates(snapshot, request, plan, limit=2) == (("a", "b"),) * 2


def test_alternates_stay_in_the_required_part() -> None:
    snapshot, request, plan = plan_of(RACKS, "2 x 2 GPU, scope rack")
    assert alternates(snapshot, request, plan) == (("a", "b", "c"),) * 2
    snapshot, request, plan = plan_of(RACKS, "2 x 2 GPU, scope node")
    assert alternates(snapshot, request, plan) == (("a",),) * 2


def test_move_takes_the_best_gpus_beside_the_others() -> None:
    cube = ": a[v100-8x-gputopology-document, free 1001 0000] b[v100-8x-gputopology-document, free 0111 1111]"
    snapshot, request, plan = plan_of(cube, "3 x 1 GPU")
    assert {member.node for member in plan.members} == {"b"}
    once = move(snapshot, request, plan, "w0", "a")
    assert once is not None
    assert [member.node for member in once.members] == ["a", "b", "b"]
    twice = move(snapshot, request, once, "w1", "a")
    assert twice is not None
    assert {gpu for member in twice.members[:2] for gpu in member.gpus} == {0, 3}
    assert verify(snapshot, request, twice) == ()
    assert not twice.optimal
    assert move(snapshot, request, twice, "w2", "a") is None, "full"


def test_move_beside_the_others_on_a_node_of_many_gpus() -> None:
    """There are 10⁹ sets of eight. The event loop moves members, so they are not compared one by one."""
    snapshot, request, plan = plan_of(": a[16] z[62]", "3 x 8 GPU")
    for member in plan.members:
        moved = move(snapshot, request, plan, member.uid, "z")
        assert moved is not None
        plan = moved
    assert {member.node for member in plan.members} == {"z"}
    assert verify(snapshot, request, plan) == ()


def test_move_refuses_what_breaks_the_scope_or_is_unknown() -> None:
    snapshot, request, plan = plan_of(RACKS, "2 x 2 GPU, scope rack")
    assert move(snapshot, request, plan, "w0", "d") is None
    assert move(snapshot, request, plan, "w0", "nowhere") is None
    assert move(snapshot, request, plan, "nobody", "b") is None
    refused = {"w": {"b": "VolumeBinding"}}
    assert alternates(snapshot, request, plan, excluded=refused) == (("a", "c"),) * 2
    assert move(snapshot, request, plan, "w0", "a") == plan
    moved = move(snapshot, request, plan, "w0", "b")
    assert moved is not None
    assert dict(moved.objective.crossings)["node"] == 2


def test_first_fit_takes_the_first_node_and_the_lowest_gpus() -> None:
    snapshot, request = cluster(": a[v100-8x-gputopology-document, free 1000 0110]"), gang("2 x 1 GPU")
    baseline = first_fit(snapshot, request)
    assert [member.gpus for member in baseline.members] == [(0,), (5,)]
    assert baseline.objective.weakest_link_gb_per_s == 10
    plan = place(snapshot, request)
    assert isinstance(plan, Placed)
    assert plan.objective.weakest_link_gb_per_s == 50
    assert [member.gpus for member in plan.members] == [(5,), (6,)]
    assert not first_fit(snapshot, gang("4 x 1 GPU")).complete


def test_a_member_moves_only_where_nodes_hold_one_more() -> None:
    snapshot, request, plan = plan_of(RACKS, "2 x 2 GPU")
    role = replace(request.roles[0], room={"b": 0, "c": 1})
    request = replace(request, roles=(role,))
    assert alternates(snapshot, request, plan) == (("a", "c", "d"),) * 2
    assert move(snapshot, request, plan, "w0", "b") is None
    once = move(snapshot, request, plan, "w0", "c")
    assert once is not None
    assert alternates(snapshot, request, once)[1] == ("a", "d"), "c is full"


def test_a_member_moves_only_where_it_keeps_the_constraints() -> None:
    snapshot, request, plan = plan_of(RACKS, "2 x 2 GPU")
    apart = AntiAffinity("apart", "node", frozenset("w"), frozenset("w"), frozenset({"d"}))
    request = replace(request, constraints=(apart,))
    plan = place(snapshot, request)
    assert isinstance(plan, Placed)
    first, second = plan.members
    assert alternates(snapshot, request, plan) == ((first.node,), (second.node,))
    for node in (second.node, "d"):
        assert move(snapshot, request, plan, first.uid, node) is None
    (free,) = {"a", "b", "c"} - {first.node, second.node}
    assert move(snapshot, request, plan, first.uid, free) is not None
