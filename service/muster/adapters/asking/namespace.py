"""Find the namespace of the kubeconfig's context: kubectl uses this namespace where `-n` is not given, and so
does the plugin."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Any

from muster.adapters.asking.service import DEADLINE_S, Where, kubectl

DEFAULT = "default"
OF_POD = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")
_MISSHAPEN = (TypeError, AttributeError, LookupError, ValueError)
"""What reading a kubeconfig of another shape raises."""


class CurrentNamespace:
    """The namespace of the context. kubectl looks it up while the first request is under way."""

    def __init__(self, service: Where, by_kubectl: bool) -> None:
        self._where = service
        self._found = ""
        self._process: subprocess.Popen[str] | None = None
        arguments = ("config", "view", "--minify", "-o", "jsonpath={..namespace}")
        if by_kubectl and (command := kubectl(service, *arguments)):
            quiet = subprocess.DEVNULL
            self._process = subprocess.Popen(
                command, stdin=quiet, stdout=subprocess.PIPE, stderr=quiet, text=True
            )

    def __call__(self) -> str:
        """Return the namespace. Where kubectl is missing or finds no context, the kubeconfig is read."""
        if not self._found:
            self._found = self._output_of_kubectl() or of_kubeconfig(
                self._where.kubeconfig, self._where.context
            )
        return self._found

    def _output_of_kubectl(self) -> str:
        """Return what kubectl says, "" if it says nothing in time."""
        if self._process is None:
            return ""
        try:
            output, _ = self._process.communicate(timeout=DEADLINE_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.communicate()
            return ""
        if self._process.returncode != 0:
            return ""
        return output.strip() or DEFAULT


def of_kubeconfig(kubeconfig: Path | None, context: str | None) -> str:
    """Return the namespace of a context. Of several files the first one that names a namespace counts.

    Without a kubeconfig, return the namespace of the pod's service account, as kubectl does.
    """
    paths = str(kubeconfig or os.environ.get("KUBECONFIG") or Path.home() / ".kube/config")
    current, namespaces = context or "", dict[str, str]()
    for content in filter(None, map(_content, paths.split(os.pathsep))):
        current = current or str(content.get("current-context") or "")
        for entry in content.get("contexts") or ():
            try:
                namespaces.setdefault(str(entry["name"]), str(entry["context"].get("namespace") or ""))
            except _MISSHAPEN:
                continue
    if namespaces:
        return namespaces.get(current, "") or DEFAULT
    try:
        return OF_POD.read_text().strip() or DEFAULT
    except OSError:
        return DEFAULT


def _content(path: str) -> dict[str, Any]:
    """Return what a kubeconfig says. One that can't be read says nothing: the requests report that.

    krew's archive of the plugin has no yaml. There kubectl alone says the namespace.
    """
    try:
        import yaml
    except ModuleNotFoundError:
        return {}

    try:
        content = yaml.safe_load(Path(path).read_text())
    except (OSError, ValueError, yaml.YAMLError):
        return {}
    return content if isinstance(content, dict) else {}
