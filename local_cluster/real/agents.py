"""Node agents on real nodes: the DaemonSet of scheduler-config/node-agent, with this checkout as its image.

The agent runs in a container, with the account, the rights and the mounts of the manifest. Only what
differs on this machine is changed: the image is the one of real nodes, and the Python environment comes from
the machine; the API server is on the node's loopback; GPUs are described by a file.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from local_cluster import stack_config
from local_cluster.api import Api, Object
from local_cluster.places import SOURCE
from local_cluster.policies import POLICIES
from local_cluster.real.images import IMAGE
from local_cluster.real.nodes import GROUP as PLAIN
from local_cluster.shape import NodeGroup, Resource, Schedule

MANIFESTS = stack_config.MANIFESTS / "node-agent"
NAMESPACE = "muster-nodes"
PODS = f"/api/v1/namespaces/{NAMESPACE}/pods"
GUARD = "muster-allocations"
"""The policy that the component changes, so that agents may report."""
BASE = ("namespace.yaml", "admission.yaml")
"""Files of scheduler-config/ without which the agents can't be tried."""
NAME = "muster-node-agent"
LABEL = f"app.kubernetes.io/name={NAME}"
ENVIRONMENT = {"MUSTER__NODE_AGENTS__NAMESPACE": NAMESPACE}
"""Of a service that believes these agents."""
PATHS = stack_config.RIGHTS | POLICIES | {"DaemonSet": "/apis/apps/v1/namespaces/{namespace}/daemonsets"}
LIBRARIES = (Path("/usr"), Path("/lib"), Path("/lib64"), Path("/etc/ld.so.cache"))
"""What a Python of this machine needs besides itself. A node has them all."""


def group(name: str, schedule: Schedule, resource: Resource, memory_gib: int = 0) -> NodeGroup:
    """Return nodes whose GPUs agents offer. `name` has {index} in it."""
    return NodeGroup(
        name=name,
        zone=PLAIN.zone,
        rack=PLAIN.rack,
        gpus=8,
        resources=(resource,),
        gpu_memory_gib=memory_gib if resource == "aliyun.com/gpu-mem" else 0,
        schedule=schedule,
    )


def shown(matrices: Path) -> list[Path]:
    """Return what nodes must have of this machine. `matrices` has a file NODE.txt for each node."""
    outside = [Path(path) for path in (sys.base_prefix, sys.prefix) if not Path(path).is_relative_to("/usr")]
    return [*outside, SOURCE.parent / "service", matrices]


def deploy(
    api: Api,
    api_port: int,
    matrices: Path,
    options: tuple[str, ...] = (),
    off: Mapping[str, str] = MappingProxyType({}),
) -> None:
    """Create or update the agents and what they need. `options` are added to `muster node-agent`; no agent
    runs on nodes with the labels `off`."""
    manifests = [
        manifest
        for file in (*(stack_config.MANIFESTS / name for name in BASE), *sorted(MANIFESTS.glob("*.yaml")))
        for manifest in stack_config.manifests_of(file)
    ]
    for manifest in manifests:
        if manifest["kind"] == "DaemonSet":
            spec = manifest["spec"]["template"]["spec"]
            _adapt(spec, api_port, matrices, options)
            _exclude(spec, off)
            manifest["spec"]["updateStrategy"] = {"rollingUpdate": {"maxUnavailable": "100%"}}
        if manifest["kind"] == "ValidatingAdmissionPolicy" and manifest["metadata"]["name"] == GUARD:
            manifest["spec"]["variables"][0]["expression"] = f"['system:serviceaccount:{NAMESPACE}:{NAME}']"
    stack_config.apply_kinds(api, manifests, PATHS)


def pods(api: Api) -> dict[str, Object]:
    """Return the agents' pods by node."""
    items = api.get(f"{PODS}?labelSelector={LABEL}")["items"]
    return {pod["spec"]["nodeName"]: pod for pod in items if pod["spec"].get("nodeName")}


def ready(pod: Object) -> bool:
    """Return whether the kubelet has taken the GPUs that this agent offers."""
    conditions = pod["status"].get("conditions") or ()
    is_ready = any(condition["type"] == "Ready" and condition["status"] == "True" for condition in conditions)
    return is_ready and "deletionTimestamp" not in pod["metadata"]


def _exclude(spec: Any, off: Mapping[str, str]) -> None:
    required = spec["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    rules = [{"key": key, "operator": "NotIn", "values": [value]} for key, value in off.items()]
    for term in required["nodeSelectorTerms"]:
        term["matchExpressions"] = [*term["matchExpressions"], *rules]


def _adapt(spec: Any, api_port: int, matrices: Path, options: tuple[str, ...]) -> None:
    (container,) = spec["containers"]
    container |= {"image": IMAGE, "command": [str(Path(sys.executable).with_name("muster"))]}
    container["args"] = [*container["args"], f"--gpus=matrix:{matrices}/$(NODE_NAME).txt", *options]
    container["env"] += [
        {"name": "KUBERNETES_SERVICE_HOST", "value": "127.0.0.1"},
        {"name": "KUBERNETES_SERVICE_PORT", "value": str(api_port)},
    ]
    # the only scheduler of the local cluster is Muster's
    spec |= {"hostNetwork": True, "dnsPolicy": "Default", "schedulerName": "muster"}
    for number, path in enumerate((*LIBRARIES, *shown(matrices))):
        if path.exists():
            spec["volumes"].append({"name": f"machine-{number}", "hostPath": {"path": str(path)}})
            mount = {"name": f"machine-{number}", "mountPath": str(path), "readOnly": True}
            container["volumeMounts"].append(mount)
