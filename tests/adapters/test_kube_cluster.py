"""The watches and the event poster against a real API server (etcd, kube-apiserver, kwok as processes)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from local_cluster.cluster import LocalCluster
from local_cluster.patience import HANG_S
from muster.adapters.kube import decode
from muster.adapters.kube.client import KubeClient
from muster.adapters.kube.intake import Intake
from muster.adapters.kube.watch import Watcher
from muster.adapters.kube.writers import EventPoster
from muster.adapters.telemetry.metrics import Metrics
from muster.config import Events, Watch
from muster.dialects.settings import DialectSettings
from muster.gangs.messages.inputs import Input, NodeSeen, PodGone, PodSeen
from muster.gangs.messages.instructions import EmitEvent, EventReason
from tests.adapters.heard import Heard

pytestmark = pytest.mark.cluster

POD = {
    "apiVersion": "v1",
    "kind": "Pod",
    "metadata": {"name": "lone"},
    "spec": {
        "schedulerName": "muster",
        "containers": [
            {"name": "main", "image": "none", "resources": {"limits": {"nvidia.com/gpu": "2"}}},
        ],
    },
}
NODE = {
    "apiVersion": "v1",
    "kind": "Node",
    "metadata": {"name": "gpu-1"},
    "status": {"allocatable": {"cpu": "8", "memory": "8Gi", "pods": "10", "nvidia.com/gpu": "4"}},
}


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    with LocalCluster(tmp_path_factory.mktemp("adapters") / "cluster") as booted:
        yield booted


def pod_seen(name: str) -> Callable[[Input], bool]:
    return lambda event: isinstance(event, PodSeen) and event.pod.name == name


async def test_sees_nodes_and_pods_survives_a_restart_and_posts_an_event(
    cluster: LocalCluster, tmp_path: Path
) -> None:
    api, pods_path = cluster.api, "/api/v1/namespaces/default/pods"
    settings = Watch(backoff_first_s=0.05, backoff_limit_s=0.5)
    heard, metrics = Heard(), Metrics()
    intake = Intake(DialectSettings(), heard.put, lambda _: None)
    await asyncio.to_thread(api.create, "/api/v1/nodes", NODE)
    async with KubeClient(str(cluster.kubeconfig)) as client:
        pods = Watcher(client, decode.pods(), intake.on_pod, metrics, settings)
        nodes = Watcher(client, decode.NODES, intake.nodes.on_node, metrics, settings)
        poster = EventPoster(client, metrics, "test", Events())
        tasks = [asyncio.create_task(work.run()) for work in (pods, nodes, poster)]
        try:
            async with asyncio.timeout(HANG_S):
                await asyncio.gather(pods.synced.wait(), nodes.synced.wait())
            await heard.hears(
                lambda event: (
                    isinstance(event, NodeSeen)
                    and event.node.name == "gpu-1"
                    and event.node.topology.gpu_count == 4
                )
            )
            created = await asyncio.to_thread(api.post, pods_path, POD)
            await heard.hears(pod_seen("lone"))

            await asyncio.to_thread(cluster.kill, "kube-apiserver")
            await asyncio.to_thread(cluster.start, "kube-apiserver")
            second_pod = {**POD, "metadata": {"name": "after-the-restart"}}
            await asyncio.to_thread(api.post, pods_path, second_pod)
            await heard.hears(pod_seen("after-the-restart"))
            assert metrics.value("muster_watch_restarts_total", resource="pods", reason="unreachable") >= 1

            uid = created["metadata"]["uid"]
            poster.emit(EmitEvent("default", (("lone", uid),), EventReason.UNPLACEABLE, "needs 2 GPUs"))
            async with asyncio.timeout(HANG_S):
                await poster.until_empty()
            events = await asyncio.to_thread(api.get, "/api/v1/namespaces/default/events")
            (ours,) = [event for event in events["items"] if event["source"].get("component") == "muster"]
            assert (ours["reason"], ours["message"]) == ("TopologyUnplaceable", "needs 2 GPUs")
            assert ours["involvedObject"]["uid"] == uid

            await asyncio.to_thread(api.delete, f"{pods_path}/lone", grace_s=0)
            await heard.hears(lambda event: isinstance(event, PodGone) and event.uid == uid)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
