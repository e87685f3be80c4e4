"""Make nodes that exist look like GPU nodes: labels, annotations, and extended resources.

    python kind-cluster/gpu_nodes.py [--kubeconfig FILE] [--nodes kind-cluster/nodes.yaml]

For any cluster whose nodes have kubelets (kind, a laptop's), on which nothing publishes GPUs. What the
node pretends to have is a shape file of local_cluster; cpu, memory and pods stay the kubelet's own.

Extended resources are advertised as Kubernetes' documentation does it: patched into the node's
status.capacity, from where the kubelet takes them over into allocatable. They stay over a restart. Only a
kubelet that finds its folder of device plugins empty, on a node made anew, sets them to zero.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

from kubernetes import config
from kubernetes.client.exceptions import ApiException
from kubernetes.dynamic import DynamicClient

from local_cluster.nodes import nodes_of
from local_cluster.shape import ShapeError

FOLDER = Path(__file__).resolve().parent
MERGE_PATCH = "application/merge-patch+json"


def patches(manifest: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """What is merged into a node, and into its status, to make it the wanted one. Pure."""
    metadata = manifest["metadata"]
    extended = {name: amount for name, amount in manifest["status"]["capacity"].items() if "/" in name}
    # hostname, os and arch are the kubelet's: what a shape assumes of them is not true of this node
    labels = {
        key: value
        for key, value in metadata["labels"].items()
        if key not in {"kubernetes.io/hostname", "kubernetes.io/os", "kubernetes.io/arch"}
    }
    annotations = {
        key: value for key, value in metadata["annotations"].items() if not key.startswith("local-cluster/")
    }
    # allocatable as well, so that it holds at once and where no kubelet copies it
    return (
        {"metadata": {"labels": labels, "annotations": annotations}},
        {"status": {"capacity": extended, "allocatable": extended}},
    )


def connect(kubeconfig: str | None) -> Any:
    """Return a client for any kind of object."""
    load: Any = config.new_client_from_config  # untyped, like all of that package
    dynamic: Any = DynamicClient
    return dynamic(load(config_file=kubeconfig))


def dress(client: Any, manifests: list[dict[str, Any]]) -> None:
    """Patch every node; all must be there already."""
    nodes = client.resources.get(api_version="v1", kind="Node")
    for node in manifests:
        name = node["metadata"]["name"]
        of_node, of_status = patches(node)
        nodes.patch(name=name, body=of_node, content_type=MERGE_PATCH)
        nodes.status.patch(name=name, body=of_status, content_type=MERGE_PATCH)
        resources = ", ".join(f"{key}={value}" for key, value in of_status["status"]["capacity"].items())
        print(f"{name}: {resources or 'no GPUs'}", flush=True)


def main(arguments: list[str] | None = None) -> int:
    """Make the cluster's workers look like GPU nodes, and return the exit status."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("--kubeconfig", help="default: $KUBECONFIG, else ~/.kube/config")
    parser.add_argument("--nodes", type=Path, default=FOLDER / "nodes.yaml", help="shape file")
    options = parser.parse_args(arguments)
    try:
        manifests = nodes_of(options.nodes)
        dress(connect(options.kubeconfig), manifests)
    except (ShapeError, config.ConfigException) as problem:
        print(f"error: {problem}", file=sys.stderr)
        return 1
    except ApiException as problem:
        print(f"error: {problem.status} {problem.reason}: {problem.body}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
