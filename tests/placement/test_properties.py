"""Properties on random small clusters: the oracle tries everything, and the planner must be as good."""

from __future__ import annotations

import random

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from muster.domain.decision import Placed
from muster.domain.node import Node, Resources, Usage
from muster.domain.request import GangId, Member, NodeRules, Request, Role, SelectorTerm
from muster.domain.snapshot import NodeState, Snapshot
from muster.domain.topology import GpuTopology, Link
from muster.placement.place import Limits, place
from muster.placement.verify import verify
from tests.placement import naive
from tests.placement.drawings import RESOURCE, islands

SETTINGS = settings(
    max_examples=200, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow]
)

KINDS = ["NV1", "NV2", "PIX", "SYS"]


@st.composite
def topologies(draw: st.DrawFn) -> GpuTopology:
    shape = draw(st.sampled_from(["islands", "links", "unknown"]))
    count = draw(st.integers(1, 4))
    if shape == "unknown":
        return GpuTopology.unknown(count)
    if shape == "islands":
        return islands(draw(st.sampled_from([[4], [2, 2], [3, 1], [1, 1], [2]])))
    kinds = {(i, j): draw(st.sampled_from(KINDS)) for j in range(count) for i in range(j)}
    return GpuTopology(
        tuple(
            tuple(None if i == j else Link.of_kind(kinds[min(i, j), max(i, j)]) for j in range(count))
            for i in range(count)
        )
    )


@st.composite
def clusters(draw: st.DrawFn) -> Snapshot:
    shared = draw(topologies())
    nodes, usages = [], []
    racks = draw(st.sampled_from([(None,), ("r1", "r2"), ("r1", "r2", None)]))
    zones = draw(st.sampled_from([(None,), (None,), ("z1", "z2"), ("z1", None)]))
    for name in "abcd"[: draw(st.integers(1, 4))]:
        topology = draw(st.one_of(st.just(shared), topologies()))
        labels = {"pool": draw(st.sampled_from("pq"))}
        if rack := draw(st.sampled_from(racks)):
            labels["topology.kubernetes.io/rack"] = rack
        if zone := draw(st.sampled_from(zones)):
            labels["topology.kubernetes.io/zone"] = zone
        if draw(st.integers(0, 4)) == 0:
            labels["nvidia.com/gpu.clique"] = draw(st.sampled_from(["k1", "k2"]))
        cordoned = draw(st.integers(0, 9)) == 0
        resources = Resources(draw(st.integers(1, 5)) * 1000, 2**40, 110)
        nodes.append(Node(name, resources, topology, frozenset({RESOURCE}), labels, unschedulable=cordoned))
        taken = draw(st.integers(0, (1 << topology.gpu_count) - 1)) & draw(st.integers(0, 15))
        usages.append(
            Usage(f"{name}-taken", name, Resources(pods=0), gpus=taken & ((1 << topology.gpu_count) - 1))
        )
    return Snapshot.of(nodes, usages)


@st.composite
def gangs(draw: st.DrawFn) -> Request:
    roles = []
    for name in "wx"[: draw(st.sampled_from([1, 1, 2]))]:
        size, gpus, cpu = (
            draw(st.integers(1, 3)),
            draw(st.sampled_from([1, 1, 2, 3, 0])),
            draw(st.integers(0, 2)),
        )
        rules = (
            NodeRules((SelectorTerm("pool", "In", ("p",)),)) if draw(st.integers(0, 4)) == 0 else NodeRules()
        )
        members = tuple(Member(f"{name}{i}", f"{name}-{i}") for i in range(size))
        roles.append(Role(name, members, Resources(cpu * 1000), gpus, RESOURCE if gpus else "", rules))
    size = sum(len(role.members) for role in roles)
    scopes = ["gpu", "nvlink-domain", "node", "rack", "zone"]
    required = draw(st.sampled_from([None, None, *scopes[1:]]))
    preferred = draw(st.sampled_from([(), (), ("nvlink-domain", "node"), ("node", "rack"), ("rack", "zone")]))
    least = draw(st.sampled_from([size, size, max(1, size - 1), 1]))
    return Request(GangId("default", "test", "gang"), tuple(roles), least, required, preferred)


def levels(request: Request, placed: Placed) -> tuple[object, ...]:
    """The plan's value as the oracle writes it; a link of None is left as it is."""
    value = placed.objective
    counts = [sum(m.role == role.name for m in placed.members) for role in request.roles]
    reached = value.preferred_reached
    return (
        -sum(counts), *(-n for n in counts),
        99 if reached is None else request.preferred_scopes.index(reached),
        *(count for _, count in value.crossings),
        None if value.weakest_link_gb_per_s is None else -value.weakest_link_gb_per_s,
        -value.ring_gb_per_s, value.damage,
    )  # fmt: skip


@SETTINGS
@given(clusters(), gangs())
def test_as_good_as_trying_everything(snapshot: Snapshot, request: Request) -> None:
    decision = place(snapshot, request, Limits(deterministic_time=60))
    expected = naive.best(snapshot, request)
    if expected is None:
        assert not isinstance(decision, Placed)
        assert decision.causes
        return
    assert isinstance(decision, Placed), decision
    assert decision.optimal
    assert verify(snapshot, request, decision) == ()
    link = expected[-3]
    assert levels(request, decision) == (
        *expected[:-3], None if link in (0, -naive.INF) else link, *expected[-2:]
    )  # fmt: skip


@SETTINGS
@given(clusters(), gangs(), st.randoms(use_true_random=False))
def test_the_order_of_nodes_does_not_matter(snapshot: Snapshot, request: Request, rng: random.Random) -> None:
    shuffled = list(snapshot.nodes.items())
    rng.shuffle(shuffled)
    again: dict[str, NodeState] = dict(shuffled)
    assert place(snapshot, request) == place(Snapshot(again), request) == place(snapshot, request)


@SETTINGS
@given(clusters(), gangs(), st.lists(st.integers(0, 2), min_size=4, max_size=4))
def test_gpus_of_unknown_index_are_never_given_away(
    snapshot: Snapshot, request: Request, unindexed: list[int]
) -> None:
    """`place` verifies what it returns: what is left to check is that it does not raise, and that its answer
    for fewer free GPUs is not more members."""
    others = [
        Usage(f"other-{name}", name, Resources(pods=0), unindexed_gpus=count)
        for name, count in zip(snapshot.nodes, unindexed, strict=False)
    ]
    fewer = place(snapshot.taking(others), request)
    if isinstance(fewer, Placed):
        more = place(snapshot, request)
        assert isinstance(more, Placed)
        assert len(more.members) >= len(fewer.members)
    else:
        assert fewer.causes
