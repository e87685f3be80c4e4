"""Draw the cube mesh of eight V100s in two rows.

Each row is a quad: four GPUs that are all joined to each other. Each GPU is joined to the one below or above
it. Quads are found in the matrix, because vendors number the GPUs of this board differently.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import combinations, pairwise, permutations, product

from rich.text import Text

from muster.adapters.drawing.canvas import BOX_HEIGHT, Canvas, put_box
from muster.adapters.drawing.picture import CHOSEN_STYLE, NodePicture
from muster.domain.topology import GpuTopology, Link

GPUS = 8
BOX, GAP = 7, 7
ROW = BOX_HEIGHT + 1

Quad = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class CubeMesh:
    """The places of the GPUs: `upper[i]` is joined to `lower[i]`, and neighbours in a row have the widest
    links.
    """

    upper: Quad
    lower: Quad


def find_cube_mesh(topology: GpuTopology) -> CubeMesh | None:
    """Return the two quads of a cube mesh, None if the matrix is not one."""
    if topology.gpu_count != GPUS:
        return None
    for others_of_row in combinations(range(1, GPUS), 3):
        upper = (0, *others_of_row)
        lower = tuple(gpu for gpu in range(GPUS) if gpu not in upper)
        partners = {a: [b for b in lower if _fabric(topology, a, b) is not None] for a in upper}
        matched = sorted(peers[0] for peers in partners.values() if len(peers) == 1) == list(lower)
        whole = all(_fabric(topology, a, b) for quad in (upper, lower) for a, b in combinations(quad, 2))
        if matched and whole:
            return _widest_rows(topology, upper, {a: peers[0] for a, peers in partners.items()})
    return None


def _widest_rows(topology: GpuTopology, upper: Quad, partner: dict[int, int]) -> CubeMesh:
    """Return the order of columns for which the drawn links have most bandwidth; of equal
    ones the smallest.
    """
    rows = [(order, tuple(partner[gpu] for gpu in order)) for order in permutations(upper)]
    wide = {pair: sum(_row_sum(topology, row) for row in pair) for pair in rows}
    return CubeMesh(*max(rows, key=lambda pair: (wide[pair], _falling(pair[0]))))


def _row_sum(topology: GpuTopology, row: Quad) -> float:
    links = (topology.link(a, b) for a, b in pairwise(row))
    return sum(link.gb_per_s for link in links if link)


def _falling(row: Quad) -> Quad:
    return tuple(-gpu for gpu in row)


def _fabric(topology: GpuTopology, a: int, b: int) -> Link | None:
    link = topology.link(a, b)
    return link if link is not None and link.is_fabric else None


def draw_cube_mesh(picture: NodePicture, mesh: CubeMesh) -> Text:
    """Return the two quads as rows, their links, and a line that says which pairs are not drawn."""
    canvas = Canvas()
    widest = max(link.gb_per_s for row in picture.topology.links for link in row if link)
    for level, quad in enumerate((mesh.upper, mesh.lower)):
        for place, gpu in enumerate(quad):
            put_box(canvas, (level * ROW, place * (BOX + GAP)), BOX, picture, gpu)
            if place + 1 < len(quad):
                _put_row_link(canvas, picture, (gpu, quad[place + 1]), (level, place), widest)
    for place, pair in enumerate(zip(mesh.upper, mesh.lower, strict=True)):
        link = picture.topology.link(*pair)
        assert link is not None
        label = f" {link.kind}" if _is_chosen(picture, *pair) else ""
        bar = "║" if link.gb_per_s == widest else "│"
        canvas.put(BOX_HEIGHT, place * (BOX + GAP) + BOX // 2, bar + label, _style(picture, *pair))
    drawn = canvas.text()
    drawn.append("\n")
    drawn.append(_legend(picture.topology, mesh), "dim")
    return drawn


def _put_row_link(
    canvas: Canvas, picture: NodePicture, pair: tuple[int, int], at: tuple[int, int], widest: float
) -> None:
    link = picture.topology.link(*pair)
    assert link is not None
    line = "═" if link.gb_per_s == widest else "─"
    text = f" {link.kind} ".center(GAP, line) if _is_chosen(picture, *pair) else line * GAP
    level, place = at
    canvas.put(level * ROW + 1, place * (BOX + GAP) + BOX, text, _style(picture, *pair))


def _is_chosen(picture: NodePicture, a: int, b: int) -> bool:
    return picture.is_chosen(a) and picture.is_chosen(b)


def _style(picture: NodePicture, a: int, b: int) -> str:
    return CHOSEN_STYLE if _is_chosen(picture, a, b) else ""


def _legend(topology: GpuTopology, mesh: CubeMesh) -> str:
    """Return what the strokes mean, and which links are not drawn, for all pairs of the node."""
    drawn = {frozenset(pair) for quad in (mesh.upper, mesh.lower) for pair in pairwise(quad)}
    drawn |= {frozenset(pair) for pair in zip(mesh.upper, mesh.lower, strict=True)}
    in_rows = (pair for quad in (mesh.upper, mesh.lower) for pair in combinations(quad, 2))
    across = product(mesh.upper, mesh.lower)
    kinds = sorted({_kind(topology, *sorted(pair)) for pair in drawn}, key=lambda kind: -kind[1])
    strokes = "   ".join(
        f"{'══ ║' if rank == 0 else '── │'} {name} {gb:g} GB/s" for rank, (name, gb) in enumerate(kinds)
    )
    hidden = [
        f"{_names(topology, [pair for pair in pairs if frozenset(pair) not in drawn])} {position}"
        for position, pairs in (("within a row", in_rows), ("between rows", across))
    ]
    return f"{strokes}   not drawn: {', '.join(hidden)}"


def _kind(topology: GpuTopology, a: int, b: int) -> tuple[str, float]:
    link = topology.link(a, b)
    return (link.kind, link.gb_per_s) if link else ("unknown", 0.0)


def _names(topology: GpuTopology, pairs: list[tuple[int, int]]) -> str:
    kinds = sorted({_kind(topology, *pair) for pair in pairs}, key=lambda kind: -kind[1])
    return " or ".join(f"{name} {gb:g}" for name, gb in kinds)
