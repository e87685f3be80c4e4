"""The watch machinery against a real small HTTP server that misbehaves as API servers do."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from local_cluster.patience import HANG_S
from muster.adapters.kube import decode, watch
from muster.adapters.kube.client import ApiError, ConfigError, KubeClient, Unreachable
from muster.adapters.kube.watch import Watcher
from muster.adapters.telemetry.metrics import Metrics
from muster.config import Watch
from muster.domain.rate import Backoff
from tests.adapters.at_work import at_work
from tests.adapters.fake_api import FakeApi, kubeconfig, pod

QUICK = Watch(page_size=2, backoff_first_s=0.01, backoff_limit_s=0.05)


class Sink:
    """Collects what a watcher says, as "+name/version" and "-key"."""

    def __init__(self) -> None:
        self.said: list[str] = []
        self._more = asyncio.Condition()

    async def __call__(self, key: str, obj: Any) -> None:
        async with self._more:
            if obj is None:
                self.said.append(f"-{key}")
            else:
                self.said.append(f"+{obj.metadata.name}/{obj.metadata.resource_version}")
            self._more.notify_all()

    async def until(self, condition: Callable[[list[str]], bool]) -> None:
        async with self._more:
            await asyncio.wait_for(self._more.wait_for(lambda: condition(self.said)), HANG_S)

    async def hears(self, *sentences: str) -> None:
        """Everything said since the last call is exactly this."""
        await self.until(lambda all_said: len(all_said) >= len(sentences))
        assert self.said[: len(sentences)] == list(sentences)
        del self.said[: len(sentences)]


class Bench:
    def __init__(self, watcher: Watcher[Any], sink: Sink, metrics: Metrics) -> None:
        self.watcher, self.sink, self.metrics = watcher, sink, metrics

    async def until_restarted(self, reason: str, times: int) -> None:
        async with asyncio.timeout(HANG_S):
            while self.restarts(reason) < times:  # noqa: ASYNC110 - a metric: nothing to await on
                await asyncio.sleep(0.01)

    def restarts(self, reason: str) -> float:
        return self.metrics.value("muster_watch_restarts_total", resource="pods", reason=reason)


@asynccontextmanager
async def watching(
    client: KubeClient,
    settings: Watch = QUICK,
    on_silence: Callable[[bool], Awaitable[None]] | None = None,
) -> AsyncIterator[Bench]:
    sink, metrics = Sink(), Metrics()
    watcher = Watcher(client, decode.pods(), sink, metrics, settings, on_silence)
    async with at_work(watcher):
        yield Bench(watcher, sink, metrics)


async def test_lists_all_pages_then_is_synced_then_watches_from_the_lists_version(
    api: FakeApi, client: KubeClient
) -> None:
    api.has("a", "b", "c")
    api.version = 7
    async with watching(client) as bench:
        stream = await api.stream()
        await bench.sink.hears("+a/1", "+b/1", "+c/1")
        assert bench.watcher.synced.is_set()
        assert [query.get("continue") for query in api.lists] == [None, "2"]
        assert stream.query["resourceVersion"] == "7"
        assert stream.query["allowWatchBookmarks"] == "true"
        stream.event("MODIFIED", pod("a", 8))
        stream.event("ADDED", pod("d", 9))
        stream.event("DELETED", pod("b", 10))
        await bench.sink.hears("+a/8", "+d/9", "-uid-b")


async def test_says_when_its_view_is_behind_and_when_it_has_caught_up(
    api: FakeApi, client: KubeClient
) -> None:
    silences: asyncio.Queue[bool] = asyncio.Queue()
    async with watching(client, on_silence=silences.put) as bench:
        stream = await api.stream()
        stream.event("ADDED", pod("a", 5))
        await bench.sink.hears("+a/5")
        assert silences.empty()  # a first list is no catching up
        stream.cut()
        assert await asyncio.wait_for(silences.get(), HANG_S)
        stream = await api.stream()
        stream.event("ADDED", pod("b", 6))
        assert not await asyncio.wait_for(silences.get(), HANG_S)
        assert bench.sink.said == ["+b/6"]  # what was missed comes first
        stream.cut()
        assert await asyncio.wait_for(silences.get(), HANG_S)
        await api.stream()  # nothing happened meanwhile
        assert not await asyncio.wait_for(silences.get(), HANG_S)
        stream.end()


async def test_goes_on_from_the_bookmark_after_a_clean_end(api: FakeApi, client: KubeClient) -> None:
    async with watching(client) as bench:
        stream = await api.stream()
        stream.bookmark(41)
        stream.end()
        assert (await api.stream()).query["resourceVersion"] == "41"
        assert len(api.lists) == 1
        assert bench.restarts("unreachable") == 0


async def test_an_event_cut_off_in_the_middle_is_dropped_and_asked_for_again(
    api: FakeApi, client: KubeClient
) -> None:
    async with watching(client) as bench:
        stream = await api.stream()
        stream.event("ADDED", pod("a", 5))
        stream.raw(b'{"type":"ADDED","object":{"metadata":{"name":"b","uid"')
        await bench.sink.hears("+a/5")
        stream.cut()
        stream = await api.stream()
        assert stream.query["resourceVersion"] == "5"
        stream.event("ADDED", pod("b", 6))
        await bench.sink.hears("+b/6")
        assert bench.restarts("unreachable") == 1


async def test_events_that_arrive_in_pieces_are_put_together(api: FakeApi, client: KubeClient) -> None:
    async with watching(client) as bench:
        stream = await api.stream()
        for byte in b'{"type":"ADDED","object":{"metadata":{"name":"a","uid":"1","resourceVersion":"9"}}}\n':
            stream.raw(bytes([byte]))
        await bench.sink.hears("+a/9")


@pytest.mark.parametrize("way", ["event", "status"])
async def test_after_410_the_list_says_what_is_gone_before_what_is_new(
    api: FakeApi, client: KubeClient, way: str
) -> None:
    api.has("a", "b", "c")
    async with watching(client) as bench:
        stream = await api.stream()
        await bench.sink.hears("+a/1", "+b/1", "+c/1")
        api.version = 20
        api.has("b", "d")
        if way == "event":
            stream.error(410)
        else:
            api.failing = [410]
            stream.cut()
        stream = await api.stream()
        await bench.sink.hears("-uid-a", "-uid-c", "+d/20")
        assert stream.query["resourceVersion"] == "20"
        assert bench.watcher.synced.is_set()


async def test_a_page_token_that_expired_begins_the_list_again(api: FakeApi, client: KubeClient) -> None:
    api.has("a", "b", "c")
    api.expire_token = True
    async with watching(client) as bench:
        await bench.sink.hears("+a/1", "+b/1")
        await api.stream()
        await bench.sink.hears("+c/1")
        assert [query.get("continue") for query in api.lists] == [None, None, "2"]
        assert bench.restarts("410") == 1


IMPATIENT = Watch(read_deadline_s=0.05, backoff_first_s=0.01, backoff_limit_s=0.05)


async def test_a_watch_of_something_idle_is_opened_again_and_nothing_waits_for_it(
    api: FakeApi, client: KubeClient
) -> None:
    """The first bookmark may come after ten minutes, if etcd tells the API server nothing."""
    silences: list[bool] = []

    async def on_silence(silent: bool) -> None:
        silences.append(silent)

    async with watching(client, IMPATIENT, on_silence) as bench:
        await api.stream()  # says nothing
        opened = bench.watcher.last_heard
        await api.stream()  # so it was opened again
        (await api.stream()).event("ADDED", pod("a", 5))
        await bench.sink.hears("+a/5")
        assert bench.watcher.last_heard > opened
        assert bench.restarts("unreachable") == 0
        assert silences == []


async def test_a_watch_that_never_brings_anything_is_listed_again(
    api: FakeApi, client: KubeClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A proxy that holds back what a watch brings, but not its head, would leave the view stale for ever."""
    monkeypatch.setattr(watch, "SILENT_TIMES", 3)
    async with watching(client, IMPATIENT) as bench:
        for _ in range(3):
            await api.stream()
            api.has("a")
        await bench.sink.hears("+a/1")
        assert len(api.lists) == 2
        assert bench.restarts("silent") == 1


async def test_a_silent_watch_that_can_not_be_opened_again_is_known_to_be_behind(
    api: FakeApi, client: KubeClient
) -> None:
    silences: asyncio.Queue[bool] = asyncio.Queue()
    async with watching(client, IMPATIENT, silences.put) as bench:
        await api.stream()  # says nothing
        api.failing = [503]
        assert await asyncio.wait_for(silences.get(), HANG_S)
        await api.stream()
        assert not await asyncio.wait_for(silences.get(), HANG_S)
        assert bench.restarts("503") == 1


async def test_a_cache_that_is_being_initialized_is_asked_again_soon(
    api: FakeApi, client: KubeClient
) -> None:
    """The API server says 429 for a CRD that was just made, and may ask for up to 30 s."""
    api.has("a")
    async with watching(client) as bench:
        stream = await api.stream()
        api.failing, api.retry_after = [429, 429], "30"  # the limit of QUICK is 0.05 s
        stream.end()
        (await api.stream()).event("MODIFIED", pod("a", 5))
        await bench.sink.hears("+a/1", "+a/5")
        assert bench.restarts("429") == 2
        assert len(api.lists) == 1


async def test_a_server_that_ends_every_watch_at_once_is_not_hammered(
    api: FakeApi, client: KubeClient
) -> None:
    async with watching(client) as bench:
        for _ in range(3):
            (await api.stream()).end()
        await api.stream()
        assert bench.restarts("unreachable") == 3


async def test_a_watch_that_holds_though_nothing_happens_is_a_success(
    api: FakeApi, client: KubeClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Or a quiet resource, whose watch was hard to get, would wait long after its next break."""
    well = asyncio.Event()

    class Noted(Backoff):
        def reset(self) -> None:
            super().reset()
            well.set()

    monkeypatch.setattr(watch, "Backoff", Noted)
    async with watching(client):
        await api.stream()  # says nothing
        await asyncio.wait_for(well.wait(), HANG_S)


async def test_refusals_are_tried_again(api: FakeApi, client: KubeClient) -> None:
    api.has("a")
    api.failing = [500, 403, 429]
    async with watching(client) as bench:
        await bench.sink.hears("+a/1")
        assert [bench.restarts(code) for code in ("500", "403", "429")] == [1, 1, 1]


async def test_state_is_kept_while_the_server_is_away(api: FakeApi, tmp_path: Path) -> None:
    api.has("a", "b")
    async with AsyncExitStack() as stack:
        async with api.running() as port:
            client = await stack.enter_async_context(KubeClient(kubeconfig(tmp_path, port)))
            bench = await stack.enter_async_context(watching(client))
            await api.stream()
            await bench.sink.hears("+a/1", "+b/1")
        await bench.until_restarted("unreachable", times=3)
        assert bench.sink.said == []
        await stack.enter_async_context(api.running(port))
        api.has("b", "c")
        (await api.stream()).error(410)
        await bench.sink.hears("-uid-a", "+c/1")


async def test_an_unreadable_object_is_left_out_and_not_taken_for_deleted(
    api: FakeApi, client: KubeClient
) -> None:
    api.has("a", "b")
    async with watching(client) as bench:
        stream = await api.stream()
        await bench.sink.hears("+a/1", "+b/1")
        broken = pod("a", 5)
        broken["spec"]["containers"] = "not a list"
        stream.event("MODIFIED", broken)
        stream.event("MODIFIED", pod("b", 6))
        await bench.sink.hears("+b/6")
        api.pods["a"] = broken
        api.pods["b"] = pod("b", 7)
        stream.error(410)
        await bench.sink.hears("+b/7")
        assert bench.metrics.value("muster_objects_unreadable_total", resource="pods") == 1


async def test_a_line_that_is_no_event_makes_a_new_list(api: FakeApi, client: KubeClient) -> None:
    async with watching(client) as bench:
        stream = await api.stream()
        api.has("a")
        stream.raw(b"<html>a proxy's error page</html>\n")
        await bench.sink.hears("+a/1")
        assert bench.restarts("undecodable") == 1


async def test_a_slow_sink_holds_the_watch_back(api: FakeApi, client: KubeClient) -> None:
    inbox: asyncio.Queue[Any] = asyncio.Queue(1)
    watcher = Watcher(client, decode.pods(), lambda *change: inbox.put(change), Metrics(), QUICK)
    api.has(*(f"p{number}" for number in range(5)))
    task = asyncio.create_task(watcher.run())
    changes = [await asyncio.wait_for(inbox.get(), HANG_S) for _ in range(5)]
    assert [obj.metadata.name for _, obj in changes] == ["p0", "p1", "p2", "p3", "p4"]
    task.cancel()


# --- the client's errors -------------------------------------------------------------------------------


async def test_errors_name_verb_and_object(api: FakeApi, client: KubeClient) -> None:
    api.failing = [403]
    with pytest.raises(ApiError, match=r"^GET pods: 403, refused by the test$"):
        await client.get("pods", "/api/v1/pods")


async def test_no_server_is_unreachable(tmp_path: Path) -> None:
    async with FakeApi().running() as port:
        path = kubeconfig(tmp_path, port)
    async with KubeClient(path) as client:
        with pytest.raises(Unreachable, match=r"^GET node a at http://127.0.0.1"):
            await client.get("node a", "/api/v1/nodes/a")


@pytest.mark.parametrize("text", ["", "current-context: nothing", "{not yaml", "[]"])
async def test_a_broken_kubeconfig_names_its_file(tmp_path: Path, text: str) -> None:
    path = tmp_path / "broken"
    path.write_text(text)
    with pytest.raises(ConfigError, match="broken"):
        await KubeClient(str(path)).connect()


async def test_a_missing_kubeconfig_names_its_file(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="nowhere"):
        await KubeClient(str(tmp_path / "nowhere")).connect()
