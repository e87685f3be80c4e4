"""Decisions as a picture: racks, nodes, NVLink islands, GPUs, and each gang outlined where it lies.

Nothing is said by colour alone: a gang's GPUs carry its letter. In a large cluster the nodes that are touched
are drawn and the others counted.
"""

from __future__ import annotations

import math
import textwrap
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from xml.sax.saxutils import escape, quoteattr

from muster.adapters.files import pictures
from muster.adapters.files.decide import Decided, Outcome
from muster.adapters.files.pictures import Holdings, key_of
from muster.domain.printable import printable
from muster.domain.topology import bits
from muster.placement.cluster.columns import columns
from muster.placement.cluster.fabric import Place, natural

WIDTH, MARGIN = 1180, 24
NODES_DRAWN = 48
"""Up to so many nodes all are drawn; of more, those that are touched, as many at most."""

GPU, GAP, ISLAND_GAP, IN_ROW = 26, 3, 9, 8
PAD, TITLE = 10, 40
PANEL_PAD, PANEL_TITLE, BETWEEN = 12, 28, 14
CHARACTER, BOLD, SMALL, LINE = 7.6, 8.5, 6.4, 18
"""Widths of a character, of 12 px plain and bold ("n" in DejaVu Sans) and of 11 px, and a line's height."""

COLOURS = ("#0072b2", "#d55e00", "#009e73", "#b5478f", "#a06a00", "#2a86c7", "#7b4a2d", "#6a3d9a")
"""After Okabe and Ito: told apart with any kind of sight, dark enough for white letters."""

_STYLE = """text{font:12px ui-sans-serif,system-ui,"DejaVu Sans",sans-serif;fill:#1f2933}
.h{font-size:16px;font-weight:600}.b{font-weight:600}.s{font-size:11px;fill:#52606d}
.i{font-size:10px;fill:#7b8794;text-anchor:middle}.l{font-weight:700;fill:#fff;text-anchor:middle}
.n{font-size:10px}
.panel{fill:#f5f7fa;stroke:#cbd2d9}.node{fill:#fff;stroke:#9aa5b1}.island{fill:#e4eef7;stroke:#9fb8d0}
.free{fill:#fff;stroke:#7b8794}.taken{fill:#cbd2d9;stroke:#9aa5b1}.unknown{stroke-dasharray:3 2}"""


@dataclass(slots=True)
class _Sheet:
    """Elements, and how far down they reach."""

    parts: list[str] = field(default_factory=list)
    bottom: float = 0

    def rect(self, x: float, y: float, width: float, height: float, attributes: str) -> None:
        self.parts.append(f'<rect x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" {attributes}/>')
        self.bottom = max(self.bottom, y + height)

    def text(self, x: float, y: float, text: str, style: str = "") -> None:
        kind = f' class="{style}"' if style else ""
        self.parts.append(f'<text x="{x:g}" y="{y:g}"{kind}>{escape(printable(text))}</text>')
        self.bottom = max(self.bottom, y)


@dataclass(frozen=True, slots=True)
class _Panel:
    """The nodes of one rack that are drawn, `columns` beside each other."""

    title: str
    nodes: tuple[Place, ...]
    columns: int
    width: float
    height: float


def draw(decided: Decided) -> str:
    """The whole picture, at most 1,180 px wide."""
    known, sheet = pictures.holdings(decided), _Sheet()
    colours = {key: COLOURS[i % len(COLOURS)] for i, key in enumerate(known.letters)}
    _heading(sheet, decided)
    for outcome in decided.outcomes:
        _gang_lines(sheet, outcome, known, colours)
    slices = any(state.memory for state in decided.after.nodes.values())
    _key(sheet, sheet.bottom + 14, slices)
    view = columns(decided.after)
    everything = {name: view.place(row) for row, name in enumerate(view.names)}
    drawn = _drawn(everything.values(), known)
    painter = _Painter(sheet, known, colours)
    y = sheet.bottom + 20
    for row in _rows(_panels(drawn, everything.values())):
        x = float(MARGIN)
        for panel in row:
            painter.panel(panel, x, y)
            x += panel.width + BETWEEN
        y += max(panel.height for panel in row) + BETWEEN
    left = len(everything) - len(drawn)
    if left:
        free = sum(place.state.free_gpu_count for place in everything.values()) - sum(
            place.state.free_gpu_count for place in drawn
        )
        sheet.text(MARGIN, y + 6, f"Not drawn: {left:,} nodes more, with {free:,} free GPUs.", "s")
    height = math.ceil(sheet.bottom + MARGIN)
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height}" '
        f'viewBox="0 0 {WIDTH} {height}">'
    )
    body = "\n".join(sheet.parts)
    return (
        f'{head}\n<style>{_STYLE}</style>\n<rect width="100%" height="100%" fill="#fff"/>\n{body}\n</svg>\n'
    )


def _drawn(everything: Iterable[Place], known: Holdings) -> list[Place]:
    nodes = list(everything)
    if len(nodes) <= NODES_DRAWN:
        return nodes
    return [place for place in nodes if place.name in known.members][:NODES_DRAWN]


# --- above the racks -------------------------------------------------------------------------------


def _heading(sheet: _Sheet, decided: Decided) -> None:
    counts: dict[str, int] = {}
    for outcome in decided.outcomes:
        counts[outcome.status.value] = counts.get(outcome.status.value, 0) + 1
    total = len(decided.outcomes)
    said = ", ".join(f"{count} {status}" for status, count in counts.items()) or "nothing is pending"
    sheet.text(MARGIN, MARGIN + 14, f"{total} {'gang' if total == 1 else 'gangs'}: {said}", "h")
    sheet.bottom += 6


def _gang_lines(sheet: _Sheet, outcome: Outcome, known: Holdings, colours: dict[str, str]) -> None:
    key, y = key_of(outcome), sheet.bottom + LINE + 4
    if key in colours:
        fill = f'rx="3" fill="{colours[key]}"'
        _square(sheet, (MARGIN, y - 14, 18), fill, known.letters[key], "l")
    title = f"{outcome.group.gang} · {outcome.status.value}"
    sheet.text(MARGIN + 28, y, title, "b")
    room = int((WIDTH - 2 * MARGIN - 28) / CHARACTER)
    for number, line in enumerate(textwrap.wrap(printable(outcome.message), room), start=1):
        sheet.text(MARGIN + 28, y + number * (LINE - 2), line)


def _key(sheet: _Sheet, y: float, slices: bool) -> None:
    """What the shapes mean. `slices`: some GPUs serve their memory in parts."""
    in_part = (('class="taken"', pictures.PARTLY, "its memory in part"),) if slices else ()
    entries = (
        ('class="free"', "", "free GPU"),
        ('class="taken"', pictures.TAKEN, "taken before"),
        *in_part,
        ('class="free unknown"', "", "free or taken: indices not known"),
        ('rx="5" class="island"', "", "joined by NVLink or xGMI"),
    )
    x = float(MARGIN)
    for attributes, letter, text in entries:
        _square(sheet, (x, y, 16), attributes, letter, "i")
        sheet.text(x + 24, y + 12, text, "s")
        x += 24 + len(text) * SMALL + 20
    sheet.text(x, y + 12, "letter: the gang whose GPU it is now", "s")


def _square(sheet: _Sheet, at: tuple[float, float, float], attributes: str, text: str, style: str) -> None:
    """A square at (x, y, size) with a word in its middle."""
    x, y, size = at
    sheet.rect(x, y, size, size, attributes)
    if text:
        sheet.text(x + size / 2, y + size / 2 + 4, text, style)


# --- racks -----------------------------------------------------------------------------------------


def _panels(drawn: Sequence[Place], everything: Iterable[Place]) -> Iterator[_Panel]:
    def rack(place: Place) -> tuple[str, str]:
        return place.part("zone"), place.part("rack")

    whole: dict[tuple[str, str], int] = {}
    for place in everything:
        whole[rack(place)] = whole.get(rack(place), 0) + 1
    width = max((_width(place) for place in drawn), default=0)
    most = max(1, int((WIDTH - 2 * MARGIN - 2 * PANEL_PAD + BETWEEN) // (width + BETWEEN)))
    in_order = sorted(drawn, key=lambda place: (*map(natural, rack(place)), natural(place.name)))
    for (zone, name), group in groupby(in_order, key=rack):
        nodes = tuple(group)
        lines = math.ceil(len(nodes) / most)
        columns = math.ceil(len(nodes) / lines)
        title = " · ".join(
            part for part in (f"rack {name}" if name else "no rack", zone and f"zone {zone}") if part
        )
        if domain := _shared_domain(nodes):
            title += f" · all in nvlink-domain {domain}"
        if len(nodes) < whole[zone, name]:
            title += f" · {len(nodes)} of {whole[zone, name]} nodes drawn"
        inside = columns * (width + BETWEEN) - BETWEEN
        heights = [max(map(_height, nodes[i : i + columns])) for i in range(0, len(nodes), columns)]
        height = PANEL_TITLE + sum(h + BETWEEN for h in heights) - BETWEEN + PANEL_PAD
        yield _Panel(title, nodes, columns, inside + 2 * PANEL_PAD, height)


def _shared_domain(nodes: Sequence[Place]) -> str:
    """The NVLink domain that spans all these nodes; "" for none."""
    domains = {place.wide for place in nodes}
    return domains.pop() if len(domains) == 1 and len(nodes) > 1 else ""


def _rows(panels: Iterable[_Panel]) -> list[list[_Panel]]:
    """Panels side by side as long as there is room."""
    rows: list[list[_Panel]] = []
    left = 0.0
    for panel in panels:
        if not rows or panel.width > left:
            rows.append([])
            left = WIDTH - 2 * MARGIN
        rows[-1].append(panel)
        left -= panel.width + BETWEEN
    return rows


# --- nodes -----------------------------------------------------------------------------------------


def _grid(place: Place) -> list[list[tuple[int, ...]]]:
    """Rows of islands of GPUs: an island begins a new row where it does not fit, and goes on in the next."""
    rows: list[list[tuple[int, ...]]] = []
    room = 0
    for mask in place.state.node.topology.islands:
        gpus = tuple(bits(mask))
        if len(gpus) > room:
            rows.append([])
            room = IN_ROW
        for begin in range(0, len(gpus), IN_ROW):
            part = gpus[begin : begin + IN_ROW]
            if begin:
                rows.append([])
                room = IN_ROW
            rows[-1].append(part)
            room -= len(part)
    return rows


def _width(place: Place) -> float:
    rows = [sum(len(part) * (GPU + GAP) + ISLAND_GAP for part in row) for row in _grid(place)]
    return max(180.0, 2 * PAD + max(rows, default=0) - ISLAND_GAP - GAP + 8)


def _height(place: Place) -> float:
    rows = len(_grid(place))
    return TITLE + rows * (GPU + ISLAND_GAP) + (PAD if rows else 6)


@dataclass(frozen=True, slots=True)
class _Painter:
    sheet: _Sheet
    known: Holdings
    colours: dict[str, str]

    def panel(self, panel: _Panel, x: float, y: float) -> None:
        self.sheet.rect(x, y, panel.width, panel.height, 'rx="8" class="panel"')
        self.sheet.text(x + PANEL_PAD, y + 19, _cut(panel.title, (panel.width - 2 * PANEL_PAD) / BOLD), "b")
        top, several = y + PANEL_TITLE, not _shared_domain(panel.nodes)
        width = (panel.width - 2 * PANEL_PAD + BETWEEN) / panel.columns - BETWEEN
        for begin in range(0, len(panel.nodes), panel.columns):
            row = panel.nodes[begin : begin + panel.columns]
            height = max(map(_height, row))
            for column, place in enumerate(row):
                left = x + PANEL_PAD + column * (width + BETWEEN)
                self.sheet.rect(left, top, width, height, f'rx="6" {self.border(place)}')
                self.node(place, left, top, width - 2 * PAD, several)
            top += height + BETWEEN

    def border(self, place: Place) -> str:
        members = self.known.members.get(place.name, {})
        if len(members) != 1:
            return 'class="node"'
        return f'class="node" style="stroke:{self.colours[next(iter(members))]};stroke-width:2"'

    def node(self, place: Place, x: float, y: float, width: float, tell_domain: bool) -> None:
        """What stands in the node's box; `width` is a line's."""
        state, members = place.state, self.known.members.get(place.name, {})
        count = state.node.topology.gpu_count
        said = [f"{state.free_gpu_count} of {count} free" if count else "no GPUs"]
        said += [f"{self.known.letters[key]} × {number}" for key, number in members.items()]
        if tell_domain and place.wide:
            said.insert(0, f"domain {place.wide}")
        self.sheet.text(x + PAD, y + 17, _cut(place.name, width / BOLD), "b")
        self.sheet.text(x + PAD, y + 32, _cut(" · ".join(said), width / SMALL), "s")
        for number, row in enumerate(_grid(place)):
            left = x + PAD + 4
            for island in row:
                self.island(place, island, left, y + TITLE + 4 + number * (GPU + ISLAND_GAP))
                left += len(island) * (GPU + GAP) + ISLAND_GAP

    def island(self, place: Place, gpus: tuple[int, ...], x: float, y: float) -> None:
        if len(gpus) > 1 and place.state.node.topology.has_fabric:
            width = len(gpus) * (GPU + GAP) - GAP
            self.sheet.rect(x - 4, y - 4, width + 8, GPU + 8, 'rx="6" class="island"')
        held = self.known.held.get(place.name, {})
        for position, gpu in enumerate(gpus):
            self.gpu(place, gpu, x + position * (GPU + GAP), y)
        at = 0
        for key, run in groupby(gpus, key=lambda gpu: held[gpu][0] if gpu in held else ""):
            length = len(list(run))
            if key:
                left, width = x + at * (GPU + GAP), length * (GPU + GAP) - GAP
                outline = f'rx="5" fill="none" stroke="{self.colours[key]}" stroke-width="2.5"'
                self.sheet.rect(left - 2, y - 2, width + 4, GPU + 4, outline)
            at += length

    def gpu(self, place: Place, gpu: int, x: float, y: float) -> None:
        held = self.known.held.get(place.name, {}).get(gpu)
        if held is not None:
            key, pod = held
            said = quoteattr(printable(f"{place.name} GPU {gpu}: {pod}"))
            fill = f'rx="3" fill="{self.colours[key]}" aria-label={said}'
            label = f"{self.known.letter(place.name, gpu)}{gpu}"
            _square(self.sheet, (x, y, GPU), fill, label, "l" if len(label) < 3 else "l n")
        elif place.state.free_gpus >> gpu & 1:
            unknown = " unknown" if place.state.unindexed_gpus else ""
            _square(self.sheet, (x, y, GPU), f'rx="3" class="free{unknown}"', str(gpu), "i")
        else:
            _square(self.sheet, (x, y, GPU), 'rx="3" class="taken"', pictures.taken(place.state, gpu), "i")


def _cut(text: str, room: float) -> str:
    """The text, or as much of it as there is room for, in characters."""
    return text if len(text) <= room else text[: int(room) - 1] + "…"
