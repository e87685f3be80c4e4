"""The whole service, real Coordinator and planner, between a fake API server and a shim on its socket."""

from __future__ import annotations

import asyncio
import json
import math
import urllib.error
import urllib.request
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, get_args

import aiohttp
import grpc
import grpc.aio
import pytest

from local_cluster.patience import HANG_S, slowness
from muster.adapters.grpc.generated.muster import v1
from muster.adapters.kube.watch import FORBIDDEN_TRIES
from muster.adapters.page.server import page_address_file
from muster.adapters.telemetry.tracing import ENDPOINTS
from muster.app import App, planners_of
from muster.config import Config
from muster.config_sources import load
from muster.gangs.coordinator import Coordinator
from muster.gangs.messages.instructions import Instruction
from tests.adapters.fake_api import FakeApi, config_map, custom, gpu_node, gpu_pod, kubeconfig
from tests.published import assert_as_published


@asynccontextmanager
async def serving(api: FakeApi, folder: Path, **settings: Any) -> AsyncIterator[tuple[App, Config]]:
    async with api.running() as port:
        config = load(
            environment={},
            flags={"kubeconfig": kubeconfig(folder, port), "socket": str(folder / "run" / "s"), **settings},
        )
        app = App(config, Coordinator(), planners_of(config))
        stop = asyncio.Event()
        task = asyncio.create_task(app.run(stop))
        try:
            async with asyncio.timeout(HANG_S):
                while not app.web.url or (config.page.port is not None and not app.page.url):
                    assert not task.done(), task
                    await asyncio.sleep(0.01)
            yield app, config
        finally:
            stop.set()
            await asyncio.wait_for(task, HANG_S)


def test_each_kind_of_instruction_is_carried_out() -> None:
    config = Config()
    app = App(config, Coordinator(config.gangs), planners_of(config))
    assert app.control_loop.carried_out_by.keys() == set(get_args(Instruction))


def test_a_note_names_the_jobs_that_may_not_be_read_and_no_other_kind() -> None:
    app = App(Config(), Coordinator(), planners_of(Config()))
    for watcher in app._watchers.values():
        watcher._absent, watcher._forbidden = True, FORBIDDEN_TRIES
    (note,) = app._notes_on_unread_jobs()
    assert "pytorchjobs.kubeflow.org" in note
    assert [name for name in app._watchers if name in note and "group" in name] == []


def test_a_note_says_that_budgets_may_not_be_read() -> None:
    app = App(Config(), Coordinator(), planners_of(Config()))
    assert app._notes_on_unread_budgets() == []
    watcher = app._watchers["poddisruptionbudgets"]
    watcher._absent, watcher._forbidden = True, FORBIDDEN_TRIES
    (note,) = app._notes_on_unread_budgets()
    assert "may not read PodDisruptionBudgets" in note


async def get(app: App, path: str) -> tuple[int, str]:
    def ask() -> tuple[int, str]:
        try:
            with urllib.request.urlopen(app.web.url + path, timeout=HANG_S) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as refusal:
            return refusal.code, refusal.read().decode()

    return await asyncio.to_thread(ask)


async def unary(channel: Any, method: str, request: Any, response: Any) -> Any:
    call = channel.unary_unary(f"/muster.v1.GangService/{method}", bytes, response.parse)
    return await call(request, timeout=HANG_S)


async def test_a_pod_is_planned_and_permitted_with_its_gpus(api: FakeApi, short_folder: Path) -> None:
    api.nodes = [gpu_node("a", 4), gpu_node("b", 8)]
    api.pods = {"train": gpu_pod("train", 8)}
    async with serving(api, short_folder) as (app, _):
        async with grpc.aio.insecure_channel(app.endpoint.address) as channel:
            watch = channel.unary_stream("/muster.v1.GangService/Watch", bytes, v1.WatchResponse.parse)
            stream = watch(v1.WatchRequest(session="s"), timeout=HANG_S)
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
        assert_as_published(json.loads(gangs), "status-v1.json")
        (note,) = json.loads(gangs)["notes"]
        assert note.startswith("on 2 of 2 nodes with GPUs containers may get other GPUs than planned")
        (gang,) = json.loads(gangs)["gangs"]
        assert (gang["name"], gang["phase"], gang["needed"]) == ("train", "permitted", 1)
        assert (gang["gpus_waiting"], gang["position"]) == (8, None)
        nodes = {node["name"]: node for node in json.loads((await get(app, "/nodes"))[1])["nodes"]}
        assert nodes["b"]["owners"] == [{"namespace": "default", "gang": "train", "gpus": 8}]
        assert nodes["a"]["owners"] == []
        _, metrics = await get(app, "/metrics")
        assert 'muster_decision_seconds_count{outcome="placed"} 1.0' in metrics
        assert 'muster_gangs{phase="permitted"} 1.0' in metrics
        assert 'muster_nodes_not_exact{why="own-choice"} 2.0' in metrics
        assert 'muster_nodes_not_exact{why="agent-away"} 0.0' in metrics
    assert not app.endpoint.path.exists()


async def test_the_page_has_an_address_of_its_own(api: FakeApi, short_folder: Path) -> None:
    api.nodes = [gpu_node("a", 4)]
    async with serving(api, short_folder) as (app, config):
        file = page_address_file(config.socket)
        assert file.read_text() == app.page.url + "\n"
        assert app.page.url != app.web.url + "/"
        async with aiohttp.ClientSession() as session, session.get(app.page.url + "api/state") as answer:
            state = await answer.json()
        assert state["totals"]["leads"] is False
    assert not file.exists()


async def test_the_page_can_be_off(api: FakeApi, short_folder: Path) -> None:
    async with serving(api, short_folder, page={"port": None}) as (app, _):
        assert app.page.url == ""


@pytest.mark.parametrize("collector", [True, False])
async def test_a_gang_that_does_not_fit_says_why(
    api: FakeApi, short_folder: Path, monkeypatch: pytest.MonkeyPatch, collector: bool
) -> None:
    if collector:
        monkeypatch.setenv(ENDPOINTS[0], "http://127.0.0.1:1")
    api.nodes = [gpu_node("a", 4)]
    api.pods = {"big": gpu_pod("big", 8)}
    async with (
        serving(api, short_folder, traces={"link": "https://traces.example/{trace_id}"}) as (app, _),
        grpc.aio.insecure_channel(app.endpoint.address) as channel,
    ):
        watch = channel.unary_stream("/muster.v1.GangService/Watch", bytes, v1.WatchResponse.parse)
        stream = watch(v1.WatchRequest(session="s"), timeout=HANG_S)
        await stream.read()
        assert (await stream.read()).verdict.outcome is v1.Outcome.REFUSED
        event = await api.event()
        assert (event["reason"], event["type"]) == ("TopologyUnplaceable", "Warning")
        _, gangs = await get(app, "/gangs")
        assert json.loads(gangs)["gangs"][0]["reason"] in event["message"]
        assert json.loads(gangs)["gangs"][0]["position"] == 1
        _, text = await get(app, "/explain?namespace=default&name=big")
        (explained,) = json.loads(text)["gangs"]
        assert explained["gang"]["causes"]
        assert [step["phase"] for step in explained["timeline"]][-1] == "unplaceable"
        link = f"https://traces.example/{explained['trace']['id']}" if collector else ""
        assert explained["trace"]["id"]
        assert explained["trace"]["link"] == link
        assert [(trace["id"], trace["link"]) for trace in explained["traces"]] == [
            (explained["trace"]["id"], link)
        ]
        assert json.loads((await get(app, "/explain"))[1])["gangs"] == []


async def test_nothing_is_ready_before_both_lists_are_there(api: FakeApi, short_folder: Path) -> None:
    api.nodes_may_be_listed.clear()
    async with serving(api, short_folder) as (app, _):
        await api.stream()  # pods are listed
        status, why = await get(app, "/readyz")
        assert status == 503
        assert why.startswith("waiting for the first list of nodes")  # and of what else is not seen yet
        assert (await get(app, "/healthz"))[0] == 200
        api.nodes_may_be_listed.set()
        await asyncio.wait_for(app.control_loop.wait_for_sync(), HANG_S)
        assert (await get(app, "/readyz"))[0] == 200


GROUPS = "/apis/scheduling.run.ai/v2/podgroups"
STATUS = "/apis/scheduling.run.ai/v2/namespaces/default/podgroups/train/status"


async def test_a_pod_group_is_planned_and_shows_how_it_stands(api: FakeApi, short_folder: Path) -> None:
    api.nodes = [gpu_node("a", 4)]
    api.pods = {}
    for name in ("w-0", "w-1"):
        api.pods[name] = gpu_pod(name, 2)
        api.pods[name]["metadata"]["annotations"] = {"scheduling.run.ai/pod-group": "train"}
    spec = {"minMember": 2, "queue": "training", "topologyPolicy": {"scope": "node"}}
    api.served[GROUPS] = [custom("scheduling.run.ai/v2", "PodGroup", "train", spec)]
    unhealthy = config_map("kube-system", "unhealthy-gpu-a", {"gpus": "3"})
    api.served["/api/v1/namespaces/kube-system/configmaps"] = [unhealthy]
    async with (
        serving(api, short_folder) as (app, _),
        grpc.aio.insecure_channel(app.endpoint.address) as channel,
    ):
        watch = channel.unary_stream("/muster.v1.GangService/Watch", bytes, v1.WatchResponse.parse)
        stream = watch(v1.WatchRequest(session="s"), timeout=HANG_S)
        await stream.read()
        assert (await stream.read()).verdict.outcome is v1.Outcome.REFUSED
        events = [await api.event() for _ in range(2)]
        assert {event["involvedObject"]["kind"] for event in events} == {"Pod", "PodGroup"}
        assert {event["reason"] for event in events} == {"TopologyUnplaceable"}
        path, body = await api.patch()
        while body["status"]["phase"] == "Collecting":  # the service may say so before it has asked
            path, body = await api.patch()
        assert (path, body["status"]["phase"]) == (STATUS, "Unplaceable")
        changes = await api.stream_of("/api/v1/namespaces/kube-system/configmaps")
        changes.event("DELETED", unhealthy | {"metadata": unhealthy["metadata"] | {"resourceVersion": "2"}})
        assert (await stream.read()).verdict.outcome is v1.Outcome.PLANNED
        path, body = await api.patch()
        assert (path, body["status"]["phase"], body["status"]["present"]) == (STATUS, "Planning", 2)
        _, gangs = await get(app, "/gangs")
        assert json.loads(gangs)["gangs"][0]["queue"] == "training"
        assert 'muster_queue_gangs{queue="training"} 1.0' in (await get(app, "/metrics"))[1]


async def test_what_a_config_map_says_is_waited_for(api: FakeApi, short_folder: Path) -> None:
    """A plan that is made before the service knows the unhealthy GPUs would use them."""
    path = "/api/v1/namespaces/kube-system/configmaps"
    api.held.add(path)
    async with serving(api, short_folder) as (app, _):
        await api.stream()  # pods are listed
        while "nodes" in (why := (await get(app, "/readyz"))[1]).split():  # noqa: ASYNC110 - over HTTP
            await asyncio.sleep(0.01)
        assert why.startswith("waiting for the first list of configmaps kube-system")
        api.held.clear()
        await asyncio.wait_for(app.control_loop.wait_for_sync(), HANG_S)


async def test_a_gang_that_no_planner_could_decide_is_ended_and_the_others_are_planned(
    api: FakeApi, short_folder: Path
) -> None:
    """450 pods of 450 roles: minutes of work, and gigabytes."""
    api.nodes = [gpu_node(f"n{number:03}", 8) for number in range(100)]
    api.pods = {}
    for number in range(450):
        hog = api.pods[f"hog-{number:03}"] = gpu_pod(f"hog-{number:03}", 1)
        hog["metadata"]["labels"] = {
            "gpu-topology": "hog",
            "gpu-topology-replica": "450",
        }
        hog["spec"]["containers"][0]["resources"]["requests"] = {"cpu": f"{1000 + number}m"}
    limit_s = 0.5 * math.ceil(slowness())
    limits = {"planner.time_limit_s": limit_s, "planner.most_roles": 1000}
    async with (
        serving(api, short_folder, **limits) as (app, _),
        grpc.aio.insecure_channel(app.endpoint.address) as channel,
    ):
        watch = channel.unary_stream("/muster.v1.GangService/Watch", bytes, v1.WatchResponse.parse)
        stream = watch(v1.WatchRequest(session="s"), timeout=HANG_S)
        await stream.read()
        refused = (await stream.read()).verdict
        assert refused.outcome is v1.Outcome.REFUSED
        assert refused.reason.startswith(f"Not decided: the planner was ended after {limit_s} s")
        pods = await api.stream()
        pods.event("ADDED", gpu_pod("late", 8))
        while (verdict := (await stream.read()).verdict).names != ["late"]:
            assert verdict.outcome is v1.Outcome.REFUSED
        assert verdict.outcome is v1.Outcome.PLANNED
        assert (await get(app, "/readyz"))[0] == 200
        assert 'muster_decision_seconds_count{outcome="ended"}' in (await get(app, "/metrics"))[1]
