"""No object ends the service, and none of those that were bound is forgotten."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import msgspec
import pytest

from local_cluster.patience import HANG_S
from muster.adapters.grpc.generated.muster import v1
from muster.adapters.kube import decode, watch
from muster.adapters.kube.client import KubeClient
from muster.adapters.kube.decode import ObjectChange, Resource, Undecodable
from muster.adapters.kube.intake import Intake
from muster.adapters.kube.leftout import LeftOutObjects
from muster.adapters.kube.watch import Watcher
from muster.adapters.telemetry.metrics import Metrics
from muster.app import App, planners_of
from muster.config import Watch
from muster.config_sources import load
from muster.dialects.pods import pods
from muster.dialects.settings import DialectSettings
from muster.domain.pod import Pod
from muster.gangs.coordinator import Coordinator
from muster.gangs.messages.inputs import Input, PodGone, PodSeen
from muster.gangs.messages.instructions import EmitEvent
from tests.adapters.at_work import at_work
from tests.adapters.changes import seen
from tests.adapters.fake_api import (
    FakeApi,
    Stream,
    config_map,
    custom,
    gpu_node,
    gpu_pod,
    kubeconfig,
    pod,
    with_texts,
)

GROUPS = "/apis/scheduling.run.ai/v2/podgroups"
QUICK = Watch(page_size=8, backoff_first_s=0.01, backoff_limit_s=0.05)
HALF = '"' + r"\ud800" * 3 + '"'


def deep(depth: int) -> str:
    return '{"f:a":' * depth + "1" + "}" * depth


TEXTS = {
    "800 levels": deep(800),
    "1,200 levels": deep(1_200),
    "9,000 levels": deep(9_000),
    "9,000 levels of lists": "[" * 9_000 + "]" * 9_000,
    "half a pair": HALF,
    "a key of half a pair": f"{{{HALF}:1}}",
    "a number beyond all": "1e999999",
    "a long number": "9" * 100_000,
    "a long text": json.dumps("x" * 1_500_000),
    "100,000 keys": json.dumps({f"k{number}": number for number in range(100_000)}),
}
"""JSON in a field that Muster does not read."""


def _with(item: dict[str, Any], text: str) -> bytes:
    """An event of the object, with JSON text in its managedFields."""
    item["metadata"]["managedFields"] = ["TEXT"]
    return with_texts({"type": "MODIFIED", "object": item}, {"TEXT": text}).encode()


GROUP = custom("scheduling.run.ai/v2", "PodGroup", "g", {"minMember": 2})
KINDS: dict[str, tuple[Resource[Any], dict[str, Any]]] = {
    "pod": (decode.pods(), gpu_pod("a", 2)),
    "node": (decode.NODES, gpu_node("a", 2)),
    "ConfigMap": (decode.config_maps("kube-system"), config_map("kube-system", "a", {"gpus": "0"})),
    "PodGroup": (decode.pod_groups()[0], GROUP),
    "Topology": (decode.TOPOLOGIES, custom("kai.scheduler/v1alpha1", "Topology", "t", {"levels": []})),
}


@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize("kind", KINDS)
def test_what_is_needed_is_read_beside_anything(kind: str, text: str) -> None:
    resource, item = KINDS[kind]
    plain = json.dumps({"type": "MODIFIED", "object": item}).encode()
    assert resource.event(_with(item, TEXTS[text])) == resource.event(plain)


@pytest.mark.parametrize("text", TEXTS)
def test_one_object_of_a_list_does_not_spoil_the_others(text: str) -> None:
    items = [gpu_pod("a", 1), {**gpu_pod("b", 2), "extra": "TEXT"}, gpu_pod("c", 3)]
    body = with_texts({"metadata": {"resourceVersion": "7"}, "items": items}, {"TEXT": TEXTS[text]})
    page = decode.pods().page(body.encode())
    assert [item.metadata.name for item in page.items] == ["a", "b", "c"]
    assert (page.version, page.unreadable) == ("7", ())


@pytest.mark.parametrize("field", ["spec", "status"])
def test_a_custom_object_that_is_too_large_to_keep_is_left_out_by_name(field: str) -> None:
    item = custom("scheduling.run.ai/v2", "PodGroup", "large", {"minMember": 2})
    item.setdefault(field, {})["x"] = "x" * 300_000
    with pytest.raises(
        Undecodable, match=r"default/large: spec and status have more than 262,144 bytes"
    ) as problem:
        decode.pod_groups()[0].event(json.dumps({"type": "ADDED", "object": item}).encode())
    assert problem.value.key == "uid-large"


@pytest.mark.parametrize("depth", [800, 9_000])
def test_a_deep_spec_of_a_custom_object_can_be_read_and_compared(depth: int) -> None:
    """msgspec reads 900 levels. Neither == nor the encoder can handle the result."""
    item = custom("scheduling.run.ai/v2", "PodGroup", "g", {"minMember": 2, "x": "TEXT"})
    line = with_texts({"type": "ADDED", "object": item}, {"TEXT": deep(depth)}).encode()
    first, second = (decode.pod_groups()[0].event(line) for _ in range(2))
    assert first == second
    assert isinstance(first, ObjectChange)
    assert first.object is not None
    assert msgspec.json.encode(first.object.spec).startswith(b'{"minMember":2,')


def test_a_bound_pod_of_another_shape_takes_its_gpus_and_one_that_waits_is_left_out() -> None:
    broken = gpu_pod("a", 2)
    broken["metadata"]["labels"] = {"count": 3}
    line = {"type": "ADDED", "object": broken}
    with pytest.raises(Undecodable, match="default/a") as problem:
        decode.pods().event(json.dumps(line).encode())
    assert problem.value.key == "uid-a"
    broken["spec"]["nodeName"] = "n"
    event = decode.pods().event(json.dumps(line).encode())
    assert isinstance(event, ObjectChange)
    assert event.object is not None
    read = pods.read(event.object)
    assert (read.node, read.gpus) == ("n", 2)


def test_an_object_that_is_gone_is_gone_whatever_its_shape() -> None:
    broken = gpu_pod("a", 2)
    broken["spec"] = "TEXT"
    line = with_texts({"type": "DELETED", "object": broken}, {"TEXT": deep(2_000)})
    deletion = decode.pods().event(line.encode())
    assert isinstance(deletion, ObjectChange)
    assert (deletion.object, deletion.metadata.uid) == (None, "uid-a")


# --- the watch -------------------------------------------------------------------------------------------


class Bench:
    """A watch of pods whose sink fails for those named "bad…"."""

    def __init__(self, client: KubeClient) -> None:
        self.metrics = Metrics()
        self.events: list[EmitEvent] = []
        self.left_out = LeftOutObjects(self.metrics, self.events.append)
        self.said: asyncio.Queue[str] = asyncio.Queue()
        self.watcher = Watcher(client, decode.pods(), self._sink, self.metrics, QUICK, None, self.left_out)

    async def _sink(self, key: str, obj: Any) -> None:
        if obj is not None and obj.metadata.name.startswith("bad"):
            raise RecursionError("as the test wants it")
        self.said.put_nowait(f"-{key}" if obj is None else obj.metadata.name)

    async def hears(self, *sentences: str) -> None:
        assert [await asyncio.wait_for(self.said.get(), HANG_S) for _ in sentences] == list(sentences)

    @property
    def reported(self) -> float:
        return self.metrics.value("muster_objects_unreadable_total", resource="pods")


async def test_what_can_not_be_handled_is_left_out_and_reported_once(
    api: FakeApi, client: KubeClient
) -> None:
    api.has("a", "bad", "c")
    bench = Bench(client)
    async with at_work(bench.watcher):
        stream = await api.stream()
        await bench.hears("a", "c")
        assert (bench.reported, bench.left_out.counts()) == (1, {"pods": 1})
        stream.event("MODIFIED", pod("bad", 2))
        stream.event("MODIFIED", pod("c", 3))
        await bench.hears("c")
        assert bench.reported == 1  # the same problem of the same object
        api.version = 9
        api.pods |= {"c": pod("c", 3), "d": pod("d", 4)}
        stream.error(410)
        await bench.hears("d")
        assert bench.reported == 1
        stream = await api.stream()
        stream.event("DELETED", pod("bad", 10))
        await bench.hears("-uid-bad")
        assert bench.left_out.counts() == {}


async def test_one_that_went_while_nobody_watched_is_left_out_no_more(
    api: FakeApi, client: KubeClient
) -> None:
    api.pods["a"] = {**pod("a"), "spec": "no object"}
    bench = Bench(client)
    async with at_work(bench.watcher):
        stream = await api.stream()
        assert bench.left_out.counts() == {"pods": 1}
        (event,) = bench.events
        assert (event.kind, event.api_version, event.objects) == ("Pod", "v1", (("a", "uid-a"),))
        assert event.message.startswith("left out by Muster: Pod default/a: Expected `object`")
        del api.pods["a"]
        stream.error(410)
        await api.stream()
        assert bench.left_out.counts() == {}


async def test_pages_of_large_objects_are_asked_for_in_smaller_ones(
    api: FakeApi, client: KubeClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watch, "PAGE_BYTES", 100_000)
    names = [f"p{number}" for number in range(9)]
    api.has(*names)
    for name in names[2:6]:
        api.pods[name]["metadata"]["annotations"] = {"large": "x" * 60_000}
    bench = Bench(client)
    async with at_work(bench.watcher):
        await api.stream()
        await bench.hears(*names)
    sizes = [int(query["limit"]) for query in api.lists]
    assert min(sizes) == 1
    assert sizes[-1] > 1  # large ones past, the pages grow again


# --- the intake ------------------------------------------------------------------------------------------


class Events:
    def __init__(self) -> None:
        self.seen: list[Input] = []
        self.intake = Intake(DialectSettings(), self._put, lambda _: None)

    async def _put(self, message: Input) -> None:
        self.seen.append(message)

    async def pod(self, item: dict[str, Any]) -> None:
        await self.intake.on_pod(*seen(decode.pods().item(json.dumps(item).encode())))

    def last(self) -> Pod:
        assert isinstance(self.seen[-1], PodSeen)
        return self.seen[-1].pod


async def test_a_bound_pod_that_no_dialect_can_read_takes_its_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    events = Events()
    await events.pod(gpu_pod("a", 2))
    before = events.last()

    def broken(*_: object) -> None:
        raise RecursionError

    monkeypatch.setattr("muster.dialects.gangs.own.read", broken)
    with pytest.raises(RecursionError):  # it waits: the watch leaves it out, and what is known stays
        await events.pod(gpu_pod("a", 3))
    assert events.last() is before
    bound = gpu_pod("a", 2)
    bound["spec"]["nodeName"] = "n"
    await events.pod(bound)
    assert (events.last().node, events.last().gpus, events.last().claim) == ("n", 2, None)
    await events.intake.on_pod("uid-a", None)
    assert isinstance(events.seen[-1], PodGone)


async def test_a_pod_that_failed_is_read_again_when_it_comes_again(monkeypatch: pytest.MonkeyPatch) -> None:
    events = Events()
    with monkeypatch.context() as patched:
        patched.setattr("muster.dialects.gangs.ranks.rank_of", lambda _: 1 // 0)
        with pytest.raises(ZeroDivisionError):
            await events.pod(gpu_pod("a", 2))
    await events.pod(gpu_pod("a", 2))
    assert events.last().gpus == 2


# --- the service -----------------------------------------------------------------------------------------


@asynccontextmanager
async def service(folder: Path, port: int) -> AsyncIterator[App]:
    flags = {"kubeconfig": kubeconfig(folder, port), "socket": str(folder / "run" / "s")}
    config = load(environment={}, flags=flags)
    app = App(config, Coordinator(), planners_of(config))
    stop = asyncio.Event()
    task = asyncio.create_task(app.run(stop))
    try:
        yield app
        assert not task.done()
    finally:
        stop.set()
        await asyncio.wait_for(task, HANG_S)


@asynccontextmanager
async def verdicts(app: App) -> AsyncIterator[Callable[[], Awaitable[dict[str, v1.Outcome]]]]:
    """A session of the shim: the next verdict, by pod."""
    async with asyncio.timeout(HANG_S), grpc.aio.insecure_channel(app.endpoint.address) as channel:
        await app.control_loop.wait_for_sync()
        stream = channel.unary_stream("/muster.v1.GangService/Watch", bytes, v1.WatchResponse.parse)(
            v1.WatchRequest(session="s"), timeout=HANG_S
        )
        await stream.read()  # the session is open

        async def following() -> dict[str, v1.Outcome]:
            verdict = (await stream.read()).verdict
            return dict.fromkeys(verdict.names, verdict.outcome)

        yield following


@pytest.mark.parametrize(
    "text",
    ["half a pair", *(pytest.param(text, marks=pytest.mark.slow) for text in ("800 levels", "9,000 levels"))],
)
async def test_the_service_outlives_each_and_starts_again_with_them(
    api: FakeApi, short_folder: Path, text: str
) -> None:
    """A bound pod with such a field takes its GPU at each start, so that four are not free."""
    api.texts = {"TEXT": TEXTS[text]}
    bound = gpu_pod("bound", 1)
    bound["spec"]["nodeName"] = "a"
    bound["metadata"]["managedFields"] = ["TEXT"]
    node = gpu_node("a", 4)
    node["metadata"]["managedFields"] = ["TEXT"]
    api.nodes = [node]
    api.pods = {"bound": bound, "fits-not": gpu_pod("fits-not", 4)}
    group = custom("scheduling.run.ai/v2", "PodGroup", "evil", {"minMember": 1, "x": "TEXT"})
    api.served[GROUPS] = [group]

    def said(stream: Stream, kind: str, item: dict[str, Any]) -> None:
        stream.raw(with_texts({"type": kind, "object": item}, api.texts).encode() + b"\n")

    async with api.running() as port:
        for _ in range(2):
            async with service(short_folder, port) as app, verdicts(app) as following:
                assert await following() == {"fits-not": v1.Outcome.REFUSED}
                groups, stream = await api.stream_of(GROUPS), await api.stream()
                said(groups, "MODIFIED", group)
                said(stream, "MODIFIED", {**bound, "status": {"phase": "Running"}})
                stream.event("ADDED", gpu_pod("fits", 3, version=8))
                assert await following() == {"fits": v1.Outcome.PLANNED}
