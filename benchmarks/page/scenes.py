"""Three clusters: 6 nodes with something of everything, 64 nodes of two kinds, 5,000 with 1,000 gangs."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from dataclasses import replace

from benchmarks.clusters import ALLOCATABLE, Boards, topology
from benchmarks.page.scene import GPU, Ask, Scene
from muster.domain.node import Node, Resources
from muster.domain.pod import Pod
from muster.domain.topology import GpuTopology, Link

RACK, ZONE = "topology.kubernetes.io/rack", "topology.kubernetes.io/zone"
MODEL = "nvidia.com/gpu.product"
TEAMS = ("vision", "speech", "llm", "robotics", "search", "ads", "climate", "biology")
JOBS = ("pretrain", "sft", "eval", "distill", "rlhf", "embed", "ablation", "sweep")


def node(name: str, rack: str, board: GpuTopology, model: str, zone: str = "", **labels: str) -> Node:
    """Return a node with these GPUs."""
    node_labels = {"kubernetes.io/hostname": name, RACK: rack, MODEL: model, **labels}
    return Node(name, ALLOCATABLE, board, frozenset({GPU}), node_labels | ({ZONE: zone} if zone else {}))


def other(uid: str, on: str, gpus: int = 0, unindexed: int = 0) -> Pod:
    """Return a running pod of another scheduler. `gpus` is a bit mask."""
    count = gpus.bit_count() or unindexed
    return Pod(
        uid=uid,
        namespace="tools",
        name=uid,
        scheduler_name="default-scheduler",
        resources=Resources(1_000, 1 << 30, 1),
        gpus=count,
        gpu_resource=GPU,
        container_gpus=(("main", count),),
        node=on,
        running=True,
        allocation=gpus or None,
    )


def six() -> Scene:
    """Return two racks of three nodes: running, reserved, refused and incomplete gangs, and broken parts."""
    nvswitch, islands, cube = topology(Boards.NVSWITCH), topology(Boards.ISLANDS), topology(Boards.CUBE)
    nodes = [
        node("hgx-1", "rack-1", nvswitch, "NVIDIA-H100-80GB-HBM3"),
        node("hgx-2", "rack-1", nvswitch, "NVIDIA-H100-80GB-HBM3"),
        replace(node("hgx-3", "rack-1", nvswitch, "NVIDIA-H100-80GB-HBM3"), unhealthy=1 << 5),
        node("pair-1", "rack-2", islands, "NVIDIA-A100-SXM4-40GB"),
        node("pair-2", "rack-2", islands, "NVIDIA-A100-SXM4-40GB"),
        node("mesh-1", "rack-2", cube, "Tesla-V100-SXM2-32GB"),
    ]
    scene = Scene()
    scene.start(nodes, [other("notebook-1", "hgx-3", gpus=0b11), other("legacy-1", "pair-2", unindexed=2)])
    scene.submit(
        Ask("llm", "pretrain", 2, 8, "rack", age_s=9_000),
        Ask("vision", "sft", 2, 2, "nvlink-domain", age_s=4_000),
        Ask("speech", "ring-of-four", 4, 1, "node", age_s=1_900),
    )
    scene.bind(*scene.planned())
    scene.submit(Ask("search", "embed", 2, 2, "node", age_s=8))
    scene.change(replace(nodes[2], unschedulable=True))
    scene.submit(
        Ask("llm", "rlhf", 3, 8, "rack", age_s=2_700, priority=10),
        Ask("vision", "distill", 4, 4, age_s=640),
        Ask("ads", "sweep", 8, 1, "node", present=5, age_s=95),
    )
    return scene


def sixty_four() -> Scene:
    """Return 46 nodes of 8 GPUs in two zones, and a rack of 18 trays that share one NVLink domain."""
    rng = random.Random(64)
    tray = GpuTopology.of_islands(4, 4, Link.of_kind("NV18"), Link.of_kind("NV18"))
    nodes = []
    for at in range(46):
        zone = "zone-a" if at < 32 else "zone-b"
        board = topology(Boards.ISLANDS if at >= 32 else Boards.NVSWITCH)
        model = "NVIDIA-A100-SXM4-40GB" if at >= 32 else "NVIDIA-H100-80GB-HBM3"
        nodes.append(node(f"gpu-{at:02}", f"rack-{at // 8 + 1}", board, model, zone))
    for at in range(18):
        labels = {"nvidia.com/gpu.clique": "nvl72-0"}
        nodes.append(node(f"tray-{at:02}", "rack-nvl72", tray, "NVIDIA-GB200", "zone-b", **labels))
    nodes[11] = replace(nodes[11], unhealthy=0b10001)
    nodes[40] = replace(nodes[40], ready=False)
    scene = Scene()
    scene.start(nodes, [other(f"notebook-{at}", f"gpu-{at:02}", gpus=1 << at % 8) for at in (3, 9, 17, 35)])
    scene.submit(Ask("llm", "pretrain", 14, 4, "nvlink-domain", age_s=86_000))
    for at, (team, job) in enumerate((team, job) for team in TEAMS for job in JOBS[:4]):
        pods, gpus = rng.choice(((4, 8), (2, 8), (1, 8), (4, 4), (2, 4), (2, 2), (8, 1), (3, 8)))
        scope = rng.choice((None, "rack", "zone"))
        scene.submit(Ask(team, f"{job}-{at}", pods, gpus, scope, age_s=rng.randrange(200, 50_000)))
    scene.bind(*scene.planned())
    scene.change(replace(nodes[21], unschedulable=True))
    scene.submit(
        Ask("robotics", "rlhf", 8, 8, "rack", age_s=3_900, priority=5),
        Ask("climate", "era5", 6, 8, age_s=820),
        Ask("biology", "fold", 16, 4, "nvlink-domain", present=11, age_s=45),
        Ask("search", "embed-new", 1, 1, age_s=3),
    )
    return scene


def five_thousand() -> Scene:
    """Return 5,000 nodes of 8 GPUs in 313 racks, with 960 running gangs and 40 that wait."""
    rng = random.Random(5000)
    kinds = (Boards.NVSWITCH, Boards.NVSWITCH, Boards.ISLANDS)
    nodes = []
    for at in range(5_000):
        rack = at // 16
        board = kinds[rack % 3]
        model = "NVIDIA-A100-SXM4-40GB" if board is Boards.ISLANDS else "NVIDIA-H100-80GB-HBM3"
        new_node = node(
            f"gpu-{at:04}", f"rack-{rack + 1:03}", topology(board), model, f"zone-{rack // 80 + 1}"
        )
        broken = replace(new_node, unhealthy=1 << at % 8) if at % 211 == 7 else new_node
        nodes.append(replace(broken, unschedulable=True) if at % 307 == 11 else broken)
    scene = Scene()
    scene.start(nodes, _running(rng, nodes))
    shapes = ((64, 8, None), (96, 8, "zone"), (17, 8, "rack"), (24, 8, "rack"), (400, 8, None))
    for at in range(40):
        pods, gpus, scope = shapes[at % len(shapes)]
        ask = Ask(TEAMS[at % 8], f"{JOBS[at // 8]}-{at}", pods, gpus, scope, age_s=60 + 131 * at)
        scene.submit(replace(ask, present=pods - 1 if at % 13 == 5 else None, priority=at % 3))
    return scene


def _running(rng: random.Random, nodes: list[Node]) -> Iterator[Pod]:
    """Yield the bound pods of 960 gangs and of other schedulers, side by side from the first node on."""
    at, gpus_used = 0, 0
    for number in range(960):
        gpus = rng.choice((8, 8, 8, 4, 2, 1))
        pods = rng.choice((2, 4, 8, 16)) if gpus == 8 else rng.choice((1, 2, 4, 8))
        ask = Ask(
            TEAMS[number % 8], f"{rng.choice(JOBS)}-{number}", pods, gpus, age_s=rng.randrange(600, 400_000)
        )
        for pod in ask.members(time.time()):
            if gpus_used + gpus > 8 or (gpus_used and rng.random() < 0.04):
                at, gpus_used = at + 1, 0
            if at >= len(nodes) - 1:
                return
            mask = ((1 << gpus) - 1) << gpus_used & ~nodes[at].unhealthy
            if mask.bit_count() == gpus:
                yield replace(pod, node=nodes[at].name, running=True, allocation=mask)
            gpus_used += gpus
        if rng.random() < 0.1:
            at, gpus_used = at + 1, 0
            yield other(f"notebook-{number}", nodes[min(at, 4_998)].name, gpus=0b1)
            gpus_used = 1
