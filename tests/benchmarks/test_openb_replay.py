"""Replays of the openb trace: no room is made up, and the published policies give their published figures."""

from __future__ import annotations

import random
from statistics import mean

import numpy as np
import pytest

from benchmarks.openb import planner, trace
from benchmarks.openb.cluster import Cluster
from benchmarks.openb.policies import PUBLISHED_AS, Name, policy
from benchmarks.openb.published import published
from benchmarks.openb.replay import replay
from benchmarks.openb.runs import Task, run
from benchmarks.openb.trace import GPU, Nodes, Request
from muster.domain.request import TypicalRequest

TWO = Nodes(np.array([10, 20]), np.array([100, 100]), np.array([2, 8]), np.array([0, 1]), ("G2", "T4"))
"""Two G2 with 10 millicores, eight T4 with 20."""

WAYS = [
    # request, (node, column) of each way on the empty cluster
    (Request(1, 1, 0, 0), [(0, 0), (1, 0)]),
    (Request(1, 1, 1, 300), [(0, 6), (1, 0)]),
    (Request(1, 1, 1, 1000), [(0, 0), (1, 0)]),
    (Request(1, 1, 4, 1000), [(1, 0)]),
    (Request(11, 1, 1, 1000), [(1, 0)]),
    (Request(1, 101, 1, 1000), []),
    (Request(1, 1, 1, 300, ("G2",)), [(0, 6)]),
]


@pytest.mark.parametrize(("request_", "ways"), WAYS)
def test_the_ways_to_place_one(request_: Request, ways: list[tuple[int, int]]) -> None:
    options = Cluster(TWO).options(request_, np.array([0, 1]))
    nodes = options.nodes[options.row]
    assert list(zip(nodes.tolist(), options.column.tolist(), strict=True)) == ways


def test_equally_free_gpus_are_one_way() -> None:
    cluster = Cluster(TWO)
    cluster.place(Request(1, 1, 1, 300), 0, 6)
    options = cluster.options(Request(1, 1, 1, 200), np.array([0, 1]))
    assert options.after.free.tolist() == [
        [0, 0, 0, 0, 0, 0, 500, 1000],
        [0, 0, 0, 0, 0, 0, 700, 800],
        [800, 1000, 1000, 1000, 1000, 1000, 1000, 1000],
    ]


@pytest.mark.parametrize("name", [name for name in Name if name is not Name.MUSTER])
def test_what_is_taken_was_free(name: Name) -> None:
    """On a twentieth of the cluster, counted apart: what each option leaves, and all that is allocated."""
    nodes = trace.nodes().reordered(range(0, 1213, 20))
    order = random.Random(1).choices(trace.pods("multigpu50"), k=900)
    rule, cluster, milli = policy(name, order, nodes.models, seed=1), Cluster(nodes), 0
    for request in order:
        options = cluster.options(request, np.arange(len(nodes.cpu)))
        if len(options.row):
            cheapest = int(np.argmin(rule.costs(options)))
            cluster.place(request, int(options.nodes[options.row[cheapest]]), int(options.column[cheapest]))
            milli += request.milli
        assert min(cluster.free.min(), cluster.cpu.min(), cluster.memory.min()) >= 0
    assert milli == nodes.gpu_milli - cluster.free.sum() > 0.9 * nodes.gpu_milli
    assert (np.diff(cluster.free, axis=1) >= 0).all()


def test_costs_that_are_kept_are_those_that_would_be_made_anew() -> None:
    nodes = trace.nodes().reordered(range(0, 1213, 20))
    order = random.Random(2).choices(trace.pods("default"), k=600)
    cached, anew = (policy(Name.FGD, order, nodes.models, seed=1) for _ in range(2))
    anew.lasts = False
    assert (replay(nodes, order, cached).allocated == replay(nodes, order, anew).allocated).all()


@pytest.mark.parametrize(
    ("name", "workload", "seeds"),
    [
        (Name.BEST_FIT, "default", range(42, 44)),
        pytest.param(Name.FGD, "default", range(42, 44), marks=pytest.mark.slow),
        (Name.FGD, "multigpu50", range(42, 43)),
        pytest.param(Name.FGD, "gpushare100", range(42, 43), marks=pytest.mark.slow),
        pytest.param(Name.FGD, "gpuspec33", range(42, 43), marks=pytest.mark.slow),
    ],
)
def test_the_published_figures_come_out(name: Name, workload: str, seeds: range) -> None:
    """Within 0.3 points of the authors' means of ten seeds, at load 100."""
    unallocated = mean(run(Task(workload, name, seed)).unallocated[100] for seed in seeds)
    assert unallocated == pytest.approx(published(workload, PUBLISHED_AS[name], 100).mean, abs=0.3)


def test_the_mix_as_a_cluster_is_told_it() -> None:
    mix = {
        Request(9000, 0, 0, 0): 0.4,
        Request(8000, 0, 2, GPU): 0.3,
        Request(4000, 0, 1, 250): 0.2,
        Request(4000, 0, 1, GPU, ("G2", "T4")): 0.1,
    }
    assert planner.typical(mix) == (
        TypicalRequest(0.3, 2, 8000),
        TypicalRequest(0.2, 1, 4000, units=250),
        TypicalRequest(0.1, 1, 4000, labels=(("nvidia.com/gpu.product", ("G2", "T4")),)),
    )


@pytest.mark.parametrize("workload", ["default", pytest.param("gpuspec33", marks=pytest.mark.slow)])
def test_the_planner_leaves_less_than_fgd(workload: str) -> None:
    """On a twentieth of the cluster; no GPU is allocated twice, for each plan was verified."""
    nodes, pods = trace.nodes().reordered(range(0, 1213, 20)), trace.pods(workload)
    order, _ = trace.arrivals(pods, nodes.gpu_milli, 1)
    ours = planner.replay(nodes, order, trace.mix(pods))
    theirs = replay(nodes, order, policy(Name.FGD, pods, nodes.models, seed=1))
    assert theirs.allocated[-1] < ours.allocated[-1] <= nodes.gpu_milli
