"""One cluster: four processes, one directory, from `up` to `down`.

cluster = LocalCluster(directory)
cluster.up()                         # blocks until it is healthy; dies with this process
cluster.apply_shape(Path("local_cluster/shapes/demo.yaml"))
… kubectl --kubeconfig cluster.kubeconfig …
cluster.down()
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import shutil
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from local_cluster import access, components
from local_cluster.api import Api
from local_cluster.build import BuildError, binary
from local_cluster.certificates import ClusterKeys, write_private
from local_cluster.components import PORTS, Context
from local_cluster.nodes import NodesNotReady, apply_nodes, nodes_of
from local_cluster.places import Layout
from local_cluster.ports import free_port, is_free, start_on_free_ports
from local_cluster.processes import Identity, Process, ProcessError
from local_cluster.real.nodes import GROUP, RealNodes, RealNodesError
from local_cluster.real.packages import PackagesError
from local_cluster.recipes import COMPONENTS
from local_cluster.shape import NodeGroup


class ClusterError(RuntimeError):
    """The cluster could not do what it was asked for. The text ends with the log of what failed."""


class LocalCluster:
    """A control plane in a directory. Two objects on one directory see the same cluster.

    With `audit`, the API server writes to `audit_log` what `audit_policy` says: every change by default.
    `api_flags` are added to its command line. With `native`, the API server, the controller manager and real
    kubelets have the gates of Kubernetes' own PodGroups, and the API server serves them.
    If `collector` is set before `up`, etcd and the API server send spans to this host and port.
    """

    def __init__(
        self,
        directory: Path,
        *,
        audit: bool = False,
        audit_policy: str = components.AUDIT_POLICY,
        api_flags: Sequence[str] = (),
        native: bool = False,
    ) -> None:
        self.directory = directory.absolute()
        self.audit = audit
        self._audit_policy = audit_policy
        self._api_flags = (*api_flags, *(components.NATIVE_API_FLAGS if native else ()))
        self._feature_gates = components.NATIVE_GATES if native else ()
        self.collector = ""
        self.layout = Layout(self.directory)
        self.real_nodes = RealNodes(self.layout)
        self._processes: dict[str, Process] = {}
        self._api: Api | None = None
        self._state_lock = threading.Lock()

    def __enter__(self) -> Self:
        self.up()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.down()

    # --- what it is -----------------------------------------------------------------------------

    @property
    def kubeconfig(self) -> Path:
        """The administrator's."""
        return self.layout.admin_kubeconfig

    @property
    def audit_log(self) -> Path:
        """One JSON object a line."""
        return self.layout.audit_log

    @property
    def ports(self) -> dict[str, int]:
        """Name of a port → number; empty before the first `up`."""
        ports: dict[str, int] = self._state().get("ports", {})
        return ports

    @property
    def url(self) -> str:
        """Return the API server's address."""
        return self._context().url("kube-apiserver")

    @property
    def api(self) -> Api:
        """Requests to the API server as the administrator."""
        url = self.url
        if self._api is None or self._api.url != url:
            keys = ClusterKeys.create(self.layout.pki)
            self._api = Api(url, str(keys.ca.pair.certificate), keys.admin)
        return self._api

    def running(self) -> dict[str, Identity]:
        """Component → the process that runs it; what does not run is left out."""
        return {name: identity for name in COMPONENTS if (identity := self._process(name).identity)}

    # --- up and down ----------------------------------------------------------------------------

    def up(self, foreground: bool = True) -> None:
        """Start what does not run yet; return when all of it is healthy.

        In the foreground the processes die with this one, even by kill -9; otherwise they run until
        `down`. A directory that a stopped cluster left is taken up again with its data.
        """
        try:
            for name in COMPONENTS:
                binary(name)
        except BuildError as problem:
            raise ClusterError(str(problem)) from problem
        self._claim_directory()
        with self._lock("up"):
            state = self._state()
            running = self.running()
            if running and state.get("audit", False) != self.audit:
                raise ClusterError(
                    f"the cluster in {self.directory} runs with audit={not self.audit}: "
                    f"take it down first, or ask for what it has"
                )
            self._write_state(
                {"ports": state.get("ports", {}), "audit": self.audit, "foreground": foreground}
            )
            try:
                self._bring_up([name for name in COMPONENTS if name not in running])
            except BaseException:
                self._stop_all(set(COMPONENTS) - set(running))
                raise

    def _bring_up(self, missing: list[str]) -> None:
        """etcd, the API server, then the two that need it side by side."""
        for name in ("etcd", "kube-apiserver"):
            if name in missing:
                self._start_on_free_ports(name)
        access.write_component_kubeconfigs(self._context())
        with ThreadPoolExecutor() as workers:
            for _ in workers.map(self._start_on_free_ports, [n for n in missing if n in COMPONENTS[2:]]):
                pass
        for name in set(COMPONENTS) - set(missing):
            self._wait_healthy(name)
        self.create_namespace("default")

    def down(self, *, keep: bool = False) -> None:
        """Stop everything and remove all but the logs; with `keep`, leave the data for another `up`.

        Does nothing where there is no cluster, and cleans up after one that crashed.
        """
        if not self.layout.state.is_file():
            return
        with self._lock("down"):
            try:
                self.real_nodes.stop()
            finally:
                self._stop_all(set(COMPONENTS))
            if keep:
                return
            layout = self.layout
            for folder in layout.folders:
                if folder.is_dir() and folder != layout.logs:
                    shutil.rmtree(folder)
            self.kubeconfig.unlink(missing_ok=True)
            self.layout.state.unlink()
            self.layout.lock.unlink()

    def remove(self) -> None:
        """`down`, and the logs too; the directory itself goes when nothing else lies in it."""
        if not self.layout.state.is_file():
            return  # perhaps somebody's folder, with logs of their own
        self.down()
        shutil.rmtree(self.layout.logs)
        if not any(self.directory.iterdir()):
            self.directory.rmdir()

    def stop(self, component: str) -> None:
        """Stop one component, as an operator would (SIGTERM)."""
        self._process(component).stop()

    def kill(self, component: str) -> None:
        """Kill one component, as a crash would (SIGKILL)."""
        self._process(component).kill()

    def pause(self, component: str) -> None:
        """Make one component hang (SIGSTOP), its connections open, until `resume`."""
        self._process(component).pause()

    def resume(self, component: str) -> None:
        """Let a paused component go on."""
        self._process(component).resume()

    def start(self, component: str) -> None:
        """Start one component that was stopped, on the port it had; return when it is healthy."""
        if not self._process(component).alive:
            self._start(component)

    # --- what is in it --------------------------------------------------------------------------

    def apply_shape(self, path: Path) -> int:
        """Create or update the nodes of a shape file and wait until all are Ready; how many there are."""
        nodes = nodes_of(path)
        try:
            apply_nodes(self.api, nodes)
        except NodesNotReady as problem:
            raise ClusterError(f"{problem}{self._log_tail('kwok')}") from problem
        return len(nodes)

    def start_real_nodes(
        self,
        count: int,
        *,
        group: NodeGroup = GROUP,
        shown: Sequence[Path] = (),
    ) -> None:
        """Start nodes with real kubelets, `real-0` and so on, and wait until each offers its GPUs.

        They need a machine that `real.support.why_not` has nothing against. They end with the cluster.
        Nodes of another `group` have no device plugin (`real.agents` gives them one); `shown` are folders and
        files of this machine that they have at the same place.
        """
        context, detached = self._context(), not self._state()["foreground"]
        try:
            self.real_nodes.start(context, self.api, count, detached=detached, group=group, shown=shown)
        except (RealNodesError, BuildError, PackagesError) as problem:
            raise ClusterError(f"cluster {self.directory}: {problem}") from problem

    def create_namespace(self, name: str) -> None:
        """Create a namespace and wait for its default service account, without which it takes no pods."""
        access.create_namespace(self.api, name)

    def token_for(self, service_account: str) -> str:
        """A bearer token of the service account `namespace/name`, good for a day."""
        return access.token_for(self.api, service_account)

    def kubeconfig_for(self, service_account: str) -> Path:
        """A kubeconfig with a token of `namespace/name`, for running something under its own RBAC.

        Namespace and account are created when they are missing; no rights are given to them.
        """
        return access.for_service_account(self._context(), self.api, service_account)

    def kubeconfig_for_user(self, name: str, groups: Sequence[str] = ()) -> Path:
        """A kubeconfig with a client certificate of a user in these groups."""
        return access.for_user(self._context(), name, groups)

    # --- one component --------------------------------------------------------------------------

    def _process(self, component: str) -> Process:
        if component not in COMPONENTS:
            raise ClusterError(f"component {component!r} is not known: one of {', '.join(COMPONENTS)}")
        process = self._processes.get(component)
        return process or Process(
            component, [], log=self.layout.log(component), pid_file=self.layout.pid_file(component)
        )

    def _start_on_free_ports(self, component: str) -> None:
        """Start a component; once more on other ports when one was taken in between."""

        def start() -> None:
            self._choose_ports(component)
            self._start(component)

        start_on_free_ports(start, lambda: self._process(component).kill())

    def _choose_ports(self, component: str) -> None:
        """Keep the ports that it had when they are free, so that kubeconfigs stay valid; else take others."""
        with self._state_lock:
            state = self._state()
            ports = state["ports"]
            for port in PORTS[component]:
                if port not in ports or not is_free(ports[port]):
                    ports[port] = free_port(besides=frozenset(ports.values()))
            self._write_state(state)

    def _start(self, component: str) -> None:
        context = self._context()
        process = Process(
            component,
            components.argv(component, binary(component), context),
            log=self.layout.log(component),
            env=components.environment(component, context),
            pid_file=self.layout.pid_file(component),
            die_with_parent=self._state()["foreground"],
        )
        self._processes[component] = process
        try:
            process.start()
            process.wait_ready(components.health(component, context))
        except ProcessError as problem:
            raise ClusterError(f"cluster {self.directory}: {problem}") from problem

    def _wait_healthy(self, component: str) -> None:
        """Of one that ran already: it must answer as well."""
        try:
            self._process(component).wait_ready(components.health(component, self._context()))
        except ProcessError as problem:
            raise ClusterError(f"cluster {self.directory}: {problem}") from problem

    def _stop_all(self, names: set[str]) -> None:
        """In the reverse of the order of start; those that nothing depends on together."""
        with ThreadPoolExecutor() as workers:
            for _ in workers.map(
                self.stop, [name for name in ("kwok", "kube-controller-manager") if name in names]
            ):
                pass
        for name in ("kube-apiserver", "etcd"):
            if name in names:
                self.stop(name)

    # --- its directory --------------------------------------------------------------------------

    def _context(self) -> Context:
        state = self._state()
        if not state.get("ports"):
            raise ClusterError(f"there is no cluster in {self.directory}: start it with up()")
        policy = self._audit_policy if state["audit"] else ""
        keys = ClusterKeys.create(self.layout.pki)
        return Context(
            self.layout, keys, state["ports"], policy, self._api_flags, self._feature_gates, self.collector
        )

    def _claim_directory(self) -> None:
        """Take an empty directory, or one that is a cluster's; never write among somebody's files."""
        if self.directory.exists() and not self.layout.state.is_file():
            ours = {path.name for path in self.layout.folders} | {self.layout.lock.name}
            ours = {path.name for path in self.layout.folders} | {self.layout.lock.name}
            strange = sorted(path.name for path in self.directory.iterdir() if path.name not in ours)
            if strange:
                raise ClusterError(
                    f"{self.directory} is not empty and no cluster's ({', '.join(strange[:3])}…): "
                    f"choose another one"
                )
        self.layout.make()

    @contextlib.contextmanager
    def _lock(self, deed: str) -> Iterator[None]:
        """One `up` or `down` at a time in a directory."""
        with self.layout.lock.open("a") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as problem:
                raise ClusterError(
                    f"{deed}: another up or down is at work on {self.directory}: wait until it is done"
                ) from problem
            yield

    def _state(self) -> dict[str, Any]:
        """What `up` noted: {"ports": {name: number}, "audit": bool, "foreground": bool}, or {}."""
        try:
            state: dict[str, Any] = json.loads(self.layout.state.read_text())
        except FileNotFoundError:
            return {}
        except ValueError as problem:
            raise ClusterError(
                f"{self.layout.state} is damaged ({problem}): remove {self.directory}"
            ) from problem
        return state

    def _write_state(self, state: dict[str, Any]) -> None:
        write_private(self.layout.state, json.dumps(state, indent=2).encode() + b"\n")

    def _log_tail(self, component: str) -> str:
        tail = "\n".join(f"  {line}" for line in self._process(component).log_tail().splitlines())
        return f"; the end of {self.layout.log(component)}:\n{tail}"
