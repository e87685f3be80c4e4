"""Our KAI does what KAI's documentation and tests say, quirks included."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest

from benchmarks.peers.fabric import Fabric
from benchmarks.peers.kai import kai, steps
from muster.domain.request import Scope, Segment
from tests.placement.drawings import cluster, gang


def placed(drawing: str, request: str, preferred: str | None = Scope.RACK) -> dict[str, int]:
    """Pods by node; empty where the gang is refused."""
    return dict(Counter((kai(Fabric.of(cluster(drawing)), gang(request), preferred) or {}).values()))


def test_the_example_of_its_documentation() -> None:
    """docs/topology/README.md @d6c52d12: zone A is fuller and taken, its rack A1 of two GPUs first, so three
    pods touch two racks."""
    counts = placed(
        """
        zone A rack A1: a1[1] a2[1]
        zone A rack A2: a3[1]
        zone A rack A3: a4[1]
        zone A rack A4: a5[1]
        zone B rack B1: b1[1] b2[1]
        zone B rack B2: b3[1] b4[1]
        zone B rack B3: b5[1] b6[1]
        """,
        "3 x 1 GPU, scope zone, prefer rack",
    )
    assert counts.keys() >= {"a1", "a2"}
    assert len(counts) == 3
    assert counts.keys() <= {"a1", "a2", "a3", "a4", "a5"}


@pytest.mark.parametrize(("racks", "expected"), [(3, [3, 6, 10]), (4, [2, 5, 7, 10])])
def test_nodes_score_in_steps_rounded_down(racks: int, expected: list[int]) -> None:
    """node_scoring_test.go @521a99aa, TestCalculateNodeScores, in units of scores.Topology."""
    fabric = Fabric.of(cluster("\n".join(f"rack r{i}: n{i}[1]" for i in range(racks))))
    assert steps(fabric, 0, np.arange(racks)).tolist() == expected


def test_a_rack_that_is_partly_taken_comes_first() -> None:
    """allocate_topology_test.go @521a99aa, "prefer domains with existing allocations"."""
    nodes = "rack rack1: node0[3, free 011]\nrack rack2: node1[3]"
    assert placed(nodes, "2 x 1 GPU, scope rack") == {"node0": 2}


def test_a_job_that_fits_in_no_domain_stays_pending() -> None:
    """allocate_topology_test.go @521a99aa, "job cannot fit in single domain, stays pending"."""
    nodes = "rack rack1: node0[1] node1[1]\nrack rack2: node2[2]"
    assert placed(nodes, "2 x 2 GPU, scope rack") == {}


def test_where_only_some_ask_for_gpus_the_sums_decide() -> None:
    """job_filtering_test.go @337f9fe4, "mixed GPU tasks - usePodCountAccounting returns false"."""
    nodes = "zone zone1 rack rack1: node-1[6, cpu 2]\nzone zone1 rack rack2: node-2[6, cpu 2]"
    counts = placed(nodes, "1 x 1 GPU 2 cpu + 1 x 0 GPU 2 cpu, scope zone, prefer rack")
    assert counts == {"node-1": 1, "node-2": 1}


def test_every_pod_counts_as_the_largest() -> None:
    """A pod of 8 GPUs and one of 1 on a rack with 8 + 1 free: refused, each alone would fit."""
    nodes = "rack r1: a[8] b[8, free 1000 0000]"
    assert placed(nodes, "1 x 8 GPU + 1 x 1 GPU, scope rack") == {}
    assert placed(nodes, "1 x 8 GPU, scope rack") == {"a": 1}
    assert placed(nodes, "1 x 1 GPU, scope rack") == {"b": 1}


@pytest.mark.parametrize(("sizes", "fits"), [("2 2 3 3", False), ("2 3 2 3", True), ("3 3 2 2", True)])
def test_a_subgroup_is_never_moved_for_a_later_one(sizes: str, fits: bool) -> None:
    """Racks of 5 and 5; subgroups of 2, 2, 3 and 3 pods, each in a rack: 2 + 3 and 2 + 3 would fit."""
    fabric = Fabric.of(cluster("rack r1: a[5]\nrack r2: b[5]"))
    request = gang(" + ".join(f"{size} x 1 GPU" for size in sizes.split()))
    roles = tuple(replace(role, required_scope=Scope.RACK) for role in request.roles)
    assert (kai(fabric, replace(request, roles=roles), None) is not None) == fits


def test_segments_are_subgroups() -> None:
    """Two segments of 4 on racks with room for 5 and 4; the fuller one is taken first."""
    fabric = Fabric.of(cluster("rack r1: a[5]\nrack r2: b[4]"))
    request = gang("8 x 1 GPU")
    role = replace(request.roles[0], segments=(Segment(4, Scope.RACK),))
    assignment = kai(fabric, replace(request, roles=(role,)), None)
    assert assignment is not None
    assert [assignment[member.uid] for member in role.members] == ["b"] * 4 + ["a"] * 4
