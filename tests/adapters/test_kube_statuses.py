"""Statuses of PodGroups: the last one counts, nothing but a refusal loses it, and only v2 is written."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from structlog.testing import capture_logs

from local_cluster.patience import HANG_S
from muster.adapters.kube import client as kube
from muster.adapters.kube.client import KubeClient
from muster.adapters.kube.outbox import Outbox, Retry
from muster.adapters.kube.writers import MAX_STATUSES, StatusWriter
from muster.adapters.telemetry.metrics import Metrics
from muster.domain.podgroup import SCHEDULED, Condition, PodGroupStatus
from muster.gangs.messages.instructions import WriteStatus
from tests.adapters.at_work import at_work
from tests.adapters.fake_api import FakeApi

PATH = "/apis/scheduling.run.ai/v2/namespaces/ns/podgroups/train/status"


def running(count: int) -> WriteStatus:
    status = PodGroupStatus("Running", needed=2, present=2, placed=2, running=count, domain="node a")
    return WriteStatus("ns", "train", "u", status)


@asynccontextmanager
async def writing(client: KubeClient) -> AsyncIterator[tuple[StatusWriter, Metrics]]:
    metrics = Metrics()
    writer = StatusWriter(client, metrics)
    async with at_work(writer):
        yield writer, metrics


async def until(metrics: Metrics, result: str) -> None:
    async with asyncio.timeout(HANG_S):
        while not metrics.value("muster_podgroup_statuses_total", result=result):  # noqa: ASYNC110 - a metric
            await asyncio.sleep(0.01)


async def test_all_that_kubectl_shows_is_in_one_patch(api: FakeApi, client: KubeClient) -> None:
    async with writing(client) as (writer, metrics):
        writer.write(running(1))
        path, body = await api.patch()
        await until(metrics, "written")
    assert path == PATH
    assert list(body) == ["status"]
    conditions = body["status"].pop("conditions")
    assert body["status"] == {
        "phase": "Running",
        "needed": 2,
        "present": 2,
        "placed": 2,
        "running": 1,
        "domain": "node a",
        "reason": None,
    }
    assert [(condition["type"], condition["status"]) for condition in conditions] == [
        ("Complete", "True"),
        ("Placed", "True"),
    ]


async def test_control_characters_are_escaped(api: FakeApi, client: KubeClient) -> None:
    status = PodGroupStatus("unplaceable", 2, domain="\x1b[1A", reason="a\nb\ud800")
    async with writing(client) as (writer, _):
        writer.write(WriteStatus("default", "train", "u", status))
        _, body = await api.patch()
    assert (body["status"]["domain"], body["status"]["reason"]) == (r"\x1b[1A", r"a\nb\ud800")
    assert r"a\nb\ud800" in [condition["message"] for condition in body["status"]["conditions"]]


async def test_what_comes_during_an_outage_replaces_what_waits(api: FakeApi, client: KubeClient) -> None:
    api.failing = [503]
    async with writing(client) as (writer, _):
        writer.write(running(0))
        async with asyncio.timeout(HANG_S):
            while api.failing:  # noqa: ASYNC110 - the server says nothing of a refusal
                await asyncio.sleep(0.01)
        writer.write(running(1))
        writer.write(running(2))
        _, body = await api.patch()
        assert body["status"]["running"] == 2
        assert api.patched.empty()


async def test_a_frozen_server_does_not_keep_the_next_status_waiting_for_long(
    api: FakeApi, client: KubeClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kube, "WRITE_TIMEOUT_S", 0.05)
    api.frozen = True
    async with writing(client) as (writer, _):
        writer.write(running(0))
        await api.patch()
        api.frozen = False
        writer.write(running(1))
        _, body = await api.patch()
    assert body["status"]["running"] == 1


async def test_a_refusal_for_good_is_let_go(api: FakeApi, client: KubeClient) -> None:
    api.failing = [404]
    async with writing(client) as (writer, metrics):
        writer.write(running(0))
        await until(metrics, "failed")
        writer.write(running(1))
        _, body = await api.patch()
        assert body["status"]["running"] == 1


async def test_a_condition_keeps_its_time_while_it_holds(api: FakeApi, client: KubeClient) -> None:
    async with writing(client) as (writer, _):
        times = []
        for count in (1, 2):
            writer.write(running(count))
            _, body = await api.patch()
            times.append([condition["lastTransitionTime"] for condition in body["status"]["conditions"]])
        assert times[0] == times[1]


NATIVE_API = "scheduling.k8s.io/v1beta1"


def waiting(message: str, since: str = "") -> WriteStatus:
    condition = Condition(SCHEDULED, False, "Unschedulable", message, since)
    return WriteStatus("ns", "train", "u", condition, NATIVE_API, generation=4)


async def test_of_kubernetes_own_podgroups_one_condition_is_patched(api: FakeApi, client: KubeClient) -> None:
    async with writing(client) as (writer, metrics):
        writer.write(waiting("No\nroom."))
        path, body = await api.patch()
        await until(metrics, "written")
    assert path == f"/apis/{NATIVE_API}/namespaces/ns/podgroups/train/status"
    assert api.patch_types == ["application/strategic-merge-patch+json"]
    (condition,) = body["status"].pop("conditions")
    assert body == {"metadata": {"uid": "u"}, "status": {}}
    assert condition.pop("lastTransitionTime")
    assert condition == {
        "type": "PodGroupInitiallyScheduled",
        "status": "False",
        "reason": "Unschedulable",
        "message": r"No\nroom.",
        "observedGeneration": 4,
    }


async def test_the_time_that_the_object_shows_is_kept(api: FakeApi, client: KubeClient) -> None:
    since = "2020-01-01T00:00:00Z"
    async with writing(client) as (writer, _):
        writer.write(waiting("Less room.", since))
        _, first = await api.patch()
        writer.write(waiting("No room."))
        _, second = await api.patch()
        writer.write(WriteStatus("ns", "train", "u", Condition(SCHEDULED, True, "Scheduled"), NATIVE_API))
        _, third = await api.patch()
    times = [body["status"]["conditions"][0]["lastTransitionTime"] for body in (first, second, third)]
    assert times[:2] == [since, since]
    assert times[2] > since


@pytest.mark.parametrize("status", [404, 409, 422])
async def test_a_condition_that_is_refused_for_good_is_tried_once(
    api: FakeApi, client: KubeClient, status: int
) -> None:
    api.failing = [status]
    async with writing(client) as (writer, metrics):
        writer.write(waiting("No room."))
        await until(metrics, "failed")
        await writer.until_empty()
    assert api.patched.empty()


async def test_a_condition_that_is_refused_for_now_is_tried_again(api: FakeApi, client: KubeClient) -> None:
    api.failing = [403, 429]
    async with writing(client) as (writer, metrics):
        writer.write(waiting("No room."))
        await api.patch()
        await until(metrics, "written")
    assert not api.failing


async def test_a_missing_right_is_logged_at_the_first_refusal_once_for_each_api(
    api: FakeApi, client: KubeClient
) -> None:
    api.failing = [403, 403]
    with capture_logs() as lines:
        async with writing(client) as (writer, metrics):
            writer.write(waiting("No room."))
            await until(metrics, "written")
            api.failing = [403]
            writer.write(running(0))
            writer.write(waiting("Less room."))
            await writer.until_empty()
    rights = [line["right"] for line in lines if line["log_level"] == "warning"]
    apis = (NATIVE_API, "scheduling.run.ai/v2")
    assert rights == [f"patch podgroups/status of {version}" for version in apis]


async def test_a_missing_right_is_given_up_in_the_end(
    api: FakeApi, client: KubeClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(StatusWriter, "retry", Retry(tries=StatusWriter.retry.tries, first_s=0, limit_s=0))
    api.failing = StatusWriter.retry.tries * [403]
    async with writing(client) as (writer, metrics):
        writer.write(waiting("No room."))
        await until(metrics, "failed")
    assert api.failing == []
    assert api.patched.empty()


async def test_podgroups_of_two_apis_with_one_name_are_two_objects(api: FakeApi, client: KubeClient) -> None:
    metrics = Metrics()
    writer = StatusWriter(client, metrics)
    writer.write(running(1))
    writer.write(waiting("No room."))
    async with at_work(writer):
        paths = {(await api.patch())[0] for _ in range(2)}
    assert len(paths) == 2


async def test_10_000_statuses_of_one_namespace_do_not_delay_that_of_another(
    api: FakeApi, client: KubeClient
) -> None:
    metrics = Metrics()
    writer = StatusWriter(client, metrics)
    status = running(1).status
    for number in range(MAX_STATUSES + 1):
        writer.write(WriteStatus("flood", f"train-{number}", f"u{number}", status))
    assert metrics.value("muster_podgroup_statuses_total", result="dropped") == 1
    writer.write(WriteStatus("quiet", "train", "u", status))
    assert metrics.value("muster_podgroup_statuses_total", result="dropped") == 2, "one of the flood"
    async with at_work(writer):
        paths = [(await api.patch())[0] for _ in range(2 * Outbox.lanes)]
    assert any("/quiet/" in path for path in paths)
