"""Say what decides which pods a node admits, besides its name and labels. Most nodes share a profile."""

from __future__ import annotations

from typing import NamedTuple

from muster.domain.node import Node, Taint


class Profile(NamedTuple):
    """The properties of a node that decide which pods it admits, besides its name and labels, and what a
    refusal says of it.

    Fields are as in `Node`, but `gpu_memory` is only whether the node serves slices.
    """

    gpu_resources: frozenset[str]
    ready: bool
    unschedulable: bool
    taints: tuple[Taint, ...]
    gpu_memory: bool = False
    memory_resources: frozenset[str] = frozenset()
    partitions: tuple[tuple[int, str], ...] = ()
    missing_gpus: int = 0
    offers_parts: bool = False


def profile_of(node: Node) -> Profile:
    """Return the profile of the node."""
    return Profile(
        node.gpu_resources,
        node.ready,
        node.unschedulable,
        node.taints,
        bool(node.gpu_memory),
        node.memory_resources,
        node.partitions,
        node.missing_gpus,
        node.offers_parts,
    )
