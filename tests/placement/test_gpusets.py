"""GPU sets and rings on measured matrices, against trying every ring and every set."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import astuple
from itertools import combinations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from muster.domain.node import Node, Resources
from muster.domain.snapshot import NodeState
from muster.domain.topology import GpuTopology, Link, bits, mask_of
from muster.placement.cluster.columns import gpu_counts
from muster.placement.cluster.fabric import Shape
from muster.placement.cluster.topology import place_of
from muster.placement.gang.on_node import eighths
from muster.placement.gpus.damage import fragmentation
from muster.placement.gpus.gpusets import Sets, best_sets, sets_of, split
from muster.placement.gpus.links import NO_LINK, rings
from tests.placement import naive
from tests.placement.drawings import TOPOLOGIES, islands, matrix

CUBES = ("v100-8x-gputopology-document", "v100-8x-hybrid-cube-mesh")
ALL = sorted(path.stem for path in TOPOLOGIES.glob("*.txt"))


Choice = tuple[int, ...]
"""The fields of a GpuSet, or of one entry of Sets."""


def shape_of(topology: GpuTopology) -> Shape:
    return place_of(NodeState.of(Node("a", Resources(), topology), ())).shape


def drawn_links(count: int, kinds: list[str]) -> GpuTopology:
    """Every link of a random kind: no two GPUs are alike."""
    draw = random.Random(count)
    links: list[list[Link | None]] = [[None] * count for _ in range(count)]
    for a, b in combinations(range(count), 2):
        links[a][b] = links[b][a] = Link.of_kind(draw.choice(kinds))
    return GpuTopology(tuple(map(tuple, links)))


def with_equal_bandwidth(topology: GpuTopology) -> GpuTopology:
    """The same node where every link was measured to be equally fast."""
    return GpuTopology(tuple(tuple(link and Link(link.kind, 12.0) for link in row) for row in topology.links))


@pytest.mark.parametrize("name", CUBES)
def test_best_ring_sums_of_the_cube_mesh(name: str) -> None:
    """The check of the model in the design: k = 2 … 8, maximising the sum alone."""
    table, count = rings(matrix(name), weakest_first=False), gpu_counts(np.arange(1 << 8))
    sums = [int(table.total[count == k].max()) / 1000 for k in range(2, 9)]
    assert sums == [100, 125, 175, 210, 275, 325, 400]


@pytest.mark.parametrize("name", [name for name in ALL if matrix(name).gpu_count <= 8])
def test_rings_equal_trying_every_ring(name: str) -> None:
    topology = matrix(name)
    table = rings(topology)
    for mask in range(1 << topology.gpu_count):
        if mask.bit_count() in (2, 3, 4, 5, 7):
            weakest, total = naive.ring(topology, mask)
            assert (table.weakest[mask], table.total[mask]) == (weakest * 1000, total * 1000)


@settings(max_examples=60, deadline=None, derandomize=True)
@given(st.integers(1, 255), st.integers(1, 4), st.sampled_from(CUBES))
def test_best_set_equals_trying_every_set(free: int, size: int, name: str) -> None:
    topology = matrix(name)
    gpu_sets = best_sets(shape_of(topology), free, size)
    masks = [mask_of(subset) for subset in combinations(bits(free), size)]
    if not masks:
        assert gpu_sets == ()
        return
    assert gpu_sets[0].mask & ~free == 0
    expected = max(naive.ring(topology, mask) for mask in masks)
    got = naive.ring(topology, gpu_sets[0].mask)
    assert got == expected
    assert gpu_sets[0].weakest == (NO_LINK if size == 1 else got[0] * 1000)


SHAPES = {
    **{name: shape_of(matrix(name)) for name in ALL if matrix(name).gpu_count <= 8},
    "islands of 3, 3, 2": shape_of(islands([3, 3, 2])),
    "pcie": shape_of(islands([1] * 8)),
    "measured": shape_of(with_equal_bandwidth(matrix("pcie-8x-pix-node-sys"))),
    "unknown": shape_of(GpuTopology.unknown(8)),
    "three taken, unknown which": Shape(GpuTopology.unknown(8), tuple(1 << i for i in range(8)), (0xFF,), 3),
    "no GPU": shape_of(GpuTopology.unknown(0)),
}
LARGE = {
    "dgx2-16x-v100-nvswitch": shape_of(matrix("dgx2-16x-v100-nvswitch")),
    "ten without symmetry": shape_of(drawn_links(10, ["NV1", "NV2", "SYS", "PIX"])),
    "bridged pairs": shape_of(islands([2] * 5)),
    "pcie": shape_of(islands([1] * 10)),
    "measured": shape_of(with_equal_bandwidth(drawn_links(10, ["PIX", "PXB", "PHB", "NODE", "SYS"]))),
    "measured alike": shape_of(with_equal_bandwidth(islands([3, 4, 1, 1, 1], inside="PIX"))),
    "two islands": shape_of(islands([6, 4])),
    "islands beyond the tables": shape_of(islands([8, 12])),
}


@pytest.mark.parametrize("name", [name for name in LARGE if LARGE[name].topology.gpu_count <= 16])
def test_rings_of_larger_nodes(name: str) -> None:
    topology, draw = LARGE[name].topology, random.Random(4)
    table = rings(topology)
    for size in (2, 3, 4, 5, 6) * 4:
        mask = mask_of(draw.sample(range(topology.gpu_count), size))
        weakest, total = naive.ring(topology, mask)
        assert (table.weakest[mask], table.total[mask]) == (weakest * 1000, total * 1000)
        inside = (topology.link(a, b) for a, b in combinations(bits(mask), 2))
        assert table.link_sums[mask] == sum(1000 * link.gb_per_s for link in inside if link)
        assert table.weakest[mask] in table.levels


def in_order(shape: Shape, free: int) -> Iterator[tuple[int, list[Choice]]]:
    """The choices of each size by the words of `best_sets`, every subset looked at one by one."""
    table, links = rings(shape.topology), shape.topology.links

    def inside(mask: int) -> float:
        pairs = (links[a][b] for a, b in combinations(bits(mask), 2))
        return sum(link.gb_per_s for link in pairs if link)

    def distance(mask: int) -> int:
        return naive.socket_distance(shape.topology, mask)

    def domains(mask: int) -> int:
        return sum(1 for domain in shape.domains if domain & mask)

    for size in range(shape.topology.gpu_count + 1):
        masks = list(map(mask_of, combinations(bits(free), size)))
        fewest = min(map(domains, masks), default=0)
        worth = sorted(
            (-int(table.total[m]), distance(m), fragmentation(shape, free & ~m), -inside(free & ~m), m)
            for m in masks
            if domains(m) == fewest
        )
        before, choices = fragmentation(shape, free), list[Choice]()
        for minus_ring, apart, after, _, mask in worth:
            if not choices or table.weakest[mask] > choices[-1][2]:
                choices.append((mask, fewest, int(table.weakest[mask]), -minus_ring, apart, after - before))
        yield size, choices[::-1]


def choices(sets: Sets, size: int) -> list[Choice]:
    count = sets.choices[size]
    fields = (sets.masks, sets.domains, sets.weakest, sets.ring, sets.sockets, sets.damage)
    return list(zip(*(field[size, :count].tolist() for field in fields), strict=True))


@pytest.mark.parametrize("name", SHAPES)
def test_the_sets_of_every_mask_are_those_of_looking_at_all(name: str) -> None:
    shape = SHAPES[name]
    for free in range(1 << shape.topology.gpu_count):
        sets = sets_of(shape, free)
        for size, expected in in_order(shape, free):
            assert choices(sets, size) == expected, (bin(free), size)


@pytest.mark.parametrize("name", [name for name in LARGE if LARGE[name].topology.gpu_count == 10])
def test_symmetry_loses_no_set(name: str) -> None:
    shape, draw = LARGE[name], random.Random(1)
    for free in (0x3FF, *(draw.randrange(1 << 10) for _ in range(6))):
        sets = sets_of(shape, free)
        for size, expected in in_order(shape, free):
            assert choices(sets, size) == expected, (bin(free), size)


@pytest.mark.parametrize("name", LARGE)
def test_one_size_is_a_row_of_all(name: str) -> None:
    shape = LARGE[name]
    count, draw = shape.topology.gpu_count, random.Random(2)
    for free in ((1 << count) - 1, *(draw.randrange(1 << count) for _ in range(10))):
        sets = sets_of(shape, free)
        for size in range(count + 1):
            row = best_sets(shape, free, size)
            assert [astuple(s) for s in row] == choices(sets, size)
            assert bool(row) == (size <= free.bit_count())


def test_allowed_narrows_what_is_taken_not_what_is_left() -> None:
    shape = shape_of(islands([4, 4]))
    inside = best_sets(shape, 0b0111_1111, 2, 0b0111_0000)[0]
    alone = best_sets(shape, 0b0111_0000, 2)[0]
    assert (inside.mask, inside.damage) == (alone.mask, alone.damage) == (0b0011_0000, -750)
    assert best_sets(shape, 0b0111_1111, 4, 0b0111_0000) == ()


def test_nothing_is_one_choice_without_a_link() -> None:
    for shape in (*SHAPES.values(), *LARGE.values()):
        everything = (1 << shape.topology.gpu_count) - 1
        assert choices(sets_of(shape, everything), 0) == [(0, 0, NO_LINK, 0, 0, 0)]


@pytest.mark.parametrize(
    ("free", "expected_mask"), [(0b00101001, 0b00100000), (0b10000010, 0b00000010), (0b11110001, 0b00000001)]
)
def test_one_gpu_is_the_one_that_the_rest_misses_least(free: int, expected_mask: int) -> None:
    assert best_sets(shape_of(matrix(CUBES[0])), free, 1)[0].mask == expected_mask


def test_nothing_known_takes_the_lowest_indices() -> None:
    gpu_set = best_sets(shape_of(GpuTopology.unknown(8)), 0b11110100, 2)[0]
    assert (gpu_set.mask, gpu_set.weakest, gpu_set.ring) == (0b00010100, 0, 0)


def test_an_island_before_two() -> None:
    shape = shape_of(islands([4, 4]))
    assert best_sets(shape, 0b0011_1111, 4)[0].mask == 0b1111
    assert best_sets(shape, 0b0011_0111, 2)[0].mask == 0b0011_0000, (
        "three free ones stay of more use than two"
    )


@pytest.mark.parametrize("name", [*CUBES, "a100-8x-interleaved-bridged-pairs"])
def test_split_gives_each_pod_of_two_a_direct_pair(name: str) -> None:
    topology = matrix(name)
    parts = split(topology, 0xFF, (2, 2, 2, 2))
    assert sum(parts) == 0xFF
    fastest = max(naive.ring(topology, mask)[0] for mask in range(256) if mask.bit_count() == 2)
    assert all(naive.ring(topology, part)[0] == fastest for part in parts)


def test_split_keeps_the_order_of_sizes() -> None:
    parts = split(matrix(CUBES[0]), 0xFF, (1, 4, 0, 2, 1))
    assert [part.bit_count() for part in parts] == [1, 4, 0, 2, 1]
    assert sum(parts) == 0xFF


def test_sixteen_gpus_split_greedily() -> None:
    parts = split(islands([8, 8]), 0xFFFF, (8, 8))
    assert parts == (0x00FF, 0xFF00)


def splits(union: int, sizes: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
    """All ways to share the union out."""
    if not sizes:
        yield ()
        return
    for subset in combinations(bits(union), sizes[0]):
        part = mask_of(subset)
        for later_parts in splits(union & ~part, sizes[1:]):
            yield (part, *later_parts)


@pytest.mark.parametrize("sizes", [(2, 2, 2), (4, 2), (3, 3), (2, 2, 1, 1), (1, 0, 5), (2, 3, 1), (6,)])
@pytest.mark.parametrize(
    "topology",
    [
        *map(matrix, CUBES),
        matrix("pcie-8x-pix-node-sys"),
        drawn_links(7, ["NV1", "NV2", "NV4", "PIX", "SYS"]),
    ],
    ids=[*CUBES, "pcie", "drawn"],
)
def test_split_equals_trying_every_split(topology: GpuTopology, sizes: tuple[int, ...]) -> None:
    table = rings(topology)

    def worth(parts: tuple[int, ...]) -> tuple[int, int]:
        return min(int(table.weakest[p]) for p in parts), sum(int(table.total[p]) for p in parts)

    for union in (mask_of(subset) for subset in list(combinations(range(topology.gpu_count), 6))[::3]):
        parts = split(topology, union, sizes)
        assert tuple(part.bit_count() for part in parts) == sizes
        assert worth(parts) == max(map(worth, splits(union, sizes)))


def test_split_takes_the_largest_sum_where_another_member_is_slow_anyway() -> None:
    """GPUs 0 and 1 have but each other, over PIX. 2 … 5: two pairs of NV1, or NV4 and PIX: no slower than 0
    and 1 are, and more in sum."""
    links: list[list[Link | None]] = [[Link.of_kind("SYS")] * 6 for _ in range(6)]
    kinds = {(0, 1): "PIX", (2, 4): "NV1", (3, 5): "NV1", (2, 3): "NV4", (4, 5): "PIX"}
    for (a, b), kind in kinds.items():
        links[a][b] = links[b][a] = Link.of_kind(kind)
    for i in range(6):
        links[i][i] = None
    parts = split(GpuTopology(tuple(map(tuple, links))), 0b111111, (2, 2, 2))
    assert parts == (0b000011, 0b001100, 0b110000)


@pytest.mark.parametrize(
    ("node", "taking", "steps"),
    [
        ((8, 8, 96_000, 96_000), (0, 0), 16),
        ((8, 8, 96_000, 96_000), (8, 96_000), 0),
        ((8, 5, 96_000, 48_000), (1, 1), 4 + 3),
        ((4, 3, 96_000, 11_999), (0, 0), 6 + 0),
        ((0, 0, 64_000, 64_000), (0, 32_000), 0 + 4),
        ((8, 2, 0, 0), (1, 0), 1 + 0),
        ((8, 2, 96_000, -5), (3, 1_000), 0),
    ],
)
def test_the_best_fit_counts_eighths(
    node: tuple[int, int, int, int], taking: tuple[int, int], steps: int
) -> None:
    many = [np.full(3, value, np.int64) for value in node]
    total, free, cpu_total, cpu = many
    assert (eighths(free - taking[0], total) + eighths(cpu - taking[1], cpu_total)).tolist() == [steps] * 3


SOCKETS = {
    # free GPUs of the PCIe node with sockets 0-3 and 4-7 and switches of two, how many, which, how far apart
    "one switch": (0b1111_1010, 2, 0b0011_0000, 0),
    "one socket": (0b0111_1010, 3, 0b0111_0000, 3),
    "one socket, no switch": (0b0101_0001, 2, 0b0101_0000, 3),
    "both sockets": (0b0001_0001, 2, 0b0001_0001, 67),
}


@pytest.mark.parametrize(("free", "size", "expected_mask", "distance"), SOCKETS.values(), ids=SOCKETS)
def test_of_equal_links_one_switch_then_one_socket_is_taken(
    free: int, size: int, expected_mask: int, distance: int
) -> None:
    (gpu_set,) = best_sets(SHAPES["measured"], free, size)
    assert (gpu_set.mask, gpu_set.sockets) == (expected_mask, distance)


def test_nvlink_says_nothing_of_sockets_but_other_links_do() -> None:
    """On the cube mesh GPU 0 has two NVLinks to 3, in its socket, and to 6, in the other."""
    (gpu_set,) = best_sets(shape_of(matrix(CUBES[0])), 0b0100_1001, 2)
    assert (gpu_set.mask, gpu_set.sockets) == (0b0000_1001, 0)
