"""Tokens and certificates are replaced in their files while gangs come.

The files are those that a kubelet keeps up to date in a pod. For the name by which Muster calls it, the API
server has a certificate of another authority than for its other clients.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

import pytest

from e2e import objects
from e2e.audit import LEASE_S
from e2e.client import Client
from e2e.conftest import SHORT
from e2e.scene import COMPLETE, Scene
from local_cluster.api import Api, Object
from local_cluster.certificates import Authority, KeyPair
from local_cluster.cluster import LocalCluster
from local_cluster.patience import HANG_S
from local_cluster.stack import Stack
from local_cluster.stack_config import ACCOUNT, apply_rights

NAME = "localhost"
RUNS_FOR = "2s"
TOKEN_READ_S = 60.0
"""client-go reads a token's file every 50 s."""
AUTHORITY_READ_S = 310.0
"""And that of an authority every 5 minutes."""


@dataclass(frozen=True)
class Mounted:
    """What a pod would have mounted, and the API server's certificate for the name `localhost`."""

    folder: Path

    @property
    def kubeconfig(self) -> Path:
        return self.folder / "kubeconfig"

    @property
    def token(self) -> Path:
        return self.folder / "token"

    @property
    def served(self) -> KeyPair:
        return KeyPair(self.folder / "served.crt", self.folder / "served.key")

    def connects_to(self, port: int) -> None:
        cluster = {"server": f"https://{NAME}:{port}", "certificate-authority": str(self.folder / "ca.crt")}
        document = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "it", "cluster": cluster}],
            "users": [{"name": "it", "user": {"tokenFile": str(self.token)}}],
            "contexts": [{"name": "it", "context": {"cluster": "it", "user": "it"}}],
            "current-context": "it",
        }
        self.kubeconfig.write_text(json.dumps(document))

    def trust(self, *authorities: Authority) -> None:
        bundle = b"".join(authority.pair.certificate.read_bytes() for authority in authorities)
        replace(self.folder / "ca.crt", bundle)

    def serve(self, authority: Authority) -> None:
        pair = authority.issue("served", NAME, serves=(NAME,))
        replace(self.served.key, pair.key.read_bytes())
        replace(self.served.certificate, pair.certificate.read_bytes())


def replace(path: Path, content: bytes) -> None:
    """Replace a file in one step, as the kubelet does."""
    (partial := path.with_suffix(".new")).write_bytes(content)
    partial.rename(path)


@pytest.fixture
def mounted(tmp_path: Path) -> Mounted:
    new_mount = Mounted(tmp_path / "mounted")
    new_mount.folder.mkdir()
    return new_mount


def authority(folder: Path) -> Authority:
    folder.mkdir()
    return Authority.create(folder, "ca")


@pytest.fixture
def cluster(mounted: Mounted, tmp_path: Path) -> Iterator[LocalCluster]:
    first = authority(tmp_path / "first")
    mounted.trust(first)
    mounted.serve(first)
    served_flag = f"--tls-sni-cert-key={mounted.served.certificate},{mounted.served.key}:{NAME}"
    with LocalCluster(tmp_path / "cluster", api_flags=[served_flag]) as started:
        yield started


def bound_token(api: Api, name: str) -> str:
    """Return a token of Muster's account that is good as long as a Secret of this name is there."""
    namespace, _, account = ACCOUNT.partition("/")
    path = f"/api/v1/namespaces/{namespace}"
    secret = api.post(f"{path}/secrets", {"metadata": {"name": name}})["metadata"]
    to = {"kind": "Secret", "apiVersion": "v1", "name": name, "uid": secret["uid"]}
    spec: Object = {"expirationSeconds": 3600, "boundObjectRef": to}
    return str(api.post(f"{path}/serviceaccounts/{account}/token", {"spec": spec})["status"]["token"])


class Rotation:
    """Muster with the mounted files, and gangs that come one by one."""

    def __init__(self, mounted: Mounted, cluster: LocalCluster, folder: Path, *, quick_lease: bool) -> None:
        self.mounted, self.cluster = mounted, cluster
        self._count = itertools.count()
        apply_rights(cluster.api)
        self._tokens = {name: bound_token(cluster.api, name) for name in ("first", "second")}
        mounted.token.write_text(self._tokens["first"])
        mounted.connects_to(int(cluster.api.url.rpartition(":")[2]))
        self.stack = Stack(cluster, folder / "stack", kubeconfig=mounted.kubeconfig, quick_lease=quick_lease)
        (credentials := folder / "credentials").mkdir(mode=0o700)
        self.scene = Scene(Client.of(cluster.kubeconfig, credentials), grace_s=LEASE_S)

    def __enter__(self) -> Self:
        with contextlib.ExitStack() as opened:
            opened.enter_context(self.stack)
            opened.enter_context(self.scene)
            self.scene.node(objects.node("a"))
            self._opened = opened.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._opened.close()

    def gang(self) -> None:
        """Have a gang run, and end."""
        name = f"g{next(self._count)}"
        pods = [objects.pod(f"{name}-{rank}", gang=objects.ack(name, 2)) for rank in range(2)]
        for pod in pods:
            pod["metadata"]["annotations"][COMPLETE] = RUNS_FOR
        names = self.scene.create(*pods)

        def all_ran() -> bool:
            return {*names} <= {pod_name for pod_name, pod in self.scene.pods().items() if pod.finished}

        self.scene.until(all_ran, f"{name} has run")
        self.scene.delete(*names)

    def gangs(self, for_s: float) -> None:
        """Have gangs come and go for so long."""
        until = time.monotonic() + for_s
        while time.monotonic() < until:
            self.gang()

    def replace_token(self) -> None:
        replace(self.mounted.token, self._tokens["second"].encode())

    def revoke(self) -> None:
        """Take away what makes the first token good, and wait until the API server refuses it."""
        api = self.cluster.api
        api.delete(f"/api/v1/namespaces/{ACCOUNT.partition('/')[0]}/secrets/first")
        theirs = Api(api.url, str(self.cluster.layout.pki / "ca.crt"), token=self._tokens["first"])
        self.stack.service.wait_ready(lambda: theirs.send("GET", "/version").status == 401)

    def restart_api_server(self) -> None:
        """Break all connections: new ones are made with what the files say now."""
        self.cluster.stop("kube-apiserver")
        self.cluster.start("kube-apiserver")


@pytest.mark.cluster
def test_what_is_replaced_and_no_longer_good_at_once(
    mounted: Mounted, cluster: LocalCluster, tmp_path: Path
) -> None:
    """The service reads its files when it is refused. The shim loses its lease, and is started again."""
    with Rotation(mounted, cluster, tmp_path, quick_lease=True) as rotation:
        rotation.gang()
        service = rotation.stack.service.pid
        second = authority(tmp_path / "second")
        rotation.replace_token()
        mounted.trust(second)
        mounted.serve(second)
        rotation.gang()  # connections that stand go on
        rotation.revoke()
        rotation.restart_api_server()
        assert rotation.stack.scheduler.wait(HANG_S) is not None
        rotation.stack.start_scheduler()
        rotation.gang()
        assert rotation.stack.service.pid == service
        rotation.scene.audit()


@pytest.fixture
def patient(request: pytest.FixtureRequest) -> None:
    if request.config.getoption("--gangs") == str(SHORT):
        pytest.skip("takes eight minutes: make upgrade")


@pytest.mark.cluster
@pytest.mark.usefixtures("patient")
def test_what_is_replaced_in_time(mounted: Mounted, cluster: LocalCluster, tmp_path: Path) -> None:
    """As kubelets and administrators do it: the old one is good until the new one was read."""
    with Rotation(mounted, cluster, tmp_path, quick_lease=False) as rotation:
        rotation.gang()
        processes = (rotation.stack.service.pid, rotation.stack.scheduler.pid)
        rotation.replace_token()
        rotation.gangs(TOKEN_READ_S)
        rotation.revoke()
        rotation.gang()
        second = authority(tmp_path / "second")
        mounted.trust(Authority.create(tmp_path / "first", "ca"), second)
        rotation.gangs(AUTHORITY_READ_S)
        assert (rotation.stack.service.pid, rotation.stack.scheduler.pid) == processes
        mounted.serve(second)
        rotation.restart_api_server()
        rotation.stack.restore()  # the only API server is away for longer than a lease may be renewed late
        rotation.gang()
        assert rotation.stack.service.pid == processes[0]
        assert "x509" not in rotation.stack.scheduler.log.read_text(), "the shim trusted it at once"
        rotation.scene.audit()
