"""Our Kueue does what Kueue's design and unit tests say, quirks included."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace

import pytest

from benchmarks.peers.fabric import Fabric
from benchmarks.peers.kueue import Order, kueue
from muster.domain.request import Scope, Segment
from tests.placement.drawings import cluster, gang


@dataclass(frozen=True)
class Case:
    """Pods by node as "a:3 b:1"; "" where the gang is refused. `slices` are those of the first role."""

    cluster: str
    gang: str
    expect: str
    preferred: str | None = Scope.RACK
    unconstrained: Order = Order.LEAST_FREE
    slices: tuple[Segment, ...] = ()


KEP = {
    "Computing the assignment, example: the last node is the one that fits": Case(
        "rack r: a[0, cpu 3] b[0, cpu 3] c[0, cpu 2] d[0, cpu 1]",
        "7 x 0 GPU 1 cpu, scope rack",
        "a:3 b:3 d:1",
    ),
    "Computing the assignment, example: LeastFreeCapacity": Case(
        "rack r: a[0, cpu 3] b[0, cpu 3] c[0, cpu 2] d[0, cpu 1]",
        "7 x 0 GPU 1 cpu",
        "a:3 b:1 c:2 d:1",
        preferred=None,
    ),
    "Two-level, example: between equal slices the tighter node": Case(
        "rack r: a[0, cpu 6] b[0, cpu 5] c[0, cpu 4] d[0, cpu 3] e[0, cpu 2]",
        "12 x 0 GPU 1 cpu, scope rack",
        "a:6 c:4 e:2",
        slices=(Segment(2, "node"),),
    ),
    "Two-level, example: LeastFreeCapacity": Case(
        "rack r: a[0, cpu 6] b[0, cpu 5] c[0, cpu 4] d[0, cpu 3] e[0, cpu 2]",
        "10 x 0 GPU 1 cpu",
        "b:2 c:4 d:2 e:2",
        preferred=None,
        slices=(Segment(2, "node"),),
    ),
    "Multi-level, example: 64 pods, 32 a block, 16 a rack": Case(
        """
        zone z1 rack r1: a[0, cpu 8] b[0, cpu 8] c[0, cpu 8] d[0, cpu 8]
        zone z1 rack r2: e[0, cpu 8] f[0, cpu 8] g[0, cpu 8] h[0, cpu 8]
        """,
        "64 x 0 GPU 1 cpu, scope zone",
        "a:8 b:8 c:8 d:8 e:8 f:8 g:8 h:8",
        slices=(Segment(32, "zone"), Segment(16, "rack")),
    ),
}
"""keps/2724-topology-aware-scheduling/README.md @00541031."""

DEFAULT_NODES = """
    zone b1 rack r1: x3[0, cpu 1]
    zone b1 rack r2: x5[0, cpu 1] x1[0, cpu 1] x6[0, cpu 1]
    zone b2 rack r1: x2[0, cpu 1]
    zone b2 rack r2: x4[0, cpu 2]
"""

UNIT_TESTS = {
    "minimize the number of used racks before optimizing the number of nodes; BestFit": Case(
        """
        zone b1 rack r1: x3[0, cpu 2]
        zone b1 rack r2: x5[0, cpu 2]
        zone b1 rack r3: x1[0, cpu 1] x6[0, cpu 1] x2[0, cpu 1] x4[0, cpu 1]
        """,
        "4 x 0 GPU 1 cpu, scope zone",
        "x1:1 x2:1 x4:1 x6:1",
    ),
    "choose the node that can accommodate all Pods": Case(
        "zone b1 rack r1: x3[0, cpu 2] x5[0, cpu 1] x1[0, cpu 1]",
        "2 x 0 GPU 1 cpu, scope zone",
        "x3:2",
    ),
    "block required; 4 pods fit into one host each; BestFit": Case(
        """
        zone b1 rack r1: x3[0, cpu 1] x5[0, cpu 1]
        zone b1 rack r2: x1[0, cpu 1] x6[0, cpu 1]
        zone b2 rack r1: x2[0, cpu 1] x4[0, cpu 1]
        zone b2 rack r2: x7[0, cpu 1] x8[0, cpu 1]
        """,
        "4 x 0 GPU 1 cpu, scope zone",
        "x1:1 x3:1 x5:1 x6:1",
    ),
    "rack required; multiple Pods fit in a rack; BestFit": Case(
        DEFAULT_NODES, "3 x 0 GPU 1 cpu, scope rack", "x1:1 x5:1 x6:1"
    ),
    "rack required; multiple Pods fit in some racks; BestFit": Case(
        DEFAULT_NODES, "2 x 0 GPU 1 cpu, scope rack", "x4:2"
    ),
    "rack required; too many pods to fit in any rack; BestFit": Case(
        DEFAULT_NODES, "4 x 0 GPU 1 cpu, scope rack", ""
    ),
    "block preferred; Pods fit in 2 blocks; BestFit": Case(
        "zone b1: b1[0, cpu 2]\nzone b2: b2[0, cpu 1]\nzone b3: b3[0, cpu 4]",
        "5 x 0 GPU 1 cpu, prefer zone",
        "b2:1 b3:4",
    ),
    "unconstrained; 6 pods fit into hosts scattered across the whole datacenter": Case(
        """
        zone b1 rack r1: x3[0, cpu 4] x5[0, cpu 1] x1[0, cpu 1]
        zone b2 rack r1: x6[0, cpu 2] x2[0, cpu 1]
        """,
        "6 x 0 GPU 1 cpu",
        "x1:1 x2:1 x3:1 x5:1 x6:2",
        preferred=None,
    ),
}
"""pkg/cache/scheduler/tas_cache_test.go @00973629, under their names there."""

EIGHTS = "rack r1: " + " ".join(f"a{i}[0, cpu 1]" for i in range(8)) + "\nrack r2: b[0, cpu 8] c[0, cpu 1]"
NINES = "rack r1: b[0, cpu 8] " + " ".join(f"a{i}[0, cpu 1]" for i in range(9))

QUIRKS = {
    "the tightest rack, although its 8 nodes take one pod each and one node elsewhere takes all": Case(
        EIGHTS, "8 x 0 GPU 1 cpu, scope rack", "a0:1 a1:1 a2:1 a3:1 a4:1 a5:1 a6:1 a7:1"
    ),
    "without a constraint the least free nodes first: 9 nodes where 2 would do": Case(
        NINES, "9 x 0 GPU 1 cpu", "a0:1 a1:1 a2:1 a3:1 a4:1 a5:1 a6:1 a7:1 a8:1", preferred=None
    ),
    "with the profile BestFit it is 2": Case(
        NINES, "9 x 0 GPU 1 cpu", "a0:1 b:8", preferred=None, unconstrained=Order.BEST_FIT
    ),
}


@pytest.mark.parametrize("case", [pytest.param(c, id=n) for n, c in (KEP | UNIT_TESTS | QUIRKS).items()])
def test_places_as_published(case: Case) -> None:
    request = gang(case.gang)
    request = replace(request, roles=(replace(request.roles[0], segments=case.slices),))
    assignment = kueue(Fabric.of(cluster(case.cluster)), request, case.preferred, case.unconstrained)
    counts = Counter((assignment or {}).values())
    assert " ".join(f"{node}:{n}" for node, n in sorted(counts.items())) == case.expect


@pytest.mark.parametrize(("first", "fits"), [("cpu", False), ("gpu", True)])
def test_podsets_are_placed_one_after_another(first: str, fits: bool) -> None:
    """Two pods of a cpu, and one of a GPU and a cpu, each podset in one rack: the order decides."""
    fabric = Fabric.of(cluster("rack r0: a[1, cpu 2]\nrack r1: b[0, cpu 3]"))
    request = gang("2 x 0 GPU 1 cpu + 1 x 1 GPU 1 cpu")
    roles = tuple(replace(role, required_scope=Scope.RACK) for role in request.roles)
    request = replace(request, roles=roles if first == "cpu" else roles[::-1])
    assert (kueue(fabric, request) is not None) == fits
