"""The order of scheduling: the in-tree plugins, simulated pod by pod, accept each member in it."""

from __future__ import annotations

from dataclasses import replace
from itertools import permutations

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from muster.domain.constraints import Affinity, AntiAffinity, PeerConstraint, TopologySpread
from muster.domain.decision import MemberPlacement, Placed
from muster.domain.request import Request
from muster.domain.snapshot import Snapshot
from muster.placement.order import scheduling_order
from muster.placement.place import Limits, place
from tests.placement.drawings import LABELS, cluster, gang
from tests.placement.drawings import plan as planned
from tests.placement.worlds import World, worlds

SETTINGS = settings(
    max_examples=300, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck)
)
FEW = 6
"""The most members for which all orders are tried."""


def all_pass(snapshot: Snapshot, request: Request, members: list[MemberPlacement]) -> bool:
    """Whether each member passes the filters, in this order, with those before it in place."""
    return all(
        passes(snapshot, request, rule, member, members[:i])
        for i, member in enumerate(members)
        for rule in request.constraints
    )


def passes(
    snapshot: Snapshot,
    request: Request,
    rule: PeerConstraint,
    pod: MemberPlacement,
    before: list[MemberPlacement],
) -> bool:
    """As interpodaffinity/filtering.go and podtopologyspread/filtering.go have it, by definition."""

    def at(node: str) -> str | None:
        is_known = node in snapshot.nodes
        labels = snapshot.nodes[node].node.labels if is_known else {}
        return node if rule.topology_key == "node" and is_known else labels.get(rule.topology_key)

    domain = at(pod.node)
    if isinstance(rule, AntiAffinity):
        member_domains = (
            {at(m.node) for m in before if m.role in rule.other_roles} if pod.role in rule.roles else set()
        )
        theirs = (
            {at(m.node) for m in before if m.role in rule.roles} if pod.role in rule.other_roles else set()
        )
        old = {at(node) for node in rule.existing} if pod.role in rule.roles else set()
        return domain is None or domain not in member_domains | theirs | old
    if pod.role not in rule.roles:
        return True
    if domain is None:
        return False
    if isinstance(rule, Affinity):
        matching = {at(m.node) for m in before if m.role in rule.other_roles} - {None}
        if domain in matching | {at(node) for node in rule.existing}:
            return True
        return not matching and not rule.existing and pod.role in rule.other_roles
    role = next(role for role in request.roles if role.name == pod.role)
    counts = counts_of(snapshot, rule, role.name, request, before)
    least = min(counts.values()) if len(counts) >= max(1, rule.min_domains) else 0
    return counts.get(domain, 0) + (pod.role in rule.counted_roles) - least <= rule.max_skew


def counts_of(
    snapshot: Snapshot, rule: TopologySpread, name: str, request: Request, before: list[MemberPlacement]
) -> dict[str, int]:
    """The matching pods of each eligible domain, as calPreFilterState counts them."""
    role = next(role for role in request.roles if role.name == name)
    counts: dict[str, int] = {}
    for node, state in snapshot.nodes.items():
        labels = state.node.labels
        domain = node if rule.topology_key == "node" else labels.get(rule.topology_key)
        is_selected = all(labels.get(term.key) in term.values for term in role.rules.required)
        refused = rule.honor_taints and state.node.taints and not role.rules.tolerations
        if domain is None or rule.required_keys - labels.keys() or refused:
            continue
        if is_selected or not rule.honor_affinity:
            matching = sum(m.node == node and m.role in rule.counted_roles for m in before)
            counts[domain] = counts.get(domain, 0) + rule.existing.get(node, 0) + matching
    return counts


def in_order(request: Request, plan: Placed, snapshot: Snapshot) -> list[MemberPlacement]:
    by_uid = {member.uid: member for member in plan.members}
    order = scheduling_order(request, plan, snapshot)
    assert sorted(order) == sorted(by_uid)
    return [by_uid[uid] for uid in order]


ONE_CONSTRAINT = st.one_of(
    worlds("anti-affinity"), worlds("affinity"), worlds("skew"), worlds("skew", "ranks")
)


@pytest.mark.brute_force
@SETTINGS
@given(ONE_CONSTRAINT)
def test_each_member_is_accepted_in_its_turn(world: World) -> None:
    """One constraint is always kept in some order, whatever plan keeps it at the end."""
    snapshot, request = world
    request = replace(request, constraints=request.constraints[:1])
    decision = place(snapshot, request, Limits(deterministic_time=60))
    assume(isinstance(decision, Placed))
    assert isinstance(decision, Placed)
    members = in_order(request, decision, snapshot)
    assert all_pass(snapshot, request, members), [m.name for m in members]


@pytest.mark.brute_force
@SETTINGS
@given(worlds("affinity", "skew", "anti-affinity"))
def test_of_several_constraints_an_order_is_found_where_there_is_one(world: World) -> None:
    """An order in which all members are accepted is returned, if trying every order finds one."""
    snapshot, request = world
    decision = place(snapshot, request, Limits(deterministic_time=60))
    assume(isinstance(decision, Placed) and 1 < len(decision.members) <= FEW)
    assert isinstance(decision, Placed)
    if not all_pass(snapshot, request, in_order(request, decision, snapshot)):
        assert not any(
            all_pass(snapshot, request, list(order)) for order in permutations(decision.members)
        ), [m.name for m in decision.members]


def test_round_by_round_over_the_domains() -> None:
    """By names, the first zone would fill up before the second has a member."""
    snapshot = cluster("zone z1: a[4]\n zone z2: b[4]\n zone z3: c[4]")
    request = gang("6 x 1 GPU")
    spread = TopologySpread("even", LABELS["zone"], 1, frozenset("w"), frozenset("w"))
    request = replace(request, constraints=(spread,))
    plan = planned(snapshot, request, "w-0@a/0 w-1@a/1 w-2@b/0 w-3@b/1 w-4@c/0 w-5@c/1")
    assert not all_pass(snapshot, request, list(plan.members))
    assert all_pass(snapshot, request, in_order(request, plan, snapshot))


def test_the_one_that_opens_a_domain_comes_before_pods_that_others_need() -> None:
    """Once x-0 is there, a matching pod exists, and w-0 may open no domain any more."""
    snapshot = cluster("zone z1: a[4]\n zone z2: b[4]")
    request = gang("2 x 1 GPU + 1 x 1 GPU")
    near = Affinity("near", LABELS["zone"], frozenset("w"), frozenset("wx"))
    request = replace(request, constraints=(near,))
    plan = planned(snapshot, request, "w-0@a/0 w-1@b/1 x-0@b/0")
    assert scheduling_order(request, plan, snapshot) == ("w0", "x0", "w1")


def test_without_constraints_members_keep_their_order() -> None:
    snapshot, request = cluster(": a[4]"), gang("2 x 1 GPU + 1 x 1 GPU")
    plan = planned(snapshot, request, "w-0@a/0 w-1@a/1 x-0@a/2")
    assert scheduling_order(request, plan, snapshot) == ("w0", "w1", "x0")


def test_the_search_for_an_order_takes_ten_thousand_members() -> None:
    """x-0 comes first by the plan, and then w-0 may open no domain."""
    snapshot = cluster("zone z1: a[4]\n zone z2: b[4]")
    request = gang("1 x 1 GPU + 1 x 1 GPU + 10000 x 0 GPU")
    rules = (
        Affinity("near", LABELS["zone"], frozenset("w"), frozenset("wx")),
        Affinity("apart", LABELS["zone"], frozenset("x"), frozenset("x")),
    )
    request = replace(request, constraints=rules)
    plan = planned(snapshot, request, "x-0@b/0 w-0@a/0")
    more = tuple(MemberPlacement(m.uid, m.name, "y", "a", ()) for m in request.roles[2].members)
    plan = replace(plan, members=plan.members + more)
    order = scheduling_order(request, plan, snapshot)
    assert sorted(order) == sorted(member.uid for member in plan.members)
    assert order.index("w0") < order.index("x0")
