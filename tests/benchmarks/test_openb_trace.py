"""The openb trace: what arrives, in which order, and what policies are told of it."""

from __future__ import annotations

from collections import Counter

import pytest

from benchmarks.openb.published import published
from benchmarks.openb.trace import LISTS, Request, arrivals, mix, nodes, pods

CAPACITY = 6_212_000
"""6,212 GPUs (data/README.md)."""


def test_the_cluster() -> None:
    assert (len(nodes().cpu), nodes().gpu_milli) == (1213, CAPACITY)


@pytest.mark.parametrize(
    ("name", "count"), [("default", 8152), ("gpushare100", 8152), ("gpuspec33", 8152), ("multigpu50", 9061)]
)
def test_the_lists(name: str, count: int) -> None:
    assert len(pods(name)) == count


@pytest.mark.parametrize("name", LISTS)
def test_arrivals_are_clones_of_the_list_up_to_130_percent(name: str) -> None:
    workload = pods(name)
    order, node_order = arrivals(workload, CAPACITY, seed=1)
    milli = sum(request.milli for request in order)
    assert 1.3 * CAPACITY - 8_000 < milli <= 1.3 * CAPACITY + 7_000, "up to the last pod, eight GPUs at most"
    assert set(order) <= set(workload)
    listed, arrived = Counter(workload), Counter(order)
    shrunk = len(order) < len(workload)
    assert not (arrived - listed if shrunk else listed - arrived), "left out, or appended: never both"
    assert sorted(node_order) == list(range(1213))


def test_equal_seeds_give_equal_orders() -> None:
    first, same, different = (arrivals(pods("default"), CAPACITY, seed) for seed in (1, 1, 2))
    assert first == same
    assert first[0] != different[0]
    assert first[1] != different[1]


A, B, C = Request(4, 10, 1, 1000), Request(2, 10, 1, 500, ("T4",)), Request(1, 10, 0, 0)


@pytest.mark.parametrize(
    ("covered", "shares"),
    [
        (1, {Request(4, 0, 1, 1000): 0.5, Request(2, 0, 1, 500, ("T4",)): 0.3, Request(1, 0, 0, 0): 0.2}),
        (0.8, {Request(4, 0, 1, 1000): 0.625, Request(2, 0, 1, 500, ("T4",)): 0.375}),
        (0.4, {Request(4, 0, 1, 1000): 1.0}),
    ],
)
def test_the_mix_is_the_most_frequent_kinds(covered: float, shares: dict[Request, float]) -> None:
    assert mix([A, A, A, A, Request(4, 99, 1, 1000), B, B, B, C, C], covered) == pytest.approx(shares)


def test_the_published_figures_are_read_as_they_are() -> None:
    """Means of ten seeds at load 100, as the authors' table gives them: 13.70, 7.14, 4.77."""
    means = [published("default", policy, 100).mean for policy in ("01-Random", "05-BestFit", "06-FGD")]
    assert means == pytest.approx([13.70, 7.14, 4.77], abs=0.005)
    assert published("default", "06-FGD", 100).deviation == pytest.approx(0.11, abs=0.005)
