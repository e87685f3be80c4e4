"""Watches of what may not be there: CRDs that are installed later, or in another version; selectors."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from local_cluster.patience import HANG_S
from muster.adapters.kube import decode
from muster.adapters.kube.client import KubeClient
from muster.adapters.kube.decode import Resource
from muster.adapters.kube.watch import Watcher
from muster.adapters.telemetry.metrics import Metrics
from tests.adapters.at_work import at_work
from tests.adapters.fake_api import FakeApi, config_map, custom
from tests.adapters.test_kube_watch import QUICK, Sink

OURS, KAIS = "/apis/scheduling.run.ai/v2/podgroups", "/apis/scheduling.run.ai/v2alpha2/podgroups"


def group(name: str, path: str = OURS) -> dict[str, Any]:
    return custom(path.removeprefix("/apis/").removesuffix("/podgroups"), "PodGroup", name, {"minMember": 1})


@asynccontextmanager
async def watching(
    client: KubeClient, resource: Resource[Any]
) -> AsyncIterator[tuple[Sink, Watcher[Any], Metrics]]:
    sink, metrics = Sink(), Metrics()
    watcher = Watcher(client, resource, sink, metrics, QUICK)
    async with at_work(watcher):
        yield sink, watcher, metrics


async def synced(watcher: Watcher[Any]) -> None:
    await asyncio.wait_for(watcher.synced.wait(), HANG_S)


async def test_a_crd_that_is_not_there_is_no_trouble_and_found_when_it_comes(
    api: FakeApi, client: KubeClient
) -> None:
    async with watching(client, decode.pod_groups()[1]) as (sink, watcher, metrics):
        await synced(watcher)
        assert sink.said == []
        api.served["/apis/scheduling.x-k8s.io/v1alpha1/podgroups"] = [group("train")]
        await sink.hears("+train/1")
        restarts = "muster_watch_restarts_total"
        labels = {"resource": "podgroups.scheduling.x-k8s.io", "reason": "404"}
        assert metrics.value(restarts, **labels) == 0


async def test_a_crd_that_is_removed_takes_its_objects_along(api: FakeApi, client: KubeClient) -> None:
    api.served[OURS] = [group("train")]
    async with watching(client, decode.pod_groups()[0]) as (sink, _, _):
        await sink.hears("+train/1")
        stream = await api.stream_of(OURS)
        del api.served[OURS]
        stream.cut()
        await sink.hears("-uid-train")
        api.served[OURS] = [group("train")]
        await sink.hears("+train/1")


async def test_kais_version_is_read_where_the_crd_is_kais_and_ours_once_it_is_there(
    api: FakeApi, client: KubeClient
) -> None:
    api.served[KAIS] = [group("train", KAIS)]
    async with watching(client, decode.pod_groups()[0]) as (sink, _, _):
        await sink.hears("+train/1")
        stream = await api.stream_of(KAIS)
        api.served[OURS] = [group("train"), group("serve")]
        stream.bookmark(2)
        stream.end()
        await api.stream_of(OURS)
        await sink.hears("+train/1", "+serve/1")  # the first is unchanged, but read in the other version


async def test_one_config_map_is_asked_for_by_its_name(api: FakeApi, client: KubeClient) -> None:
    path = "/api/v1/namespaces/muster-system/configmaps"
    api.served[path] = [config_map("muster-system", "kai-scheduler-config", {})]
    async with watching(client, decode.config_maps("muster-system", "kai-scheduler-config")) as (sink, _, _):
        await sink.hears("+kai-scheduler-config/1")
        await api.stream_of(path)
    selectors = {query.get("watch"): query["fieldSelector"] for at, query in api.asked if at == path}
    assert selectors == {
        None: "metadata.name=kai-scheduler-config",
        "true": "metadata.name=kai-scheduler-config",
    }


async def test_a_namespace_that_is_not_there_has_no_config_maps(api: FakeApi, client: KubeClient) -> None:
    async with watching(client, decode.config_maps("none")) as (sink, watcher, _):
        await synced(watcher)
        assert sink.said == []
