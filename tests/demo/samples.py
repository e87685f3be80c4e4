"""Nodes and facts as the demo finds them, without a cluster."""

from __future__ import annotations

from local_cluster.api import Object
from local_cluster.demo.facts import Facts, HeldGang, Outcome, PendingGang, PlacedGang, Seat
from local_cluster.demo.manifests import SHAPE
from local_cluster.demo.matrix import Matrix, matrix_of
from local_cluster.nodes import nodes_of
from local_cluster.topology import load_topology
from muster.domain.topology import GpuTopology, Link

NODES: list[Object] = nodes_of(SHAPE)
MATRICES: dict[str, Matrix] = {node["metadata"]["name"]: matrix_of(node) for node in NODES}
DOCUMENT = "v100-8x-gputopology-document"
ALL = tuple(range(8))
FREE_GPUS = (1, 2, 4, 5, 7)
"""What GPUs 0, 3 and 6 leave free."""


def topology(name: str) -> GpuTopology:
    """A matrix of local_cluster/topologies as the drawing takes it."""
    links = load_topology(name).links
    return GpuTopology(
        tuple(tuple(None if kind == "X" else Link.of_kind(kind) for kind in row) for row in links)
    )


def outcome(*seats: tuple[str, str, tuple[int, ...]]) -> Outcome:
    return Outcome.of([Seat(*seat) for seat in seats], MATRICES)


def placed(name: str, free: tuple[int, ...], muster: Outcome, first_fit: Outcome) -> PlacedGang:
    (node,) = muster.gpus
    return PlacedGang(name, f"{name}.yaml", 12.34, {node: free}, muster, first_fit)


def good_facts() -> Facts:
    """A run in which every claim holds."""
    gangs = [
        placed(
            "pytorch-dist-nccl",
            ALL,
            outcome(("master", "v100-1", (0,)), ("worker", "v100-1", (3,))),
            outcome(("master", "v100-1", (0,)), ("worker", "v100-1", (1,))),
        ),
        placed(
            "test-gpu-topology",
            (1, 2, 4, 5, 6, 7),
            outcome(("job", "v100-1", (1, 2))),
            outcome(("job", "v100-1", (1, 2))),
        ),
        placed(
            "pair-on-the-rest",
            FREE_GPUS,
            outcome(("pair-0", "v100-2", (4,)), ("pair-1", "v100-2", (7,))),
            outcome(("pair-0", "v100-2", (1,)), ("pair-1", "v100-2", (2,))),
        ),
        placed(
            "ring-of-four",
            FREE_GPUS,
            outcome(*((f"ring-{rank}", "v100-3", (gpu,)) for rank, gpu in enumerate((1, 2, 4, 7)))),
            outcome(*((f"ring-{rank}", "v100-3", (gpu,)) for rank, gpu in enumerate((1, 2, 4, 5)))),
        ),
        placed(
            "finetune",
            (3, 4, 5, 6, 7),
            outcome(("first", "h100-2", (3, 4)), ("second", "h100-2", (5, 6))),
            outcome(("first", "h100-1", (5, 6)), ("second", "h100-2", (3, 4))),
        ),
    ]
    return Facts(
        placed={gang.name: gang for gang in gangs},
        held=HeldGang("finetune", 1, 2, 0, "TopologyWaiting: 1 of 2 pods", 16, 16),
        pending=PendingGang(
            name="too-large",
            example="demo/gang-that-does-not-fit.yaml",
            members=10,
            bound=0,
            free_gpu_count_before=8,
            free_gpu_count_after=8,
            condition_reason="Unschedulable",
            condition="0/5 nodes are available: 8 of 10 fit",
            event="TopologyUnplaceable: 8 of 10 fit",
            first_fit_would_bind_pods=8,
        ),
        seats=tuple(seat for gang in gangs for seat in gang.muster.seats),
        timings_ms={"story": 1234.56},
    )
