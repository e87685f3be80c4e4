"""Requests and watches of any API server that a kubeconfig leads to.

On top of `local_cluster.api.Api`: reading a kubeconfig (certificates, a token, or an exec plugin such as
the clouds have), and watches as streams of lines.
"""

from __future__ import annotations

import base64
import contextlib
import json
import os
import socket
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Self

import urllib3
import yaml
from urllib3.connection import HTTPConnection

from local_cluster.api import Api, ApiError, ApiUnreachable, Object
from local_cluster.certificates import KeyPair, write_private
from local_cluster.patience import HANG_S

WATCH_SECONDS = 600


class KubeconfigError(RuntimeError):
    """A kubeconfig that can't be used. The text names the file and what is missing in it."""


class Client(Api):
    """One API server, as the user of the kubeconfig's current context."""

    @classmethod
    def of(cls, kubeconfig: Path, folder: Path) -> Self:
        """Connect as the kubeconfig says. Credentials inside it are written to `folder`, which is private."""
        document = yaml.safe_load(kubeconfig.read_text())
        context = _named(kubeconfig, document, "contexts", document.get("current-context"))["context"]
        cluster = _named(kubeconfig, document, "clusters", context["cluster"])["cluster"]
        user = _named(kubeconfig, document, "users", context["user"])["user"]
        if "exec" in user:
            user = user | _exec_credential(user["exec"])
        ca = _file(kubeconfig, folder, cluster, "certificate-authority")
        if ca is None:
            raise KubeconfigError(f"{kubeconfig}: its cluster has no certificate-authority: one is needed")
        certificate = _file(kubeconfig, folder, user, "client-certificate")
        key = _file(kubeconfig, folder, user, "client-key")
        pair = KeyPair(certificate, key) if certificate and key else None
        return cls(str(cluster["server"]).rstrip("/"), str(ca), pair, user.get("token"))

    def watch(self, path: str, since: str, accept: str = "application/json") -> Watch:
        """Changes of a collection after the resource version `since`; `accept`: in which form."""
        mark = "&" if "?" in path else "?"
        query = f"watch=1&allowWatchBookmarks=true&resourceVersion={since}&timeoutSeconds={WATCH_SECONDS}"
        url = f"{self.url}{path}{mark}{query}"
        timeout = urllib3.Timeout(connect=HANG_S, read=WATCH_SECONDS + 30)
        try:
            answer = self._pool.request(
                "GET",
                url,
                headers=self._headers | {"Accept": accept},
                preload_content=False,
                timeout=timeout,
            )
        except urllib3.exceptions.HTTPError as problem:
            raise ApiUnreachable(f"watch {path}: {problem}") from problem
        if answer.status != 200:
            text = answer.data.decode(errors="replace")[:300]
            answer.release_conn()
            raise ApiError("WATCH", path, answer.status, text)
        return Watch(answer)


class Watch:
    """One open watch. `close` may be called by another thread than the one that reads."""

    def __init__(self, answer: urllib3.BaseHTTPResponse) -> None:
        self._answer = answer
        assert isinstance(answer.connection, HTTPConnection)
        self._socket = answer.connection.sock
        self._closed = threading.Event()

    def __iter__(self) -> Iterator[Object]:
        """Events as {"type": …, "object": …}, until the server or `close` ends the stream."""
        tail = b""
        try:
            for chunk in self._answer.stream(amt=None):
                *lines, tail = (tail + chunk).split(b"\n")
                for line in lines:
                    if self._closed.is_set():  # what had come by then can still be read
                        return
                    if line:
                        yield json.loads(line)
        except (urllib3.exceptions.HTTPError, OSError) as problem:
            if not self._closed.is_set():
                raise ApiUnreachable(f"the watch broke: {problem}") from problem
        finally:
            self._answer.close()

    def close(self) -> None:
        """End the stream: its reader comes out of the loop."""
        self._closed.set()
        with contextlib.suppress(OSError):  # it had ended by itself
            # not SSLSocket's own, which takes TLS away first: the reader would be given its raw bytes
            socket.socket.shutdown(self._socket, socket.SHUT_RD)


def _named(kubeconfig: Path, document: Object, kind: str, name: str | None) -> Any:
    for entry in document.get(kind) or ():
        if entry["name"] == name:
            return entry
    raise KubeconfigError(f"{kubeconfig}: {kind} has no entry {name!r}")


def _file(kubeconfig: Path, folder: Path, entry: Object, key: str) -> Path | None:
    """The file that an entry names, or one with the data that it holds."""
    if data := entry.get(f"{key}-data"):
        path = folder / f"{key}.pem"
        write_private(path, base64.b64decode(data))
        return path
    if name := entry.get(key):
        return (kubeconfig.parent / str(name)).resolve()
    return None


def _exec_credential(plugin: Object) -> Object:
    """Ask a credential plugin (client.authentication.k8s.io) for a token or a certificate."""
    environment = {item["name"]: item["value"] for item in plugin.get("env") or ()}
    ask = {"apiVersion": plugin["apiVersion"], "kind": "ExecCredential", "spec": {"interactive": False}}
    done = subprocess.run(
        [plugin["command"], *(plugin.get("args") or ())],
        env={**os.environ, **environment, "KUBERNETES_EXEC_INFO": json.dumps(ask)},
        capture_output=True,
        timeout=HANG_S,
        check=False,
    )
    if done.returncode != 0:
        raise KubeconfigError(f"{plugin['command']} failed: {done.stderr.decode(errors='replace')[-500:]}")
    status = json.loads(done.stdout)["status"]
    credential: Object = {"token": status["token"]} if "token" in status else {}
    for key, field in (("client-certificate", "clientCertificateData"), ("client-key", "clientKeyData")):
        if field in status:
            credential[f"{key}-data"] = base64.b64encode(status[field].encode()).decode()
    return credential
