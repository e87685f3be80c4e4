"""The two schedulers, and what a user creates for a gang with each of them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

from benchmarks.throughput.sides import Muster
from benchmarks.throughput.site import NAMESPACE, RACK_LABEL
from e2e.objects import Words, pod
from local_cluster import stack_config
from local_cluster.api import Object
from local_cluster.cluster import LocalCluster
from local_cluster.components import NATIVE_GATES
from local_cluster.ports import free_port
from local_cluster.processes import Process
from local_cluster.stack import scheduler_argv

NATIVE = "native"
POD_GROUPS = f"/apis/scheduling.k8s.io/v1beta1/namespaces/{NAMESPACE}/podgroups"
ACCOUNT = "system:kube-scheduler"
"""Kubernetes' own rights of a scheduler, which include PodGroups."""


class Native:
    """The same binary with its default plugins, and with the feature gates of native gang scheduling."""

    def __init__(self, cluster: LocalCluster, directory: Path) -> None:
        directory.mkdir(parents=True)
        kubeconfig = cluster.kubeconfig_for_user(ACCOUNT)
        configuration = directory / "scheduler.json"
        document = {
            "apiVersion": "kubescheduler.config.k8s.io/v1",
            "kind": "KubeSchedulerConfiguration",
            "profiles": [{"schedulerName": NATIVE}],
            "leaderElection": {"leaderElect": False},
            "clientConnection": stack_config.client_connection() | {"kubeconfig": str(kubeconfig)},
        }
        configuration.write_text(json.dumps(document))
        port = free_port()
        pki = cluster.layout.pki
        argv = scheduler_argv(NATIVE, configuration, kubeconfig=kubeconfig, pki=pki, port=port)
        log = directory / "scheduler.log"
        self.process = Process(NATIVE, [*argv, f"--feature-gates={','.join(NATIVE_GATES)}"], log=log)
        self._port = port

    def start(self, healthy: Callable[[int], bool]) -> None:
        """Start the scheduler and wait until it is healthy."""
        self.process.start()
        self.process.wait_ready(lambda: healthy(self._port))


def pod_group(name: str, size: int) -> Object:
    """Return the native PodGroup of a gang of this size in one rack."""
    return {
        "apiVersion": "scheduling.k8s.io/v1beta1",
        "kind": "PodGroup",
        "metadata": {"name": name, "namespace": NAMESPACE},
        "spec": {
            "schedulingPolicy": {"gang": {"minCount": size}},
            "schedulingConstraints": {"topology": [{"key": RACK_LABEL}]},
        },
    }


def native_gang(name: str, size: int) -> list[Object]:
    """Return the pods of a native PodGroup."""
    group = {"schedulingGroup": {"podGroupName": name}}
    return [pod(f"{name}-{index}", scheduler=NATIVE, spec=group) for index in range(size)]


def muster_gang(name: str, size: int) -> list[Object]:
    """Return the pods of a gang of Muster, in one rack, whose full size is known."""
    annotations = {
        "gpu.topology/group": name,
        "gpu.topology/min-member": str(size),
        "gpu.topology/size": str(size),
        "gpu.topology/scope": "rack",
    }
    words = Words(annotations=annotations)
    return [pod(f"{name}-{index}", gang=words, scheduler=Muster.name) for index in range(size)]
