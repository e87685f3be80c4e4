"""Full collections look at what is new, and everything is as before afterwards."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import weakref
from collections.abc import Iterator

import pytest

from local_cluster.patience import HANG_S
from muster.adapters.garbage import short_collections
from muster.adapters.kube.client import KubeClient, Unreachable
from tests.adapters.fake_api import FakeApi


@pytest.fixture
def no_collections() -> Iterator[None]:
    gc.disable()
    yield
    gc.enable()


def test_a_full_collection_does_not_look_at_survivors_of_the_one_before() -> None:
    callbacks = list(gc.callbacks)
    with short_collections():
        old = [[number] for number in range(10_000)]
        gc.collect()
        assert gc.get_freeze_count() >= len(old)
        assert len(gc.get_objects(generation=2)) < len(old)
    assert gc.callbacks == callbacks
    assert gc.get_freeze_count() == 0


async def test_a_watch_that_was_cut_is_freed_without_a_collection(
    api: FakeApi, client: KubeClient, no_collections: None
) -> None:
    """A watch lives for minutes: a full collection freezes it, and a frozen cycle is never freed."""
    async with asyncio.timeout(HANG_S):
        freed = await cut_watch(api, client)
    assert freed() is None


async def cut_watch(api: FakeApi, client: KubeClient) -> weakref.ref[object]:
    """Refer to what read the watch."""
    with contextlib.suppress(Unreachable):
        async with client.watch("pods", "/api/v1/pods", {"watch": "true"}, 60) as batches:
            reader: weakref.ref[object] = weakref.ref(batches)
            (await api.stream()).cut()
            async for _ in batches:
                pass
    return reader
