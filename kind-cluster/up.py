"""A kind cluster with GPU-shaped nodes and Muster in it: `make kind-up`, and `make kind-down`.

Needs a running Docker, and nothing else on PATH: kind is built from check/go.mod, kubectl is the one
in the node image. The user's own kubeconfig is left alone.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import yaml

from local_cluster.toolchain import find_go, go_environment

HERE = Path(__file__).resolve().parent
REPOSITORY = HERE.parent
KUBECONFIG = REPOSITORY / "out" / "kind" / "kubeconfig"
READY_WITHIN = "180s"

# Image name in scheduler-config → (Dockerfile, what it is built from)
IMAGES = {
    "muster-shim": ("shim/Dockerfile", "shim"),
    "muster-service": ("service/Dockerfile", "."),
}


def cluster_name() -> str:
    """Return the name in cluster.yaml."""
    return str(yaml.safe_load((HERE / "cluster.yaml").read_text())["name"])


def image_tags() -> list[str]:
    """The two images as scheduler-config names them: kind must hold exactly these."""
    kustomization = yaml.safe_load((REPOSITORY / "scheduler-config" / "kustomization.yaml").read_text())
    return [f"{image['name']}:{image['newTag']}" for image in kustomization["images"]]


def run(*argv: str | Path) -> None:
    """One step, shown; the first that fails ends all."""
    print("+ " + " ".join(str(part) for part in argv), flush=True)
    subprocess.run([str(part) for part in argv], cwd=REPOSITORY, check=True)


def kind(*arguments: str | Path) -> None:
    """Run kind as a Go tool, of the version in check/go.mod."""
    go = find_go()
    argv = [str(go), "tool", "kind", *(str(argument) for argument in arguments)]
    print("+ " + " ".join(argv[2:]), flush=True)
    subprocess.run(argv, cwd=HERE / "check", env=go_environment(go), check=True)


def kubectl(*arguments: str) -> None:
    """Run kubectl inside the control-plane container, so that none is needed outside."""
    run(
        "docker", "exec", f"{cluster_name()}-control-plane",
        "kubectl", "--kubeconfig=/etc/kubernetes/admin.conf", *arguments,
    )  # fmt: skip


def up() -> None:
    """Build the images, make the cluster and install Muster in it."""
    name, tags = cluster_name(), image_tags()
    for tag in tags:
        dockerfile, context = IMAGES[tag.partition(":")[0]]
        run("docker", "build", "--tag", tag, "--file", dockerfile, context)
    KUBECONFIG.parent.mkdir(parents=True, exist_ok=True)
    configuration = HERE / "cluster.yaml"
    kind("create", "cluster", "--config", configuration, "--kubeconfig", KUBECONFIG, "--wait", READY_WITHIN)
    kind("load", "docker-image", *tags, "--name", name)
    run(sys.executable, HERE / "gpu_nodes.py", "--kubeconfig", KUBECONFIG)
    run("docker", "cp", REPOSITORY / "scheduler-config", f"{name}-control-plane:/scheduler-config")
    kubectl("apply", "--server-side", "--kustomize=/scheduler-config")
    kubectl("apply", "--server-side", "--filename=/scheduler-config/podgroups/crd-podgroup.yaml")
    kubectl(
        "rollout", "status", "deployment/muster", "--namespace=muster-system", "--timeout=" + READY_WITHIN
    )
    print(f"ready: export KUBECONFIG={KUBECONFIG}")


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
