"""Draw decisions as a picture: racks, nodes, NVLink islands, GPUs, and an outline around each gang.

Colour never carries information alone: a gang's GPUs also have its letter. Equal whole nodes share one box.
In a large cluster only the touched nodes are drawn, and the others are counted.
"""

from __future__ import annotations

import math
import textwrap
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby

from muster.adapters.files import pictures
from muster.adapters.files.decide import Decided, Outcome
from muster.adapters.files.pictures import Holdings, key_of
from muster.adapters.files.svg_cells import Cell, fold
from muster.adapters.files.svg_node import Boxes
from muster.adapters.files.svg_sheet import (
    BETWEEN,
    BOLD,
    CHARACTER,
    LINE,
    MARGIN,
    PANEL_PAD,
    PANEL_TITLE,
    SMALL,
    WIDTH,
    Sheet,
    cut,
)
from muster.domain.printable import printable
from muster.placement.cluster.columns import Columns, columns
from muster.placement.cluster.fabric import natural
from muster.placement.cluster.topology import Place

BOXES_DRAWN = 48
"""The limit of boxes. If there are more, only touched ones are drawn, up to this number."""

COLOURS = ("#0072b2", "#d55e00", "#009e73", "#b5478f", "#a06a00", "#2a86c7", "#7b4a2d", "#6a3d9a")
"""From Okabe and Ito: distinct for colour-blind people, and dark enough for white letters."""

Rack = tuple[str, str]
"""Zone and rack, "" for none. A rack has a zone if all its nodes name the same zone."""

_STYLE = """text{font:12px ui-sans-serif,system-ui,"DejaVu Sans",sans-serif;fill:#1f2933}
.h{font-size:16px;font-weight:600}.b{font-weight:600}.s{font-size:11px;fill:#52606d}
.i{font-size:10px;fill:#7b8794;text-anchor:middle}.l{font-weight:700;fill:#fff;text-anchor:middle}
.n{font-size:10px}.k{font-size:10px;fill:#52606d;text-anchor:middle}
.link{fill:none;stroke:#7b8794;stroke-width:1}.wide{stroke:#3e4c59;stroke-width:2}
.stack{fill:#fff;stroke:#cbd2d9}.panel{fill:#f5f7fa;stroke:#cbd2d9}.node{fill:#fff;stroke:#9aa5b1}.island{fill:#e4eef7;stroke:#9fb8d0}
.free{fill:#fff;stroke:#7b8794}.taken{fill:#cbd2d9;stroke:#9aa5b1}.unknown{stroke-dasharray:3 2}"""


@dataclass(frozen=True, slots=True)
class _Panel:
    """The boxes of one rack that are drawn, `columns` in a row."""

    title: str
    cells: tuple[Cell, ...]
    columns: int
    width: float
    height: float


def draw(decided: Decided) -> str:
    """Return the whole picture, at most 1,180 px wide."""
    holdings, sheet = pictures.holdings(decided), Sheet()
    colours = {key: COLOURS[i % len(COLOURS)] for i, key in enumerate(holdings.letters)}
    _heading(sheet, decided)
    for outcome in decided.outcomes:
        _gang_lines(sheet, outcome, holdings, colours)
    slices = any(state.memory for state in decided.after.nodes.values())
    _key(sheet, sheet.bottom + 14, slices)
    view = columns(decided.after)
    everything = {name: view.place(row) for row, name in enumerate(view.names)}
    rack_of = _rack_of(view)
    racks = _select(_racks(everything.values(), rack_of, holdings), holdings)
    drawn = [place for cells in racks.values() for cell in cells for place in cell.places]
    boxes = Boxes(sheet, holdings, colours)
    y = sheet.bottom + 20
    for row in _rows(_panels(racks, Counter(rack_of.values()), boxes)):
        x = float(MARGIN)
        for panel in row:
            _draw_panel(panel, x, y, boxes)
            x += panel.width + BETWEEN
        y += max(panel.height for panel in row) + BETWEEN
    undrawn = len(everything) - len(drawn)
    if undrawn:
        free = sum(place.state.free_gpu_count for place in everything.values()) - sum(
            place.state.free_gpu_count for place in drawn
        )
        sheet.text(MARGIN, y + 6, f"Not drawn: {undrawn:,} nodes more, with {free:,} free GPUs.", "s")
    height = math.ceil(sheet.bottom + MARGIN)
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height}" '
        f'viewBox="0 0 {WIDTH} {height}">'
    )
    body = "\n".join(sheet.parts)
    return (
        f'{head}\n<style>{_STYLE}</style>\n<rect width="100%" height="100%" fill="#fff"/>\n{body}\n</svg>\n'
    )


def _racks(
    everything: Iterable[Place], rack_of: Mapping[str, Rack], holdings: Holdings
) -> dict[Rack, list[Cell]]:
    """Return the boxes of each rack, in order."""

    def rack(place: Place) -> Rack:
        return rack_of[place.name]

    in_order = sorted(everything, key=lambda place: (*map(natural, rack(place)), natural(place.name)))
    return {key: fold(places, holdings) for key, places in groupby(in_order, key=rack)}


def _select(racks: dict[Rack, list[Cell]], holdings: Holdings) -> dict[Rack, list[Cell]]:
    """Return all boxes if they are few, else the touched ones."""
    if sum(map(len, racks.values())) <= BOXES_DRAWN:
        return racks
    drawn: dict[Rack, list[Cell]] = {}
    boxes_left = BOXES_DRAWN
    for rack, cells in racks.items():
        if touched := [cell for cell in cells if cell.first.name in holdings.members][:boxes_left]:
            drawn[rack] = touched
            boxes_left -= len(touched)
    return drawn


# --- above the racks -------------------------------------------------------------------------------


def _heading(sheet: Sheet, decided: Decided) -> None:
    counts: dict[str, int] = {}
    for outcome in decided.outcomes:
        counts[outcome.status.value] = counts.get(outcome.status.value, 0) + 1
    total = len(decided.outcomes)
    counts_by_status = (
        ", ".join(f"{count} {status}" for status, count in counts.items()) or "nothing is pending"
    )
    sheet.text(MARGIN, MARGIN + 14, f"{total} {'gang' if total == 1 else 'gangs'}: {counts_by_status}", "h")
    sheet.bottom += 6


def _gang_lines(sheet: Sheet, outcome: Outcome, holdings: Holdings, colours: dict[str, str]) -> None:
    key, y = key_of(outcome), sheet.bottom + LINE + 4
    if key in colours:
        fill = f'rx="3" fill="{colours[key]}"'
        sheet.square((MARGIN, y - 14, 18), fill, holdings.letters[key], "l")
    title = f"{outcome.group.gang} · {outcome.status.value}"
    sheet.text(MARGIN + 28, y, title, "b")
    room = int((WIDTH - 2 * MARGIN - 28) / CHARACTER)
    for number, line in enumerate(textwrap.wrap(printable(outcome.message), room), start=1):
        sheet.text(MARGIN + 28, y + number * (LINE - 2), line)


def _key(sheet: Sheet, y: float, slices: bool) -> None:
    """Explain the shapes. `slices` is whether some GPUs serve their memory in parts."""
    in_part = (('class="taken"', pictures.PARTLY, "its memory in part"),) if slices else ()
    entries = (
        ('class="free"', "", "free GPU"),
        ('class="taken"', pictures.TAKEN, "taken before"),
        *in_part,
        ('class="free unknown"', "", "free or taken: indices not known"),
        ('rx="5" class="island"', "", "NVLink or xGMI"),
        ('class="stack"', "", "stack: equal nodes"),
    )
    x = float(MARGIN)
    for attributes, letter, text in entries:
        sheet.square((x, y, 16), attributes, letter, "i")
        sheet.text(x + 24, y + 12, text, "s")
        x += 24 + len(text) * SMALL + 20
    sheet.text(x, y + 12, "letter: the gang whose GPU it is now", "s")


# --- racks -----------------------------------------------------------------------------------------


def _rack_of(view: Columns) -> dict[str, Rack]:
    """Return node → its rack."""
    part, zones = view.topology.part, dict[str, set[str]]()
    for row in range(len(view.names)):
        zones.setdefault(part(row, "rack"), set()).add(part(row, "zone"))
    zone_of = {
        rack: min(zone_names - {""}, default="")
        for rack, zone_names in zones.items()
        if len(zone_names - {""}) < 2
    }
    return {
        name: (zone_of.get(rack, "") if rack else part(row, "zone"), rack)
        for row, name in enumerate(view.names)
        for rack in (part(row, "rack"),)
    }


def _panels(racks: dict[Rack, list[Cell]], whole: Mapping[Rack, int], boxes: Boxes) -> Iterator[_Panel]:
    width = max((boxes.width(cell) for cells in racks.values() for cell in cells), default=0)
    most = max(1, int((WIDTH - 2 * MARGIN - 2 * PANEL_PAD + BETWEEN) // (width + BETWEEN)))
    for (zone, name), cells in racks.items():
        lines = math.ceil(len(cells) / most)
        columns = math.ceil(len(cells) / lines)
        nodes = [place for cell in cells for place in cell.places]
        title = f"rack {name}" if name else "no rack"
        if zone and not name.endswith(f" of zone {zone}"):
            title += f" · zone {zone}"
        if domain := _shared_domain(nodes):
            title += f" · all in nvlink-domain {domain}"
        if len(nodes) < whole[zone, name]:
            title += f" · {len(nodes)} of {whole[zone, name]} nodes drawn"
        inside = columns * (width + BETWEEN) - BETWEEN
        heights = [max(map(boxes.height, cells[i : i + columns])) for i in range(0, len(cells), columns)]
        height = PANEL_TITLE + sum(h + BETWEEN for h in heights) - BETWEEN + PANEL_PAD
        yield _Panel(title, tuple(cells), columns, inside + 2 * PANEL_PAD, height)


def _draw_panel(panel: _Panel, x: float, y: float, boxes: Boxes) -> None:
    boxes.sheet.rect(x, y, panel.width, panel.height, 'rx="8" class="panel"')
    boxes.sheet.text(x + PANEL_PAD, y + 19, cut(panel.title, (panel.width - 2 * PANEL_PAD) / BOLD), "b")
    tell_domain = not _shared_domain([place for cell in panel.cells for place in cell.places])
    width = (panel.width - 2 * PANEL_PAD + BETWEEN) / panel.columns - BETWEEN
    top = y + PANEL_TITLE
    for begin in range(0, len(panel.cells), panel.columns):
        row = panel.cells[begin : begin + panel.columns]
        height = max(map(boxes.height, row))
        for column, cell in enumerate(row):
            box_x = x + PANEL_PAD + column * (width + BETWEEN)
            boxes.draw(cell, box_x, top, width, height, tell_domain)
        top += height + BETWEEN


def _shared_domain(nodes: Sequence[Place]) -> str:
    """Return the NVLink domain that spans all these nodes; "" for none."""
    domains = {place.wide for place in nodes}
    return domains.pop() if len(domains) == 1 and len(nodes) > 1 else ""


def _rows(panels: Iterable[_Panel]) -> list[list[_Panel]]:
    """Return the panels in rows, each with as many panels as fit."""
    rows: list[list[_Panel]] = []
    room = 0.0
    for panel in panels:
        if not rows or panel.width > room:
            rows.append([])
            room = WIDTH - 2 * MARGIN
        rows[-1].append(panel)
        room -= panel.width + BETWEEN
    return rows
