"""Claims that match some GPUs of a node: members get these alone. Brute force has families with it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest

from muster.domain.causes.not_planned import NotDecided
from muster.domain.causes.out_of_place import GpusNotMatching
from muster.domain.causes.too_little import GpusNotOffered
from muster.domain.decision import Placed, Unplaceable
from muster.domain.request import Member, Request, Slice, Subrequest
from muster.domain.snapshot import Snapshot
from muster.placement import place as planner
from muster.placement.cluster.columns import columns_of
from muster.placement.cluster.matching import GangCluster, request_of_plan
from muster.placement.moves import alternates, move
from muster.placement.place import Limits, place
from muster.placement.verify import verify
from tests.placement.drawings import cluster, gang


def gang_matching(text: str, **by_role: Mapping[str, int]) -> Request:
    """The gang of the drawing. Members of these roles match these GPUs of nodes."""
    request = gang(text)
    roles = tuple(replace(role, matching=by_role.get(role.name, {})) for role in request.roles)
    return replace(request, roles=roles)


def subrequests_of(*pairs: tuple[int, Mapping[str, int]], every: bool = False) -> tuple[Subrequest, ...]:
    """Subrequests with these numbers of GPUs and these masks by node."""
    return tuple(
        Subrequest(matching, gpus, number, every) for number, (gpus, matching) in enumerate(pairs, 1)
    )


def gpus_of(decision: object) -> list[tuple[str, tuple[int, ...]]]:
    assert isinstance(decision, Placed)
    return sorted((member.node, member.gpus) for member in decision.members)


def test_members_get_matching_gpus_alone() -> None:
    snapshot = cluster(": a[4] b[4, free 1110]")
    decision = place(snapshot, gang_matching("3 x 1 GPU", w={"a": 0b0110, "b": 0b1000}))
    assert isinstance(decision, Unplaceable)
    decision = place(snapshot, gang_matching("4 x 1 GPU", w={"a": 0b0110, "b": 0b1100}))
    assert isinstance(decision, Unplaceable)
    decision = place(snapshot, gang_matching("3 x 1 GPU", w={"a": 0b0110, "b": 0b1100}))
    assert gpus_of(decision) == [("a", (1,)), ("a", (2,)), ("b", (2,))]
    assert isinstance(decision, Placed)
    assert decision.optimal


def test_the_refusal_says_how_many_gpus_count() -> None:
    decision = place(cluster(": a[4] b[4]"), gang_matching("4 x 2 GPU", w={"a": 0b0110}))
    assert isinstance(decision, Unplaceable)
    assert decision.causes[-1] == GpusNotMatching(1, 2, 4)
    assert str(decision.causes[-1]) == "on 1 node resourceClaims match 2 of 4 GPUs"


@pytest.mark.parametrize(
    ("node", "mask", "offered"), [("a[4]", 0b0110, []), ("a[4, unhealthy 0]", 0b0111, [(3, 4)])]
)
def test_gpus_that_claims_leave_out_are_not_broken(
    node: str, mask: int, offered: list[tuple[int, int]]
) -> None:
    decision = place(cluster(f": {node}"), gang_matching("1 x 3 GPU", w={"a": mask}))
    assert isinstance(decision, Unplaceable)
    partly = [cause for cause in decision.causes if isinstance(cause, GpusNotOffered)]
    assert [(cause.offered, cause.there) for cause in partly] == offered


def test_the_refusal_says_nothing_of_it_if_more_would_not_help() -> None:
    decision = place(cluster(": a[4]"), gang_matching("3 x 2 GPU", w={"a": 0b0110}))
    assert isinstance(decision, Unplaceable)
    assert not any(isinstance(cause, GpusNotMatching) for cause in decision.causes)


def test_a_node_where_roles_match_different_gpus_is_not_planned() -> None:
    drawn, text = ": a[4] b[4]", "1 x 2 GPU + 1 x 1 GPU"
    decision = place(cluster(drawn), gang_matching(text, w={"a": 0b0011}, x={"a": 0b1100}))
    assert gpus_of(decision) == [("b", (0, 1)), ("b", (2,))]
    decision = place(cluster(": a[4]"), gang_matching(text, w={"a": 0b0011}, x={"a": 0b1100}))
    assert isinstance(decision, Unplaceable)
    assert decision.causes[-1] == GpusNotMatching(1, 0, 4, differing=1)
    assert "roles match different GPUs" in str(decision.causes[-1])


def test_roles_without_gpus_and_without_members_do_not_count() -> None:
    request = gang_matching("1 x 2 GPU + 2 x 0 GPU + 1 x 1 GPU", w={"a": 0b0011})
    *other_roles, empty = request.roles
    request = replace(request, roles=(*other_roles, replace(empty, members=())), min_member=3)
    decision = place(cluster(": a[4, free 1100]"), request)
    assert gpus_of(decision) == [("a", ()), ("a", ()), ("a", (0, 1))]


def test_the_next_gang_sees_all_gpus_and_changes_are_seen() -> None:
    snapshot = cluster(": a[4]")
    first, second = gang_matching("1 x 2 GPU", w={"a": 0b0110}), gang_matching("1 x 2 GPU", w={"a": 0b1100})
    plain = columns_of(snapshot)
    for request, home in (
        (first, (1, 2)),
        (second, (2, 3)),
        (first, (1, 2)),
        (gang("1 x 4 GPU"), (0, 1, 2, 3)),
    ):
        assert gpus_of(place(snapshot, request)) == [("a", home)]
    assert GangCluster(snapshot, gang_matching("1 x 2 GPU", w={"a": 0b1111, "gone": 1})).columns is plain
    fuller = cluster(": a[4, free 0111]")
    assert gpus_of(place(fuller, first)) == [("a", (1, 2))]
    assert isinstance(place(cluster(": a[4, free 1011]"), first), Unplaceable)


def test_a_member_is_not_moved_to_gpus_that_do_not_match() -> None:
    snapshot, request = cluster(": a[4] b[4]"), gang_matching("2 x 1 GPU", w={"b": 0b0100})
    plan = place(snapshot, request)
    assert isinstance(plan, Placed)
    assert alternates(snapshot, request, plan) == (("a", "b"), ("a", "b"))
    moved = move(snapshot, request, plan, "w0", "b")
    assert moved is not None
    assert moved.members[0].gpus == (2,)
    assert move(snapshot, request, moved, "w1", "b") is None


def test_the_judge_sees_gpus_that_do_not_match() -> None:
    snapshot, request = cluster(": a[4]"), gang("1 x 2 GPU")
    plan = place(snapshot, request)
    assert isinstance(plan, Placed)
    (role,) = request.roles
    violations = verify(snapshot, replace(request, roles=(replace(role, matching={"a": 0b0010}),)), plan)
    assert "GPUs 0 of node a do not match what member w-0 asks for" in violations
    either = replace(role, subrequests=subrequests_of((2, {"a": 0b0110}), (2, {"a": 0b0011})))
    assert verify(snapshot, replace(request, roles=(either,)), plan) == ()
    neither = replace(role, subrequests=subrequests_of((2, {"a": 0b0110}), (2, {"a": 0b0001})))
    violations = verify(snapshot, replace(request, roles=(neither,)), plan)
    assert "GPUs 1 of node a do not match what member w-0 asks for" in violations
    of_other_counts = replace(role, subrequests=subrequests_of((1, {}), (3, {"a": 0b0111})))
    violations = verify(snapshot, replace(request, roles=(of_other_counts,)), plan)
    assert "member w-0 asks for 1 or 3 GPUs and gets 2" in violations


def cluster_with_taints(text: str, gpus: int) -> Snapshot:
    """The cluster of the drawing. These GPUs of node a have taints."""
    snapshot = cluster(text)
    state = snapshot.nodes["a"]
    node = replace(state.node, unhealthy=gpus, tainted=gpus)
    state = replace(state, node=node, free_gpus=state.free_gpus & ~gpus, tainted=state.free_gpus & gpus)
    return replace(snapshot, nodes={**snapshot.nodes, "a": state})


def test_a_gpu_with_a_taint_is_for_members_that_may_have_it() -> None:
    snapshot = cluster_with_taints(": a[4, free 1101]", 0b1100)
    assert isinstance(place(snapshot, gang("1 x 3 GPU")), Unplaceable)
    decision = place(snapshot, gang_matching("1 x 3 GPU", w={"a": 0b1111}))
    assert gpus_of(decision) == [("a", (0, 1, 3))]
    assert isinstance(decision, Placed)
    assert decision.optimal
    violations = verify(snapshot, gang("1 x 3 GPU"), decision)
    assert "GPU 3 of node a is not free" in violations
    decision = place(snapshot, gang_matching("1 x 4 GPU", w={"a": 0b1111}))
    assert isinstance(decision, Unplaceable)
    assert not any(isinstance(cause, GpusNotMatching) for cause in decision.causes)


def test_roles_that_tolerate_different_taints_match_different_gpus() -> None:
    snapshot = cluster_with_taints(": a[4] b[4]", 0b1000)
    request = gang_matching("1 x 1 GPU + 1 x 1 GPU", w={"a": 0b1111})
    assert {node for node, _ in gpus_of(place(snapshot, request))} == {"b"}
    alike = gang_matching("1 x 1 GPU + 1 x 1 GPU", w={"a": 0b0111})
    assert gpus_of(place(cluster_with_taints(": a[4]", 0b1000), alike)) == [("a", (0,)), ("a", (1,))]


def gang_with_subrequests(text: str, *subrequests: Mapping[str, int]) -> Request:
    """The gang of the drawing. Members of all roles have these subrequests, for as many GPUs."""
    request = gang(text)
    roles = tuple(
        replace(
            role, subrequests=subrequests_of(*((role.gpus, gpus_by_node) for gpus_by_node in subrequests))
        )
        for role in request.roles
    )
    return replace(request, roles=roles)


def gang_with_counts(text: str, *subrequests: tuple[int, Mapping[str, int]], every: bool = False) -> Request:
    """The gang of the drawing. Members of all roles have these subrequests, each with its number of GPUs."""
    request, built = gang(text), subrequests_of(*subrequests, every=every)
    fewest = min(subrequest.gpus for subrequest in built)
    roles = tuple(replace(role, gpus=fewest, subrequests=built) for role in request.roles)
    return replace(request, roles=roles)


SUBREQUESTS: dict[str, tuple[str, str, tuple[dict[str, int], ...], list[tuple[str, tuple[int, ...]]]]] = {
    "the first fits": (": a[4]", "2 x 1 GPU", ({"a": 0b0110}, {"a": 0b1111}), [("a", (1,)), ("a", (2,))]),
    "the second fits": (": a[4]", "1 x 2 GPU", ({"a": 0b0100}, {"a": 0b1001}), [("a", (0, 3))]),
    "a node without the first": (": a[4] b[4]", "1 x 2 GPU", ({"a": 0, "b": 0b1100}, {}), [("b", (2, 3))]),
    "all take one subrequest, if they can": (
        ": a[2] b[4]",
        "2 x 2 GPU",
        ({"b": 0}, {"a": 0}),
        [("b", (0, 1)), ("b", (2, 3))],
    ),
    "each node is for the first that it has": (
        ": a[2] b[4, free 0011]",
        "2 x 2 GPU",
        ({"b": 0b0011}, {"a": 0, "b": 0b1100}),
        [("a", (0, 1)), ("b", (2, 3))],
    ),
    "no member has GPUs of two subrequests": (": a[4]", "1 x 3 GPU", ({"a": 0b0011}, {"a": 0b1100}), []),
}


@pytest.mark.parametrize("name", SUBREQUESTS)
def test_the_first_subrequest_that_fits_is_planned(name: str) -> None:
    drawn, text, subrequests, expected = SUBREQUESTS[name]
    decision = place(cluster(drawn), gang_with_subrequests(text, *subrequests))
    if expected:
        assert gpus_of(decision) == expected
    else:
        assert isinstance(decision, Unplaceable)
        assert isinstance(decision.causes[-1], GpusNotMatching)


COUNTS: dict[
    str, tuple[str, str, tuple[tuple[int, dict[str, int]], ...], list[tuple[str, tuple[int, ...]]]]
] = {
    "the first fits": (": a[4]", "2 x 1 GPU", ((2, {}), (1, {})), [("a", (0, 1)), ("a", (2, 3))]),
    "the second fits, of fewer": (": a[4]", "2 x 1 GPU", ((4, {}), (2, {})), [("a", (0, 1)), ("a", (2, 3))]),
    "the second fits, of more": (
        ": a[4] b[4, free 0011]",
        "2 x 1 GPU",
        ((1, {"a": 0b0001, "b": 0}), (2, {"a": 0b1110, "b": 0b1111})),
        [("a", (1, 2)), ("b", (2, 3))],
    ),
    "all take one subrequest": (
        ": a[2] b[4]",
        "2 x 1 GPU",
        ((4, {}), (2, {})),
        [("b", (0, 1)), ("b", (2, 3))],
    ),
    "no two members take different ones": (": a[2] b[4]", "2 x 1 GPU", ((4, {"a": 0}), (2, {"b": 0})), []),
}


@pytest.mark.parametrize("name", COUNTS)
def test_the_first_subrequest_that_fits_has_its_own_number_of_gpus(name: str) -> None:
    drawn, text, subrequests, expected = COUNTS[name]
    snapshot, request = cluster(drawn), gang_with_counts(text, *subrequests)
    decision = place(snapshot, request)
    if not expected:
        assert isinstance(decision, Unplaceable)
        return
    assert gpus_of(decision) == expected
    assert isinstance(decision, Placed)
    with_subrequest = request_of_plan(snapshot, request, decision.members)
    assert {role.gpus for role in with_subrequest.roles} == {len(gpus) for _, gpus in expected}
    assert verify(snapshot, with_subrequest, decision) == ()


ALL = ((4, {"a": 0b1111, "b": 0, "c": 0b1111}), (2, {"a": 0, "b": 0b0110, "c": 0}))
"""All matching GPUs of a node: four on a and c, two on b."""


@pytest.mark.parametrize(
    ("drawn", "members", "expected"),
    [
        (": a[4] b[4] c[4]", 2, [("a", (0, 1, 2, 3)), ("c", (0, 1, 2, 3))]),
        (": a[4] b[4] c[4, free 1110]", 1, [("a", (0, 1, 2, 3))]),
        (": a[4, free 0111] b[4] c[4, free 1110]", 1, [("b", (1, 2))]),
    ],
)
def test_members_take_all_that_match_on_a_node(
    drawn: str, members: int, expected: list[tuple[str, tuple[int, ...]]]
) -> None:
    request = gang_with_counts(f"{members} x 1 GPU", *ALL, every=True)
    assert gpus_of(place(cluster(drawn), request)) == expected


def test_the_refusal_says_that_members_take_all_that_match() -> None:
    request = gang_with_counts("2 x 1 GPU", *ALL, every=True)
    decision = place(cluster(": a[4] b[4] c[4, free 1110]"), request)
    assert isinstance(decision, Unplaceable)
    sentence = "by allocationMode All each member takes all GPUs that match: 2 GPUs on 1 node"
    assert str(decision.causes[-1]) == sentence


def test_a_member_without_gpus_moves_beside_members_with_a_subrequest() -> None:
    snapshot, request = cluster(": a[4] b[4]"), gang_with_counts("1 x 1 GPU", (4, {"b": 0}), (2, {}))
    (role,) = request.roles
    plain = replace(gang("1 x 0 GPU").roles[0], name="x", members=(Member("x0", "x-0"),))
    request = replace(request, roles=(role, plain), min_member=2)
    plan = place(snapshot, request)
    assert isinstance(plan, Placed)
    with_subrequest = request_of_plan(snapshot, request, plan.members)
    assert move(snapshot, with_subrequest, plan, "x0", "b") is not None


def test_one_gpu_need_not_agree_with_others() -> None:
    snapshot = cluster(": a[4]")
    request = gang_with_counts("1 x 1 GPU", (2, {}), (1, {}))
    roles = tuple(replace(role, match_attributes=("root",)) for role in request.roles)
    assert gpus_of(place(snapshot, replace(request, roles=roles))) == [("a", (0,))]


def test_no_further_subrequest_is_tried_if_time_is_up(monkeypatch: pytest.MonkeyPatch) -> None:
    tried = []

    def late(snapshot: Snapshot, request: Request, limits: Limits) -> Unplaceable:
        tried.append(request)
        return Unplaceable(request.gang, (NotDecided(truncated=True),))

    monkeypatch.setattr(planner, "_decide", late)
    place(cluster(": a[4]"), gang_with_subrequests("1 x 1 GPU", {}, {"a": 1}))
    assert [role.matching for request in tried for role in request.roles] == [{}]


def test_roles_count_on_the_nodes_that_can_serve_them() -> None:
    """Node a has GPUs by their resource, node b shares of GPUs: no role matches other GPUs than another."""
    snapshot = cluster(": a[4] b[4, mem 16 16 16 16, share]")
    request = gang_matching("1 x 2 GPU", w={"a": 0b1100})
    shares = replace(request.roles[0], name="x", members=(Member("x0", "x-0"),), gpus=0, matching={})
    request = replace(request, roles=(*request.roles, replace(shares, slice=Slice(4))), min_member=2)
    decision = place(snapshot, request)
    assert gpus_of(decision) == [("a", (2, 3)), ("b", (0,))]
