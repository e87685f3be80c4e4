"""A kind cluster with GPU-shaped nodes and Muster in it: `make kind-up`, and `make kind-down`.

Needs a running Docker, and nothing else on PATH: kind is built from check/go.mod, kubectl is the one
in the node image. The user's own kubeconfig is left alone. A cluster that is there already is kept, and
gets the images and manifests of the checkout.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

from local_cluster.toolchain import find_go, go_environment

FOLDER = Path(__file__).resolve().parent
REPOSITORY = FOLDER.parent
KUBECONFIG = REPOSITORY / "out" / "kind" / "kubeconfig"
READY_WITHIN = "180s"
RUNS_MUSTER = "kind.muster.dev/runs-muster"
"""Label of the nodes that get the images. The overlay of this folder lets Muster run on them alone."""
NAMESPACE = "--namespace=muster-system"

# Image name in scheduler-config → (Dockerfile, what it is built from)
IMAGES = {
    "muster-shim": ("shim/Dockerfile", "shim"),
    "muster-service": ("service/Dockerfile", "."),
}


def cluster_configuration() -> dict[str, Any]:
    """Return the content of cluster.yaml."""
    content: dict[str, Any] = yaml.safe_load((FOLDER / "cluster.yaml").read_text())
    return content


def cluster_name() -> str:
    """Return the name in cluster.yaml."""
    return str(cluster_configuration()["name"])


def nodes_for_muster(configuration: dict[str, Any]) -> list[str]:
    """Return the names that kind gives to the nodes with the label RUNS_MUSTER."""
    numbers: dict[str, int] = {}
    names = []
    for node in configuration["nodes"]:
        number = numbers[node["role"]] = numbers.get(node["role"], 0) + 1
        if RUNS_MUSTER in (node.get("labels") or {}):
            names.append(f"{configuration['name']}-{node['role']}{number if number > 1 else ''}")
    return names


def image_tags() -> list[str]:
    """The two images as scheduler-config names them: kind must hold exactly these."""
    kustomization = yaml.safe_load((REPOSITORY / "scheduler-config" / "kustomization.yaml").read_text())
    return [f"{image['name']}:{image['newTag']}" for image in kustomization["images"]]


def run(*argv: str | Path, check: bool = True) -> None:
    """One step, shown; the first that fails ends all, unless it only shows something."""
    print("+ " + " ".join(str(part) for part in argv), flush=True)
    subprocess.run([str(part) for part in argv], cwd=REPOSITORY, check=check)


def kind(*arguments: str | Path, shown: bool = True) -> str:
    """Run kind as a Go tool, of the version in check/go.mod; return what it prints where it is not shown."""
    go = find_go()
    argv = [str(go), "tool", "kind", *(str(argument) for argument in arguments)]
    if shown:
        print("+ " + " ".join(argv[2:]), flush=True)
    output = None if shown else subprocess.PIPE
    done = subprocess.run(
        argv, cwd=FOLDER / "check", env=go_environment(go), stdout=output, text=True, check=True
    )
    return done.stdout or ""


def kubectl(*arguments: str, check: bool = True) -> None:
    """Run kubectl inside the control-plane container, so that none is needed outside."""
    run(
        "docker", "exec", f"{cluster_name()}-control-plane",
        "kubectl", "--kubeconfig=/etc/kubernetes/admin.conf", *arguments, check=check,
    )  # fmt: skip


def up() -> None:
    """Build the images, make the cluster unless it is there, and install Muster in it."""
    configuration, tags = cluster_configuration(), image_tags()
    name = str(configuration["name"])
    for tag in tags:
        dockerfile, context = IMAGES[tag.partition(":")[0]]
        run("docker", "build", "--tag", tag, "--file", dockerfile, context)
    KUBECONFIG.parent.mkdir(parents=True, exist_ok=True)
    was_there = name in kind("get", "clusters", shown=False).split()
    if was_there:
        print(f"the cluster {name} is there already: `make kind-down` deletes it", flush=True)
        kind("export", "kubeconfig", "--name", name, "--kubeconfig", KUBECONFIG)
    else:
        file = FOLDER / "cluster.yaml"
        kind("create", "cluster", "--config", file, "--kubeconfig", KUBECONFIG, "--wait", READY_WITHIN)
    nodes = ",".join(nodes_for_muster(configuration))
    kind("load", "docker-image", *tags, "--name", name, "--nodes", nodes)
    run(sys.executable, FOLDER / "gpu_nodes.py", "--kubeconfig", KUBECONFIG)
    install(restart=was_there)
    print(f"ready: export KUBECONFIG={KUBECONFIG}")


def install(*, restart: bool) -> None:
    """Apply the manifests and wait for the rollout; if it does not end, show why.

    `restart`: the tag of an image may name another image than before, which only new pods use.
    """
    node = f"{cluster_name()}-control-plane"
    run("docker", "exec", node, "rm", "-rf", "/muster")
    run("docker", "exec", node, "mkdir", "/muster")
    for folder in ("scheduler-config", "kind-cluster"):
        run("docker", "cp", REPOSITORY / folder, f"{node}:/muster/{folder}")
    kubectl("apply", "--server-side", "--force-conflicts", "--kustomize=/muster/kind-cluster")
    kubectl("apply", "--server-side", "--filename=/muster/scheduler-config/podgroups/crd-podgroup.yaml")
    try:
        if restart:
            kubectl("rollout", "restart", "deployment/muster", NAMESPACE)
        kubectl("rollout", "status", "deployment/muster", NAMESPACE, f"--timeout={READY_WITHIN}")
    except subprocess.CalledProcessError:
        show_state()
        raise


def show_state() -> None:
    """Show what tells why Muster does not start: its pods, their events, and the ends of their logs."""
    of_muster = "--selector=app.kubernetes.io/name=muster"
    kubectl("get", "pods", NAMESPACE, "--output=wide", check=False)
    kubectl("get", "events", NAMESPACE, "--sort-by=.lastTimestamp", check=False)
    kubectl("logs", NAMESPACE, of_muster, "--all-containers", "--prefix", "--tail=40", check=False)
    kubectl(
        "logs", NAMESPACE, of_muster, "--all-containers", "--prefix", "--tail=40", "--previous", check=False
    )


def down() -> None:
    """Delete the cluster."""
    kind("delete", "cluster", "--name", cluster_name(), "--kubeconfig", KUBECONFIG)


def main(arguments: Sequence[str] | None = None) -> int:
    """Make or delete the cluster, and return the exit status."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("--delete", action="store_true", help="delete the cluster")
    options = parser.parse_args(arguments)
    try:
        (down if options.delete else up)()
    except FileNotFoundError as problem:
        print(f"error: {problem.filename} is not on PATH, and is needed", file=sys.stderr)
        return 1
    except subprocess.CalledProcessError as problem:
        print(f"error: {problem.cmd[0]} failed (exit {problem.returncode}), see above", file=sys.stderr)
        return problem.returncode
    return 0


if __name__ == "__main__":
    sys.exit(main())
