"""The scene on real nodes: containers print the GPUs that they got."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import yaml

from local_cluster.api import Object
from local_cluster.demo.claims import Claim
from local_cluster.demo.facts import seats_of
from local_cluster.demo.manifests import create
from local_cluster.demo.observer import Observer, StreamingApi
from local_cluster.demo.show import Show, gpu_phrase
from local_cluster.real.nodes import RESOURCE
from local_cluster.real.printing import SHOW_GPUS, printed_gpus

TEXT = "each container on a real node prints as many GPUs as its pod asked for, none of them twice"


@dataclass(frozen=True, slots=True)
class Printed:
    """What one container printed. `asked` is how many GPUs its pod asks for."""

    pod: str
    node: str
    asked: int
    gpus: tuple[str, ...]


def tell(api: StreamingApi, observer: Observer, show: Show) -> Claim:
    """Start a gang on real nodes, show what its containers print, and check it."""
    show.scene(
        "Pods with real containers",
        "local_cluster/real/show-gpus.yaml",
        "These nodes have a kubelet, containerd and a device plugin with eight fake GPUs. Each container "
        "prints NVIDIA_VISIBLE_DEVICES.",
    )
    (job,) = yaml.safe_load_all(SHOW_GPUS.read_text())
    create(api, [job])
    name, members = job["metadata"]["name"], job["spec"]["parallelism"]
    pods = observer.wait_for(f"{members} bound pods of {name}", lambda: _bound(observer.pods(name), members))
    gpus = printed_gpus(api, [pod["metadata"]["name"] for pod in pods])
    printed = [_printed(pod, gpus[pod["metadata"]["name"]]) for pod in pods]
    planned = {seat.pod: seat.gpus for seat in seats_of(pods)}
    show.rows(
        [["pod", "node", "the plan", "the container prints"]]
        + [
            [
                pod_printed.pod,
                pod_printed.node,
                gpu_phrase(planned[pod_printed.pod]),
                ",".join(pod_printed.gpus),
            ]
            for pod_printed in printed
        ]
    )
    show.note("for nvidia.com/gpu the node is exact and the plan's GPUs are advice: the plugin chooses")
    return check(printed)


def _bound(pods: list[Object], members: int) -> list[Object] | None:
    bound = [pod for pod in pods if pod["spec"].get("nodeName")]
    return bound if len(bound) == members else None


def _printed(pod: Object, gpus: tuple[str, ...]) -> Printed:
    (container,) = pod["spec"]["containers"]
    gpus_asked = int(container["resources"]["limits"][RESOURCE])
    return Printed(pod["metadata"]["name"], pod["spec"]["nodeName"], gpus_asked, gpus)


def check(printed: Sequence[Printed]) -> Claim:
    """The claim about containers on real nodes."""
    gpus_by_node = [(pod_printed.node, gpu) for pod_printed in printed for gpu in pod_printed.gpus]
    wrong = [pod_printed.pod for pod_printed in printed if len(pod_printed.gpus) != pod_printed.asked]
    twice = sorted({f"{node} {gpu}" for node, gpu in gpus_by_node if gpus_by_node.count((node, gpu)) > 1})
    evidence = ", ".join(wrong + twice) or f"{len(gpus_by_node)} GPUs in {len(printed)} containers"
    return Claim("real_containers", TEXT, bool(printed) and not wrong and not twice, evidence)
