"""The whole service, real Coordinator and planner, between a fake API server and a shim on its socket."""

from __future__ import annotations

import asyncio
import json
import urllib.error
import urllib.request
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest

from muster.adapters.grpc.generated.muster import v1
from muster.app import App, planning
from muster.config import Config, load
from muster.gangs.coordinator import Coordinator
from tests.adapters.fake_api import FakeApi, gpu_node, gpu_pod, kubeconfig

DEADLINE_S = 30.0


@asynccontextmanager
async def serving(api: FakeApi, folder: Path) -> AsyncIterator[tuple[App, Config]]:
    async with api.running() as port:
        config = load(
            environment={},
            flags={"kubeconfig": kubeconfig(folder, port), "socket": str(folder / "run" / "s")},
        )
        app = App(config, Coordinator(), planning(config))
        stop = asyncio.Event()
        task = asyncio.create_task(app.run(stop))
        try:
            async with asyncio.timeout(DEADLINE_S):
                while not app.web.url:
                    assert not task.done(), task
                    await asyncio.sleep(0.01)
            yield app, config
        finally:
            stop.set()
            await asyncio.wait_for(task, DEADLINE_S)


async def get(app: App, path: str) -> tuple[int, str]:
    def ask() -> tuple[int, str]:
        try:
            with urllib.request.urlopen(app.web.url + path, timeout=5) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as refusal:
            return refusal.code, refusal.read().decode()

    return await asyncio.to_thread(ask)


async def unary(channel: Any, method: str, request: Any, response: Any) -> Any:
    call = channel.unary_unary(f"/muster.v1.GangService/{method}", bytes, response.parse)
    return await call(request, timeout=DEADLINE_S)


async def test_a_pod_is_planned_and_permitted_with_its_gpus(api: FakeApi, short_folder: Path) -> None:
    api.nodes = [gpu_node("a", 4), gpu_node("b", 8)]
    api.pods = {"train": gpu_pod("train", 8)}
    async with serving(api, short_folder) as (app, _):
        async with grpc.aio.insecure_channel(app.endpoint.address) as channel:
            watch = channel.unary_stream("/muster.v1.GangService/Watch", bytes, v1.WatchResponse.parse)
            stream = watch(v1.WatchRequest(session="s"), timeout=DEADLINE_S)
            epoch = (await stream.read()).session_opened.epoch
            verdict = (await stream.read()).verdict
            assert (verdict.outcome, verdict.names) == (v1.Outcome.PLANNED, ["train"])
            plan = v1.PlanRef(epoch=epoch, gang=verdict.gang, generation=verdict.generation)
            nodes = await unary(channel, "Filter", v1.FilterRequest(plan=plan), v1.FilterResponse)
            assert nodes.nodes[nodes.candidates[0]] == "b"
            scores = await unary(channel, "Score", v1.ScoreRequest(plan=plan), v1.ScoreResponse)
            assert scores.scores[0] == 100
            claim = v1.ReserveRequest(plan=plan, member=0, node="b")
            assert (await unary(channel, "Reserve", claim, v1.ReserveResponse)).claimed
            permitted = await unary(channel, "Permit", v1.PermitRequest(plan=plan), v1.PermitResponse)
            assert permitted.allowed
            carried = dict(zip(permitted.annotation_keys, permitted.annotation_values, strict=True))
            assert json.loads(carried["gpu.topology/allocation"])["gpus"] == list(range(8))
            stale = v1.PlanRef(epoch=epoch - 1, gang=verdict.gang, generation=verdict.generation)
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await unary(channel, "Permit", v1.PermitRequest(plan=stale), v1.PermitResponse)
            assert caught.value.code() is grpc.StatusCode.FAILED_PRECONDITION
        assert (await api.event())["reason"] == "TopologyPlaced"
        _, gangs = await get(app, "/gangs")
        (gang,) = json.loads(gangs)["gangs"]
        assert (gang["name"], gang["phase"], gang["needed"]) == ("train", "permitted", 1)
        _, metrics = await get(app, "/metrics")
        assert 'muster_decision_seconds_count{outcome="placed"} 1.0' in metrics
        assert 'muster_gangs{phase="permitted"} 1.0' in metrics
    assert not app.endpoint.path.exists()


async def test_a_gang_that_does_not_fit_says_why(api: FakeApi, short_folder: Path) -> None:
    api.nodes = [gpu_node("a", 4)]
    api.pods = {"big": gpu_pod("big", 8)}
    async with (
        serving(api, short_folder) as (app, _),
        grpc.aio.insecure_channel(app.endpoint.address) as channel,
    ):
        watch = channel.unary_stream("/muster.v1.GangService/Watch", bytes, v1.WatchResponse.parse)
        stream = watch(v1.WatchRequest(session="s"), timeout=DEADLINE_S)
        await stream.read()
        assert (await stream.read()).verdict.outcome is v1.Outcome.REFUSED
        event = await api.event()
        assert (event["reason"], event["type"]) == ("TopologyUnplaceable", "Warning")
        _, gangs = await get(app, "/gangs")
        assert json.loads(gangs)["gangs"][0]["reason"] in event["message"]


async def test_nothing_is_ready_before_both_lists_are_there(api: FakeApi, short_folder: Path) -> None:
    api.nodes_may_be_listed.clear()
    async with serving(api, short_folder) as (app, _):
        await api.stream()  # pods are listed
        status, why = await get(app, "/readyz")
        assert (status, why) == (503, "waiting for the first list of nodes\n")
        assert (await get(app, "/healthz"))[0] == 200
        api.nodes_may_be_listed.set()
        await asyncio.wait_for(app.owner.synced(), DEADLINE_S)
        assert (await get(app, "/readyz"))[0] == 200
