"""Properties on random small clusters: the oracle tries everything, and the planner must be as good."""

from __future__ import annotations

import random
from dataclasses import replace
from itertools import groupby

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from muster.domain.decision import Placed
from muster.domain.node import Resources, Usage
from muster.domain.request import Request
from muster.domain.snapshot import Snapshot
from muster.placement import place as planner
from muster.placement.place import PlacementDefect, place
from tests.placement import naive
from tests.placement.brute_force import FAMILIES, assert_as_good_as_trying_everything
from tests.placement.constraints import TESTED
from tests.placement.drawings import cluster, gang
from tests.placement.naive_parts import label
from tests.placement.worlds import BLOCKS, World, clusters, worlds

pytestmark = pytest.mark.brute_force


def examples(count: int) -> settings:
    """Derandomized: the same every time, here and in CI."""
    return settings(
        max_examples=count,
        deadline=None,
        derandomize=True,
        suppress_health_check=list(HealthCheck),
        phases=(Phase.generate, Phase.shrink),
    )


@examples(200)
@given(worlds())
def test_as_good_as_trying_everything(world: World) -> None:
    assert_as_good_as_trying_everything(*world)


@pytest.mark.parametrize("name", FAMILIES)
@examples(100)
@given(data=st.data())
def test_as_good_as_trying_everything_with(name: str, data: st.DataObject) -> None:
    assert_as_good_as_trying_everything(*data.draw(worlds(*FAMILIES[name])))


ONCE_WORSE = {
    "two nodes that the gang is on already: more links in sum on both": (
        "rack r1: a[4, free 0111] b[4, cordoned] c[4, free 0111]",
        "2 x 1 GPU, running w-8@a/0 w-9@c/0",
    ),
    "one GPU has no link, two beside GPUs of unknown index an unknown one": (
        ": b[4, clique k, unindexed 2] c[4, free 0111, unindexed 1]",
        "2 x 1 GPU, running w-7@b w-8@b w-9@c",
    ),
    "least damage beside a running member": (
        "rack r2: a[1]\n : b[4, cordoned]\n rack r1: d[4]",
        "2 x 0 GPU by 2 node + 1 x 1 GPU by 2 rack, min 2, running w-9@b",
    ),
    "least damage where a cap leaves room for one": (
        "zone z1: d[1]\n zone z1 rack r2: c[4]\n zone z1 rack r1: a[4, free 0111, cordoned]",
        "2 x 1 GPU by 2 zone + 1 x 1 GPU, max zone=2, min 1, running w-9@a/0",
    ),
    "a cordoned node that would be too small": (": a[1, cpu 1, cordoned]", "1 x 1 GPU 2 cpu"),
    "part of a segment fits": ("zone z1: a[1]", "2 x 1 GPU by 2 zone, min 1"),
}
"""What the properties found once, smaller. They stay, whatever is drawn later."""
for kind_tested in TESTED:
    ONCE_WORSE |= kind_tested.found


@pytest.mark.parametrize("name", ONCE_WORSE)
def test_as_good_as_trying_everything_where_it_once_was_not(name: str) -> None:
    drawn, gang_text = ONCE_WORSE[name]
    assert_as_good_as_trying_everything(cluster(drawn), gang(gang_text))


@st.composite
def spread_gangs(draw: st.DrawFn) -> World:
    """Gangs that must use every node of a cluster, ranks in another order than names."""
    text = draw(st.sampled_from(["4 x 1 GPU, max node=1, min 1", "3 x 1 GPU + 4 x 0 GPU, max node=2, min 1"]))
    request = gang(text)
    ranks = draw(st.permutations(range(4)))
    roles = [
        replace(role, members=tuple(replace(m, rank=ranks[i]) for i, m in enumerate(role.members)))
        for role in request.roles
    ]
    return World(draw(clusters(BLOCKS, roomy=True)), replace(request, roles=tuple(roles)))


@examples(200)
@given(st.one_of(spread_gangs(), worlds("levels", "ranks", "max per")))
def test_consecutive_ranks_lie_together(world: World) -> None:
    """Each zone, block, rack and node is one run of a role's ranks; a part is looked at inside the wider
    one, since drawn racks reach over zones."""
    snapshot, request = world
    decision = place(snapshot, request)
    if not isinstance(decision, Placed):
        return
    nodes = {member.uid: member.node for member in decision.members}
    for role in request.roles:
        names = [nodes[member.uid] for member in naive.by_rank(role.members) if member.uid in nodes]
        paths = [_path(snapshot, request, name) for name in names]
        for depth in range(1, len(snapshot.levels) + 2):
            runs = [part for part, _ in groupby(path[:depth] for path in paths)]
            assert len(runs) == len(set(runs)), decision.members


def _path(snapshot: Snapshot, request: Request, node: str) -> tuple[str, ...]:
    """The parts that the node lies in, widest first, itself last; levels without any label are none."""
    levels = [scope for scope in naive.crossing_scopes(snapshot, request) if scope != "nvlink-domain"]
    state = snapshot.nodes[node]
    return tuple(
        node if scope == "node" else label(snapshot, state, scope) or f"alone {node}" for scope in levels
    )


@examples(150)
@given(st.one_of(worlds(), worlds("segments", "max per", "ranks"), worlds("running", "levels")), st.randoms())
def test_the_order_of_nodes_does_not_matter(world: World, rng: random.Random) -> None:
    snapshot, request = world
    shuffled = list(snapshot.nodes.items())
    rng.shuffle(shuffled)
    again = replace(snapshot, nodes=dict(shuffled))
    assert place(snapshot, request) == place(again, request) == place(snapshot, request)


@examples(200)
@given(worlds(), st.lists(st.integers(0, 2), min_size=4, max_size=4))
def test_gpus_of_unknown_index_are_never_given_away(world: World, unindexed: list[int]) -> None:
    """`place` verifies what it returns: what is left to check is that it does not raise, and that its answer
    for fewer free GPUs is not more members."""
    snapshot, request = world
    other_usages = [
        Usage(f"other-{name}", name, Resources(pods=0), unindexed_gpus=count)
        for name, count in zip(snapshot.nodes, unindexed, strict=False)
    ]
    fewer = place(snapshot.with_usages(other_usages), request)
    if isinstance(fewer, Placed):
        more = place(snapshot, request)
        assert isinstance(more, Placed)
        assert len(more.members) >= len(fewer.members)
    else:
        assert fewer.causes


def test_a_defect_never_leaves_the_planner(monkeypatch: pytest.MonkeyPatch) -> None:
    def judge(*_: object) -> tuple[str, ...]:
        return ("GPU 4 of node a is not free",)

    monkeypatch.setattr(planner, "verify", judge)
    with pytest.raises(PlacementDefect, match="GPU 4 of node a is not free"):
        place(cluster(": a[8]"), gang("2 x 2 GPU"))
