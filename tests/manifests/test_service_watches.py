"""The service's own watches, with the rights of its account and no others: each sees what comes and goes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml

from local_cluster.cluster import LocalCluster
from local_cluster.patience import HANG_S
from muster.adapters.kube import decode
from muster.adapters.kube.budgets import BudgetIntake
from muster.adapters.kube.client import KubeClient
from muster.adapters.kube.intake import Intake
from muster.adapters.kube.volumes import VolumeIntake
from muster.adapters.kube.watch import Watcher
from muster.adapters.telemetry.metrics import Metrics
from muster.config import Watch
from muster.dialects.settings import DEFAULTS
from muster.gangs.messages.inputs import (
    BudgetSeen,
    NamespaceSeen,
    PodGroupGone,
    PodGroupSeen,
    PoliciesSeen,
    VolumeClaimSeen,
)
from tests.adapters.heard import Heard
from tests.manifests.rendering import SCHEDULER_CONFIG

pytestmark = pytest.mark.cluster

QUICK = Watch(backoff_first_s=0.05, backoff_limit_s=0.2)
CRD = "podgroups.scheduling.run.ai"
CRDS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"


CLAIM_OF_A_DISK: list[tuple[str, dict[str, Any]]] = [
    (
        "/apis/storage.k8s.io/v1/csidrivers",
        {"metadata": {"name": "disk.example.com"}, "spec": {"attachRequired": True}},
    ),
    (
        "/apis/storage.k8s.io/v1/storageclasses",
        {
            "metadata": {"name": "disk"},
            "provisioner": "disk.example.com",
            "volumeBindingMode": "WaitForFirstConsumer",
        },
    ),
    (
        "/api/v1/namespaces/default/persistentvolumeclaims",
        {
            "metadata": {"name": "data"},
            "spec": {
                "accessModes": ["ReadWriteOnce"],
                "storageClassName": "disk",
                "resources": {"requests": {"storage": "1Gi"}},
            },
        },
    ),
]


@asynccontextmanager
async def watching(kubeconfig: Path) -> AsyncIterator[tuple[Heard, Metrics]]:
    heard, metrics = Heard(), Metrics()
    intake = Intake(DEFAULTS, heard.put, lambda _: None)
    sinks: list[tuple[decode.Resource[Any], Callable[[str, Any], Awaitable[None]]]] = [
        (decode.NODES, intake.nodes.on_node),
        (decode.pods(), intake.on_pod),
        (decode.NAMESPACES, intake.on_namespace),
        (decode.config_maps("kube-system"), intake.on_config_map),
        (decode.config_maps("muster-system", "kai-scheduler-config"), intake.on_config_map),
        *((pod_groups, intake.on_pod_group) for pod_groups in decode.pod_groups()),
        (decode.COMPOSITE_POD_GROUPS, intake.on_pod_group),
        (decode.WORKLOADS, intake.on_workload),
        (decode.TOPOLOGIES, intake.on_topology),
        (decode.DISRUPTION_BUDGETS, BudgetIntake(heard.put).on_budget),
    ]
    volumes = VolumeIntake(heard.put)
    sinks += [
        (decode.CSI_DRIVERS, volumes.on_driver),
        (decode.STORAGE_CLASSES, volumes.on_storage_class),
        (decode.VOLUMES, volumes.on_volume),
        (decode.VOLUME_CLAIMS, volumes.on_claim),
    ]
    async with KubeClient(str(kubeconfig)) as client:
        watchers = [Watcher(client, resource, sink, metrics, QUICK) for resource, sink in sinks]
        tasks = [asyncio.create_task(watcher.run()) for watcher in watchers]
        try:
            async with asyncio.timeout(HANG_S):
                await asyncio.gather(*(watcher.synced.wait() for watcher in watchers))
            yield heard, metrics
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)


async def test_what_is_installed_later_is_seen_and_what_is_removed_is_gone(
    cluster: LocalCluster, shim_kubeconfig: Path
) -> None:
    api = cluster.api
    async with watching(shim_kubeconfig) as (heard, metrics):
        text = "topologyAwareScheduling: {levels: [{name: row, label: example.com/row}]}"
        await asyncio.to_thread(cluster.create_namespace, "team-a")
        await heard.hears(lambda event: isinstance(event, NamespaceSeen) and event.name == "team-a")
        policies = {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {"name": "kai-scheduler-config"},
            "data": {"config.yaml": text},
        }
        await asyncio.to_thread(api.post, "/api/v1/namespaces/muster-system/configmaps", policies)
        await heard.hears(lambda event: isinstance(event, PoliciesSeen))
        for path, item in CLAIM_OF_A_DISK:
            await asyncio.to_thread(api.post, path, item)
        await heard.hears(lambda event: isinstance(event, VolumeClaimSeen) and event.attaches_once)
        budget = {"metadata": {"name": "web"}, "spec": {"maxUnavailable": 1, "selector": {}}}
        budgets_path = "/apis/policy/v1/namespaces/default/poddisruptionbudgets"
        await asyncio.to_thread(api.post, budgets_path, budget)
        await heard.hears(lambda event: isinstance(event, BudgetSeen) and event.key == "default/web")
        crd = yaml.safe_load((SCHEDULER_CONFIG / "podgroups" / "crd-podgroup.yaml").read_text())
        await asyncio.to_thread(api.post, CRDS, crd)
        path = "/apis/scheduling.run.ai/v2/namespaces/default/podgroups"
        async with asyncio.timeout(HANG_S):
            while not (await asyncio.to_thread(api.send, "GET", path)).ok:  # noqa: ASYNC110 - over HTTP
                await asyncio.sleep(0.05)
        group = {
            "apiVersion": "scheduling.run.ai/v2",
            "kind": "PodGroup",
            "metadata": {"name": "train"},
            "spec": {"minMember": 2},
        }
        await asyncio.to_thread(api.post, path, group)
        await heard.hears(lambda event: isinstance(event, PodGroupSeen) and event.group.min_member == 2)
        await asyncio.to_thread(api.delete, f"{CRDS}/{CRD}")
        await heard.hears(lambda event: isinstance(event, PodGroupGone))
        assert 'reason="403"' not in metrics.text()[0].decode()  # of muster_watch_restarts_total
