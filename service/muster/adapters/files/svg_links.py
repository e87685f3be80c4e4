"""Draw the links between the GPUs of one island: a bar if all are equal, else an arc for each pair."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations

from muster.domain.topology import GpuTopology, Link

BAR, ARCS = 20.0, 44.0
"""Pixels below a row of GPUs: for a bar with its label, for arcs with their legend."""
_RISE = 3.4
"""Pixels that an arc reaches further down for each GPU that it passes."""


@dataclass(frozen=True, slots=True)
class Links:
    """The fabric links among some GPUs of a node. `pairs` is empty if all links are equal."""

    kinds: tuple[Link, ...]
    """The kinds of links, widest first."""
    pairs: tuple[tuple[int, int, Link], ...]

    @property
    def height(self) -> float:
        """How many pixels the drawing needs below the GPUs."""
        if not self.kinds:
            return 0.0
        return ARCS if self.pairs else BAR

    @property
    def legend(self) -> str:
        """The kinds with their bandwidths, as "NV2 50 GB/s thick, NV1 25 GB/s thin"."""
        names = [f"{link.kind} {link.gb_per_s:g} GB/s" for link in self.kinds]
        return " thick, ".join(names) + " thin" if len(names) == 2 else ", ".join(names)


def links_of(topology: GpuTopology, gpus: Sequence[int]) -> Links:
    """Return the NVLink or xGMI links among these GPUs."""
    pairs = [(a, b, topology.link(a, b)) for a, b in combinations(gpus, 2)]
    fabric = tuple((a, b, link) for a, b, link in pairs if link is not None and link.is_fabric)
    kinds = tuple(sorted({link for _, _, link in fabric}, key=lambda link: -link.gb_per_s))
    if len(kinds) == 1 and len(fabric) == len(pairs):
        return Links(kinds, ())
    return Links(kinds, fabric)


def draw(links: Links, gpus: Sequence[int], at: tuple[float, float], pitch: float, size: float) -> list[str]:
    """Return the elements below the GPUs, whose boxes begin at `at` (x, y of their lower edge).

    `pitch` is the distance from one box to the next, and `size` the width of a box, in pixels.
    """
    x, y = at
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
        across = (middle[a] + middle[b]) / 2
        kind = "link wide" if link == widest else "link"
        elements.append(
            f'<path d="M{middle[a]:g} {y:g}Q{across:g} {y + depth:g} {middle[b]:g} {y:g}" class="{kind}">'
            f"<title>GPU {a} and {b}: {link.kind}, {link.gb_per_s:g} GB/s</title></path>"
        )
    centre = (middle[gpus[0]] + middle[gpus[-1]]) / 2
    return [*elements, f'<text x="{centre:g}" y="{y + ARCS - 6:g}" class="k">{links.legend}</text>']
