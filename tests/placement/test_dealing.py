"""Roles that ask for the same are dealt out to few parts each, and no level of the objective notices."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from muster.domain.decision import Placed
from muster.domain.node import Resources
from muster.domain.request import Request
from muster.domain.sentences import sentence
from muster.domain.snapshot import Snapshot
from muster.placement.place import place
from muster.placement.search import search
from tests.placement.drawings import cluster, gang
from tests.placement.test_properties import examples

RACKS = "rack r0: n0[0, cpu 2]\n rack r1: n1[0, cpu 2]\n rack r2: n2[0, cpu 2]"
ZONES = """
zone z1 rack r1: a[4] b[4]
zone z1 rack r2: c[4]
zone z2 rack r3: d[4]
zone z2 rack r4: e[4] f[4]
"""


@pytest.mark.parametrize(
    ("drawn", "gang_text", "touched"),
    [
        (RACKS, "3 x 0 GPU 1 cpu + 3 x 0 GPU 1 cpu", {"w": 2, "x": 2}),  # after a random cluster
        (RACKS, "2 x 0 GPU 1 cpu + 2 x 0 GPU 1 cpu + 2 x 0 GPU 1 cpu", {"w": 1, "x": 1, "y": 1}),
        (RACKS, "3 x 0 GPU 1 cpu + 2 x 0 GPU 1 cpu", {"w": 2, "x": 1}),
        (ZONES, "8 x 1 GPU + 4 x 1 GPU + 12 x 1 GPU", {"w": 2, "x": 1, "y": 3}),
        (ZONES, "12 x 1 GPU 1 cpu + 12 x 1 GPU 1 cpu, prefer zone", {"w": 3, "x": 3}),
        ("rack r: a[2] b[4]", "3 x 1 GPU + 3 x 1 GPU", {"w": 2, "x": 1}),
    ],
)
def test_each_role_touches_few_nodes(drawn: str, gang_text: str, touched: dict[str, int]) -> None:
    decision = place(cluster(drawn), gang(gang_text))
    assert isinstance(decision, Placed), sentence(decision)
    assert decision.optimal
    nodes = {role: {m.node for m in decision.members if m.role == role} for role in touched}
    assert {role: len(names) for role, names in nodes.items()} == touched


def test_rules_between_members_stay_as_they_are() -> None:
    decision = place(cluster(RACKS), gang("2 x 0 GPU 1 cpu by 1 rack + 3 x 0 GPU 1 cpu, max rack=2"))
    assert isinstance(decision, Placed)


@st.composite
def worlds(draw: st.DrawFn) -> tuple[Snapshot, Request]:
    """Nodes in racks and zones, and two or three roles: some ask for the same."""
    lines = []
    for i in range(draw(st.integers(2, 6))):
        zone, rack = draw(st.sampled_from(["z1", "z2"])), draw(st.sampled_from(["r1", "r2", "r3"]))
        gpus, free = draw(st.sampled_from([2, 4])), draw(st.integers(1, 15))
        shown = "".join("01"[free >> gpu & 1] for gpu in range(gpus))
        lines.append(f"zone {zone} rack {rack}: n{i}[{gpus}, cpu {draw(st.integers(1, 4))}, free {shown}]")
    size, gpu_counts = st.integers(1, 4), st.sampled_from([0, 1, 1])
    roles = [f"{draw(size)} x {draw(gpu_counts)} GPU" for _ in range(draw(st.integers(2, 3)))]
    request = gang(" + ".join(roles))
    asks = Resources(draw(st.sampled_from([0, 1000])))
    return cluster("\n".join(lines)), replace(
        request, roles=tuple(replace(role, resources=asks) for role in request.roles)
    )


@examples(150)
@given(worlds())
def test_it_changes_no_level(world: tuple[Snapshot, Request]) -> None:
    """The plan with its roles as they came is as good, and its roles do not touch fewer parts."""
    dealt = place(*world)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(search, "gather_roles_on_few_parts", lambda _, nodes: nodes)
        plain = place(*world)
    assert isinstance(dealt, Placed) == isinstance(plain, Placed)
    if isinstance(dealt, Placed) and isinstance(plain, Placed):
        assert dealt.objective == plain.objective
        assert count_touched_parts(world[0], dealt) <= count_touched_parts(world[0], plain)


def count_touched_parts(snapshot: Snapshot, plan: Placed) -> tuple[int, ...]:
    """The zones of each role, summed, then the racks, then the nodes."""
    places = {(m.role, *snapshot.nodes[m.node].node.labels.values(), m.node) for m in plan.members}
    return tuple(len({place[:depth] for place in places}) for depth in (2, 3, 4))
