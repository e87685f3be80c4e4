"""Say how near the GPUs of a node are: the best ring over every set, and the distance below the CPU sockets.

Bandwidths are whole MB/s (1000 = 1 GB/s), because the solver counts in integers. A ring passes each GPU once.
Over two GPUs it uses their link both ways, so its sum is twice the link.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from muster.domain.topology import GpuTopology, bits
from muster.placement.cluster.columns import gpu_counts
from muster.placement.cluster.fabric import MAX_RING_GPUS

MB_PER_GB = 1000
NO_LINK = 1 << 30
"""The weakest link of fewer than two GPUs: there is no link, so nothing is slow. Unknown links count as 0."""

_NEVER = -(1 << 60)

Values = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Rings:
    """Tables over all subsets of a node's GPUs, indexed by bit mask, each [2^gpu_count] int64.

    All links are in MB/s.
    """

    weakest: Values
    """The weakest link of the best ring: NO_LINK below two GPUs, 0 if a link is unknown."""
    total: Values
    """The sum of the links of the best ring."""
    link_sums: Values
    """The sum of all links inside the set."""
    levels: Values
    """All values of `weakest`, in rising order."""


@lru_cache(maxsize=64)
def rings(topology: GpuTopology, weakest_first: bool = True) -> Rings:
    """Return the best ring of every set of GPUs: the largest weakest link, then the largest sum.

    With `weakest_first` false only the sum counts. The method is the dynamic program of Held and Karp. A
    state is not a subset, but the number of taken GPUs of each kind. GPUs are of one kind if swapping them
    changes no link. So 16 GPUs behind one NVSwitch have 17 states instead of 65,536. To put the weakest link
    first, the program runs over the links of each bandwidth and faster, fastest first, until a ring closes.

    Raises:
        ValueError: The node has more than MAX_RING_GPUS GPUs.
    """
    count = topology.gpu_count
    if count > MAX_RING_GPUS:
        raise ValueError(f"{count} GPUs, ring tables end at {MAX_RING_GPUS}")
    links = link_matrix(topology)
    kinds = interchangeable_gpus(links)
    sizes = tuple(len(kind) for kind in kinds)
    thresholds = sorted({int(links[i, j]) for i in range(count) for j in range(i)}, reverse=True)
    if not weakest_first:
        thresholds = thresholds[-1:]
    states = int(np.prod([size + 1 for size in sizes], dtype=np.int64))
    weakest, total = np.zeros(states, np.int64), np.zeros(states, np.int64)
    open_states = np.ones(states, bool)
    for threshold in thresholds:
        closed = _longest_rings(_links_between_kinds(links, kinds, threshold), sizes)
        closed_now = open_states & (closed > _NEVER // 2)
        weakest[closed_now], total[closed_now] = threshold, closed[closed_now]
        open_states &= ~closed_now
        if open_states.sum() <= 1 + len(kinds):  # no ring closes over the empty set or a single GPU
            break
    step_of = {gpu: stride for stride, kind in zip(_strides(sizes), kinds, strict=True) for gpu in kind}
    state_of = _subset_sums([step_of[gpu] for gpu in range(count)])
    link_sums = np.zeros(1, np.int64)
    for gpu in range(count):
        link_sums = np.concatenate((link_sums, link_sums + _subset_sums(links[gpu, :gpu].tolist())))
    small = gpu_counts(np.arange(1 << count)) < 2
    levels = np.array(sorted({0, *thresholds, NO_LINK}))
    weakest, total = np.where(small, NO_LINK, weakest[state_of]), np.where(small, 0, total[state_of])
    return Rings(weakest, total, link_sums, levels)


def link_matrix(topology: GpuTopology) -> Values:
    """Return the links' bandwidths in MB/s, [gpu, gpu] int64; 0 if unknown and on the diagonal."""
    count = topology.gpu_count
    matrix = np.zeros((count, count), np.int64)
    for i in range(count):
        for j in range(count):
            link = topology.link(i, j)
            if link is not None and i != j:
                matrix[i, j] = round(link.gb_per_s * MB_PER_GB)
    return matrix


def _subset_sums(values: list[int]) -> Values:
    """Return for each mask the sum of the values at its set bits."""
    table = np.zeros(1, np.int64)
    for value in values:
        table = np.concatenate((table, table + value))
    return table


def interchangeable_gpus(links: Values) -> list[list[int]]:
    """Return GPUs in groups: two GPUs of a group have equal links to every third GPU."""
    kinds: list[list[int]] = []
    for gpu in range(len(links)):
        for kind in kinds:
            third_gpus = [k for k in range(len(links)) if k not in (gpu, kind[0])]
            if (links[gpu, third_gpus] == links[kind[0], third_gpus]).all():
                kind.append(gpu)
                break
        else:
            kinds.append([gpu])
    return kinds


def _links_between_kinds(links: Values, kinds: list[list[int]], threshold: int) -> Values:
    """Return [kind, kind]: the link between a GPU of one kind and one of the other; _NEVER below the
    threshold.
    """
    matrix = np.full((len(kinds), len(kinds)), _NEVER, np.int64)
    for a, first in enumerate(kinds):
        for b, second in enumerate(kinds):
            if a == b and len(first) == 1:
                continue
            value = links[first[0], second[0] if a != b else first[1]]
            if value >= threshold:
                matrix[a, b] = value
    return matrix


def _strides(sizes: tuple[int, ...]) -> list[int]:
    strides, stride = [], 1
    for size in sizes:
        strides.append(stride)
        stride *= size + 1
    return strides


def _longest_rings(links: Values, sizes: tuple[int, ...]) -> Values:
    """Return the largest ring sum of each state; _NEVER if no ring closes.

    A state is how many GPUs of each kind are taken, as one number (mixed radix). `longest` holds
    by state and kind the largest sum of a path over these GPUs, from the lowest kind to this kind.
    """
    strides = _strides(sizes)
    states = int(np.prod([size + 1 for size in sizes], dtype=np.int64))
    counts = np.stack([np.arange(states) // s % (n + 1) for s, n in zip(strides, sizes, strict=True)], axis=1)
    total = counts.sum(axis=1)
    lowest = (counts > 0).argmax(axis=1)
    longest = np.full((states, len(sizes)), _NEVER, np.int64)
    for kind, stride in enumerate(strides):
        longest[stride, kind] = 0
    for length in range(1, sum(sizes)):
        layer = np.flatnonzero(total == length)
        for kind, stride in enumerate(strides):
            grown = layer[(counts[layer, kind] < sizes[kind]) & (lowest[layer] <= kind)]
            longest[grown + stride, kind] = np.maximum((longest[grown] + links[:, kind]).max(axis=1), _NEVER)
    closed = (longest + links[:, lowest].T).max(axis=1)
    closed[total < 2] = _NEVER
    return np.asarray(closed)


BORDERS = (
    (frozenset({"SYS"}), 64),
    (frozenset({"SYS", "NODE"}), 1),
    (frozenset({"SYS", "NODE", "PHB"}), 1),
    (frozenset({"SYS", "NODE", "PHB", "PXB"}), 1),
)
"""The borders between NUMA nodes, host bridges, groups of PCIe switches, and single switches.

Each border has the kinds of links that cross it, and the cost of a further part. A NUMA node outweighs all
borders inside it. Other PCIe links stay inside one switch. NVLink, PCIE and unknown links say nothing.
"""


@lru_cache(maxsize=256)
def pcie_parts(topology: GpuTopology) -> tuple[tuple[int, ...], ...]:
    """Return the parts between each of BORDERS, as masks of GPUs.

    Parts lie inside the parts of the border before. Each GPU, in the order of indices, joins the first part
    to which it has no link that crosses the border.
    """
    parts_by_border: list[tuple[int, ...]] = []
    outer = [(1 << topology.gpu_count) - 1]
    for kinds, _ in BORDERS:
        outer = [part for mask in outer for part in _parts_at_border(topology, mask, kinds)]
        parts_by_border.append(tuple(outer))
    return tuple(parts_by_border)


def _parts_at_border(topology: GpuTopology, gpu_mask: int, kinds: frozenset[str]) -> list[int]:
    parts: list[int] = []
    for gpu in bits(gpu_mask):
        links = enumerate(topology.links[gpu])
        separated_gpus = sum(
            1 << neighbour for neighbour, link in links if link is not None and link.kind in kinds
        )
        home = next((i for i, mask in enumerate(parts) if not mask & separated_gpus), None)
        if home is None:
            parts.append(1 << gpu)
        else:
            parts[home] |= 1 << gpu
    return parts


def numa_nodes(topology: GpuTopology) -> tuple[int, ...]:
    """Return the NUMA nodes as masks of GPUs."""
    return pcie_parts(topology)[0]


def socket_distances(topology: GpuTopology, masks: Values) -> Values:
    """Return how far apart the GPUs of each mask hang: the costs of all further parts that they touch.

    The distance is 0 below one PCIe switch, and on nodes whose link matrix is not used.
    """
    distances = np.zeros_like(masks)
    if topology.gpu_count > MAX_RING_GPUS:
        return distances
    for (_, cost), parts in zip(BORDERS, pcie_parts(topology), strict=True):
        if len(parts) > 1:
            parts_touched = sum(((masks & part) != 0).astype(np.int64) for part in parts)
            distances += cost * np.maximum(0, parts_touched - 1)
    return distances


@lru_cache(maxsize=256)
def pcie_homes(topology: GpuTopology) -> tuple[tuple[int, ...], ...]:
    """Return by GPU the parts that the GPU lies in. A part of one GPU is −1, so that such GPUs are equal.

    GPUs with equal values can be swapped: no distance changes.
    """
    if topology.gpu_count > MAX_RING_GPUS:
        return ((),) * topology.gpu_count
    all_parts = [part for parts in pcie_parts(topology) for part in parts]
    return tuple(
        tuple(-1 if part == 1 << gpu else part for part in all_parts if part >> gpu & 1)
        for gpu in range(topology.gpu_count)
    )
