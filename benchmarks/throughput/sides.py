"""The two ways to run the same scheduler binary: with Muster, and as it comes.

Both read scheduler-config/scheduler.yaml, so they have the same client limits, and run under the same
account. Never do both run at once: what one costs must not be charged to the other.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

from local_cluster import stack_config
from local_cluster.api import Api
from local_cluster.certificates import ClusterKeys
from local_cluster.cluster import LocalCluster
from local_cluster.collector import Collector
from local_cluster.components import HOST
from local_cluster.ports import free_port
from local_cluster.processes import Process
from local_cluster.stack import Stack, scheduler_argv


class Side(Protocol):
    """One way to schedule. `name` is also the schedulerName of its pods."""

    name: str

    def prepare(self, warm: Callable[[], None]) -> None:
        """Start what runs with the scheduler; `warm` has it place some pods, to load what it loads late."""

    def start(self) -> None:
        """Start the scheduler; returns when it leads."""

    def stop(self) -> None:
        """Stop all processes of this side."""

    def processes(self) -> dict[str, Process]:
        """What runs, by name."""

    def metrics(self) -> dict[str, str]:
        """Prometheus text of each process."""


class Muster:
    """The shim and the service."""

    name = "muster"

    def __init__(self, cluster: LocalCluster, directory: Path) -> None:
        self.stack = Stack(cluster, directory, quick_lease=False)

    def prepare(self, warm: Callable[[], None]) -> None:
        """Start the service, have `warm` place some pods, and stop the scheduler again."""
        self.stack.start()
        warm()
        self.stack.scheduler.stop()

    def start(self) -> None:
        """Start the scheduler."""
        self.stack.start_scheduler()

    def stop(self) -> None:
        """Stop all processes of this side."""
        self.stack.stop()

    def processes(self) -> dict[str, Process]:
        """Return the running processes by name."""
        return {"scheduler": self.stack.scheduler, "service": self.stack.service}

    def metrics(self) -> dict[str, str]:
        """Return the metrics of each process, as text."""
        return {"scheduler": self.stack.scheduler_metrics(), "service": self.stack.service_get("/metrics")}


class Traced(Muster):
    """The shim and the service, which send a trace of each gang to a collector. The API server sends none."""

    def __init__(self, cluster: LocalCluster, directory: Path) -> None:
        super().__init__(cluster, directory)
        self._cluster = cluster
        self._collector = Collector(directory / "collector")

    def prepare(self, warm: Callable[[], None]) -> None:
        """Start the collector too."""
        self._collector.start()
        self._cluster.collector = self._collector.endpoint
        super().prepare(warm)

    def stop(self) -> None:
        """Stop the collector too."""
        super().stop()
        self._cluster.collector = ""
        self._collector.stop()


class Stock:
    """The same binary with one profile that has the default plugins and no others, and no service."""

    name = "stock"

    def __init__(self, cluster: LocalCluster, directory: Path) -> None:
        self._cluster = cluster
        self._directory = directory.absolute()
        self._process: Process | None = None
        self._port = 0

    def prepare(self, warm: Callable[[], None]) -> None:
        """Nothing does."""

    def start(self) -> None:
        """Start the scheduler."""
        api = self._cluster.api
        self._directory.mkdir(parents=True, exist_ok=True)
        stack_config.apply_rights(api)
        self._port = free_port()
        self._process = Process("stock scheduler", self._argv(), log=self._directory / "scheduler.log")
        self._process.start()
        self._process.wait_ready(lambda: stack_config.leader(api))

    def stop(self) -> None:
        """Stop all processes of this side."""
        if self._process is not None:
            self._process.stop()
            self._process = None

    def processes(self) -> dict[str, Process]:
        """Return the running processes by name."""
        return {"scheduler": self._process} if self._process is not None else {}

    def metrics(self) -> dict[str, str]:
        """Return the metrics of each process, as text."""
        keys = ClusterKeys.create(self._cluster.layout.pki)
        api = Api(f"https://{HOST}:{self._port}", str(keys.ca.pair.certificate), keys.admin)
        try:
            return {"scheduler": api.send("GET", "/metrics").body.decode()}
        finally:
            api.close()

    def _argv(self) -> list[str]:
        """As `Stack` starts the shim, but for the feature gate that the plugin needs."""
        kubeconfig = self._cluster.kubeconfig_for(stack_config.ACCOUNT)
        configuration = self._directory / "scheduler.json"
        stack_config.write_scheduler_configuration(
            configuration, kubeconfig=kubeconfig, socket=Path(), quick_lease=False
        )
        configuration.write_text(json.dumps(stock(json.loads(configuration.read_text())), indent=2))
        return scheduler_argv(
            "stock-scheduler",
            configuration,
            kubeconfig=kubeconfig,
            pki=self._cluster.layout.pki,
            port=self._port,
        )


def stock(configuration: dict[str, Any]) -> dict[str, Any]:
    """Muster's KubeSchedulerConfiguration with one profile of default plugins in the place of its own."""
    return configuration | {"profiles": [{"schedulerName": Stock.name}]}
