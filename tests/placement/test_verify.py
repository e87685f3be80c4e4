"""The judge: good plans pass, each broken one is refused for what is broken in it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from muster.domain.decision import MemberPlacement, Placed
from muster.domain.request import Request
from muster.domain.snapshot import Snapshot
from muster.placement import place as planner
from muster.placement.place import PlacementDefect, place
from muster.placement.verify import verify
from tests.placement.drawings import cluster, gang

CLUSTER = """
rack r1: a[v100-8x-gputopology-document, free 1111 0110, cpu 8] b[8, cpu 8, unindexed 6]
rack r2: c[8, cordoned, cpu 8] d[0, cpu 8] e[8, cpu 1]
"""
GANG = "2 x 2 GPU 2 cpu + 1 x 0 GPU 1 cpu, scope rack"


@pytest.fixture
def plan() -> tuple[Snapshot, Request, Placed]:
    snapshot, request = cluster(CLUSTER), gang(GANG)
    placed = place(snapshot, request)
    assert isinstance(placed, Placed)
    return snapshot, request, placed


def test_a_good_plan_passes(plan: tuple[Snapshot, Request, Placed]) -> None:
    assert verify(*plan) == ()


def first(**changes: Any) -> list[tuple[int, dict[str, Any]]]:
    return [(0, changes)]


BROKEN: dict[str, list[tuple[int, dict[str, Any]]]] = {
    "is not in the cluster": first(node="nowhere"),
    "is not free": first(gpus=(4, 7)),
    "is given twice": [(0, {"gpus": (1, 2)}), (1, {"gpus": (2, 3)})],
    "asks for 2 GPUs and gets 1": first(gpus=(0,)),
    "do not rise": first(gpus=(3, 0)),
    "is not of the gang": first(uid="stranger"),
    "is called": first(name="other"),
    "is placed twice": [(0, {"uid": "w1", "name": "w-1"})],
    "does not admit role w: not": [(0, {"node": "c"}), (1, {"node": "c"})],
    "does not offer": first(node="d"),
    "of cpu free": [(0, {"node": "e"}), (1, {"node": "e"})],
    "no one rack holds": [(2, {"node": "d"})],
    "has 2 GPUs free": [(0, {"node": "b", "gpus": (0, 1)}), (1, {"node": "b", "gpus": (2, 3)})],
    "weakest link is": [(0, {"gpus": (0, 1)}), (1, {"gpus": (2, 6)})],
}


@pytest.mark.parametrize("what", BROKEN)
def test_broken_plans_are_refused(what: str, plan: tuple[Snapshot, Request, Placed]) -> None:
    snapshot, request, placed = plan
    members = list(placed.members)
    for index, changes in BROKEN[what]:
        members[index] = replace(members[index], **changes)
    violations = verify(snapshot, request, replace(placed, members=tuple(members)))
    expected = what.replace("does not admit role w: not", "does not admit role w: taint")
    assert any(expected in violation for violation in violations), violations


def test_false_claims_are_refused(plan: tuple[Snapshot, Request, Placed]) -> None:
    snapshot, request, placed = plan
    claims: tuple[tuple[dict[str, Any], str], ...] = (
        ({"weakest_link_gb_per_s": 900.0}, "weakest link"),
        ({"ring_gb_per_s": 1.0}, "rings sum up"),
        ({"crossings": (("node", 7),)}, "nodes are touched"),
        ({"preferred_reached": "gpu"}, "no one gpu holds"),
        ({"crossings": (("rack", 2), ("node", 2))}, "racks are touched"),
    )
    for claim, what in claims:
        broken = replace(placed, objective=replace(placed.objective, **claim))
        assert any(what in violation for violation in verify(snapshot, request, broken))
    assert verify(snapshot, request, replace(placed, domain="node z", scope_reached="node"))
    assert verify(snapshot, request, replace(placed, domain="node z", scope_reached=None))
    assert verify(snapshot, request, replace(placed, optimal=True, gap=0.5))
    assert verify(snapshot, request, replace(placed, optimal=True, truncated=True))
    assert verify(snapshot, request, replace(placed, members=placed.members[:2]))
    assert verify(snapshot, request, replace(placed, members=()))


def test_a_defect_never_leaves_the_planner(
    plan: tuple[Snapshot, Request, Placed], monkeypatch: pytest.MonkeyPatch
) -> None:
    snapshot, request, placed = plan
    broken = (replace(placed.members[0], gpus=(4, 7)), *placed.members[1:])

    def named(*_: object) -> tuple[MemberPlacement, ...]:
        return broken

    monkeypatch.setattr(planner, "named", named)
    with pytest.raises(PlacementDefect, match="is not free"):
        place(snapshot, request)
