"""Run the real controllers of JobSet and LeaderWorkerSet on a local cluster, with their CRDs and webhooks.

What `kubectl apply -k config/default` of their Go modules would install is applied, but their Deployments:
each controller is a process, with the rights of its own service account. The webhooks work as in a real
cluster. Only their address and certificate differ, which are those of the process.
"""

from __future__ import annotations

import base64
import socket
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import yaml

from local_cluster import stack_config
from local_cluster.api import Api
from local_cluster.build import binary
from local_cluster.certificates import ClusterKeys
from local_cluster.cluster import LocalCluster
from local_cluster.components import HOST
from local_cluster.modules import folder
from local_cluster.ports import free_port
from local_cluster.processes import Process
from tests.manifests.rendering import render

WEBHOOKS = ("MutatingWebhookConfiguration", "ValidatingWebhookConfiguration")
WEBHOOK_PATHS = {kind: f"/apis/admissionregistration.k8s.io/v1/{kind.lower()}s" for kind in WEBHOOKS}

Object = dict[str, Any]


class Controller:
    """The controller of `name`, "jobset" or "lws", from its start to its stop. Logs go into `directory`."""

    def __init__(self, cluster: LocalCluster, directory: Path, name: str) -> None:
        self._cluster = cluster
        self._name = name
        self._directory = directory / name
        self._port = free_port()
        self._health = free_port(frozenset({self._port}))

    def __enter__(self) -> Self:
        keys = ClusterKeys.create(self._cluster.layout.pki)
        objects = render(folder(self._name) / "config" / "default")
        install(self._cluster.api, objects)
        (account,) = (manifest["metadata"] for manifest in objects if manifest["kind"] == "ServiceAccount")
        kubeconfig = self._cluster.kubeconfig_for(f"{account['namespace']}/{account['name']}")
        argv = [str(binary(self._name)), f"--config={self._configuration(keys)}"]
        log, env = self._directory / "log", {"KUBECONFIG": str(kubeconfig)}
        self.process = Process(self._name, argv, log=log, env=env)
        self.process.start()
        self.process.wait_ready(lambda: self._answers(keys))
        self._webhooks(objects, keys)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.process.stop()

    def _configuration(self, keys: ClusterKeys) -> Path:
        certificates = self._directory / "certificates"
        certificates.mkdir(mode=0o700, parents=True)
        pair = keys.ca.issue(f"webhooks-{self._name}", self._name, serves=("localhost", HOST))
        (certificates / "tls.crt").symlink_to(pair.certificate)
        (certificates / "tls.key").symlink_to(pair.key)
        path = self._directory / "configuration.yaml"
        configuration = {
            "apiVersion": f"config.{self._name}.x-k8s.io/v1alpha1",
            "kind": "Configuration",
            "leaderElection": {"leaderElect": False},
            "internalCertManagement": {"enable": False},
            "metrics": {"bindAddress": "0"},
            "health": {"healthProbeBindAddress": f"{HOST}:{self._health}"},
            "webhook": {"host": HOST, "port": self._port, "certDir": str(certificates)},
        }
        path.write_text(yaml.safe_dump(configuration))
        return path

    def _answers(self, keys: ClusterKeys) -> bool:
        """Return whether the controller is ready and its webhooks listen."""
        with socket.create_connection((HOST, self._port), timeout=1):
            pass
        url = f"http://{HOST}:{self._health}"
        return Api(url, str(keys.ca.pair.certificate)).send("GET", "/readyz").ok

    def _webhooks(self, objects: list[Object], keys: ClusterKeys) -> None:
        """Install the webhooks, with the address and the authority of the process."""
        authority = base64.b64encode(keys.ca.pair.certificate.read_bytes()).decode()
        for manifest in objects:
            if manifest["kind"] not in WEBHOOKS:
                continue
            for hook in manifest["webhooks"]:
                path = hook["clientConfig"]["service"]["path"]
                url = f"https://{HOST}:{self._port}{path}"
                hook["clientConfig"] = {"url": url, "caBundle": authority}
            stack_config.apply(self._cluster.api, WEBHOOK_PATHS[manifest["kind"]], manifest)


def install(api: Api, objects: list[Object]) -> None:
    """Create the rights and CRDs among the objects, and wait until the CRDs are served."""
    stack_config.apply_kinds(api, objects)
    stack_config.apply_definitions(api, objects)
