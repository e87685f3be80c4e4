"""Draw decisions as a picture: racks, nodes, NVLink islands, GPUs, and an outline around each gang.

Colour never carries information alone: a gang's GPUs also have its letter. Equal whole nodes share one box.
In a large cluster only the touched nodes are drawn, and the others are counted.
"""

from __future__ import annotations

import math
import textwrap
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations, groupby
from xml.sax.saxutils import escape, quoteattr

from muster.adapters.files.decide import GangOutcome, Outcomes
from muster.adapters.files.showing import pictures
from muster.adapters.files.showing.pictures import Holdings, key_of
from muster.domain.printable import printable
from muster.domain.topology import GpuTopology, Link, bits
from muster.domain.words import natural_key, plural
from muster.placement.cluster.columns import Columns, columns_of
from muster.placement.cluster.topology import Place

WIDTH, MARGIN = 1180, 24
PANEL_PAD, PANEL_TITLE, BETWEEN = 12, 28, 14
CHARACTER, BOLD, SMALL, LINE = 7.6, 8.5, 6.4, 18
"""Widths of a character, of 12 px plain and bold ("n" in DejaVu Sans) and of 11 px, and a line's height."""
BAR, ARCS = 20.0, 44.0
"""Pixels below a row of GPUs: for a bar with its label, for arcs with their legend."""
_RISE = 3.4
"""Pixels that an arc reaches further down for each GPU that it passes."""
FOLD_FROM = 3
"""From this number of equal whole nodes in a rack, one box stands for all of them."""
IN_ROW = 8
"""Largest number of GPUs in one row of a box."""
GPU, GAP, ISLAND_GAP = 26, 3, 9
PAD, TITLE = 10, 40
POD_LINE = 14
STACK = 6
"""Pixels by which the boxes behind a folded box are shifted."""
PODS_LISTED = 8
"""Largest number of pods of a node that are named with their GPUs. Further pods are counted."""

_Row = tuple[list[tuple[int, ...]], float]
"""Islands of GPUs in one row, and the height of the links below them."""
BOXES_DRAWN = 48
"""Largest number of boxes. If there are more, only touched nodes are drawn."""

COLOURS = ("#0072b2", "#d55e00", "#009e73", "#b5478f", "#a06a00", "#2a86c7", "#7b4a2d", "#6a3d9a")
"""Colours of Okabe and Ito: distinct for colour-blind people, and dark enough for white letters."""

_Rack = tuple[str, str]
"""Zone and rack; "" if a node has none. A rack has a zone if all its nodes name the same zone."""

_STYLE = """text{font:12px ui-sans-serif,system-ui,"DejaVu Sans",sans-serif;fill:#1f2933}
.h{font-size:16px;font-weight:600}.b{font-weight:600}.s{font-size:11px;fill:#52606d}
.i{font-size:10px;fill:#7b8794;text-anchor:middle}.l{font-weight:700;fill:#fff;text-anchor:middle}
.n{font-size:10px}.k{font-size:10px;fill:#52606d;text-anchor:middle}
.link{fill:none;stroke:#7b8794;stroke-width:1}.wide{stroke:#3e4c59;stroke-width:2}
.stack{fill:#fff;stroke:#cbd2d9}.panel{fill:#f5f7fa;stroke:#cbd2d9}.node{fill:#fff;stroke:#9aa5b1}.island{fill:#e4eef7;stroke:#9fb8d0}
.free{fill:#fff;stroke:#7b8794}.taken{fill:#cbd2d9;stroke:#9aa5b1}.unknown{stroke-dasharray:3 2}"""
_OF_VICTIM = 'class="taken" style="stroke:#c1121f;stroke-width:2"'
"""Attributes of a GPU whose pod would have to end."""


@dataclass(frozen=True, slots=True)
class _Panel:
    """The boxes of one rack that are drawn, `columns` in a row."""

    title: str
    boxes: tuple[NodeBox, ...]
    columns: int
    width: float
    height: float


def draw(decided: Outcomes) -> str:
    """Return the whole picture, at most 1,180 px wide."""
    holdings = pictures.holdings(decided)
    sheet = Sheet({key: COLOURS[i % len(COLOURS)] for i, key in enumerate(holdings.letters)})
    _draw_heading(sheet, decided)
    for outcome in decided.outcomes:
        _draw_gang(sheet, outcome, holdings, pictures.rails_used(decided, outcome))
    slices = any(state.memory for state in decided.after.nodes.values())
    _draw_legend(sheet, sheet.bottom + 14, slices, bool(holdings.victims))
    node_columns = columns_of(decided.after)
    everything = {name: node_columns.place(row) for row, name in enumerate(node_columns.names)}
    rack_of = _rack_of(node_columns)
    racks = _select(_racks(everything.values(), rack_of, holdings), holdings)
    drawn = [place for boxes in racks.values() for box in boxes for place in box.places]
    x, y = float(MARGIN), sheet.bottom + 20
    below = y
    for panel in _panels(racks, Counter(rack_of.values())):
        if x > MARGIN and x + panel.width > WIDTH - MARGIN:
            x, y = float(MARGIN), below
        _draw_panel(panel, x, y, sheet)
        x += panel.width + BETWEEN
        below = max(below, y + panel.height + BETWEEN)
    undrawn = len(everything) - len(drawn)
    if undrawn:
        free = sum(place.state.free_gpu_count for place in everything.values()) - sum(
            place.state.free_gpu_count for place in drawn
        )
        sheet.text(MARGIN, below + 6, f"Not drawn: {undrawn:,} nodes more, with {free:,} free GPUs.", "s")
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
    everything: Iterable[Place], rack_of: Mapping[str, _Rack], holdings: Holdings
) -> dict[_Rack, list[NodeBox]]:
    """Return the boxes of each rack, in order."""

    def rack(place: Place) -> _Rack:
        return rack_of[place.name]

    in_order = sorted(everything, key=lambda place: (*map(natural_key, rack(place)), natural_key(place.name)))
    return {key: _fold(places, holdings) for key, places in groupby(in_order, key=rack)}


def _select(racks: dict[_Rack, list[NodeBox]], holdings: Holdings) -> dict[_Rack, list[NodeBox]]:
    """Return all boxes if they are few; else the boxes of nodes that hold members or victims."""
    if sum(map(len, racks.values())) <= BOXES_DRAWN:
        return racks
    drawn: dict[_Rack, list[NodeBox]] = {}
    boxes_left = BOXES_DRAWN
    touched = holdings.members.keys() | holdings.victims.keys()
    for rack, boxes in racks.items():
        if drawn_boxes := [box for box in boxes if box.first_place.name in touched][:boxes_left]:
            drawn[rack] = drawn_boxes
            boxes_left -= len(drawn_boxes)
    return drawn


# --- above the racks -------------------------------------------------------------------------------


def _draw_heading(sheet: Sheet, decided: Outcomes) -> None:
    counts = Counter(outcome.status.value for outcome in decided.outcomes)
    total = len(decided.outcomes)
    counts_by_status = (
        ", ".join(f"{count} {status}" for status, count in counts.items()) or "nothing is pending"
    )
    sheet.text(MARGIN, MARGIN + 14, f"{total} {plural('gang', total)}: {counts_by_status}", "h")
    sheet.bottom += 6


def _draw_gang(sheet: Sheet, outcome: GangOutcome, holdings: Holdings, rails: str) -> None:
    key, y = key_of(outcome), sheet.bottom + LINE + 4
    if key in sheet.colours:
        fill = f'rx="3" fill="{sheet.colours[key]}"'
        sheet.square((MARGIN, y - 14, 18), fill, holdings.letters[key], "l")
    title = f"{outcome.group.gang} · {outcome.status.value}"
    sheet.text(MARGIN + 28, y, title, "b")
    room = int((WIDTH - 2 * MARGIN - 28) / CHARACTER)
    for number, line in enumerate(textwrap.wrap(printable(outcome.message), room), start=1):
        sheet.text(MARGIN + 28, y + number * (LINE - 2), line)
    if rails:
        sheet.text(MARGIN + 28, sheet.bottom + LINE - 2, rails, "s")


def _draw_legend(sheet: Sheet, y: float, slices: bool, victims: bool) -> None:
    """Explain the shapes. `slices`: whether some GPUs serve their memory in parts. `victims`: whether some
    pods would have to end."""
    in_part = (('class="taken"', pictures.PARTLY, "its memory in part"),) if slices else ()
    to_end = ((_OF_VICTIM, pictures.VICTIM, "would have to end"),) if victims else ()
    entries = (
        ('class="free"', "", "free GPU"),
        ('class="taken"', pictures.TAKEN_MARK, "taken before"),
        *in_part,
        *to_end,
        ('class="free unknown"', "", "free or taken: indices not known"),
        ('rx="5" class="island"', "", "NVLink or xGMI"),
        ('class="stack"', "", "stack: equal nodes"),
    )
    x = float(MARGIN)
    for attributes, letter, text in entries:
        sheet.square((x, y, 16), attributes, letter, "i")
        sheet.text(x + 24, y + 12, text, "s")
        x += 24 + len(text) * SMALL + 20
    letters = "letter: the gang whose GPU it is now"
    if x + len(letters) * SMALL > WIDTH - MARGIN:
        x, y = float(MARGIN), y + LINE
    sheet.text(x, y + 12, letters, "s")


# --- racks -----------------------------------------------------------------------------------------


def _rack_of(node_columns: Columns) -> dict[str, _Rack]:
    """Return node → its rack."""
    part, zones = node_columns.topology.part, dict[str, set[str]]()
    for row in range(len(node_columns.names)):
        zones.setdefault(part(row, "rack"), set()).add(part(row, "zone"))
    zone_of = {
        rack: min(zone_names - {""}, default="")
        for rack, zone_names in zones.items()
        if len(zone_names - {""}) < 2
    }
    return {
        name: (zone_of.get(rack, "") if rack else part(row, "zone"), rack)
        for row, name in enumerate(node_columns.names)
        for rack in (part(row, "rack"),)
    }


def _panels(racks: dict[_Rack, list[NodeBox]], node_counts: Mapping[_Rack, int]) -> Iterator[_Panel]:
    width = max((box.width() for boxes in racks.values() for box in boxes), default=0)
    max_columns = max(1, int((WIDTH - 2 * MARGIN - 2 * PANEL_PAD + BETWEEN) // (width + BETWEEN)))
    for (zone, name), boxes in racks.items():
        row_count = math.ceil(len(boxes) / max_columns)
        columns = math.ceil(len(boxes) / row_count)
        nodes = [place for box in boxes for place in box.places]
        title = f"rack {name}" if name else "no rack"
        if zone and not name.endswith(f" of zone {zone}"):
            title += f" · zone {zone}"
        if domain := _shared_domain(nodes):
            title += f" · all in nvlink-domain {domain}"
        if len(nodes) < node_counts[zone, name]:
            title += f" · {len(nodes)} of {node_counts[zone, name]} nodes drawn"
        inner_width = columns * (width + BETWEEN) - BETWEEN
        heights = [max(map(NodeBox.height, boxes[i : i + columns])) for i in range(0, len(boxes), columns)]
        height = PANEL_TITLE + sum(h + BETWEEN for h in heights) - BETWEEN + PANEL_PAD
        yield _Panel(title, tuple(boxes), columns, inner_width + 2 * PANEL_PAD, height)


def _draw_panel(panel: _Panel, x: float, y: float, sheet: Sheet) -> None:
    sheet.rect(x, y, panel.width, panel.height, 'rx="8" class="panel"')
    sheet.text(x + PANEL_PAD, y + 19, cut(panel.title, (panel.width - 2 * PANEL_PAD) / BOLD), "b")
    tell_domain = not _shared_domain([place for box in panel.boxes for place in box.places])
    width = (panel.width - 2 * PANEL_PAD + BETWEEN) / panel.columns - BETWEEN
    top = y + PANEL_TITLE
    for begin in range(0, len(panel.boxes), panel.columns):
        row = panel.boxes[begin : begin + panel.columns]
        height = max(map(NodeBox.height, row))
        for column, box in enumerate(row):
            box_x = x + PANEL_PAD + column * (width + BETWEEN)
            box.draw(sheet, box_x, top, width, height, tell_domain)
        top += height + BETWEEN


def _shared_domain(nodes: Sequence[Place]) -> str:
    """Return the NVLink domain that spans all these nodes; "" for none."""
    domains = {place.wide_domain for place in nodes}
    return domains.pop() if len(domains) == 1 and len(nodes) > 1 else ""


# --- boxes ----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class NodeBox:
    """One box: a node, or several nodes of a rack that look the same in the picture."""

    places: tuple[Place, ...]
    holdings: Holdings

    @property
    def first_place(self) -> Place:
        """Return the node whose GPUs are drawn."""
        return self.places[0]

    @property
    def is_folded(self) -> bool:
        """Return whether the box stands for several nodes."""
        return len(self.places) > 1

    @property
    def title(self) -> str:
        """Return the node's name, or the number of nodes and of their GPUs."""
        if not self.is_folded:
            return self.first_place.name
        count = self.first_place.state.node.topology.gpu_count
        return f"{len(self.places)} nodes" + (f" × {count} GPUs" if count else "")

    def width(self) -> float:
        """Return the width that the box needs, in pixels."""
        rows = [sum(len(part) * (GPU + GAP) + ISLAND_GAP for part in row) for row, _ in self._rows()]
        stack = STACK if self.is_folded else 0
        return max(180.0, 2 * PAD + max(rows, default=0) - ISLAND_GAP - GAP + 8 + stack)

    def height(self) -> float:
        """Return the height that the box needs, in pixels."""
        rows = self._rows()
        pods = len(self._pods()) * POD_LINE + (STACK if self.is_folded else 0)
        if not rows:
            return TITLE + 6 + pods
        return TITLE + sum(GPU + ISLAND_GAP + below for _, below in rows) + PAD + pods

    def draw(self, sheet: Sheet, x: float, y: float, width: float, height: float, tell_domain: bool) -> None:
        """Draw the box at (x, y). Several nodes are a stack, with the GPUs of the first node."""
        attributes = f'rx="6" {self._border(sheet)}'
        if self.is_folded:
            width, height = width - STACK, height - STACK
            for shift in (STACK, STACK / 2):
                sheet.rect(x + shift, y + shift, width, height, 'rx="6" class="stack"')
        sheet.rect(x, y, width, height, attributes, self._names())
        room = width - 2 * PAD
        sheet.text(x + PAD, y + 17, cut(self.title, room / BOLD), "b")
        sheet.text(x + PAD, y + 32, cut(self._subtitle(tell_domain), room / SMALL), "s")
        top = y + TITLE + 4
        for row, below in self._rows():
            island_x = x + PAD + 4
            for island in row:
                self._island(sheet, island, island_x, top)
                island_x += len(island) * (GPU + GAP) + ISLAND_GAP
            top += GPU + ISLAND_GAP + below
        for number, line in enumerate(self._pods(), start=1):
            sheet.text(x + PAD, top + number * POD_LINE - 4, cut(line, room / SMALL), "s")

    def _rows(self) -> list[_Row]:
        topology = self.first_place.state.node.topology
        return [
            (row, max(_links_of(topology, island).height for island in row))
            for row in _grid(self.first_place)
        ]

    def _border(self, sheet: Sheet) -> str:
        members = self.holdings.members.get(self.first_place.name, {})
        if len(members) != 1:
            return 'class="node"'
        return f'class="node" style="stroke:{sheet.colours[next(iter(members))]};stroke-width:2"'

    def _subtitle(self, tell_domain: bool) -> str:
        state, members = self.first_place.state, self.holdings.members.get(self.first_place.name, {})
        count, times = state.node.topology.gpu_count, len(self.places)
        phrases = [f"{state.free_gpu_count * times} of {count * times} free" if count else "no GPUs"]
        phrases += [f"{self.holdings.letters[key]} × {number * times}" for key, number in members.items()]
        if tell_domain and self.first_place.wide_domain:
            phrases.insert(0, f"domain {self.first_place.wide_domain}")
        if self.is_folded:
            phrases.append(f"{self.first_place.name} … {self.places[-1].name}")
        return " · ".join(phrases)

    def _names(self) -> str:
        """Return the nodes of a folded box, each with its pods; "" for a box of one node."""
        if not self.is_folded:
            return ""
        pods = (
            {pod for _, pod in self.holdings.holders.get(place.name, {}).values()} for place in self.places
        )
        return "\n".join(
            f"{place.name}: {', '.join(sorted(names, key=natural_key)) or 'no pods of the gangs'}"
            for place, names in zip(self.places, pods, strict=True)
        )

    def _pods(self) -> list[str]:
        """Return a line for each pod, with its GPUs."""
        gpus_by_pod: dict[str, list[int]] = {}
        for gpu, (_, pod) in sorted(self.holdings.holders.get(self.first_place.name, {}).items()):
            gpus_by_pod.setdefault(pod, []).append(gpu)
        if self.is_folded:
            return (
                [f"{len(gpus_by_pod)} {plural('pod', len(gpus_by_pod))} on each node"] if gpus_by_pod else []
            )
        lines = [f"{plural('GPU', len(gpus))} {_ranges(gpus)}: {pod}" for pod, gpus in gpus_by_pod.items()]
        and_more = [f"and {len(lines) - PODS_LISTED} pods more"] if len(lines) > PODS_LISTED else []
        return lines[:PODS_LISTED] + and_more

    def _island(self, sheet: Sheet, gpus: tuple[int, ...], x: float, y: float) -> None:
        place = self.first_place
        links = _links_of(place.state.node.topology, gpus)
        if len(gpus) > 1 and place.state.node.topology.has_fabric:
            width = len(gpus) * (GPU + GAP) - GAP
            sheet.rect(x - 4, y - 4, width + 8, GPU + 8, 'rx="6" class="island"')
        holders = self.holdings.holders.get(place.name, {})
        for position, gpu in enumerate(gpus):
            self._gpu(sheet, gpu, x + position * (GPU + GAP), y)
        run_start = 0
        for key, run in groupby(gpus, key=lambda gpu: holders[gpu][0] if gpu in holders else ""):
            length = len(list(run))
            if key:
                outline_x, width = x + run_start * (GPU + GAP), length * (GPU + GAP) - GAP
                outline = f'rx="5" fill="none" stroke="{sheet.colours[key]}" stroke-width="2.5"'
                sheet.rect(outline_x - 2, y - 2, width + 4, GPU + 4, outline)
            run_start += length
        sheet.parts += _draw_links(links, gpus, (x, y + GPU + 5), GPU + GAP, GPU)

    def _gpu(self, sheet: Sheet, gpu: int, x: float, y: float) -> None:
        place = self.first_place
        holder = self.holdings.holders.get(place.name, {}).get(gpu)
        if holder is not None:
            key, pod = holder
            title = f"{place.name} GPU {gpu}: {pod}"
            fill = f'rx="3" fill="{sheet.colours[key]}" aria-label={quoteattr(printable(title))}'
            label = f"{self.holdings.letter(place.name, gpu)}{gpu}"
            style = "l" if len(label) < 3 else "l n"
            sheet.square((x, y, GPU), fill, label, style, title)
        elif place.state.free_gpus >> gpu & 1:
            unknown = " unknown" if place.state.unindexed_gpus else ""
            sheet.square((x, y, GPU), f'rx="3" class="free{unknown}"', str(gpu), "i")
        else:
            victim = self.holdings.victims.get(place.name, {}).get(gpu)
            title = f"{place.name} GPU {gpu}: {victim} would have to end" if victim else ""
            attributes = _OF_VICTIM if victim else 'class="taken"'
            mark = pictures.mark_of(place.state, gpu, self.holdings)
            sheet.square((x, y, GPU), f'rx="3" {attributes}', mark, "i", title)


def _ranges(gpus: list[int]) -> str:
    """Return GPUs as "1", "0-3" or "1,2,4"."""
    if len(gpus) > 2 and gpus[-1] - gpus[0] == len(gpus) - 1:
        return f"{gpus[0]}-{gpus[-1]}"
    return ",".join(map(str, gpus))


# --- which nodes share a box, and how its GPUs stand ----------------------------------------------


def _fold(places: Iterable[Place], holdings: Holdings) -> list[NodeBox]:
    """Return the boxes for the nodes of one rack, in the order of their first nodes.

    A partly used node always has its own box, because it matters which of its GPUs are free.
    """
    places_by_look: dict[object, list[Place]] = {}
    for place in places:
        places_by_look.setdefault(_whole_use(place, holdings) or place.name, []).append(place)
    boxes: list[NodeBox] = []
    for similar_places in places_by_look.values():
        is_folded = len(similar_places) >= FOLD_FROM
        parts = [tuple(similar_places)] if is_folded else [(place,) for place in similar_places]
        boxes += [NodeBox(part, holdings) for part in parts]
    return boxes


def _whole_use(place: Place, holdings: Holdings) -> object:
    """Return the use, shape and members of a node that is used as a whole; None if it is partly used."""
    state, count = place.state, place.state.node.topology.gpu_count
    holders = holdings.holders.get(place.name, {})
    members = holdings.members.get(place.name, {})
    if state.memory or state.unindexed_gpus or place.name in holdings.victims:
        return None
    if len(holders) == count > 0 and len(members) == 1:
        use = next(iter(members))
    elif not members and state.free_gpu_count in (0, count):
        use = "free" if state.free_gpu_count else "taken"
    else:
        return None
    return use, state.node.topology, tuple(members.items()), place.wide_domain


def _grid(place: Place) -> list[list[tuple[int, ...]]]:
    """Return rows of islands of GPUs. An island that does not fit begins a row, and may take several rows."""
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


# --- links between GPUs ---------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Links:
    """The fabric links among some GPUs of a node. `pairs` is empty if all links are equal."""

    kinds: tuple[Link, ...]
    """The kinds of links, widest first."""
    pairs: tuple[tuple[int, int, Link], ...]

    @property
    def height(self) -> float:
        """Return the height in pixels that the drawing needs below the GPUs."""
        if not self.kinds:
            return 0.0
        return ARCS if self.pairs else BAR

    @property
    def legend(self) -> str:
        """Return the kinds with their bandwidths, as "NV2 50 GB/s thick, NV1 25 GB/s thin"."""
        names = [f"{link.kind} {link.gb_per_s:g} GB/s" for link in self.kinds]
        return " thick, ".join(names) + " thin" if len(names) == 2 else ", ".join(names)


def _links_of(topology: GpuTopology, gpus: Sequence[int]) -> _Links:
    """Return the NVLink or xGMI links among these GPUs."""
    pairs = [(a, b, topology.link(a, b)) for a, b in combinations(gpus, 2)]
    fabric = tuple((a, b, link) for a, b, link in pairs if link is not None and link.is_fabric)
    kinds = tuple(sorted({link for _, _, link in fabric}, key=lambda link: -link.gb_per_s))
    if len(kinds) == 1 and len(fabric) == len(pairs):
        return _Links(kinds, ())
    return _Links(kinds, fabric)


def _draw_links(
    links: _Links, gpus: Sequence[int], corner: tuple[float, float], pitch: float, size: float
) -> list[str]:
    """Return the elements below the GPUs, whose boxes begin at `corner` (x, y of their lower edge).

    `pitch` is the distance from one box to the next, and `size` the width of a box, in pixels.
    """
    x, y = corner
    middle = {gpu: x + i * pitch + size / 2 for i, gpu in enumerate(gpus)}
    if not links.kinds:
        return []
    if not links.pairs:
        x_first, x_last = middle[gpus[0]], middle[gpus[-1]]
        return [
            f'<path d="M{x_first:g} {y:g}v5H{x_last:g}v-5" class="link wide"/>',
            f'<text x="{(x_first + x_last) / 2:g}" y="{y + 16:g}" class="k">{links.legend}</text>',
        ]
    widest = links.kinds[0]
    elements = []
    for a, b, link in sorted(links.pairs, key=lambda pair: pair[2].gb_per_s):
        depth = 2 * (4 + _RISE * (abs(middle[a] - middle[b]) / pitch - 1))
        centre_x = (middle[a] + middle[b]) / 2
        kind = "link wide" if link == widest else "link"
        elements.append(
            f'<path d="M{middle[a]:g} {y:g}Q{centre_x:g} {y + depth:g} {middle[b]:g} {y:g}" class="{kind}">'
            f"<title>GPU {a} and {b}: {link.kind}, {link.gb_per_s:g} GB/s</title></path>"
        )
    centre = (middle[gpus[0]] + middle[gpus[-1]]) / 2
    return [*elements, f'<text x="{centre:g}" y="{y + ARCS - 6:g}" class="k">{links.legend}</text>']


# --- the sheet ------------------------------------------------------------------------------------


@dataclass(slots=True)
class Sheet:
    """SVG elements, and the lowest y that they reach. `colours` are by gang key."""

    colours: Mapping[str, str]
    parts: list[str] = field(default_factory=list)
    bottom: float = 0

    def rect(self, x: float, y: float, width: float, height: float, attributes: str, title: str = "") -> None:
        """Add a rectangle. A browser shows `title` when the pointer is on it."""
        printable_title = "\n".join(map(printable, title.split("\n")))
        end = f"><title>{escape(printable_title)}</title></rect>" if title else "/>"
        self.parts.append(
            f'<rect x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" {attributes}{end}'
        )
        self.bottom = max(self.bottom, y + height)

    def text(self, x: float, y: float, text: str, style: str = "") -> None:
        """Add a line of text; control characters are shown as escapes."""
        kind = f' class="{style}"' if style else ""
        self.parts.append(f'<text x="{x:g}" y="{y:g}"{kind}>{escape(printable(text))}</text>')
        self.bottom = max(self.bottom, y)

    def square(
        self, place: tuple[float, float, float], attributes: str, text: str, style: str, title: str = ""
    ) -> None:
        """Add a square at (x, y, size) with a text in its middle."""
        x, y, size = place
        self.rect(x, y, size, size, attributes, title)
        if text:
            self.text(x + size / 2, y + size / 2 + 4, text, style)


def cut(text: str, room: float) -> str:
    """Return the text, cut to `room` characters."""
    return text if len(text) <= room else text[: int(room) - 1] + "…"
