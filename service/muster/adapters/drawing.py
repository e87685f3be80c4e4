"""Draw nodes and their GPUs for a terminal, from plain facts of the domain.

Nothing here asks a cluster: the caller passes a topology and which pod holds which GPU. Pictures are `rich`
texts of at most 100 columns. Pictures are readable without colour: a heavy frame marks what is new.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import combinations, pairwise, permutations, product

from rich.text import Text

from muster.domain.topology import GpuTopology, Link
from muster.domain.words import plural

CHOSEN_STYLE = "bold green"
TAKEN_STYLE = "dim"
FREE = "·"
NAME_WIDTH = 12
SWITCHED_FROM = 4
"""With this many GPUs, equal NVLinks between all GPUs can only come from a switch."""
WIDE_ROW = 8
"""The most GPUs that are drawn with wide boxes."""
LONGEST_ROW = 16
"""The most GPUs in one row. With more GPUs, links are only listed."""

BOX_HEIGHT = 3
_LIGHT, _HEAVY = tuple("┌─┐│└┘"), tuple("┏━┓┃┗┛")
MESH_GPUS = 8
MESH_BOX, MESH_GAP = 7, 7
MESH_ROW = BOX_HEIGHT + 1

Group = tuple[int, ...]
Quad = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Mark:
    """The content of a GPU's box: one letter for its holder, and whether the GPU is chosen.

    Chosen are the GPUs that the picture is about.
    """

    letter: str
    is_chosen: bool = False


@dataclass(frozen=True, slots=True)
class NodePicture:
    """One node, a `machine` of this type. `marks` are the taken GPUs by index; the others are free.

    `unindexed_gpus` more are taken, but their indices are unknown.
    """

    name: str
    topology: GpuTopology
    marks: Mapping[int, Mark] = field(default_factory=dict)
    unindexed_gpus: int = 0
    machine: str = ""

    @property
    def free_count(self) -> int:
        """Return the number of GPUs that no pod has."""
        return max(0, self.topology.gpu_count - len(self.marks) - self.unindexed_gpus)

    def is_chosen(self, gpu: int) -> bool:
        """Return whether the picture is about this GPU."""
        return gpu in self.marks and self.marks[gpu].is_chosen

    def style(self, gpu: int) -> str:
        """Return the rich style of a GPU's box."""
        if gpu not in self.marks:
            return ""
        return CHOSEN_STYLE if self.marks[gpu].is_chosen else TAKEN_STYLE


# --- one node -------------------------------------------------------------------------------------


def draw_node(picture: NodePicture) -> Text:
    """Return title and drawing, at most 97 columns wide for 16 GPUs and 56 for a cube mesh."""
    gpus = picture.topology.gpu_count
    shape = shape_name(picture.topology)
    drawn = Text(no_wrap=True, overflow="ignore")
    drawn.append(picture.name, "bold")
    drawn.append(f"   {picture.machine}, " if picture.machine else "   ")
    drawn.append(f"{gpus} {plural('GPU', gpus)}{shape and f', {shape}'}, {picture.free_count} free")
    if picture.unindexed_gpus:
        drawn.append(f", {picture.unindexed_gpus} taken by pods whose indices are not known")
    if gpus == 0:
        return drawn
    drawn.append("\n")
    mesh = find_cube_mesh(picture.topology)
    return drawn.append_text(draw_cube_mesh(picture, mesh) if mesh else draw_brackets(picture))


def shape_name(topology: GpuTopology) -> str:
    """Return "cube mesh", "NVSwitch", "NVLink islands of 2" …; "" if the links are unknown."""
    if topology.gpu_count < 2 or not topology.is_known:
        return ""
    if find_cube_mesh(topology):
        return "cube mesh"
    links = (topology.link(a, b) for a, b in combinations(range(topology.gpu_count), 2))
    kinds = {link.kind if link else "" for link in links}
    if len(kinds) == 1 and topology.has_fabric:
        kind = kinds.pop()
        switched = kind.startswith("NV") and topology.gpu_count >= SWITCHED_FROM
        return "NVSwitch" if switched else f"all joined by {kind}"
    if not topology.has_fabric:
        return "PCIe only"
    sizes = sorted({island.bit_count() for island in topology.islands})
    return f"NVLink islands of {' and '.join(map(str, sizes))}"


# --- brackets below a row of GPUs -----------------------------------------------------------------


def draw_brackets(picture: NodePicture) -> Text:
    """Return the GPUs in one or more rows, with brackets below: a bracket's link, or a faster one, joins all
    GPUs above it.

    This fits every node whose links nest: a switch, NVLink islands, PCIe switches under sockets. A matrix
    that does not nest is drawn in the same way, with a note.
    """
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
    if not topology.is_known:
        notes.append("links between the GPUs are not known")
    elif not draws_exactly(topology):
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
    short_label = f" {link.kind} "
    return full if len(full) + 2 <= room else short_label if len(short_label) <= room else link.kind[:room]


def _levels(topology: GpuTopology) -> list[tuple[Link, list[Group]]]:
    """Return the kinds of links, widest first, with the groups of GPUs that links at least as wide join.

    A kind that joins nothing new has no level.
    """
    kinds = {link.kind: link for row in topology.links for link in row if link}
    levels: list[tuple[Link, list[Group]]] = []
    wider_groups: list[Group] = []
    for link in sorted(kinds.values(), key=lambda link: -link.gb_per_s):
        groups = [group for group in _joined_groups(topology, link.gb_per_s) if len(group) > 1]
        new = [group for group in groups if group not in wider_groups]
        if new:
            levels.append((link, new))
        wider_groups = groups
    return levels


def _joined_groups(topology: GpuTopology, at_least: float) -> list[Group]:
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


def draws_exactly(topology: GpuTopology) -> bool:
    """Return whether brackets are exact: every pair in a group has the link of the innermost bracket around
    the pair."""
    width_by_pair: dict[tuple[int, int], float] = {}
    for link, groups in _levels(topology):
        for group in groups:
            for pair in combinations(group, 2):
                width_by_pair.setdefault(pair, link.gb_per_s)
    pairs = combinations(range(topology.gpu_count), 2)
    return all(width_by_pair.get(pair, -1.0) == _width(topology, *pair) for pair in pairs)


# --- the cube mesh --------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class CubeMesh:
    """The places of the GPUs: `upper[i]` is joined to `lower[i]`, and neighbours in a row have the widest
    links."""

    upper: Quad
    lower: Quad


def find_cube_mesh(topology: GpuTopology) -> CubeMesh | None:
    """Return the two quads of a cube mesh, None if the matrix is not one."""
    if topology.gpu_count != MESH_GPUS:
        return None
    for others_of_row in combinations(range(1, MESH_GPUS), 3):
        upper = (0, *others_of_row)
        lower = tuple(gpu for gpu in range(MESH_GPUS) if gpu not in upper)
        partners = {a: [b for b in lower if _fabric_link(topology, a, b) is not None] for a in upper}
        matched = sorted(peers[0] for peers in partners.values() if len(peers) == 1) == list(lower)
        are_quads_linked = all(
            _fabric_link(topology, a, b) for quad in (upper, lower) for a, b in combinations(quad, 2)
        )
        if matched and are_quads_linked:
            return _widest_rows(topology, upper, {a: peers[0] for a, peers in partners.items()})
    return None


def _widest_rows(topology: GpuTopology, upper: Quad, partner: dict[int, int]) -> CubeMesh:
    """Return the columns' order with the most bandwidth of drawn links; of equal orders, the smallest."""
    row_pairs = [(order, tuple(partner[gpu] for gpu in order)) for order in permutations(upper)]
    bandwidth = {rows: sum(_row_sum(topology, row) for row in rows) for rows in row_pairs}
    return CubeMesh(*max(row_pairs, key=lambda rows: (bandwidth[rows], [-gpu for gpu in rows[0]])))


def _row_sum(topology: GpuTopology, row: Quad) -> float:
    links = (topology.link(a, b) for a, b in pairwise(row))
    return sum(link.gb_per_s for link in links if link)


def _fabric_link(topology: GpuTopology, a: int, b: int) -> Link | None:
    link = topology.link(a, b)
    return link if link is not None and link.is_fabric else None


def draw_cube_mesh(picture: NodePicture, mesh: CubeMesh) -> Text:
    """Return the two quads as rows, their links, and a line that says which pairs are not drawn.

    A quad is four GPUs that are all joined to each other. Each GPU is joined to the GPU below or above it.
    Quads are found in the matrix, because vendors number the GPUs of this board differently.
    """
    canvas = Canvas()
    widest = max(link.gb_per_s for row in picture.topology.links for link in row if link)
    for level, quad in enumerate((mesh.upper, mesh.lower)):
        for place, gpu in enumerate(quad):
            put_box(canvas, (level * MESH_ROW, place * (MESH_BOX + MESH_GAP)), MESH_BOX, picture, gpu)
            if place + 1 < len(quad):
                _put_row_link(canvas, picture, (gpu, quad[place + 1]), (level, place), widest)
    for place, pair in enumerate(zip(mesh.upper, mesh.lower, strict=True)):
        link = picture.topology.link(*pair)
        assert link is not None
        label = f" {link.kind}" if _is_chosen(picture, *pair) else ""
        bar = "║" if link.gb_per_s == widest else "│"
        canvas.put(
            BOX_HEIGHT, place * (MESH_BOX + MESH_GAP) + MESH_BOX // 2, bar + label, _style(picture, *pair)
        )
    drawn = canvas.text()
    drawn.append("\n")
    drawn.append(_legend(picture.topology, mesh), "dim")
    return drawn


def _put_row_link(
    canvas: Canvas, picture: NodePicture, pair: tuple[int, int], grid_position: tuple[int, int], widest: float
) -> None:
    link = picture.topology.link(*pair)
    assert link is not None
    line = "═" if link.gb_per_s == widest else "─"
    text = f" {link.kind} ".center(MESH_GAP, line) if _is_chosen(picture, *pair) else line * MESH_GAP
    level, place = grid_position
    canvas.put(level * MESH_ROW + 1, place * (MESH_BOX + MESH_GAP) + MESH_BOX, text, _style(picture, *pair))


def _is_chosen(picture: NodePicture, a: int, b: int) -> bool:
    return picture.is_chosen(a) and picture.is_chosen(b)


def _style(picture: NodePicture, a: int, b: int) -> str:
    return CHOSEN_STYLE if _is_chosen(picture, a, b) else ""


def _legend(topology: GpuTopology, mesh: CubeMesh) -> str:
    """Return the legend of the strokes, and the links that are not drawn, for all pairs of the node."""
    drawn = {frozenset(pair) for quad in (mesh.upper, mesh.lower) for pair in pairwise(quad)}
    drawn |= {frozenset(pair) for pair in zip(mesh.upper, mesh.lower, strict=True)}
    in_rows = (pair for quad in (mesh.upper, mesh.lower) for pair in combinations(quad, 2))
    pairs_across = product(mesh.upper, mesh.lower)
    kinds = sorted({_kind(topology, *sorted(pair)) for pair in drawn}, key=lambda kind: -kind[1])
    strokes = "   ".join(
        f"{'══ ║' if rank == 0 else '── │'} {name} {gb:g} GB/s" for rank, (name, gb) in enumerate(kinds)
    )
    hidden = [
        f"{_names(topology, [pair for pair in pairs if frozenset(pair) not in drawn])} {position}"
        for position, pairs in (("within a row", in_rows), ("between rows", pairs_across))
    ]
    return f"{strokes}   not drawn: {', '.join(hidden)}"


def _kind(topology: GpuTopology, a: int, b: int) -> tuple[str, float]:
    link = topology.link(a, b)
    return (link.kind, link.gb_per_s) if link else ("unknown", 0.0)


def _names(topology: GpuTopology, pairs: list[tuple[int, int]]) -> str:
    kinds = sorted({_kind(topology, *pair) for pair in pairs}, key=lambda kind: -kind[1])
    return " or ".join(f"{name} {gb:g}" for name, gb in kinds)


# --- one line for each node -----------------------------------------------------------------------


def draw_strips(pictures: Iterable[NodePicture]) -> Text:
    """Return a line for each node: for each GPU its holder's letter or a dot, then how many are free.

    The letter of a chosen GPU is in brackets.
    """
    nodes = list(pictures)
    names = max([NAME_WIDTH, *(len(picture.name) + 2 for picture in nodes)])
    widest = max((picture.topology.gpu_count for picture in nodes), default=0)
    drawn = Text(no_wrap=True, overflow="ignore")
    drawn.append(" " * names + "".join(f"{gpu:^3}" for gpu in range(widest)).rstrip(), TAKEN_STYLE)
    for picture in nodes:
        drawn.append("\n" + picture.name.ljust(names), "bold")
        for gpu in range(picture.topology.gpu_count):
            mark = picture.marks.get(gpu)
            if mark is None:
                drawn.append(f" {FREE} ")
            elif mark.is_chosen:
                drawn.append(f"[{mark.letter}]", CHOSEN_STYLE)
            else:
                drawn.append(f" {mark.letter} ", TAKEN_STYLE)
        drawn.append("   " * (widest - picture.topology.gpu_count))
        drawn.append(f"  {picture.free_count} of {picture.topology.gpu_count} free")
        if picture.unindexed_gpus:
            drawn.append(f" ({picture.unindexed_gpus} taken, indices not known)")
    return drawn


# --- a sheet of characters ------------------------------------------------------------------------


class Canvas:
    """Lines of text. Later characters replace earlier ones."""

    def __init__(self) -> None:
        self._lines: list[Text] = []

    def put(self, row: int, column: int, text: str, style: str = "") -> None:
        """Write text from (row, column) to the right, over what is there."""
        self._lines += [Text() for _ in range(row + 1 - len(self._lines))]
        line = self._lines[row]
        line.pad_right(max(0, column - len(line)))
        self._lines[row] = Text.assemble(line[:column], (text, style), line[column + len(text) :])

    def text(self) -> Text:
        """Return the whole sheet, without blanks at the ends of lines."""
        return Text("\n", no_wrap=True, overflow="ignore").join(self._lines)


def put_box(canvas: Canvas, corner: tuple[int, int], width: int, picture: NodePicture, gpu: int) -> None:
    """Draw one GPU at (row, column): its index and its holder's letter. The frame is heavy if the GPU is
    chosen."""
    row, column = corner
    style = picture.style(gpu)
    left_top, line, right_top, side, left_bottom, right_bottom = _HEAVY if picture.is_chosen(gpu) else _LIGHT
    letter = picture.marks[gpu].letter if gpu in picture.marks else " "
    inner_width = width - 2
    text = f"{gpu:<2}{letter}" if inner_width == 3 else f" {gpu:<2}{letter} "
    canvas.put(row, column, left_top + line * inner_width + right_top, style)
    canvas.put(row + 1, column, side + text.ljust(inner_width) + side, style)
    canvas.put(row + 2, column, left_bottom + line * inner_width + right_bottom, style)
