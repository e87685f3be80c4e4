"""Large changes of one namespace wait for their turn, and no other pod waits for them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from local_cluster.patience import HANG_S
from muster.adapters.kube import decode, watch
from muster.adapters.kube.client import KubeClient
from muster.adapters.kube.watch import LARGE_BYTES, PacedWatcher
from muster.adapters.telemetry.metrics import Metrics
from muster.app import App, planners_of
from muster.config import Config
from muster.dialects.gangs import native
from muster.dialects.objects import CustomObject, PodObject
from muster.gangs.coordinator import Coordinator
from tests.adapters.at_work import at_work
from tests.adapters.fake_api import FakeApi, Stream, custom, pod
from tests.adapters.test_kube_watch import QUICK, Sink


def large(name: str, version: int, node: str = "") -> dict[str, Any]:
    large_pod = pod(name, version)
    large_pod["metadata"]["annotations"] = {"large": "x" * LARGE_BYTES}
    large_pod.setdefault("spec", {})["nodeName"] = node
    return large_pod


class Bench:
    def __init__(self, client: KubeClient) -> None:
        self.sink = Sink()
        self.watcher: PacedWatcher[PodObject] = PacedWatcher(
            client, decode.pods(), self.sink, Metrics(), QUICK
        )
        self.decoded = 0

    def counted(self, line: bytes) -> Any:
        self.decoded += len(line) > LARGE_BYTES
        return decode.pods().event(line)


@asynccontextmanager
async def watching(
    api: FakeApi, client: KubeClient, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[tuple[Bench, Stream]]:
    """A namespace that may change nothing large for an hour, once a large pod of it is known."""
    monkeypatch.setattr(watch, "BURST_BYTES", 0)
    monkeypatch.setattr(watch, "BYTES_PER_S", LARGE_BYTES / 3600)
    bench = Bench(client)
    monkeypatch.setattr(bench.watcher._resource, "event", bench.counted)
    async with at_work(bench.watcher):
        stream = await api.stream()
        stream.event("ADDED", large("a", 2))
        await bench.sink.hears("+a/2")
        yield bench, stream


async def test_others_do_not_wait_and_of_many_changes_none_is_decoded(
    api: FakeApi, client: KubeClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with watching(api, client, monkeypatch) as (bench, stream):
        for version in range(3, 23):
            stream.event("MODIFIED", large("a", version))
        stream.event("ADDED", pod("small", 23))
        await bench.sink.hears("+small/23")
        assert bench.decoded == 1


async def test_the_last_change_is_read_when_the_namespace_has_paid(
    api: FakeApi, client: KubeClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with watching(api, client, monkeypatch) as (bench, stream):
        owes = [True]
        monkeypatch.setattr(bench.watcher, "_rest_s", lambda _: 0.01 * owes[0])
        stream.event("MODIFIED", large("a", 3))
        stream.event("ADDED", pod("small", 4))
        await bench.sink.hears("+small/4")
        owes[0] = False
        await bench.sink.hears("+a/3")
        assert bench.watcher._waiting_bytes == 0


async def test_large_changes_of_podgroups_are_paced_too(
    api: FakeApi, client: KubeClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = App(Config(), Coordinator(), planners_of(Config()))
    groups = ("podgroups.", "compositepodgroups.", "workloads.")
    watchers = [watcher for name, watcher in app._watchers.items() if name.startswith(groups)]
    assert [type(watcher) for watcher in watchers] == [PacedWatcher] * (len(decode.pod_groups()) + 2)

    def large_group(version: int) -> dict[str, Any]:
        group = custom(native.APIS[0], "PodGroup", "g", {}, resourceVersion=str(version))
        group["metadata"]["annotations"] = {"large": "x" * LARGE_BYTES}
        return group

    monkeypatch.setattr(watch, "BURST_BYTES", 0)
    monkeypatch.setattr(watch, "BYTES_PER_S", LARGE_BYTES / 3600)
    (resource,) = [resource for resource in decode.pod_groups() if resource.by_right]
    path = resource.paths[0]
    api.served[path] = []
    sink = Sink()
    watcher: PacedWatcher[CustomObject] = PacedWatcher(client, resource, sink, Metrics(), QUICK)
    async with at_work(watcher):
        stream = await api.stream_of(path)
        stream.event("ADDED", large_group(2))
        await sink.hears("+g/2")
        for version in range(3, 23):
            stream.event("MODIFIED", large_group(version))
        stream.event("ADDED", custom(native.APIS[0], "PodGroup", "small", {}, resourceVersion="23"))
        await sink.hears("+small/23")
        assert sink.said == []


@pytest.mark.parametrize("kind", ["new", "bound", "small", "gone"])
async def test_what_takes_or_frees_gpus_is_read_at_once(
    api: FakeApi, client: KubeClient, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    async with watching(api, client, monkeypatch) as (bench, stream):
        stream.event("MODIFIED", large("a", 3))
        match kind:
            case "new":
                stream.event("ADDED", large("b", 4))
                await bench.sink.hears("+b/4")
            case "bound":
                stream.event("MODIFIED", large("a", 4, node="n"))
                await bench.sink.hears("+a/4")
            case "small":
                stream.event("MODIFIED", pod("a", 4))
                await bench.sink.hears("+a/4")
            case _:
                stream.event("DELETED", large("a", 4))
                await bench.sink.hears("-uid-a")
        assert bool(bench.watcher._waiting) == (kind == "new")
        assert (bench.watcher._waiting_bytes > 0) == (kind == "new")


async def test_the_watch_goes_on_behind_a_change_that_waits_and_a_list_has_what_it_says(
    api: FakeApi, client: KubeClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with watching(api, client, monkeypatch) as (bench, stream):
        stream.event("MODIFIED", large("a", 3))
        stream.event("ADDED", pod("b", 4))
        await bench.sink.hears("+b/4")
        stream.cut()
        again = await asyncio.wait_for(api.stream(), HANG_S)
        assert again.query["resourceVersion"] == "4"
        api.pods = {"a": large("a", 5), "b": pod("b", 4)}
        api.version = 5
        again.error(410)
        await api.stream()
        await bench.sink.hears("+a/5")
        assert not bench.watcher._waiting
