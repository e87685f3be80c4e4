"""Best sets of GPUs by trying all, against values worked out by hand for the document's matrix."""

from __future__ import annotations

from itertools import combinations

import pytest

from local_cluster.demo.matrix import Ring, bandwidth_of
from tests.demo.samples import ALL, FREE_GPUS, MATRICES

DOCUMENT = MATRICES["v100-1"]
NV2_PAIRS = [(0, 3), (0, 6), (1, 2), (1, 7), (2, 3), (4, 5), (4, 7), (5, 6)]
"""The eight "Two NVLinks" of the document's annotation."""


def test_matrix_is_the_documents() -> None:
    assert DOCUMENT.gpu_count == 8
    assert DOCUMENT.best_sets(ALL, 2) == NV2_PAIRS
    assert DOCUMENT.kind(0, 1) == DOCUMENT.kind(1, 0) == "NV1"
    assert DOCUMENT.kind(0, 7) == "SYS"


def test_labels_of_an_nvswitch_board() -> None:
    board = MATRICES["h100-1"]
    assert board.gpu_count == 8
    assert set(board.kinds.values()) == {"NV18"}
    assert len(board.kinds) == 28


@pytest.mark.parametrize(
    ("free", "size", "expected"),
    [
        (FREE_GPUS, 2, [(1, 2), (1, 7), (4, 5), (4, 7)]),
        (FREE_GPUS, 4, [(1, 2, 4, 7)]),
        ((0, 4, 7), 2, [(4, 7)]),
        ((0, 4), 2, [(0, 4)]),
        ((0,), 2, []),
    ],
)
def test_best_sets(free: tuple[int, ...], size: int, expected: list[tuple[int, ...]]) -> None:
    assert DOCUMENT.best_sets(free, size) == expected


@pytest.mark.parametrize(
    ("gpus", "ring", "kind"),
    [
        ((3,), None, None),
        ((0, 3), Ring(50, 50), "NV2"),
        ((0, 4), Ring(10, 10), "SYS"),
        ((1, 2, 4, 7), Ring(25, 175), "NV1"),
        ((1, 2, 4, 5), Ring(10, 135), "SYS"),
        (ALL, Ring(50, 400), "NV2"),
    ],
)
def test_ring(gpus: tuple[int, ...], ring: Ring | None, kind: str | None) -> None:
    assert DOCUMENT.ring(gpus) == ring
    assert DOCUMENT.weakest_kind(gpus) == kind


def test_best_ring_sums_of_the_design() -> None:
    """The check of the model in docs/objective.md: best ring sums of a DGX-1V for k = 3 … 8 GPUs, GB/s."""
    sums = [max(ring.sum_gb_per_s for ring in rings_of(size)) for size in range(3, 9)]
    assert sums == [125, 175, 210, 275, 325, 400]


def rings_of(size: int) -> list[Ring]:
    return [ring for gpus in combinations(ALL, size) if (ring := DOCUMENT.ring(gpus))]


@pytest.mark.parametrize(("kind", "gb_per_s"), [("NV1", 25), ("NV18", 450), ("PIX", 14), ("SYS", 10)])
def test_bandwidth(kind: str, gb_per_s: float) -> None:
    assert bandwidth_of(kind) == gb_per_s
