"""Policies about parts inside a node: how brute force counts these parts, and what the policies choose."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from muster.domain.snapshot import NodeState

SOCKETS = ": a[4 = 2+2, free 1111]"


@dataclass(frozen=True)
class PolicyParts:
    """`packed` is the level's name if the policy packs; `parts` returns the GPUs of each part of a node."""

    packed: str
    parts: Callable[[NodeState], list[set[int]]]
    fits: Mapping[str, tuple[str, str, str]]
    """As in test_terms: cluster, gang, places."""


def numa(state: NodeState) -> list[set[int]]:
    """Each GPU is of the first NUMA node in which it has no link SYS."""
    topology = state.node.topology
    sockets: list[set[int]] = []
    for gpu in range(topology.gpu_count):
        for socket in sockets:
            kinds = [link.kind for peer in socket if (link := topology.links[gpu][peer])]
            if "SYS" not in kinds:
                socket.add(gpu)
                break
        else:
            sockets.append({gpu})
    return sockets


POLICY_PARTS = {
    "numa": PolicyParts(
        "numa_nodes",
        numa,
        {
            "numa spread: one GPU of each socket": (
                SOCKETS,
                "2 x 1 GPU, terms numa:spread",
                "w-0@a/0 w-1@a/2",
            ),
            "numa pack: one socket": (
                ": a[4 = 2+2, free 0111]",
                "2 x 1 GPU, terms numa:pack",
                "w-0@a/2 w-1@a/3",
            ),
        },
    )
}
"""By the word for the topology in policies."""
