"""Clusters to measure on: equal seeds, the load asked for, and few nodes that change."""

from __future__ import annotations

import pytest

from benchmarks.clusters import GPUS, NODES_PER_RACK, Boards, Cluster, Fill, Shape, topology


@pytest.mark.parametrize("fill", Fill)
def test_equal_seeds_give_equal_clusters(fill: Fill) -> None:
    shape = Shape(64, 0.5, fill, Boards.MIXED)
    first, same, different = Cluster(shape, 1), Cluster(shape, 1), Cluster(shape, 2)
    assert first.snapshot == same.snapshot != different.snapshot
    assert first.churn(3) == same.churn(3)


@pytest.mark.parametrize(("fill", "load", "expected"), [(Fill.PODS, 0.95, 0.95), (Fill.SCATTERED, 0.5, 0.5)])
def test_the_load_is_met(fill: Fill, load: float, expected: float) -> None:
    assert Cluster(Shape(640, load, fill), 1).load == pytest.approx(expected, abs=0.02)


def test_a_cluster_without_load_is_empty() -> None:
    assert Cluster(Shape(64, 0.0), 1).load == 0


@pytest.mark.parametrize("fill", Fill)
def test_nothing_is_taken_twice(fill: Fill) -> None:
    cluster = Cluster(Shape(64, 0.8, fill), 1)
    cluster.churn(50)
    for state in cluster.snapshot.nodes.values():
        on_node = [usage for usage in cluster.usages if usage.node == state.node.name]
        assert sum(usage.gpus.bit_count() for usage in on_node) == GPUS - state.free_gpu_count
        assert min(state.free.cpu_milli, state.free.memory_bytes, state.free.pods) >= 0


def test_a_move_changes_two_nodes_and_keeps_the_load() -> None:
    cluster = Cluster(Shape(640, 0.5), 1)
    before, load = cluster.snapshot.nodes, cluster.load
    after = cluster.churn(1).nodes
    assert sum(state is not after[name] for name, state in before.items()) == 2
    assert cluster.load == load


def test_racks_and_zones() -> None:
    nodes = Cluster(Shape(128, 0.0, racks_per_zone=4), 1).nodes
    racks = [node.labels["topology.kubernetes.io/rack"] for node in nodes]
    assert {racks.count(rack) for rack in racks} == {NODES_PER_RACK}
    assert len({node.labels["topology.kubernetes.io/zone"] for node in nodes}) == 2
    assert "topology.kubernetes.io/zone" not in Cluster(Shape(16, 0.0), 1).nodes[0].labels


@pytest.mark.parametrize(
    ("boards", "islands"), [(Boards.NVSWITCH, [8]), (Boards.CUBE, [8]), (Boards.ISLANDS, [4, 4])]
)
def test_boards(boards: Boards, islands: list[int]) -> None:
    links = topology(boards)
    assert [island.bit_count() for island in links.islands] == islands
    assert links is topology(boards)
    assert all(links.link(a, b) == links.link(b, a) for a in range(GPUS) for b in range(GPUS))
