"""Kubeconfig files: a cluster, a user, nothing else; credentials inside, so that a file can be moved."""

from __future__ import annotations

import base64
import json
from pathlib import Path

from local_cluster.certificates import KeyPair, write_private


def write_kubeconfig(
    path: Path,
    *,
    cluster: str,
    server: str,
    ca: Path,
    user: str,
    pair: KeyPair | None = None,
    token: str | None = None,
) -> Path:
    """Write one for a client certificate or for a bearer token. JSON, which every reader of YAML reads."""
    if (pair is None) == (token is None):
        raise ValueError(f"kubeconfig for {user}: give either a certificate or a token")
    credentials: dict[str, str] = {"token": token} if token else {}
    if pair:
        credentials = {
            "client-certificate-data": _encoded(pair.certificate),
            "client-key-data": _encoded(pair.key),
        }
    document = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [
            {"name": cluster, "cluster": {"server": server, "certificate-authority-data": _encoded(ca)}}
        ],
        "users": [{"name": user, "user": credentials}],
        "contexts": [{"name": cluster, "context": {"cluster": cluster, "user": user}}],
        "current-context": cluster,
    }
    write_private(path, json.dumps(document, indent=2).encode() + b"\n")
    return path


def _encoded(path: Path) -> str:
    return base64.b64encode(path.read_bytes()).decode()
