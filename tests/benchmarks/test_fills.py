"""Nodes filled to the last GPU: no less in sum than go-gpuallocator gives."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from benchmarks.fills import POD_GPUS, WITHOUT_PEER, fill, run, shape_of, topology_of
from benchmarks.peers.gpuallocator import BestEffort, scores_of
from muster.placement.gpus.gpusets import best_sets
from muster.placement.gpus.links import rings

CUBES = ("v100-8x-gputopology-document", "v100-8x-hybrid-cube-mesh")


def arrivals(gpus: int) -> Iterator[list[int]]:
    """Return every order of pods of these sizes that fills the GPUs. The last pod is cut to fit."""
    if not gpus:
        yield []
        return
    for size in sorted({min(size, gpus) for size in POD_GPUS}):
        yield from ([size, *later] for later in arrivals(gpus - size))


def test_random_fills_are_won_as_often_as_not() -> None:
    result = run(trials=200, seed=7)
    for name, counts in result["topologies"].items():
        assert ("wins" in counts) == (name not in WITHOUT_PEER)
        if "wins" in counts:
            assert counts["wins"] + counts["ties"] + counts["losses"] == 200
            assert counts["wins"] + counts["ties"] >= counts["losses"] + counts["ties"], name
    assert run(trials=200, seed=7) == result


@pytest.mark.parametrize("name", CUBES)
def test_no_order_of_arrival_is_lost_on_the_cube_mesh(name: str) -> None:
    topology = topology_of(name)
    shape, peer = shape_of(topology), BestEffort(scores_of(topology))
    total = rings(topology, weakest_first=False).total
    for sizes in arrivals(8):
        ours = fill(8, sizes, lambda free, size: best_sets(shape, free, size)[0].mask)
        theirs = fill(8, sizes, peer.allocate)
        assert sum(ours) == sum(theirs) == 0xFF
        assert sum(int(total[gpus]) for gpus in ours) >= sum(int(total[gpus]) for gpus in theirs), sizes
