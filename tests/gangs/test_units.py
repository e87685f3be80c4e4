"""Bound pods as units: which of them end together, and how many a gang goes on with."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from muster.domain.clearing import Occupant, Unit
from muster.domain.node import Resources, Usage
from muster.domain.pod import COMPOSITE, KUBERNETES, GangClaim, Pod, TopologyRequest
from muster.domain.podgroup import PodGroup
from muster.domain.preemption import Preemption
from muster.domain.quorums import Leaf, Quorum
from muster.gangs.membership.group import Group, name_key
from muster.gangs.membership.roster import Roster
from muster.gangs.membership.units import occupant_of, unit_of_gang, unit_of_pod
from tests.gangs.world import foreign, pod, with_topology

NATIVE = PodGroup("ns", KUBERNETES, "g", uid="g", min_member=2)
KAI = PodGroup("ns", "kai", "g", uid="g", min_member=3, role_min={"w": 2, "m": 1})
A_LEAF, B_LEAF = (Leaf(frozenset(role), least) for role, least in (("a", 2), ("b", 1)))


def group_of_pods(pods: Sequence[Pod], pod_group: PodGroup | None) -> Group:
    """The gang that these pods are."""
    roster = Roster()
    if pod_group is not None:
        roster.see_pod_group(pod_group.key, pod_group)
    for seen_pod in pods:
        roster.see(seen_pod)
    (group,) = roster.groups(name_key(pods[0]))
    return group


def ack(bound: int, of: int = 4) -> list[Pod]:
    """`bound` members of a gang that needs `of`, and the other members without a node."""
    return [pod(f"p{i}", of=of, node="a" if i < bound else "") for i in range(of)]


def annotated(bound: int, least: int) -> list[Pod]:
    return [with_topology(f"p{i}", of=least, node="a") for i in range(bound)]


def named(dialect: str, **members: int) -> list[Pod]:
    """Bound members of a gang that a PodGroup describes: role → their number."""
    return [
        pod(
            f"{role}{i}",
            claim=GangClaim(dialect, "g", topology_request=TopologyRequest(role=role), by_object=True),
            node="a",
        )
        for role, count in members.items()
        for i in range(count)
    ]


UNITS: dict[str, tuple[list[Pod], PodGroup | None, int, dict[str, int]]] = {
    "all are needed": (ack(4), None, 4, {}),
    "fewer are bound than are needed": (ack(2), None, 2, {}),
    "more are bound than are needed": (annotated(5, least=3), None, 3, {}),
    "a gang of one": ([pod("p", gang="", node="a")], None, 1, {}),
    "some have succeeded": (
        [*annotated(3, least=3), with_topology("s", of=3, finished=True, succeeded=True)],
        None,
        2,
        {},
    ),
    "as many as are needed have succeeded": (
        [
            *annotated(2, least=3),
            *(with_topology(f"s{i}", of=3, finished=True, succeeded=True) for i in range(4)),
        ],
        None,
        1,
        {},
    ),
    "Kubernetes' PodGroup": (named(KUBERNETES, w=4), NATIVE, 2, {}),
    "disruptionMode single": (named(KUBERNETES, w=4), replace(NATIVE, disruption="single"), 2, {}),
    "disruptionMode all": (named(KUBERNETES, w=4), replace(NATIVE, disruption="all"), 4, {}),
    "disruptionMode all of a PodGroup in a tree": (
        named(COMPOSITE, w=4),
        replace(NATIVE, dialect=COMPOSITE, pod_groups=(replace(NATIVE, disruption="all"),)),
        4,
        {},
    ),
    "its PodGroup is gone": (named("kai", w=4), None, 4, {}),
    "each role has a minimum": (named("kai", w=4, m=2), KAI, 3, {"w": 2, "m": 1}),
    "replicas of two hosts": (named("kai", w=4, m=2), replace(KAI, role_unit={"w": 2}), 6, {}),
    "one of two subgroups must start": (
        named("kai", a=2, b=2),
        replace(KAI, role_min={}, quorum=Quorum(1, (A_LEAF, B_LEAF))),
        4,
        {},
    ),
    "subgroups of subgroups must all start": (
        named("kai", a=3, b=2),
        replace(KAI, role_min={}, quorum=Quorum(2, (Quorum(1, (A_LEAF,)), B_LEAF))),
        3,
        {"a": 2, "b": 1},
    ),
    "a subgroup of two roles": (
        named("kai", a=3, b=2),
        replace(KAI, role_min={}, quorum=Quorum(1, (Leaf(frozenset("ab"), 3),))),
        5,
        {},
    ),
    "members share a claim": ([replace(p, group_claims=("c",)) for p in annotated(4, least=2)], None, 4, {}),
}


@pytest.mark.parametrize(("pods", "pod_group", "least", "by_role"), UNITS.values(), ids=UNITS)
def test_a_gang_goes_on_with_the_members_that_it_needs(
    pods: list[Pod], pod_group: PodGroup | None, least: int, by_role: dict[str, int]
) -> None:
    group = group_of_pods(pods, pod_group)
    assert unit_of_gang(group) == Unit(
        "ns/p" if len(pods) == 1 else "ns/g", 0, min_members=least, min_by_subgroup=by_role
    )


STARTED = 1_000.0
SAYS_NEVER, OF_DAEMON_SET = Preemption(protected="says never"), Preemption(protected="is of a DaemonSet")
TERMS: dict[str, tuple[list[Preemption], Unit]] = {
    "nothing": ([Preemption()] * 2, Unit("ns/g", 0, 2)),
    "one says never": ([Preemption(), SAYS_NEVER], Unit("ns/g", 0, 2, protected="its pod p1 says never")),
    "the first by name": (
        [SAYS_NEVER, OF_DAEMON_SET],
        Unit("ns/g", 0, 2, protected="its pod p0 says never"),
    ),
    "the longest run time, since the first start": (
        [Preemption(min_runtime_s=60), Preemption(min_runtime_s=1800)],
        Unit("ns/g", 0, 2, protected_until=STARTED + 1800),
    ),
    "the longest interval of checkpoints": (
        [Preemption(checkpoint_s=600), Preemption(checkpoint_s=60)],
        Unit("ns/g", 0, 2, checkpoint_s=600),
    ),
    "one states an interval": (
        [Preemption(), Preemption(checkpoint_s=60)],
        Unit("ns/g", 0, 2, checkpoint_s=60),
    ),
}


@pytest.mark.parametrize(("terms", "unit"), TERMS.values(), ids=TERMS)
def test_the_strictest_of_what_members_state_counts(terms: list[Preemption], unit: Unit) -> None:
    starts = (STARTED, STARTED + 10)
    pods = [pod(f"p{at}", node="a", started=starts[at], preemption=stated) for at, stated in enumerate(terms)]
    assert unit_of_gang(group_of_pods(pods, None)) == unit


def test_other_reasons_come_first() -> None:
    says_never = pod("p", gang="", node="a", preemption=SAYS_NEVER)
    group = group_of_pods([says_never], None)
    assert unit_of_gang(group, "it is only partly bound").protected == "it is only partly bound"
    assert unit_of_pod(says_never, "two budgets").protected == "two budgets"


def test_a_pod_in_no_gang_states_the_same() -> None:
    terms = Preemption(protected="says never", min_runtime_s=60, checkpoint_s=600)
    unit = unit_of_pod(replace(foreign("f", "a"), started=STARTED, preemption=terms))
    assert unit == Unit("pod ns/f", 0, 1, {}, "its pod f says never", 600, STARTED + 60)


@pytest.mark.parametrize(("pods", "pod_group", "least", "by_role"), UNITS.values(), ids=UNITS)
def test_a_gang_is_enough_with_the_members_that_its_unit_needs(
    pods: list[Pod], pod_group: PodGroup | None, least: int, by_role: dict[str, int]
) -> None:
    group = group_of_pods(pods, pod_group)
    if not group.enough_bound or not group.needed:
        return
    unit = unit_of_gang(group)
    by_need = sorted(group.bound, key=lambda p: p.topology_request.role)
    for first in range(len(by_need) + 1):
        staying = by_need[first:]
        counts = {role: sum(p.topology_request.role == role for p in staying) for role in by_role}
        goes_on = len(staying) >= unit.min_members and all(
            counts[role] >= count for role, count in by_role.items()
        )
        assert not goes_on or group.is_enough(staying)


def test_a_gang_has_the_highest_priority_of_its_bound_members() -> None:
    pods = [pod("p0", priority=5, node="a"), pod("p1", priority=10, node="a"), pod("p2", priority=50)]
    assert unit_of_gang(group_of_pods(pods, None)).priority == 10


def test_a_pod_in_no_gang_is_a_unit_by_itself() -> None:
    member = replace(foreign("f", "a"), priority=3)
    assert unit_of_pod(member, "it says never") == Unit(
        "pod ns/f", 3, min_members=1, protected="it says never"
    )


TIMES = {
    "created and started": (10.0, 12.0, 12.0),
    "not started": (10.0, 0.0, 10.0),
    "false": (10.0, 3.0, 10.0),
}


@pytest.mark.parametrize(("created", "started", "counts"), TIMES.values(), ids=TIMES)
def test_an_occupant_is_no_older_than_its_pod(created: float, started: float, counts: float) -> None:
    usage = Usage("p", "a", Resources(), gpus=3)
    member = with_topology("p", TopologyRequest(role="w"), created=created, started=started, rank=4, node="a")
    occupant = Occupant(usage, "ns/p", "key", started=counts, subgroup="w", rank=4, budget="ns/b")
    assert occupant_of(member, usage, "key", "ns/b") == occupant


def test_an_occupant_ends_and_has_a_checkpoint_as_its_pod_states() -> None:
    usage = Usage("p", "a", Resources(pods=1), gpus=3)
    occupant = occupant_of(pod("p", node="a", saved=20.0, ends=30.0, terminating=True), usage, "key")
    assert (occupant.saved, occupant.ends) == (20.0, 30.0)


def test_what_a_claim_takes_besides_its_pod_stays() -> None:
    usage = Usage("p", "a", Resources(pods=0), gpus=3)
    assert occupant_of(foreign("p", "a"), usage, "key") == Occupant(usage, "p")
