"""A scheduler that knows nothing of Muster, and its pods on the same nodes: they take cpu, at any moment.

They ask for no GPUs: two schedulers may give one GPU to two pods at once, and only a kubelet, which there is
none here, would refuse the second. How long they wait is the report's baseline.
"""

from __future__ import annotations

import json
import random
import time
from pathlib import Path
from types import TracebackType
from typing import Self

from e2e import objects
from e2e.chaos.losses import Losses
from e2e.chaos.patience import Patient
from e2e.chaos.waits import ASKED_AT
from e2e.facts import FINISHED
from e2e.record import PODS, Record
from e2e.scene import COMPLETE
from local_cluster.api import Api, Object
from local_cluster.certificates import ClusterKeys, write_private
from local_cluster.cluster import LocalCluster
from local_cluster.components import HOST
from local_cluster.ports import free_port
from local_cluster.processes import Process
from local_cluster.stack import scheduler_argv

SCHEDULER = "default-scheduler"
MAX_STRANGERS_AT_ONCE = 14
"""At most 14 × 48 cpu: of 18 nodes with 96 cpu, one always has room for the next."""

CPU = (8, 16, 32, 48)
LASTS_S = (10, 60)


class StockScheduler:
    """kube-scheduler with its own profile and no other, from when it is entered to when it is left."""

    def __init__(self, cluster: LocalCluster, directory: Path) -> None:
        self._cluster = cluster
        self._port = free_port()
        configuration = directory / "stock-scheduler.json"
        kubeconfig = cluster.kubeconfig_for_user("system:kube-scheduler")
        document = {
            "apiVersion": "kubescheduler.config.k8s.io/v1",
            "kind": "KubeSchedulerConfiguration",
            "leaderElection": {"leaderElect": False},
            "clientConnection": {"kubeconfig": str(kubeconfig)},
        }
        write_private(configuration, json.dumps(document).encode())
        argv = scheduler_argv(
            "stock-scheduler",
            configuration,
            kubeconfig=kubeconfig,
            pki=cluster.layout.pki,
            port=self._port,
        )
        self._process = Process("stock-scheduler", argv, log=directory / "stock-scheduler.log")

    def __enter__(self) -> Self:
        keys = ClusterKeys.create(self._cluster.layout.pki)
        api = Api(f"https://{HOST}:{self._port}", str(keys.ca.pair.certificate), keys.admin)
        self._process.start()
        self._process.wait_ready(lambda: api.send("GET", "/readyz").ok)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.stop()


class Strangers:
    """Pods of that scheduler in the same namespace; for one thread, which tends them."""

    def __init__(
        self, patient: Patient, namespace: str, record: Record, losses: Losses, chance: random.Random
    ) -> None:
        self._patient = patient
        self._path = f"/api/v1/namespaces/{namespace}/pods"
        self._record = record
        self._losses = losses
        self._chance = chance
        self._made: dict[str, str] = {}
        self._seen: set[str] = set()
        self._placed: set[str] = set()

    @property
    def placed(self) -> int:
        """How many have been seen on a node."""
        return len(self._placed)

    def tend(self, *, keep: bool) -> None:
        """Clear away those that have ended; `keep` as many as there should be, else clear away those that
        wait."""
        uids = ((str(pod["metadata"]["uid"]), pod) for pod in self._record.live(PODS))
        live = {uid: pod for uid, pod in uids if uid in self._made}
        for uid in self._seen - {*live}:
            self._made.pop(uid, None)
        self._seen |= {*live}
        for uid, pod in live.items():
            bound = bool(pod["spec"].get("nodeName"))
            if bound:
                self._placed.add(uid)
            if pod["status"].get("phase") in FINISHED or not (bound or keep):
                self._losses.excuse([uid])
                self._patient.delete(f"{self._path}/{self._made.pop(uid)}")
        if keep and len(self._made) < MAX_STRANGERS_AT_ONCE:
            self._create()

    def _create(self) -> None:
        created = self._patient.create(self._path, self._pod())
        self._made[str(created["metadata"]["uid"])] = str(created["metadata"]["name"])

    def _pod(self) -> Object:
        number = self._chance.getrandbits(32)
        pod = objects.pod(f"stranger-{number:08x}", gpus=0, scheduler=SCHEDULER)
        pod["spec"]["containers"][0]["resources"]["requests"]["cpu"] = str(self._chance.choice(CPU))
        pod["metadata"]["annotations"][COMPLETE] = f"{self._chance.randint(*LASTS_S)}s"
        pod["metadata"]["annotations"][ASKED_AT] = str(time.monotonic())
        return pod
