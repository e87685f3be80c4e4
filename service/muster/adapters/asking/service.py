"""Ask the service over HTTP: by its address, or as the leader's pod through the API server.

The second way runs `kubectl get --raw`. kubectl knows every kind of kubeconfig, and its plugin has it. This
needs the rights to get the lease and to get `pods/proxy` in Muster's namespace.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

DEADLINE_S = 10.0
PORT = 8080
NAMESPACE = "muster-system"
LEASE = "muster"

Answer = dict[str, Any]


class NoAnswer(Exception):
    """Report that no service answers, and why."""


@dataclass(frozen=True, slots=True)
class Where:
    """How the service is found: by its address, or by the lease in its namespace."""

    url: str = ""
    kubeconfig: Path | None = None
    context: str | None = None
    namespace: str = NAMESPACE


def ask(where: Where, path: str, query: Mapping[str, str] | None = None) -> Answer:
    """Return what the service says at this path.

    Raises:
        NoAnswer: There is no service, or it may not be asked.
    """
    asked = f"{path}?{urllib.parse.urlencode(query)}" if query else path
    text = _by_address(where.url, asked) if where.url else _by_leader(where, asked)
    try:
        answer: Answer = json.loads(text)
    except ValueError:
        raise NoAnswer(f"what answers at {path} is not Muster's service") from None
    return answer


def _by_address(url: str, path: str) -> str:
    if not url.startswith(("http://", "https://")):
        raise NoAnswer(f"--url {url}: an address like http://127.0.0.1:8080 is expected")
    try:
        with urllib.request.urlopen(url.rstrip("/") + path, timeout=DEADLINE_S) as answer:
            return str(answer.read().decode())
    except (urllib.error.URLError, TimeoutError) as problem:
        why = getattr(problem, "reason", problem)
        raise NoAnswer(f"the service at {url} does not answer: {why}") from None


def _by_leader(where: Where, path: str) -> str:
    lease = f"/apis/coordination.k8s.io/v1/namespaces/{where.namespace}/leases/{LEASE}"
    try:
        holder = str(json.loads(_kubectl(where, lease))["spec"]["holderIdentity"] or "")
    except (ValueError, LookupError):
        holder = ""
    pod = holder.partition("_")[0]
    if not pod:
        raise NoAnswer(f"no scheduler leads: lease {where.namespace}/{LEASE} has no holder")
    pods = f"/api/v1/namespaces/{where.namespace}/pods"
    return _kubectl(where, f"{pods}/{urllib.parse.quote(pod)}:{PORT}/proxy{path}")


def _kubectl(where: Where, path: str) -> str:
    program = shutil.which("kubectl")
    if program is None:
        raise NoAnswer("kubectl is not on PATH: install it, or name the service by --url")
    command = [program, "get", "--raw", path, f"--request-timeout={DEADLINE_S:g}s"]
    command += [f"--kubeconfig={where.kubeconfig}"] if where.kubeconfig else []
    command += [f"--context={where.context}"] if where.context else []
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=2 * DEADLINE_S, check=False)
    except subprocess.TimeoutExpired:
        raise NoAnswer(f"kubectl did not answer within {2 * DEADLINE_S:g} s") from None
    if done.returncode != 0:
        said = done.stderr.strip().splitlines()
        raise NoAnswer(f"kubectl get --raw {path}: {said[-1] if said else 'failed'}")
    return done.stdout
