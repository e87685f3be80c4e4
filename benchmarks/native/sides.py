"""kube-scheduler with its own gang scheduling, and the gangs that both schedulers are measured with."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from benchmarks.native.cases import group, pods, tree
from local_cluster import stack_config
from local_cluster.api import Api, Object
from local_cluster.certificates import ClusterKeys
from local_cluster.cluster import LocalCluster
from local_cluster.components import HOST, NATIVE_GATES
from local_cluster.nodes import RACK, ZONE
from local_cluster.ports import free_port
from local_cluster.processes import Process
from local_cluster.stack import scheduler_argv

NATIVE = "native"
ACCOUNT = "system:kube-scheduler"
"""Kubernetes' own rights of a scheduler, which include PodGroups."""


class Native:
    """The same binary with its default plugins, and with the feature gates of native gang scheduling."""

    def __init__(self, cluster: LocalCluster, directory: Path, scheduler_name: str = NATIVE) -> None:
        directory.mkdir(parents=True)
        kubeconfig = cluster.kubeconfig_for_user(ACCOUNT)
        configuration = directory / "scheduler.json"
        document = {
            "apiVersion": "kubescheduler.config.k8s.io/v1",
            "kind": "KubeSchedulerConfiguration",
            "profiles": [{"schedulerName": scheduler_name}],
            "leaderElection": {"leaderElect": False},
            "clientConnection": stack_config.client_connection() | {"kubeconfig": str(kubeconfig)},
        }
        configuration.write_text(json.dumps(document))
        self._pki = cluster.layout.pki
        self._port = free_port()
        argv = scheduler_argv(NATIVE, configuration, kubeconfig=kubeconfig, pki=self._pki, port=self._port)
        log = directory / "scheduler.log"
        self.process = Process(NATIVE, [*argv, f"--feature-gates={','.join(NATIVE_GATES)}"], log=log)

    def start(self) -> None:
        """Start the scheduler and wait until it is healthy."""
        self.process.start()
        self.process.wait_ready(self._is_healthy)

    def _is_healthy(self) -> bool:
        keys = ClusterKeys.create(self._pki)
        api = Api(f"https://{HOST}:{self._port}", str(keys.ca.pair.certificate), keys.admin)
        try:
            return api.send("GET", "/healthz").ok
        finally:
            api.close()


@dataclass(frozen=True)
class Column:
    """What is created in one trial: groups first, then pods. `share` of the gangs (or trees) are waited for.
    The pods of one gang lie in one domain of `key`."""

    title: str
    gangs: int
    groups: tuple[Object, ...]
    pods: tuple[Object, ...]
    key: str
    share: float = 1.0


def one_gang(title: str, size: int, key: str) -> Column:
    """Return a gang of this size in one domain."""
    return Column(title, 1, (group("gang-0", size, key=key),), pods("gang-0", size, 1), key)


def many_gangs(title: str, count: int, size: int, share: float) -> Column:
    """Return gangs of this size, each in a rack."""
    names = [f"gang-{number}" for number in range(count)]
    members = _together(pods(name, size, 1) for name in names)
    return Column(title, count, tuple(group(name, size, key=RACK) for name in names), members, RACK, share)


def one_tree(title: str, children: int, size: int) -> Column:
    """Return a tree in one zone, each of whose children is in one rack."""
    names = [f"gang-0-{number}" for number in range(children)]
    below = (group(name, size, key=RACK, parent="root") for name in names)
    members = _together(pods(name, size, 1) for name in names)
    return Column(title, 1, (tree("root", children, key=ZONE), *below), members, ZONE)


def _together(parts: Iterable[tuple[Object, ...]]) -> tuple[Object, ...]:
    return tuple(pod for part in parts for pod in part)


COLUMNS = {
    "rack": one_gang("16 pods in a rack", 16, RACK),
    "large": one_gang("512 pods in a zone", 512, ZONE),
    "many": many_gangs("100 gangs of 16, to the 90th", 100, 16, 0.9),
    "tree": one_tree("a tree of 8 groups of 4", 8, 4),
}
