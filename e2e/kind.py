"""The cluster of `make kind-up` for these tests: its kubeconfig, and a kwok of the suite.

Most tests bring nodes of their own. kwok keeps those alive, and leaves kind's nodes to their kubelets.
"""

from __future__ import annotations

import contextlib
import json
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import urllib3

from e2e import left_behind
from local_cluster.build import binary
from local_cluster.certificates import write_private
from local_cluster.components import HOST, KWOK_PACE
from local_cluster.patience import HANG_S
from local_cluster.places import KWOK_STAGES
from local_cluster.ports import free_port
from local_cluster.processes import Process

REPOSITORY = Path(__file__).parents[1]
KUBECONFIG = REPOSITORY / "out/kind/kubeconfig"
CONTROL_PLANE = "muster-control-plane"
DOCKER_WITHIN_S = 20.0
EXEC_WITHIN_S = HANG_S + 60.0
KWOK_READY_S = 60.0
NAMESPACE = "muster-system"

# Where `make kind-up` leaves the manifests in the control plane's container
OVERLAY = "--kustomize=/muster/kind-cluster"
CRD = "--filename=/muster/scheduler-config/podgroups/crd-podgroup.yaml"


def why_not() -> str:
    """Return why there is no cluster of kind to test on; "" if there is one."""
    if shutil.which("docker") is None:
        return "needs Docker, and there is none on PATH"
    try:
        result = subprocess.run(
            ["docker", "inspect", "--format={{.State.Running}}", CONTROL_PLANE],
            capture_output=True,
            text=True,
            timeout=DOCKER_WITHIN_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return f"Docker does not answer within {DOCKER_WITHIN_S:.0f} s"
    if result.stdout.strip() != "true":
        return f"no container {CONTROL_PLANE} runs: `make kind-up` makes it"
    return "" if KUBECONFIG.is_file() else f"{KUBECONFIG} is not there: `make kind-up` writes it"


def kubectl(*arguments: str) -> str:
    """Return what kubectl prints, run inside the control plane's container."""
    argv = [
        "docker",
        "exec",
        CONTROL_PLANE,
        "kubectl",
        "--kubeconfig=/etc/kubernetes/admin.conf",
        *arguments,
    ]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=EXEC_WITHIN_S, check=False)
    assert done.returncode == 0, f"{' '.join(argv)}: {done.stderr}"
    return done.stdout


def install() -> None:
    """Install the manifests of `make kind-up` again, and wait until Muster is ready."""
    for path in (OVERLAY, CRD):
        kubectl("apply", "--server-side", "--force-conflicts", path)
    wait_ready()


def uninstall() -> None:
    """Take the manifests of `make kind-up` away."""
    for path in (OVERLAY, CRD):
        kubectl("delete", "--ignore-not-found", path)


def wait_ready() -> None:
    """Return when all replicas of Muster are ready."""
    kubectl("rollout", "status", "deployment/muster", f"--namespace={NAMESPACE}", f"--timeout={HANG_S:.0f}s")


def left() -> list[str]:
    """Return what is left of Muster, but for what kind names after its nodes."""
    return [line for line in left_behind.left(kubectl) if not _of_kind(line)]


def _of_kind(line: str) -> bool:
    name = line.rpartition("/")[2]
    return "muster-worker" in name or CONTROL_PLANE in name


@contextlib.contextmanager
def kwok(directory: Path) -> Iterator[None]:
    """Run kwok for the nodes that have its annotation."""
    directory.mkdir()
    port = free_port(frozenset())
    options = KWOK_PACE | {
        "manageAllNodes": False,
        "manageNodesWithAnnotationSelector": "kwok.x-k8s.io/node=fake",
        "cidr": "10.64.0.0/10",
        "nodeIP": "10.0.0.1",
        "serverAddress": f"{HOST}:{port}",
    }
    configuration = {
        "apiVersion": "config.kwok.x-k8s.io/v1alpha1",
        "kind": "KwokConfiguration",
        "options": options,
    }
    file = directory / "kwok.yaml"
    write_private(file, json.dumps(configuration).encode() + b"\n---\n" + KWOK_STAGES.read_bytes())
    process = Process(
        "kwok",
        [str(binary("kwok")), f"--kubeconfig={KUBECONFIG}", f"--config={file}"],
        log=directory / "kwok.log",
        env={"KWOK_WORKDIR": str(directory)},
    )
    try:
        process.start()
        process.wait_ready(lambda: _answers(port), KWOK_READY_S)
        yield
    finally:
        process.stop()


def _answers(port: int) -> bool:
    try:
        return (
            urllib3.request("GET", f"http://{HOST}:{port}/healthz", retries=False, timeout=2.0).status == 200
        )
    except urllib3.exceptions.HTTPError as problem:
        raise OSError(str(problem)) from problem
