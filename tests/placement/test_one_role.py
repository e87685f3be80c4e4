"""One role over racks: the tables find what the solver proves best."""

from __future__ import annotations

import itertools
import random
from dataclasses import replace

import pytest

from muster.domain.decision import Decision, Objective, Placed
from muster.domain.request import Request
from muster.domain.snapshot import Snapshot
from muster.placement.place import Limits, place
from muster.placement.rails import RAIL_SETS
from muster.placement.search import capacities, one_role, search
from tests.placement import naive
from tests.placement.drawings import cluster, gang

BOARDS = ("8", "8 = 4+4", "8 pcie", "v100-8x-hybrid-cube-mesh")
RUNS = 60


def racks_drawn(rng: random.Random, fewest: int, cpu: int) -> tuple[str, int]:
    """A cluster of `fewest` to three more racks of a few nodes, on one kind of board or on several; and how
    many GPUs are free."""
    boards = rng.choice([BOARDS[:1], BOARDS[1:2], BOARDS])
    lines, free = [], 0
    for rack in range(rng.randint(fewest, fewest + 3)):
        nodes = []
        for node in range(rng.randint(2, 5)):
            bits = "".join(rng.choice("01") for _ in range(8))
            free += bits.count("1")
            nodes.append(f"n{rack}{node}[{rng.choice(boards)}, free {bits}, cpu {rng.randint(cpu, 16)}]")
        lines.append(f"rack r{rack}: {'  '.join(nodes)}")
    return "\n".join(lines), free


def draw_gang(rng: random.Random, rule: str = "") -> tuple[Snapshot, Request]:
    """Such a cluster, and a gang that no rack holds; under a rule, members in fours."""
    text, free = racks_drawn(rng, fewest=3, cpu=8)
    gpus = rng.choice((1, 1, 2))
    members = rng.randint(free // 5, free // 2) // gpus
    members = max(4, members // 4 * 4) if rule else members
    return cluster(text), gang(f"{members} x {gpus} GPU 1 cpu {rule}")


def leave_out_methods(monkeypatch: pytest.MonkeyPatch, *names: str) -> None:
    """Leave these exact methods out."""
    methods_left = tuple(method for method in search.METHODS if method.name not in names)
    monkeypatch.setattr(search, "METHODS", methods_left)


def methods(decision: Decision) -> set[str]:
    """The methods that decided any level."""
    return {step.method for step in decision.steps} if isinstance(decision, Placed) else set()


def above_rails(plan: Placed) -> Objective:
    """The values of all levels that decide between nodes: equal plans may have unlike rails."""
    return replace(plan.objective, rails=None)


def assert_as_good_as_solved(snapshot: Snapshot, request: Request, decision: Decision) -> None:
    """Decide once more, now without the exact methods that a test left out, and compare."""
    solved = place(snapshot, request, Limits(deterministic_time=60))
    assert isinstance(decision, Placed) == isinstance(solved, Placed)
    if isinstance(decision, Placed) and isinstance(solved, Placed):
        assert decision.optimal
        assert solved.optimal
        assert above_rails(decision) == above_rails(solved)
        ours, theirs = (naive.worth(snapshot, request, plan.members) for plan in (decision, solved))
        assert ours == theirs


GANGS = {
    "no rule": "",
    "segments": "by 2 rack",
    "segments in nodes": "by 2 node",
    "nested segments": "by 4 rack by 2 nvlink-domain",
    "a limit": ", max rack=9",
}


@pytest.mark.parametrize("rule", GANGS.values(), ids=GANGS.keys())
def test_the_tables_are_as_good_as_the_solver(rule: str, monkeypatch: pytest.MonkeyPatch) -> None:
    rng, worlds = random.Random(4), []
    for _ in range(RUNS):
        snapshot, request = draw_gang(rng, rule)
        decision = place(snapshot, request, Limits(deterministic_time=60))
        worlds.append((snapshot, request, decision))
    several_nodes = [
        methods(d) for *_, d in worlds if isinstance(d, Placed) and "single-node" not in methods(d)
    ]
    assert len(several_nodes) > RUNS // 3
    assert all("domain-tables" in names for names in several_nodes)
    leave_out_methods(monkeypatch, "domain-tables")
    for snapshot, request, decision in worlds:
        assert_as_good_as_solved(snapshot, request, decision)


def test_choices_of_zones_are_as_good_as_the_solver(monkeypatch: pytest.MonkeyPatch) -> None:
    """No zone holds the gang."""
    rng, worlds = random.Random(5), []
    for _ in range(RUNS):
        text, free = "", list[int]()
        for zone in range(3):
            racks, gpus = racks_drawn(rng, fewest=1, cpu=8)
            lines = racks.replace("rack r", f"zone z{zone} rack r{zone}").replace(" n", f" n{zone}")
            text, free = f"{text}\n{lines}", [*free, gpus]
        snapshot, request = cluster(text), gang(f"{max(free) + 2} x 1 GPU 1 cpu")
        worlds.append((snapshot, request, place(snapshot, request, Limits(deterministic_time=60))))
    assert sum("domain-tables" in methods(decision) for *_, decision in worlds) > RUNS // 2
    leave_out_methods(monkeypatch, "domain-tables")
    for snapshot, request, decision in worlds:
        assert_as_good_as_solved(snapshot, request, decision)


@pytest.mark.parametrize("rule", ["", "by 2 rack", "by 3 rack", ", max rack=4", "by 2 rack, max rack=4"])
def test_racks_in_several_zones_and_nodes_without_labels(rule: str, monkeypatch: pytest.MonkeyPatch) -> None:
    rng, worlds = random.Random(6), []
    for _ in range(RUNS):
        lines, free = [], 0
        for number in range(rng.randint(2, 12)):
            zone = rng.choice(["zone z0", "zone z0", "zone z1", ""])
            rack = rng.choice(["rack r0", "rack r1", "rack r2", "rack r3", ""])
            gpus = rng.randint(1, 8)
            free += gpus
            lines.append(f"{zone} {rack}: n{number}[{gpus}]")
        snapshot = cluster("\n".join(lines))
        step = 3 if "by 3" in rule else 2
        request = gang(f"{max(step, rng.randint(free // 4, free) // step * step)} x 1 GPU {rule}")
        worlds.append((snapshot, request, place(snapshot, request, Limits(deterministic_time=60))))
    assert sum("domain-tables" in methods(decision) for *_, decision in worlds) > RUNS // 20
    leave_out_methods(monkeypatch, "domain-tables", "sorted-capacities")
    for snapshot, request, decision in worlds:
        assert_as_good_as_solved(snapshot, request, decision)


def test_racks_of_one_node_beside_a_rack_of_several_with_segments() -> None:
    """The first rack has room for more members than a plan gives to it."""
    r1 = "rack r1: c[8, free 11100000] d[8, free 11000000] e[8, free 11000000]"
    decision = place(cluster(f"rack r0: a[8, free 11111100]\n{r1}"), gang("8 x 1 GPU by 4 rack"))
    assert isinstance(decision, Placed)
    assert decision.optimal
    assert sorted(member.node for member in decision.members) == [*"aaaaddee"]


def test_late_in_many_regions_the_plan_is_the_best_of_those_decided() -> None:
    """Each choice of two of five zones is a region, and the clock ends after the first."""
    text = "\n".join(f"zone z{z} rack r{z}{r}: n{z}{r}[8] m{z}{r}[8]" for z in range(5) for r in range(2))
    clock_reads = itertools.count()
    limits = Limits(seconds_left=lambda: 1.0 if next(clock_reads) < 14 else 0.0)
    decision = place(cluster(text), gang("60 x 1 GPU"), limits)
    assert isinstance(decision, Placed)
    assert "domain-tables" in methods(decision)
    assert decision.truncated
    assert not decision.optimal


@pytest.mark.parametrize("limit", ["MAX_TABLE_WORK", "MAX_PART_CHOICES", "MAX_OPTION_CELLS"])
def test_what_is_too_large_is_left_to_the_solver(limit: str, monkeypatch: pytest.MonkeyPatch) -> None:
    snapshot, request = draw_gang(random.Random(1))
    if limit == "MAX_PART_CHOICES":
        snapshot = cluster("\n".join(f"zone z{n} rack r{n}: n{n}[4]" for n in range(3)))
        request = gang("7 x 1 GPU")
    fast_plan = place(snapshot, request)
    for module in (one_role, capacities):
        monkeypatch.setattr(module, limit, 0, raising=False)
    solved = place(snapshot, request)
    assert isinstance(fast_plan, Placed)
    assert isinstance(solved, Placed)
    assert "domain-tables" in methods(fast_plan)
    assert methods(solved) - {RAIL_SETS} == {"all-members", "region-count", "level-core", "link-thresholds"}
    reasons = dict(reason for step in solved.steps for reason in step.declined)
    assert reasons["domain-tables"] in (
        "the tables are too large",
        "there are too many choices of wider parts",
    )
    assert above_rails(fast_plan) == above_rails(solved)


FASTER_ON_MORE_NODES = {
    "18 x 1 GPU": (
        4,
        """
rack r0: n00[8, free 00011010]  n01[8 = 4+4, free 01111001]  n02[8, free 11100111]
rack r1: n10[8, free 01001111]  n11[8, free 00011001]  n12[8 = 4+4, free 01100110]  n13[8, free 00001000]
rack r2: n20[8 = 4+4, free 01101010]  n21[8, free 10101010]  n22[8, free 10000001]
rack r3: n30[8 = 4+4, free 10000000]  n31[8, free 00110100]  n32[8, free 00111100]
rack r3: n33[8 = 4+4, free 11110110]  n34[8, free 00100110]
""",
    ),
    "38 x 1 GPU by 2 rack": (
        8,
        """
rack r0: n00[8, free 10101111]  n01[8 = 4+4, free 10101111]  n02[8 = 4+4, free 00001010]
rack r1: n10[8 = 4+4, free 00000011]  n11[8, free 00100100]  n12[8, free 01000000]  n13[8, free 10010001]
rack r2: n20[8, free 01000000]  n21[8, free 11000011]  n22[8, free 00000110]
rack r3: n30[8 = 4+4, free 10001001]  n31[8, free 11010111]  n32[8 = 4+4, free 00100111]
rack r3: n33[8, free 01011011]  n34[8 = 4+4, free 11011000]
rack r4: n40[8, free 10111011]  n41[8 = 4+4, free 10001010]  n42[8, free 10101010]
""",
    ),
}


@pytest.mark.parametrize("text", FASTER_ON_MORE_NODES)
def test_nodes_come_before_links(text: str) -> None:
    nodes, drawn = FASTER_ON_MORE_NODES[text]
    decision = place(cluster(drawn), gang(text))
    assert isinstance(decision, Placed)
    assert decision.optimal
    assert dict(decision.objective.crossings)["node"] == nodes
