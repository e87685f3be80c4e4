"""Ask the service over HTTP, by its address or as the leader's pod through the API server, about a namespace.

The second way runs `kubectl get --raw`. kubectl knows every kind of kubeconfig, and its plugin has it. This
needs the rights to get the lease and to get `pods/proxy` in Muster's namespace.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path
from typing import Any

from muster.command_line import Failed

DEADLINE_S = 10.0
PORT = 8080
NAMESPACE = "muster-system"
LEASE = "muster"

HttpAnswer = dict[str, Any]
Query = Callable[[], Mapping[str, str]]
"""Returns the query parameters. It is called as late as possible, because kubectl finds the namespace while
the leader is looked up."""
DEFAULT_NAMESPACE = "default"
NAMESPACE_FILE_OF_POD = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")
_MISSHAPEN = (TypeError, AttributeError, LookupError, ValueError)
"""Exceptions of reading a kubeconfig of another shape."""


class NoAnswer(Failed):
    """Report that no service answers, and why. It ends a command, unless the command asks again."""


@dataclass(frozen=True, slots=True)
class Service:
    """The way to find the service: by its address, or by the lease in its namespace."""

    url: str = ""
    kubeconfig: Path | None = None
    context: str | None = None
    namespace: str = NAMESPACE


def address_of(socket: Path) -> str:
    """Return the HTTP address that the service wrote next to its socket.

    Raises:
        NoAnswer: There is no such file.
    """
    file = socket.with_name(socket.name + ".http")
    try:
        return file.read_text().strip()
    except OSError:
        raise NoAnswer(
            f"no service found: {file} is not there. Start one with `muster serve`, "
            "or name it by --socket or --url."
        ) from None


def ask(service: Service, path: str, query: Query = dict) -> HttpAnswer:
    """Return the service's answer at this path.

    Raises:
        NoAnswer: There is no service, or the account may not ask the service.
    """
    if service.url:
        text = _by_address(service.url, _with_query(path, query))
    else:
        text = _by_leader(service, path, query)
    try:
        answer: HttpAnswer = json.loads(text)
    except ValueError:
        raise NoAnswer(f"what answers at {path} is not Muster's service") from None
    return answer


def _with_query(path: str, query: Query) -> str:
    parameters = query()
    return f"{path}?{urllib.parse.urlencode(parameters)}" if parameters else path


def _by_address(url: str, path: str) -> str:
    if not url.startswith(("http://", "https://")):
        raise NoAnswer(f"--url {url}: an address like http://127.0.0.1:8080 is expected")
    try:
        with urllib.request.urlopen(url.rstrip("/") + path, timeout=DEADLINE_S) as answer:
            return str(answer.read().decode())
    except urllib.error.HTTPError as problem:
        if problem.code == HTTPStatus.NOT_FOUND:
            raise NoAnswer(
                f"what answers at {url} is not Muster's service: {path.partition('?')[0]} is not there. "
                "The page has another port than the service"
            ) from None
        raise NoAnswer(f"the service at {url} does not answer: {problem.reason}") from None
    except (urllib.error.URLError, TimeoutError) as problem:
        why = getattr(problem, "reason", problem)
        raise NoAnswer(f"the service at {url} does not answer: {why}") from None


def _by_leader(service: Service, path: str, query: Query) -> str:
    """Ask the leader's pod through the API server."""
    name = f"{service.namespace}/{LEASE}"
    lease = f"/apis/coordination.k8s.io/v1/namespaces/{service.namespace}/leases/{LEASE}"
    try:
        holder = str(json.loads(_kubectl(service, lease))["spec"]["holderIdentity"] or "")
    except (ValueError, LookupError):
        holder = ""
    pod = holder.partition("_")[0]
    if not pod:
        raise NoAnswer(f"no scheduler leads: lease {name} has no holder")
    pods = f"/api/v1/namespaces/{service.namespace}/pods"
    try:
        return _kubectl(service, f"{pods}/{urllib.parse.quote(pod)}:{PORT}/proxy{_with_query(path, query)}")
    except NoAnswer as problem:
        if f'pods "{pod}" not found' not in str(problem):
            raise
        raise NoAnswer(
            f"lease {name} names the leader {pod}, and namespace {service.namespace} has no such pod. "
            "If the leader runs outside the cluster, name its service by --url"
        ) from None


def kubectl(service: Service, *arguments: str) -> list[str]:
    """Return the command that runs kubectl with these arguments; [] if kubectl is not on PATH."""
    program = shutil.which("kubectl")
    if program is None:
        return []
    command = [program, *arguments]
    command += [f"--kubeconfig={service.kubeconfig}"] if service.kubeconfig else []
    command += [f"--context={service.context}"] if service.context else []
    return command


def _kubectl(service: Service, path: str) -> str:
    command = kubectl(service, "get", "--raw", path, f"--request-timeout={DEADLINE_S:g}s")
    if not command:
        raise NoAnswer("kubectl is not on PATH: install it, or name the service by --url")
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=2 * DEADLINE_S, check=False)
    except subprocess.TimeoutExpired:
        raise NoAnswer(f"kubectl did not answer within {2 * DEADLINE_S:g} s") from None
    if done.returncode != 0:
        lines = done.stderr.strip().splitlines()
        raise NoAnswer(f"kubectl get --raw {path}: {lines[-1] if lines else 'failed'}")
    return done.stdout


class CurrentNamespace:
    """The namespace of the kubeconfig's context, which kubectl uses where `-n` is not given.

    kubectl looks it up while the first request is under way.
    """

    def __init__(self, service: Service, by_kubectl: bool) -> None:
        self._service = service
        self._namespace = ""
        self._process: subprocess.Popen[str] | None = None
        arguments = ("config", "view", "--minify", "-o", "jsonpath={..namespace}")
        if by_kubectl and (command := kubectl(service, *arguments)):
            quiet = subprocess.DEVNULL
            self._process = subprocess.Popen(
                command, stdin=quiet, stdout=subprocess.PIPE, stderr=quiet, text=True
            )

    def __call__(self) -> str:
        """Return the namespace. Where kubectl is missing or finds no context, the kubeconfig is read."""
        if not self._namespace:
            self._namespace = self._output_of_kubectl() or namespace_in_kubeconfig(
                self._service.kubeconfig, self._service.context
            )
        return self._namespace

    def _output_of_kubectl(self) -> str:
        """Return kubectl's output; "" if it does not answer in time."""
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
        return output.strip() or DEFAULT_NAMESPACE


def namespace_in_kubeconfig(kubeconfig: Path | None, context: str | None) -> str:
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
        return namespaces.get(current, "") or DEFAULT_NAMESPACE
    try:
        return NAMESPACE_FILE_OF_POD.read_text().strip() or DEFAULT_NAMESPACE
    except OSError:
        return DEFAULT_NAMESPACE


def _content(path: str) -> dict[str, Any]:
    """Return the content of a kubeconfig; {} if it can't be read, which the requests report.

    krew's archive of the plugin lacks PyYAML. Then the namespace comes from kubectl.
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
