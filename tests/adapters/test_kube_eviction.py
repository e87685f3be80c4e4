"""Evictions, posted to a small HTTP server."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from muster.adapters.kube.backoff import Backoff
from muster.adapters.kube.client import KubeClient
from muster.adapters.kube.eviction import TRIES, Evictor
from muster.adapters.telemetry.metrics import Metrics
from muster.gangs.instructions import Evict
from tests.adapters.fake_api import DEADLINE_S, FakeApi

HALF = Evict("ns", (("p0", "u0"), ("p1", "u1")), "only 2 of 3 members could be bound in time")


@asynccontextmanager
async def evicting(client: KubeClient) -> AsyncIterator[tuple[Evictor, Metrics]]:
    metrics = Metrics()
    evictor = Evictor(client, metrics, Backoff(first=0.001, limit=0.002))
    task = asyncio.create_task(evictor.run())
    try:
        yield evictor, metrics
        assert not task.done(), task
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def drained(evictor: Evictor) -> None:
    await asyncio.wait_for(evictor.drained(), DEADLINE_S)


def results(metrics: Metrics) -> dict[str, float]:
    counts = {
        result: metrics.value("muster_evictions_total", result=result)
        for result in ("evicted", "gone", "failed", "dropped")
    }
    return {result: count for result, count in counts.items() if count}


async def test_each_pod_is_evicted_by_its_uid(api: FakeApi, client: KubeClient) -> None:
    async with evicting(client) as (evictor, metrics):
        evictor.evict(HALF)
        evictor.evict(HALF)  # it waits already
        await drained(evictor)
    assert results(metrics) == {"evicted": 2}
    assert await api.event() == {
        "apiVersion": "policy/v1",
        "kind": "Eviction",
        "metadata": {"name": "p0", "namespace": "ns"},
        "deleteOptions": {"preconditions": {"uid": "u0"}},
    }
    assert (await api.event())["metadata"]["name"] == "p1"
    assert api.posted.empty()


async def test_what_a_budget_refuses_for_now_is_tried_again_after_the_others(
    api: FakeApi, client: KubeClient
) -> None:
    api.failing = [429]
    async with evicting(client) as (evictor, metrics):
        evictor.evict(HALF)
        await drained(evictor)
    assert [(await api.event())["metadata"]["name"] for _ in HALF.pods] == ["p1", "p0"]
    assert results(metrics) == {"evicted": 2}


@pytest.mark.parametrize(
    ("codes", "result"),
    [([404], "gone"), ([409], "gone"), ([403], "failed"), ([429] * TRIES, "failed")],
    ids=["it is gone", "another one has its name", "it may not", "a budget refuses it for long"],
)
async def test_what_can_not_be_evicted_is_given_up_and_may_be_asked_again(
    api: FakeApi, client: KubeClient, codes: list[int], result: str
) -> None:
    one = Evict("ns", HALF.pods[:1], HALF.why)
    api.failing = list(codes)
    async with evicting(client) as (evictor, metrics):
        evictor.evict(one)
        await drained(evictor)
        assert results(metrics) == {result: 1}
        evictor.evict(one)
        await drained(evictor)
    assert results(metrics) == {result: 1, "evicted": 1}
