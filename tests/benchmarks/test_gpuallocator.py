"""The peer against allocations that go-gpuallocator publishes: gpuallocator/besteffort_test.go, on the nodes
of gpuallocator/common_test.go (github.com/NVIDIA/go-gpuallocator)."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import combinations

import pytest

from benchmarks.peers.gpuallocator import BestEffort, Scores, score, scores_of
from muster.domain.topology import bits, mask_of
from tests.placement.drawings import matrix

Links = Mapping[str, list[tuple[int, int]]]

QUADS = [pair for quad in (range(4), range(4, 8)) for pair in combinations(quad, 2)]
ACROSS = [(a, b) for a in range(4) for b in range(4, 8)]


def without(pairs: list[tuple[int, int]], excluded: list[tuple[int, int]]) -> list[tuple[int, int]]:
    return [pair for pair in pairs if pair not in excluded]


VOLTA_SWITCHES = [(0, 1), (2, 3), (4, 5), (6, 7)]
PASCAL_SWITCHES = [(0, 2), (1, 3), (4, 6), (5, 7)]
VOLTA_DOUBLE = [(0, 3), (0, 4), (1, 2), (1, 5), (2, 3), (4, 7), (5, 6), (6, 7)]
COLUMNS = [(0, 4), (1, 5), (2, 6), (3, 7)]
NODES: Mapping[str, Links] = {
    "RTX8000": {
        "NV2": [(0, 3), (1, 2)],
        "NODE": [(0, 1), (2, 3)],
        "SYS": [(0, 2), (1, 3)],
    },
    "DGX1 Pascal": {
        "NV1": QUADS + COLUMNS,
        "PIX": PASCAL_SWITCHES,
        "PHB": without(QUADS, PASCAL_SWITCHES),
        "SYS": ACROSS,
    },
    "DGX1 Volta": {
        "NV2": VOLTA_DOUBLE,
        "NV1": without(QUADS + COLUMNS, VOLTA_DOUBLE),
        "PIX": VOLTA_SWITCHES,
        "PHB": without(QUADS, VOLTA_SWITCHES),
        "SYS": ACROSS,
    },
    "14 in pairs": {"NV2": [(i, i + 1) for i in range(0, 12, 2)], "NV4": [(12, 13)]},
}


def scores(name: str) -> Scores:
    links = NODES[name]
    count = 1 + max(gpu for pairs in links.values() for pair in pairs for gpu in pair)
    table = [[0] * count for _ in range(count)]
    for kind, pairs in links.items():
        for a, b in pairs:
            table[a][b] = table[b][a] = table[a][b] + score(kind)
    return table


@pytest.mark.parametrize(
    ("available", "required", "size", "expected"),
    [
        ([0, 2, 4, 5], [], 2, [4, 5]),  # single NVLink, prefer same switch
        ([0, 4, 5, 6], [], 2, [5, 6]),  # single NVLink, prefer same socket
        ([0, 3, 1], [], 2, [0, 3]),  # prefer dual NVLink, same socket
        ([0, 1, 4], [], 2, [0, 4]),  # prefer dual NVLink, cross socket
        ([0, 1, 2, 3, 4, 5, 6, 7], [4], 1, [4]),
        ([0, 1, 2, 3, 4, 5, 6, 7], [4], 2, [4, 7]),
        ([0, 1, 2, 3, 4, 5, 6, 7], [4], 4, [4, 5, 6, 7]),
        ([1, 2, 3, 4, 5, 6, 7], [0, 1, 2, 3], 4, []),
        ([0, 1, 2, 3, 4, 5, 6, 7], [0, 2, 4, 6], 4, [0, 2, 4, 6]),
        ([0, 1, 2, 3, 4, 5, 6, 7], [1, 2, 3, 4, 5, 6], 4, []),
        ([1, 2, 3, 4, 5], [1, 2, 3, 4, 5, 6], 1, []),
    ],
)
def test_published_choices_on_a_dgx1(
    available: list[int], required: list[int], size: int, expected: list[int]
) -> None:
    allocated = BestEffort(scores("DGX1 Volta")).allocate(mask_of(available), size, mask_of(required))
    assert list(bits(allocated)) == expected


@pytest.mark.parametrize(
    ("node", "sizes", "gpu_lists"),
    [
        ("RTX8000", [1] * 4, [[0], [1], [2], [3]]),
        ("RTX8000", [2, 2], [[0, 3], [1, 2]]),
        ("RTX8000", [4], [[0, 1, 2, 3]]),
        ("DGX1 Pascal", [1] * 8, [[i] for i in range(8)]),
        ("DGX1 Pascal", [2] * 4, [[0, 2], [1, 3], [4, 6], [5, 7]]),
        ("DGX1 Pascal", [4, 4], [[0, 1, 2, 3], [4, 5, 6, 7]]),
        ("DGX1 Pascal", [8], [list(range(8))]),
        ("DGX1 Volta", [1] * 8, [[i] for i in range(8)]),
        ("DGX1 Volta", [2] * 4, [[0, 3], [1, 2], [4, 7], [5, 6]]),
        ("DGX1 Volta", [4, 4], [[0, 1, 2, 3], [4, 5, 6, 7]]),
        ("DGX1 Volta", [8], [list(range(8))]),
        ("14 in pairs", [2], [[12, 13]]),
    ],
)
def test_published_fills(node: str, sizes: list[int], gpu_lists: list[list[int]]) -> None:
    policy, free = BestEffort(scores(node)), (1 << len(scores(node))) - 1
    for size, expected in zip(sizes, gpu_lists, strict=True):
        allocated = policy.allocate(free, size)
        assert list(bits(allocated)) == expected
        free &= ~allocated
    assert free == 0 or node == "14 in pairs"
    assert policy.allocate(free, 1) == 0 or free


def test_a_padded_set_may_win_in_the_original() -> None:
    """NVIDIA/go-gpuallocator#80: five available, three wanted, an NVLink pair outscores a group of three."""
    links = [[0] * 5 for _ in range(5)]
    links[3][4] = links[4][3] = score("NV2")
    for a, b in combinations(range(3), 2):
        links[a][b] = links[b][a] = score("SYS")
    assert list(bits(BestEffort(links, complete_only=False).allocate(0b11111, 3))) == [3, 4]
    assert list(bits(BestEffort(links).allocate(0b11111, 3))) == [0, 1, 2]


def test_the_published_dgx1_is_our_cube_mesh() -> None:
    table = scores_of(matrix("v100-8x-hybrid-cube-mesh"))
    for a, b in combinations(range(8), 2):
        pcie = next(score(kind) for kind in ("PIX", "PHB", "SYS") if (a, b) in NODES["DGX1 Volta"][kind])
        nvlink = table[a][b] if table[a][b] >= score("NV1") else 0
        assert scores("DGX1 Volta")[a][b] == nvlink + pcie
