"""The orders in which other schedulers end gangs, on clusters of two racks that can be checked by hand."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from benchmarks.peers.victims import Cluster, Gone, RunningGang, kube_scheduler, kueue, volcano


def _cluster(*gangs: RunningGang, count: int, gpus: int, in_rack: bool = True) -> Cluster:
    """Two racks of two nodes with 8 GPUs each, and a gang that waits."""
    free = np.full(4, 8)
    for gang in gangs:
        np.subtract.at(free, gang.nodes, gang.gpus)
    return Cluster(free, 2, gangs, count, gpus, in_rack)


def _gang(
    key: str, nodes: list[int], gpus: int, age_s: float, priority: int = 0, spare: int = 0
) -> RunningGang:
    return RunningGang(key, priority, age_s, gpus, np.array(nodes), spare)


OLD = _gang("old", [0, 1], 4, 9000)
YOUNG = _gang("young", [2, 3], 8, 60)
MIDDLE = _gang("middle", [0, 1], 4, 600)


@pytest.mark.parametrize("method", [kube_scheduler, kueue, volcano])
def test_no_gang_ends_if_the_cluster_is_too_small(method: Callable[[Cluster], Gone | None]) -> None:
    assert method(_cluster(YOUNG, count=3, gpus=8)) is None


def test_kube_scheduler_places_the_group_before_it_looks_at_victims() -> None:
    cluster = _cluster(OLD, MIDDLE, YOUNG, count=2, gpus=8)
    assert kube_scheduler(cluster) == {"old": 2, "middle": 2}


def test_kube_scheduler_returns_the_old_before_the_young() -> None:
    assert kube_scheduler(_cluster(OLD, MIDDLE, YOUNG, count=2, gpus=4)) == {"middle": 2}


def test_kueue_ends_the_newest_first_and_lets_those_return_that_did_not_help() -> None:
    newest = _gang("newest", [2], 1, 1)
    cluster = _cluster(OLD, MIDDLE, _gang("young", [2, 3], 7, 60), newest, count=2, gpus=4)
    assert kueue(cluster) == {"young": 2}
    assert kueue(_cluster(OLD, _gang("young", [2, 3], 8, 60, priority=5), count=4, gpus=4)) == {"old": 2}


def test_volcano_takes_the_roomiest_rack_and_spares_nobody_twice() -> None:
    cluster = _cluster(OLD, YOUNG, count=2, gpus=8)
    assert volcano(cluster) == {"old": 2}
    elastic = _gang("elastic", [0, 1], 4, 9000, spare=1)
    assert volcano(_cluster(elastic, YOUNG, count=3, gpus=4)) == {"elastic": 1}
    assert volcano(_cluster(elastic, YOUNG, count=4, gpus=4)) == {"elastic": 2}
