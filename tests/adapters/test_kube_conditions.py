"""The condition of pods that wait for members: what differs is written, at a rate, and nothing else."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from local_cluster.patience import HANG_S
from muster.adapters.kube import decode, writers
from muster.adapters.kube.client import KubeClient
from muster.adapters.kube.writers import CONDITION, ConditionWriter
from muster.adapters.telemetry.metrics import Metrics
from muster.config import Rates
from muster.gangs.messages.instructions import ShowWaiting
from tests.adapters.at_work import at_work
from tests.adapters.changes import seen
from tests.adapters.fake_api import FakeApi, pod

FAST = Rates(
    queue=1_000,
    per_s=1_000.0,
    burst=1_000,
    namespace_queue=1_000,
    namespace_per_s=1_000.0,
    namespace_burst=1_000,
)
WAITS = ("MembersMissing", "Waiting for 1 more member: 1 of 2 are here.")


class Desk:
    """A writer, the instructions for it, and what the watch shows it."""

    def __init__(self, writer: ConditionWriter, metrics: Metrics) -> None:
        self.writer, self.metrics = writer, metrics

    def show(
        self, *names: str, condition: tuple[str, str] = WAITS, renew: bool = True, ns: str = "default"
    ) -> None:
        pods = tuple((name, f"uid-{name}") for name in names)
        self.writer.show(ShowWaiting(ns, pods, *condition, renew=renew))

    def see(
        self, name: str, shown: tuple[str, str] | None = None, node: str = "", status: str = "True"
    ) -> None:
        item = pod(name)
        if shown is not None:
            condition = {"type": CONDITION, "status": status, "reason": shown[0], "message": shown[1]}
            item["status"]["conditions"] = [condition]
        if node:
            item["spec"]["nodeName"] = node
        self.writer.see(*seen(decode.pods().item(json.dumps(item).encode())))

    async def written(self, times: int = 1) -> None:
        async with asyncio.timeout(HANG_S):
            while self.metrics.value("muster_pod_conditions_total", result="written") < times:  # noqa: ASYNC110 - a metric
                await asyncio.sleep(0.01)


@asynccontextmanager
async def writing(client: KubeClient, leads: bool = True, rates: Rates = FAST) -> AsyncIterator[Desk]:
    metrics = Metrics()
    writer = ConditionWriter(client, metrics, lambda: leads, rates)
    async with at_work(writer):
        yield Desk(writer, metrics)


def said_in(body: dict[str, Any]) -> tuple[str, str, str]:
    (condition,) = body["status"]["conditions"]
    assert condition["type"] == CONDITION
    return condition["status"], condition["reason"], condition["message"]


async def test_a_pod_is_told_once_what_its_gang_waits_for(api: FakeApi, client: KubeClient) -> None:
    async with writing(client) as desk:
        desk.show("a")
        path, body = await api.patch()
        assert path == "/api/v1/namespaces/default/pods/a/status"
        assert body["metadata"] == {"uid": "uid-a"}
        assert said_in(body) == ("True", *WAITS)
        assert "lastTransitionTime" in body["status"]["conditions"][0]
        await desk.written()
        desk.see("a", WAITS)
        desk.show("a")
        desk.show("b")
        path, _ = await api.patch()
        assert path.endswith("/b/status"), "a shows it already"


async def test_numbers_that_change_keep_the_time_since_when(api: FakeApi, client: KubeClient) -> None:
    async with writing(client) as desk:
        desk.see("a", WAITS)
        desk.show("a", condition=("MembersMissing", "others"))
        _, body = await api.patch()
        assert said_in(body) == ("True", "MembersMissing", "others")
        assert "lastTransitionTime" not in body["status"]["conditions"][0]


async def test_pods_that_say_something_are_left_alone_unless_renewed(
    api: FakeApi, client: KubeClient
) -> None:
    async with writing(client) as desk:
        desk.show("a")
        await api.patch()
        desk.show("a", "b", condition=("MembersMissing", "others"), renew=False)
        path, body = await api.patch()
        assert path.endswith("/b/status")
        assert said_in(body)[2] == "others"


async def test_it_is_false_once_the_gang_waits_for_no_member(api: FakeApi, client: KubeClient) -> None:
    async with writing(client) as desk:
        desk.see("a", WAITS)
        desk.show("a", "never-told", condition=("", ""))
        _, body = await api.patch()
        assert said_in(body) == ("False", *writers.COMPLETE)
        await desk.written()
        desk.see("a", writers.COMPLETE, status="False")
        desk.show("b")
        path, _ = await api.patch()
        assert path.endswith("/b/status"), "nothing is written on a pod that said nothing"


async def test_what_a_bound_pod_says_is_taken_back(api: FakeApi, client: KubeClient) -> None:
    """Also if a service before this one said it."""
    async with writing(client) as desk:
        desk.see("a", WAITS, node="n")
        _, body = await api.patch()
        assert said_in(body)[0] == "False"


async def test_a_write_that_was_overtaken_is_made_up_for(api: FakeApi, client: KubeClient) -> None:
    async with writing(client) as desk:
        desk.show("a")
        await api.patch()
        desk.show("a", condition=("", ""))
        desk.see("a", WAITS)  # the first write, seen only now
        _, body = await api.patch()
        assert said_in(body)[0] == "False"


async def test_a_standby_writes_nothing(api: FakeApi, client: KubeClient) -> None:
    async with writing(client, leads=False) as standby, writing(client) as leader:
        standby.see("a", WAITS, node="n")
        standby.writer.see("uid-a", None)
        leader.show("b")
        path, _ = await api.patch()
        assert path.endswith("/b/status")


async def test_what_still_waits_is_not_written_once_another_service_leads(
    api: FakeApi, client: KubeClient
) -> None:
    leads, metrics = [True], Metrics()
    slow = FAST.model_copy(update={"namespace_per_s": 20.0, "namespace_burst": 1})
    writer = ConditionWriter(client, metrics, lambda: leads[0], slow)
    async with at_work(writer):
        desk = Desk(writer, metrics)
        desk.show("a", "b")
        path, _ = await api.patch()
        assert path.endswith("/a/status")
        leads[0] = False
        await asyncio.wait_for(writer.until_empty(), HANG_S)
        assert api.patched.empty()
        leads[0] = True
        desk.see("c")
        path, _ = await api.patch()
        assert path.endswith("/b/status"), "the leader says what is still to be said"


async def test_pods_that_are_gone_before_the_gangs_know_it_are_forgotten(
    api: FakeApi, client: KubeClient
) -> None:
    few = FAST.model_copy(update={"namespace_queue": 2, "namespace_burst": 10})
    async with writing(client, rates=few) as desk:
        api.failing = [404, 404]
        for name in ("a", "b", "c"):
            desk.writer.see(f"uid-{name}", None)
        desk.show("a", "b", "c")
        await asyncio.wait_for(desk.writer.until_empty(), HANG_S)
        assert desk.writer.pod_count == 0


async def test_a_pod_that_is_gone_is_no_failure(api: FakeApi, client: KubeClient) -> None:
    async with writing(client) as desk:
        api.failing = [409]
        desk.show("a")
        desk.show("b")
        await api.patch()
        assert desk.metrics.value("muster_pod_conditions_total", result="gone") == 1
        assert desk.metrics.value("muster_pod_conditions_total", result="failed") == 0


async def test_a_namespace_that_floods_delays_itself_alone(api: FakeApi, client: KubeClient) -> None:
    slow = FAST.model_copy(update={"namespace_queue": 100, "namespace_per_s": 0.01, "namespace_burst": 2})
    async with writing(client, rates=slow) as desk:
        desk.show(*(f"p{number}" for number in range(500)), ns="flood")
        desk.show("a", ns="other")
        paths = [(await api.patch())[0] for _ in range(3)]
        assert sum("/flood/" in path for path in paths) == 2, "its burst"
        assert "/api/v1/namespaces/other/pods/a/status" in paths
        assert desk.metrics.value("muster_pod_conditions_total", result="dropped") == 400
        assert api.patched.empty()
