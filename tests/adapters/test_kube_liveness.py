"""A silent API server is one where nothing happens, or one that is frozen: the second is noticed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from local_cluster.patience import HANG_S
from muster.adapters.kube import decode
from muster.adapters.kube.client import LIVENESS_TRIES, KubeClient, Liveness, Unreachable
from muster.adapters.kube.watch import Watcher
from muster.adapters.telemetry.metrics import Metrics
from muster.config import Watch
from tests.adapters.at_work import at_work
from tests.adapters.fake_api import FakeApi, pod


@asynccontextmanager
async def watching(client: KubeClient) -> AsyncIterator[tuple[asyncio.Queue[object], asyncio.Queue[bool]]]:
    """What a watcher of pods sees, and when it says that it is behind."""
    changes, silent = asyncio.Queue[object](), asyncio.Queue[bool]()
    settings = Watch(backoff_first_s=0.01, backoff_limit_s=0.05)
    pods = decode.pods()
    watcher = Watcher(client, pods, lambda *change: changes.put(change), Metrics(), settings, silent.put)
    async with at_work(watcher):
        yield changes, silent


async def feed(api: FakeApi) -> None:
    """A pod, to each watch that is taken up: of several tries the last one stands."""
    while True:
        (await api.stream()).event("ADDED", pod("a", 5))


async def test_a_frozen_server_is_noticed_and_its_watches_go_on_afterwards(
    api: FakeApi, client: KubeClient
) -> None:
    async with watching(client) as (changes, silent):
        await api.stream()
        api.frozen = True
        async with at_work(Liveness(client, quiet_s=0.02, deadline_s=0.02)):
            assert await asyncio.wait_for(silent.get(), HANG_S)
        api.frozen = False
        feeding = asyncio.create_task(feed(api))
        await asyncio.wait_for(changes.get(), HANG_S)
        assert not await asyncio.wait_for(silent.get(), HANG_S)
        feeding.cancel()


async def test_a_watch_where_nothing_happens_is_left_alone(api: FakeApi, client: KubeClient) -> None:
    async with watching(client) as (changes, silent), at_work(Liveness(client, quiet_s=0.02)):
        stream = await api.stream()
        async with asyncio.timeout(HANG_S):
            for _ in range(5):
                await api.asked_for_health.get()
        stream.event("ADDED", pod("a", 5))
        await asyncio.wait_for(changes.get(), HANG_S)
        assert silent.empty()


class Spoken(KubeClient):
    """A server that does not answer, and `silent_s` as long as its watches were silent."""

    def __init__(self, silences: list[float]) -> None:
        super().__init__()
        self.silences = silences
        self.asked = 0
        self.ended = asyncio.Event()
        self.looked = asyncio.Event()

    @property
    def silent_s(self) -> float:
        if len(self.silences) == 1:
            self.looked.set()
        return self.silences.pop(0) if len(self.silences) > 1 else self.silences[0]

    async def get(
        self, subject: str, path: str, query: dict[str, str] | None = None, limit: int | None = None
    ) -> bytes:
        self.asked += 1
        raise Unreachable("no answer")

    def end_watches(self) -> bool:
        self.ended.set()
        return True


async def test_nobody_is_asked_while_the_watches_speak() -> None:
    client = Spoken([0.0, 0.0, 0.0])
    async with at_work(Liveness(client, quiet_s=0.001)):
        await asyncio.wait_for(client.looked.wait(), HANG_S)
    assert not client.asked


async def test_a_server_that_speaks_while_it_is_asked_is_there() -> None:
    client = Spoken([5.0, 0.0, 0.0])
    async with at_work(Liveness(client, quiet_s=0.001)):
        await asyncio.wait_for(client.looked.wait(), HANG_S)
    assert client.asked == LIVENESS_TRIES
    assert not client.ended.is_set()


async def test_one_that_does_not_is_not() -> None:
    client = Spoken([5.0])
    async with at_work(Liveness(client, quiet_s=0.001)):
        await asyncio.wait_for(client.ended.wait(), HANG_S)
    assert client.asked >= LIVENESS_TRIES
