"""Evictions, posted to a small HTTP server."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from local_cluster.patience import HANG_S
from muster.adapters.kube import client as kube
from muster.adapters.kube.client import KubeClient
from muster.adapters.kube.outbox import Outbox, Retry
from muster.adapters.kube.writers import Evictor
from muster.adapters.telemetry.metrics import Metrics
from muster.gangs.messages.instructions import Evict
from tests.adapters.at_work import at_work
from tests.adapters.fake_api import FakeApi

RETRY = Retry(tries=3, first_s=0.001, limit_s=0.002)
HALF = Evict("ns", (("p0", "u0"), ("p1", "u1")), "only 2 of 3 members could be bound in time")


@asynccontextmanager
async def evicting(
    client: KubeClient, evicts: Callable[[str], bool] = lambda _: True
) -> AsyncIterator[tuple[Evictor, Metrics]]:
    metrics = Metrics()
    evictor = Evictor(client, metrics, evicts)
    evictor.retry = RETRY
    async with at_work(evictor):
        yield evictor, metrics


async def drained(evictor: Evictor) -> None:
    await asyncio.wait_for(evictor.until_empty(), HANG_S)


def _name(body: dict[str, Any]) -> str:
    return str(body["metadata"]["name"])


def results(metrics: Metrics) -> dict[str, float]:
    counts = {
        result: metrics.value("muster_evictions_total", result=result)
        for result in ("evicted", "gone", "failed", "dropped", "withdrawn")
    }
    return {result: count for result, count in counts.items() if count}


async def test_each_pod_is_evicted_by_its_uid(api: FakeApi, client: KubeClient) -> None:
    async with evicting(client) as (evictor, metrics):
        evictor.evict(HALF)
        evictor.evict(HALF)  # it waits already
        await drained(evictor)
    assert results(metrics) == {"evicted": 2}
    first, second = sorted([await api.event(), await api.event()], key=_name)
    assert first == {
        "apiVersion": "policy/v1",
        "kind": "Eviction",
        "metadata": {"name": "p0", "namespace": "ns"},
        "deleteOptions": {"preconditions": {"uid": "u0"}},
    }
    assert _name(second) == "p1"
    assert api.posted.empty()


async def test_what_a_budget_refuses_for_now_is_tried_again(api: FakeApi, client: KubeClient) -> None:
    api.failing = [429]
    async with evicting(client) as (evictor, metrics):
        evictor.evict(HALF)
        await drained(evictor)
    assert sorted([_name(await api.event()) for _ in HALF.pods]) == ["p0", "p1"]
    assert results(metrics) == {"evicted": 2}


@pytest.mark.parametrize(
    ("landed", "result"), [(404, "gone"), (None, "evicted")], ids=["it is gone", "it terminates"]
)
async def test_an_eviction_that_nobody_answered_is_sent_again_soon(
    api: FakeApi, client: KubeClient, monkeypatch: pytest.MonkeyPatch, landed: int | None, result: str
) -> None:
    monkeypatch.setattr(kube, "WRITE_TIMEOUT_S", 0.05)
    api.frozen = True
    async with evicting(client) as (evictor, metrics):
        evictor.evict(Evict("ns", HALF.pods[:1], HALF.why))
        assert _name(await api.event()) == "p0"
        api.frozen, api.failing = False, [landed] if landed else []
        await drained(evictor)
    assert results(metrics) == {result: 1}


async def test_an_eviction_that_nobody_answered_is_left_out_once_its_gang_is_whole(
    api: FakeApi, client: KubeClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kube, "WRITE_TIMEOUT_S", 0.05)
    api.frozen = True
    async with evicting(client, lambda _: api.posted.empty()) as (evictor, metrics):
        evictor.evict(Evict("ns", HALF.pods[:1], HALF.why))
        await drained(evictor)
    assert results(metrics) == {"withdrawn": 1}
    assert api.posted.qsize() == 1


@pytest.mark.parametrize(
    ("codes", "result"),
    [
        ([404], "gone"),
        ([409], "gone"),
        ([422], "failed"),
        ([403] * RETRY.tries, "failed"),
        ([429] * RETRY.tries, "failed"),
    ],
    ids=["gone", "another one has its name", "refused for good", "not allowed", "a budget, for long"],
)
async def test_what_can_not_be_evicted_is_given_up_and_may_be_asked_again(
    api: FakeApi, client: KubeClient, codes: list[int], result: str
) -> None:
    eviction = Evict("ns", HALF.pods[:1], HALF.why)
    api.failing = list(codes)
    async with evicting(client) as (evictor, metrics):
        evictor.evict(eviction)
        await drained(evictor)
        assert results(metrics) == {result: 1}
        evictor.evict(eviction)
        await drained(evictor)
    assert results(metrics) == {result: 1, "evicted": 1}


async def test_a_pod_whose_gang_is_whole_when_its_turn_comes_stays(api: FakeApi, client: KubeClient) -> None:
    uids: list[str] = []

    def evicts(uid: str) -> bool:
        """u0 is made whole between its first try, which a budget refuses, and its second."""
        uids.append(uid)
        return uids.count(uid) < 2

    api.failing = [429]
    async with evicting(client, evicts) as (evictor, metrics):
        evictor.evict(Evict("ns", HALF.pods[:1], HALF.why))
        await drained(evictor)
        evictor.evict(Evict("ns", HALF.pods[1:], HALF.why))
        await drained(evictor)
    assert results(metrics) == {"withdrawn": 1, "evicted": 1}
    assert _name(await api.event()) == "p1"
    assert api.posted.empty()


async def test_10_000_evictions_of_one_namespace_do_not_delay_that_of_another(
    api: FakeApi, client: KubeClient
) -> None:
    """Nor do those that a budget refuses: they wait for their next try."""
    api.refusing["flood"] = 429
    metrics = Metrics()
    evictor = Evictor(client, metrics, lambda _: True)
    evictor.retry = Retry(first_s=60, limit_s=60)
    evictor.evict(Evict("flood", tuple((f"p{number}", f"u{number}") for number in range(10_000)), HALF.why))
    evictor.evict(Evict("quiet", (("p", "u"),), HALF.why))
    async with at_work(evictor):
        assert _name(await api.event()) == "p"
    assert api.refused <= 2 * Outbox.lanes
