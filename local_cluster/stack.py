"""The real Muster on a local cluster: its service and its scheduler as processes, set up as in production.

    with LocalCluster(directory / "cluster") as cluster, Stack(cluster, directory / "stack") as stack:
        …                            # pods with schedulerName: muster are scheduled
        stack.service.kill()         # as a crash would
        stack.start_service()        # back, and the scheduler connected to it

Both run under the service account and the RBAC of scheduler-config/, with its KubeSchedulerConfiguration.

    Stack(cluster, directory)        nothing runs yet; logs and files go into `directory`
    .start() .stop()                 both processes; also as a context manager
    .service .scheduler              local_cluster.processes.Process: .kill() .stop() .pid .alive .log_tail()
    .start_service() .start_scheduler()     one of them again; returns when the whole system is ready
    .restore()                       start what does not run; returns when the system is ready
    .wait_ready()                    returns when the service is in sync and the leading scheduler is
                                     connected to it
    .service_url                     the service's HTTP endpoint, with /healthz, /readyz, /metrics, …
    .metrics_url                     its Prometheus metrics
    .scheduler_url                   the scheduler's HTTPS endpoint
    .scheduler_metrics()             those of the scheduler, as text
    .logs(lines)                     the ends of both logs, for failure texts
    .stretch                         how many times longer a lease holds than on a quiet machine

No process is left behind: both die with the process that started them, however that ends.
"""

from __future__ import annotations

import json
import math
import shutil
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Self

import urllib3

from local_cluster import stack_config
from local_cluster.api import Api
from local_cluster.build import binary
from local_cluster.certificates import ClusterKeys
from local_cluster.cluster import LocalCluster
from local_cluster.collector import exporting_to
from local_cluster.components import HOST
from local_cluster.patience import slowness, stretched
from local_cluster.ports import free_port, is_free, start_on_free_ports
from local_cluster.processes import LOG_TAIL_LINES, Process, ProcessError

HTTP_TIMEOUT_S = 5.0
MAX_STRETCH = 3
"""Of a lease on a slow machine: tests wait until it has run out."""
SESSION = "muster_shim_session_up"


class StackError(RuntimeError):
    """The system did not start. The text ends with the log of what failed."""


@dataclass(frozen=True, slots=True)
class Programs:
    """What is run, and with which environment. What is None or empty is that of this checkout.

    `configuration` is the shim's, as it is in scheduler-config/.
    """

    shim: Path | None = None
    configuration: Path = stack_config.CONFIGURATION
    service: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)


class Stack:
    """Service and scheduler on one cluster. `service_options` are added to `muster serve`; without
    `quick_lease` a killed leader's lease holds as long as in production. Pods of each of `scheduler_names`
    are scheduled, each by a profile of its own. `feature_gates` are added to those of scheduler-config/.
    `kubeconfig` is for both, instead of one with a token of the account. `programs` may be another release's.
    Both send spans to the cluster's collector, if it has one."""

    def __init__(
        self,
        cluster: LocalCluster,
        directory: Path,
        *,
        service_options: Sequence[str] = (),
        quick_lease: bool = True,
        scheduler_names: Sequence[str] = ("muster",),
        feature_gates: Sequence[str] = (),
        kubeconfig: Path | None = None,
        programs: Programs | None = None,
    ) -> None:
        self.cluster = cluster
        self.directory = directory.absolute()
        self.stretch = 1
        self._service_options = tuple(service_options)
        self._scheduler_names = tuple(scheduler_names)
        self._feature_gates = (stack_config.FEATURE_GATES, *feature_gates)
        self._quick_lease = quick_lease
        self._run: Path | None = None
        self._given = kubeconfig
        self._kubeconfig = Path()
        self._programs = programs or Programs()
        self._ports: dict[str, int] = {}
        self._processes: dict[str, Process] = {}
        self._http = urllib3.PoolManager(retries=False)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    # --- what it is -----------------------------------------------------------------------------

    @property
    def service(self) -> Process:
        """`muster serve`."""
        return self._processes["service"]

    @property
    def scheduler(self) -> Process:
        """kube-scheduler with Muster's plugin: the shim."""
        return self._processes["scheduler"]

    @property
    def service_url(self) -> str:
        """Return the address of the service's HTTP port."""
        return f"http://{HOST}:{self._ports['service']}"

    @property
    def page_url(self) -> str:
        """Return the address of the page for browsers.

        Raises:
            OSError: the service does not run.
        """
        return self.socket.with_name(self.socket.name + ".page").read_text().strip()

    @property
    def metrics_url(self) -> str:
        """Return the address of the service's metrics."""
        return f"{self.service_url}/metrics"

    @property
    def scheduler_url(self) -> str:
        """The scheduler's HTTPS endpoint, with /healthz and /metrics."""
        return f"https://{HOST}:{self._ports['scheduler']}"

    def service_get(self, path: str) -> str:
        """What the service answers; OSError while it can't be reached or answers with an error."""
        try:
            answer = self._http.request("GET", f"{self.service_url}{path}", timeout=stretched(HTTP_TIMEOUT_S))
        except urllib3.exceptions.HTTPError as problem:
            raise OSError(f"GET {path}: {problem}") from problem
        if answer.status != 200:
            raise OSError(f"GET {path}: {answer.status} {answer.data.decode(errors='replace')[:200]}")
        return answer.data.decode()

    def scheduler_metrics(self) -> str:
        """Prometheus metrics of the scheduler; OSError while it can't be reached."""
        answer = self._scheduler_api().send("GET", "/metrics")
        if not answer.ok:
            raise OSError(f"metrics of the scheduler: {answer.status}")
        return answer.body.decode()

    @property
    def ready(self) -> bool:
        """Whether both run and are connected."""
        try:
            return all(process.alive for process in self._processes.values()) and self._connected()
        except OSError:
            return False

    @property
    def leads(self) -> bool:
        """Whether this scheduler has a session with its service, which only the leader opens."""
        try:
            return "scheduler" in self._processes and self.scheduler.alive and self._connected()
        except OSError:
            return False

    def logs(self, lines: int = LOG_TAIL_LINES) -> str:
        """Return the last lines of each process's log."""
        return "\n".join(
            f"--- the end of {process.log}\n{process.log_tail(lines)}" for process in self._processes.values()
        )

    # --- up and down ----------------------------------------------------------------------------

    def start(self) -> None:
        """Start both processes and wait until the scheduler leads and is connected to the service."""
        if self._run is not None:
            raise StackError(f"the stack in {self.directory} runs already")
        self.directory.mkdir(parents=True, exist_ok=True)
        # its own short folder, 0700: a unix socket's path has at most 107 bytes
        self._run = Path(tempfile.mkdtemp(prefix="muster-"))
        try:
            stack_config.apply_rights(self.cluster.api)
            stack_config.apply_crds(self.cluster.api)
            self._kubeconfig = self._given or self.cluster.kubeconfig_for(stack_config.ACCOUNT)
            self._launch("service")
            self._launch("scheduler")
            self.wait_ready()
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """Stop both, the scheduler first: its lease is given back. Does nothing when nothing runs."""
        try:
            for name in ("scheduler", "service"):
                if name in self._processes:
                    self._processes[name].stop()
        finally:
            if self._run is not None:
                shutil.rmtree(self._run, ignore_errors=True)
                self._run = None

    def start_service(self) -> None:
        """Start the service again after it was stopped or killed; return when the system is ready."""
        self._relaunch("service")
        self.wait_ready()

    def start_scheduler(self) -> None:
        """Start the scheduler again after it was stopped or killed; return when the system is ready.

        After a kill that takes until the lease of the one that was killed has run out.
        """
        self._relaunch("scheduler")
        self.wait_ready()

    def restore(self) -> None:
        """Start what does not run; return when the system is ready. Nothing when it is."""
        if not self.ready:
            self._relaunch("service")
            self._relaunch("scheduler")
            self.wait_ready()

    def wait_ready(self) -> None:
        """Return when the service is in sync and the leading scheduler has a session with it."""
        try:
            self.service.wait_ready(self._service_ready)
            self.scheduler.wait_ready(self._connected)
        except ProcessError as problem:
            raise StackError(f"{problem}\n{self.logs()}") from problem

    # --- inside ---------------------------------------------------------------------------------

    def _relaunch(self, name: str) -> None:
        if self._run is None:
            raise StackError(f"the stack in {self.directory} is not started")
        if not self._processes[name].alive:
            self._launch(name)

    def _launch(self, name: str) -> None:
        """Start one process and wait until it answers; on another port when its own was taken.

        Raises:
            StackError: it does not start.
        """

        def stop() -> None:
            self._processes[name].kill()

        try:
            start_on_free_ports(lambda: self._start(name), stop)
        except ProcessError as problem:
            raise StackError(str(problem)) from problem

    def _start(self, name: str) -> None:
        """Start a process on the port that it had, if that is free, and wait until it answers."""
        port = self._ports.get(name)
        if port is None or not is_free(port):
            self._ports[name] = free_port(frozenset(self._ports.values()))
        argv = self._service_argv() if name == "service" else self._scheduler_argv()
        env = {"MUSTER__SCHEDULER_NAMES": json.dumps(self._scheduler_names)}
        env |= {**exporting_to(self.cluster.collector), **self._programs.environment}
        process = Process(name, argv, log=self.directory / f"{name}.log", env=env)
        self._processes[name] = process
        healthy = self._service_healthy if name == "service" else self._scheduler_healthy
        process.start()
        process.wait_ready(healthy)

    @property
    def socket(self) -> Path:
        """Return the path of the shim's unix socket.

        Raises:
            StackError: the stack is not started.
        """
        if self._run is None:
            raise StackError(f"the stack in {self.directory} is not started")
        return self._run / "muster.sock"

    def _service_argv(self) -> list[str]:
        return [
            *(self._programs.service or (str(Path(sys.executable).with_name("muster")),)),
            "serve",
            f"--kubeconfig={self._kubeconfig}",
            f"--socket={self.socket}",
            f"--http-port={self._ports['service']}",
            *self._service_options,
        ]

    def _scheduler_argv(self) -> list[str]:
        configuration, kubeconfig = self.directory / "scheduler.json", self._kubeconfig
        self.stretch = min(MAX_STRETCH, math.ceil(slowness()))
        if self.cluster.collector:
            kubeconfig = self.cluster.kubeconfig_for_user(stack_config.USER, stack_config.TRACED)
        stack_config.write_scheduler_configuration(
            configuration,
            names=self._scheduler_names,
            kubeconfig=kubeconfig,
            socket=self.socket,
            quick_lease=self.stretch if self._quick_lease else 0,
            template=self._programs.configuration,
        )
        argv = scheduler_argv(
            "muster-scheduler",
            configuration,
            kubeconfig=self._kubeconfig,
            pki=self.cluster.layout.pki,
            port=self._ports["scheduler"],
            program=self._programs.shim,
        )
        return [*argv, f"--feature-gates={','.join(self._feature_gates)}"]

    def _service_healthy(self) -> bool:
        return bool(self.service_get("/healthz") is not None)

    def _service_ready(self) -> bool:
        return bool(self.service_get("/readyz") is not None)

    def _scheduler_healthy(self) -> bool:
        return self._scheduler_api().send("GET", "/healthz").ok

    def _connected(self) -> bool:
        """Only the leader opens a session: an open one says that it leads."""
        return any(
            line.startswith(f"{SESSION} ") and float(line.split()[1]) == 1
            for line in self.scheduler_metrics().splitlines()
        )

    def _scheduler_api(self) -> Api:
        keys = ClusterKeys.create(self.cluster.layout.pki)
        return Api(self.scheduler_url, str(keys.ca.pair.certificate), keys.admin)


def scheduler_argv(
    name: str, configuration: Path, *, kubeconfig: Path, pki: Path, port: int, program: Path | None = None
) -> list[str]:
    """The command line of a kube-scheduler, by default the shim, that serves on `port` under this name."""
    ca = ClusterKeys.create(pki).ca
    pair = ca.issue(name, name, serves=("localhost", HOST))
    return [
        str(program or binary("shim")),
        f"--config={configuration}",
        f"--authentication-kubeconfig={kubeconfig}",
        f"--authorization-kubeconfig={kubeconfig}",
        # the cluster's CA from its file: a lookup also wants a front proxy's, and there is none here
        "--authentication-skip-lookup=true",
        f"--client-ca-file={ca.pair.certificate}",
        f"--bind-address={HOST}",
        f"--secure-port={port}",
        f"--tls-cert-file={pair.certificate}",
        f"--tls-private-key-file={pair.key}",
        "--v=2",
    ]
