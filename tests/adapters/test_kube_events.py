"""Kubernetes events: bounded, limited, said once, and never in the way."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from local_cluster.patience import HANG_S
from muster.adapters.kube import client as kube
from muster.adapters.kube.client import KubeClient
from muster.adapters.kube.outbox import Retry
from muster.adapters.kube.writers import MESSAGE_LIMIT, EventPoster
from muster.adapters.telemetry.metrics import Metrics
from muster.config import Events
from muster.gangs.messages.instructions import EmitEvent, EventReason
from tests.adapters.at_work import at_work
from tests.adapters.fake_api import FakeApi

DEFAULTS = Events()


def waiting(*pods: str, message: str = "1 of 2 members are there") -> EmitEvent:
    return EmitEvent("default", tuple((pod, f"uid-{pod}") for pod in pods), EventReason.WAITING, message)


def placed(*pods: str) -> EmitEvent:
    return EmitEvent(
        "default", tuple((pod, f"uid-{pod}") for pod in pods), EventReason.PLACED, "placed on node a"
    )


def unplaceable(pod: str, message: str) -> EmitEvent:
    return EmitEvent("default", ((pod, f"uid-{pod}"),), EventReason.UNPLACEABLE, message)


@asynccontextmanager
async def posting(
    client: KubeClient, settings: Events = DEFAULTS
) -> AsyncIterator[tuple[EventPoster, Metrics]]:
    metrics = Metrics()
    poster = EventPoster(client, metrics, "host-1", settings)
    poster.retry = Retry(first_s=0.001, limit_s=0.002)
    async with at_work(poster):
        yield poster, metrics


async def drained(poster: EventPoster) -> None:
    await asyncio.wait_for(poster.until_empty(), HANG_S)


def _name(body: dict[str, Any]) -> str:
    return str(body["involvedObject"]["name"])


def results(metrics: Metrics) -> dict[str, float]:
    names = ("posted", "dropped", "failed", "repeated")
    return {name: metrics.value("muster_events_total", result=name) for name in names}


async def test_one_event_on_each_pod_with_all_that_kubectl_shows(api: FakeApi, client: KubeClient) -> None:
    async with posting(client) as (poster, _):
        poster.emit(waiting("a", "b"))
        first, second = sorted([await api.event(), await api.event()], key=_name)
    assert [body["involvedObject"]["name"] for body in (first, second)] == ["a", "b"]
    assert first["involvedObject"] == {
        "apiVersion": "v1",
        "kind": "Pod",
        "namespace": "default",
        "name": "a",
        "uid": "uid-a",
    }
    assert first["reason"] == "TopologyWaiting"
    assert first["type"] == "Normal"
    assert first["source"] == {"component": "muster"}
    assert first["reportingComponent"] == "muster"
    assert first["reportingInstance"] == "host-1"
    assert first["metadata"]["name"] != second["metadata"]["name"]


async def test_what_needs_a_look_is_a_warning(api: FakeApi, client: KubeClient) -> None:
    async with posting(client) as (poster, _):
        poster.emit(unplaceable("a", "x"))
        assert (await api.event())["type"] == "Warning"


async def test_the_same_state_is_said_once_and_a_change_back_again(api: FakeApi, client: KubeClient) -> None:
    async with posting(client) as (poster, metrics):
        for instruction in (waiting("a"), waiting("a"), placed("a"), waiting("a")):
            poster.emit(instruction)
        await drained(poster)
    reasons = [api.posted.get_nowait()["reason"] for _ in range(api.posted.qsize())]
    assert reasons == ["TopologyWaiting", "TopologyPlaced", "TopologyWaiting"]
    assert results(metrics)["repeated"] == 1


async def test_a_full_queue_drops_and_counts(client: KubeClient) -> None:
    poster = EventPoster(client, metrics := Metrics(), "host-1", Events(queue=3))
    poster.emit(waiting(*(f"pod-{number}" for number in range(10))))
    assert results(metrics)["dropped"] == 7


async def test_what_was_dropped_is_said_when_it_comes_again(api: FakeApi, client: KubeClient) -> None:
    async with posting(client, Events(queue=1)) as (poster, metrics):
        poster.emit(waiting("a", "b"))
        await drained(poster)
        poster.emit(waiting("b"))
        await drained(poster)
    assert [_name(api.posted.get_nowait()) for _ in range(2)] == ["a", "b"]
    assert results(metrics) == {"posted": 2, "dropped": 1, "failed": 0, "repeated": 0}


async def test_the_rate_is_limited(api: FakeApi, client: KubeClient) -> None:
    loop = asyncio.get_running_loop()
    async with posting(client, Events(per_s=100, burst=1)) as (poster, _):
        began = loop.time()
        poster.emit(waiting(*(f"pod-{number}" for number in range(11))))
        await drained(poster)
        assert loop.time() - began >= 0.09
    assert api.posted.qsize() == 11


def of_gang(namespace: str, pod: str) -> EmitEvent:
    return EmitEvent(namespace, ((pod, f"uid-{namespace}-{pod}"),), EventReason.UNPLACEABLE, "no room")


async def test_a_namespace_that_floods_delays_and_drops_its_own_events_alone(
    api: FakeApi, client: KubeClient
) -> None:
    """Nothing of the flood's rest can be posted while the test runs: its budget is two events."""
    settings = Events(queue=100, namespace_queue=80, namespace_per_s=1e-6, namespace_burst=2)
    async with posting(client, settings) as (poster, metrics):
        for number in range(4000):
            poster.emit(of_gang("flood", f"pod-{number}"))
        for number in range(15):
            poster.emit(of_gang(f"quiet-{number}", "a"))
            poster.emit(of_gang(f"quiet-{number}", "b"))
        events = [await api.event() for _ in range(32)]
    of = [str(event["metadata"]["namespace"]) for event in events]
    assert of.count("flood") == 2
    assert len({name for name in of if name != "flood"}) == 15
    # the flood gave way: 10 of its events for those that found the queue full
    assert results(metrics) == {"posted": 32, "dropped": 4000 - 80 + 10, "failed": 0, "repeated": 0}


async def test_a_namespace_that_refuses_events_holds_up_itself_alone(
    api: FakeApi, client: KubeClient
) -> None:
    """As one does whose quota of events is used up: each of its events is tried again for long."""
    api.refusing["full"] = 403
    metrics = Metrics()
    poster = EventPoster(client, metrics, "host-1", Events(burst=1000))
    poster.retry = Retry(first_s=60, limit_s=60)
    async with at_work(poster):
        for number in range(400):
            poster.emit(of_gang("full", f"pod-{number}"))
        poster.emit(of_gang("other", "a"))
        while (await api.event())["metadata"]["namespace"] != "other":
            pass
    assert results(metrics)["dropped"] == 0


async def test_events_on_nodes_have_a_budget_of_their_own(api: FakeApi, client: KubeClient) -> None:
    settings = Events(namespace_per_s=1e-6, namespace_burst=1)
    async with posting(client, settings) as (poster, _):
        for pod in "abc":
            poster.emit(of_gang("default", pod))
        poster.emit(EmitEvent("default", (("n", "n"),), EventReason.INVALID, "broken", "Node"))
        kinds = [(await api.event())["involvedObject"]["kind"] for _ in range(2)]
    assert sorted(kinds) == ["Node", "Pod"]


@pytest.mark.parametrize("name", ["train", "Train_1", "a/../b", "-", "x" * 300])
async def test_a_controller_may_have_any_name(api: FakeApi, client: KubeClient, name: str) -> None:
    """An ownerReference may name what no object can be called; the event's own name must be one."""
    emit = EmitEvent("default", ((name, "u"),), EventReason.PLACED, "placed", "Job", "batch/v1")
    async with posting(client) as (poster, _):
        poster.emit(emit)
        event = await api.event()
    assert event["involvedObject"] == {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "namespace": "default",
        "name": name,
        "uid": "u",
    }
    assert re.fullmatch(r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?", event["metadata"]["name"])


@pytest.mark.parametrize("code", [403, 503], ids=["it does not know our rights yet", "it is not ready"])
async def test_what_an_api_server_says_that_has_just_started_is_no_refusal(
    api: FakeApi, client: KubeClient, code: int
) -> None:
    api.failing = [code]
    async with posting(client) as (poster, metrics):
        poster.emit(waiting("a"))
        await api.event()
        await drained(poster)
    assert results(metrics) == {"posted": 1, "dropped": 0, "failed": 0, "repeated": 0}


async def test_a_try_whose_answer_was_lost_is_no_second_event(api: FakeApi, client: KubeClient) -> None:
    api.answerless = 1
    async with posting(client) as (poster, metrics):
        poster.emit(waiting("a"))
        await drained(poster)
    first, again = await api.event(), await api.event()
    assert first["metadata"]["name"] == again["metadata"]["name"]
    api.failing = [409]  # as a server says that keeps them
    async with posting(client) as (poster, metrics):
        poster.emit(waiting("a"))
        await drained(poster)
    assert results(metrics)["posted"] == 1


async def test_a_frozen_server_is_asked_again_soon_and_has_one_event(
    api: FakeApi, client: KubeClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kube, "WRITE_TIMEOUT_S", 0.05)
    api.frozen = True
    async with posting(client) as (poster, metrics):
        poster.emit(waiting("a"))
        first, again = await api.event(), await api.event()
        assert results(metrics)["posted"] == 0
        api.frozen = False
        api.failing = [409]
        await drained(poster)
    assert first["metadata"]["name"] == again["metadata"]["name"]
    assert results(metrics)["posted"] == 1


@pytest.mark.parametrize("code", [404, 422])
async def test_a_lasting_refusal_loses_that_event_alone(api: FakeApi, client: KubeClient, code: int) -> None:
    api.failing = [code]
    async with posting(client) as (poster, metrics):
        poster.emit(waiting("a", "b"))
        await drained(poster)
    assert api.posted.qsize() == 1
    assert results(metrics) == {"posted": 1, "dropped": 0, "failed": 1, "repeated": 0}


async def test_an_event_that_is_never_answered_is_given_up_while_others_are_posted(
    api: FakeApi, client: KubeClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kube, "WRITE_TIMEOUT_S", 0.1)
    api.never_answered = {"poison"}

    async def asks() -> None:
        while True:
            await client.get("health", "/livez")

    async with posting(client) as (poster, metrics):
        asking = asyncio.create_task(asks())
        poster.emit(waiting("poison", "well"))
        await drained(poster)
        asking.cancel()
    assert results(metrics) == {"posted": 1, "dropped": 0, "failed": 1, "repeated": 0}


async def test_control_characters_are_escaped(api: FakeApi, client: KubeClient) -> None:
    async with posting(client) as (poster, _):
        poster.emit(unplaceable("a", "is \x1b[2J\nfine \ud800\0"))
        assert (await api.event())["message"] == r"is \x1b[2J\nfine \ud800\x00"


async def test_a_long_message_is_cut_to_what_the_api_takes(api: FakeApi, client: KubeClient) -> None:
    async with posting(client) as (poster, _):
        poster.emit(unplaceable("a", "é" * 2000))
        message = (await api.event())["message"]
    assert len(message.encode()) <= MESSAGE_LIMIT
    assert message.endswith("é…")
