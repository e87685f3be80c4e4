"""Draw GPUs in a row with brackets below: all GPUs under a bracket are joined by its link, or by faster ones.

This fits every node whose links nest: a switch, NVLink islands, PCIe switches under sockets. A matrix that
does not nest is drawn in the same way, with a note.
"""

from __future__ import annotations

from itertools import combinations

from rich.text import Text

from muster.adapters.drawing.canvas import BOX_HEIGHT, Canvas, put_box
from muster.adapters.drawing.picture import CHOSEN_STYLE, NodePicture
from muster.domain.topology import GpuTopology, Link

WIDE_ROW = 8
"""The most GPUs that are drawn with wide boxes."""
LONGEST_ROW = 16
"""The most GPUs in one row. With more GPUs, links are only listed."""

Group = tuple[int, ...]


def draw_brackets(picture: NodePicture) -> Text:
    """Return the GPUs in one or more rows, with a bracket below each group that a link joins."""
    topology, canvas = picture.topology, Canvas()
    levels = _levels(topology)
    order = _order(topology.gpu_count, levels)
    box, gap = (7, 2) if topology.gpu_count <= WIDE_ROW else (5, 1)
    for place, gpu in enumerate(order):
        row, column = divmod(place, LONGEST_ROW)
        put_box(canvas, (row * BOX_HEIGHT, column * (box + gap)), box, picture, gpu)
    below = BOX_HEIGHT * (1 + (topology.gpu_count - 1) // LONGEST_ROW)
    notes = []
    if topology.gpu_count > LONGEST_ROW:
        notes = [f"{link.kind} {link.gb_per_s:g} GB/s" for link, _ in levels]
    else:
        middle = {gpu: place * (box + gap) + box // 2 for place, gpu in enumerate(order)}
        _put_brackets(canvas, picture, levels, middle, below)
    drawn = canvas.text()
    if not topology.known:
        notes.append("links between the GPUs are not known")
    elif not nests(topology):
        notes.append("a bracket joins GPUs directly or through others: links inside differ")
    for note in notes:
        drawn.append(f"\n{note}", "dim")
    return drawn


def _put_brackets(
    canvas: Canvas,
    picture: NodePicture,
    levels: list[tuple[Link, list[Group]]],
    middle: dict[int, int],
    row: int,
) -> None:
    has_marked = False
    for link, groups in levels:
        for group in groups:
            ends = [middle[gpu] for gpu in group]
            is_marked = sum(picture.is_chosen(gpu) for gpu in group) > 1 and not has_marked
            has_marked = has_marked or is_marked
            start, stroke, end = "╘═╛" if link.is_fabric else "└─┘"
            label = _label(link, max(ends) - min(ends) - 1)
            text = start + label.center(max(ends) - min(ends) - 1, stroke) + end
            canvas.put(row, min(ends), text, CHOSEN_STYLE if is_marked else "")
        row += 1


def _label(link: Link, room: int) -> str:
    full = f" {link.kind} {link.gb_per_s:g} GB/s "
    short = f" {link.kind} "
    return full if len(full) + 2 <= room else short if len(short) <= room else link.kind[:room]


def _levels(topology: GpuTopology) -> list[tuple[Link, list[Group]]]:
    """Return the kinds of links, widest first, with the groups of GPUs that links at least as wide join.

    A kind that joins nothing new has no level.
    """
    kinds = {link.kind: link for row in topology.links for link in row if link}
    levels: list[tuple[Link, list[Group]]] = []
    wider_groups: list[Group] = []
    for link in sorted(kinds.values(), key=lambda link: -link.gb_per_s):
        groups = [group for group in _join(topology, link.gb_per_s) if len(group) > 1]
        new = [group for group in groups if group not in wider_groups]
        if new:
            levels.append((link, new))
        wider_groups = groups
    return levels


def _join(topology: GpuTopology, at_least: float) -> list[Group]:
    """Return the groups of GPUs that links of at least this bandwidth join, by their lowest GPU."""
    unjoined, groups = set(range(topology.gpu_count)), []
    while unjoined:
        group, frontier = set[int](), {min(unjoined)}
        while frontier:
            group |= frontier
            frontier = {b for a in frontier for b in unjoined - group if _width(topology, a, b) >= at_least}
        groups.append(tuple(sorted(group)))
        unjoined -= group
    return groups


def _width(topology: GpuTopology, a: int, b: int) -> float:
    link = topology.link(a, b)
    return link.gb_per_s if link else -1.0


def _order(gpu_count: int, levels: list[tuple[Link, list[Group]]]) -> list[int]:
    """Return GPUs by index, but with the GPUs of one group next to each other."""
    order = list(range(gpu_count))
    for _, groups in levels:  # inner groups first: sorting is stable, so outer groups keep them together
        first = {gpu: group[0] for group in groups for gpu in group}
        order = sorted(order, key=[order.index(first.get(gpu, gpu)) for gpu in range(gpu_count)].__getitem__)
    return order


def nests(topology: GpuTopology) -> bool:
    """Return whether brackets are exact: every pair in a group has the link of the innermost bracket around
    it.
    """
    joins: dict[tuple[int, int], float] = {}
    for link, groups in _levels(topology):
        for group in groups:
            for pair in combinations(group, 2):
                joins.setdefault(pair, link.gb_per_s)
    pairs = combinations(range(topology.gpu_count), 2)
    return all(joins.get(pair, -1.0) == _width(topology, *pair) for pair in pairs)
