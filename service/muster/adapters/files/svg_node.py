"""Draw one box of the picture: one or several nodes, GPUs with their links, and which pod has which GPU."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import groupby
from xml.sax.saxutils import quoteattr

from muster.adapters.files import pictures, svg_links
from muster.adapters.files.pictures import Holdings
from muster.adapters.files.svg_cells import Cell, grid
from muster.adapters.files.svg_links import Links, links_of
from muster.adapters.files.svg_sheet import BOLD, SMALL, Sheet, cut
from muster.domain.printable import printable
from muster.placement.cluster.fabric import natural
from muster.placement.cluster.topology import Place

GPU, GAP, ISLAND_GAP = 26, 3, 9
PAD, TITLE = 10, 40
POD_LINE = 14
STACK = 6
"""By how many pixels the boxes behind a folded one are shifted."""
PODS_LISTED = 8
"""The most pods of a node that are named with their GPUs. The others are counted."""

Row = tuple[list[tuple[int, ...]], float]
"""Islands of GPUs in one row, and the height of the links below them."""


@dataclass(frozen=True, slots=True)
class Boxes:
    """Draws boxes on a sheet. `colours` are by gang key."""

    sheet: Sheet
    holdings: Holdings
    colours: Mapping[str, str]

    def width(self, cell: Cell) -> float:
        """Return the width that the box needs, in pixels."""
        rows = [sum(len(part) * (GPU + GAP) + ISLAND_GAP for part in row) for row, _ in self._rows(cell)]
        stack = STACK if cell.folded else 0
        return max(180.0, 2 * PAD + max(rows, default=0) - ISLAND_GAP - GAP + 8 + stack)

    def height(self, cell: Cell) -> float:
        """Return the height that the box needs, in pixels."""
        rows = self._rows(cell)
        pods = len(self._pods(cell)) * POD_LINE + (STACK if cell.folded else 0)
        if not rows:
            return TITLE + 6 + pods
        return TITLE + sum(GPU + ISLAND_GAP + below for _, below in rows) + PAD + pods

    def draw(self, cell: Cell, x: float, y: float, width: float, height: float, tell_domain: bool) -> None:
        """Draw the box at (x, y). Several nodes are a stack, with the GPUs of the first node."""
        attributes = f'rx="6" {self._border(cell)}'
        if cell.folded:
            width, height = width - STACK, height - STACK
            for shift in (STACK, STACK / 2):
                self.sheet.rect(x + shift, y + shift, width, height, 'rx="6" class="stack"')
        self.sheet.rect(x, y, width, height, attributes, self._names(cell))
        room = width - 2 * PAD
        self.sheet.text(x + PAD, y + 17, cut(cell.title, room / BOLD), "b")
        self.sheet.text(x + PAD, y + 32, cut(self._subtitle(cell, tell_domain), room / SMALL), "s")
        top = y + TITLE + 4
        for row, below in self._rows(cell):
            island_x = x + PAD + 4
            for island in row:
                self._island(cell.first, island, island_x, top)
                island_x += len(island) * (GPU + GAP) + ISLAND_GAP
            top += GPU + ISLAND_GAP + below
        for number, line in enumerate(self._pods(cell), start=1):
            self.sheet.text(x + PAD, top + number * POD_LINE - 4, cut(line, room / SMALL), "s")

    def _rows(self, cell: Cell) -> list[Row]:
        return [
            (row, max(self._links(cell.first, island).height for island in row)) for row in grid(cell.first)
        ]

    def _links(self, place: Place, gpus: tuple[int, ...]) -> Links:
        return links_of(place.state.node.topology, gpus)

    def _border(self, cell: Cell) -> str:
        members = self.holdings.members.get(cell.first.name, {})
        if len(members) != 1:
            return 'class="node"'
        return f'class="node" style="stroke:{self.colours[next(iter(members))]};stroke-width:2"'

    def _subtitle(self, cell: Cell, tell_domain: bool) -> str:
        state, members = cell.first.state, self.holdings.members.get(cell.first.name, {})
        count, times = state.node.topology.gpu_count, len(cell.places)
        phrases = [f"{state.free_gpu_count * times} of {count * times} free" if count else "no GPUs"]
        phrases += [f"{self.holdings.letters[key]} × {number * times}" for key, number in members.items()]
        if tell_domain and cell.first.wide:
            phrases.insert(0, f"domain {cell.first.wide}")
        if cell.folded:
            phrases.append(f"{cell.first.name} … {cell.places[-1].name}")
        return " · ".join(phrases)

    def _names(self, cell: Cell) -> str:
        """Return the nodes of a folded box, each with its pods; "" for a box of one node."""
        if not cell.folded:
            return ""
        pods = (
            {pod for _, pod in self.holdings.holders.get(place.name, {}).values()} for place in cell.places
        )
        return "\n".join(
            f"{place.name}: {', '.join(sorted(names, key=natural)) or 'no pods of the gangs'}"
            for place, names in zip(cell.places, pods, strict=True)
        )

    def _pods(self, cell: Cell) -> list[str]:
        """Return which pod has which GPUs, one line for each pod."""
        of_pod: dict[str, list[int]] = {}
        for gpu, (_, pod) in sorted(self.holdings.holders.get(cell.first.name, {}).items()):
            of_pod.setdefault(pod, []).append(gpu)
        if cell.folded:
            pod_count = "1 pod" if len(of_pod) == 1 else f"{len(of_pod)} pods"
            return [f"{pod_count} on each node"] if of_pod else []
        lines = [f"GPU{'s' * (len(gpus) > 1)} {_ranges(gpus)}: {pod}" for pod, gpus in of_pod.items()]
        more = [f"and {len(lines) - PODS_LISTED} pods more"] if len(lines) > PODS_LISTED else []
        return lines[:PODS_LISTED] + more

    def _island(self, place: Place, gpus: tuple[int, ...], x: float, y: float) -> None:
        links = self._links(place, gpus)
        if len(gpus) > 1 and place.state.node.topology.has_fabric:
            width = len(gpus) * (GPU + GAP) - GAP
            self.sheet.rect(x - 4, y - 4, width + 8, GPU + 8, 'rx="6" class="island"')
        holders = self.holdings.holders.get(place.name, {})
        for position, gpu in enumerate(gpus):
            self._gpu(place, gpu, x + position * (GPU + GAP), y)
        at = 0
        for key, run in groupby(gpus, key=lambda gpu: holders[gpu][0] if gpu in holders else ""):
            length = len(list(run))
            if key:
                outline_x, width = x + at * (GPU + GAP), length * (GPU + GAP) - GAP
                outline = f'rx="5" fill="none" stroke="{self.colours[key]}" stroke-width="2.5"'
                self.sheet.rect(outline_x - 2, y - 2, width + 4, GPU + 4, outline)
            at += length
        self.sheet.parts += svg_links.draw(links, gpus, (x, y + GPU + 5), GPU + GAP, GPU)

    def _gpu(self, place: Place, gpu: int, x: float, y: float) -> None:
        holder = self.holdings.holders.get(place.name, {}).get(gpu)
        if holder is not None:
            key, pod = holder
            title = f"{place.name} GPU {gpu}: {pod}"
            fill = f'rx="3" fill="{self.colours[key]}" aria-label={quoteattr(printable(title))}'
            label = f"{self.holdings.letter(place.name, gpu)}{gpu}"
            style = "l" if len(label) < 3 else "l n"
            self.sheet.square((x, y, GPU), fill, label, style, title)
        elif place.state.free_gpus >> gpu & 1:
            unknown = " unknown" if place.state.unindexed_gpus else ""
            self.sheet.square((x, y, GPU), f'rx="3" class="free{unknown}"', str(gpu), "i")
        else:
            self.sheet.square((x, y, GPU), 'rx="3" class="taken"', pictures.mark_of(place.state, gpu), "i")


def _ranges(gpus: list[int]) -> str:
    """Return GPUs as "1", "0-3" or "1,2,4"."""
    if len(gpus) > 2 and gpus[-1] - gpus[0] == len(gpus) - 1:
        return f"{gpus[0]}-{gpus[-1]}"
    return ",".join(map(str, gpus))
