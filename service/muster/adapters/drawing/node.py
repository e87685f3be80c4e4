"""Draw one node: a line that describes it, and the drawing that suits its topology."""

from __future__ import annotations

from itertools import combinations

from rich.text import Text

from muster.adapters.drawing.brackets import draw_brackets
from muster.adapters.drawing.cubemesh import draw_cube_mesh, find_cube_mesh
from muster.adapters.drawing.picture import NodePicture
from muster.domain.topology import GpuTopology

SWITCHED_FROM = 4
"""With this many GPUs, equal NVLinks between all GPUs can only come from a switch."""


def draw_node(picture: NodePicture) -> Text:
    """Return title and drawing, at most 97 columns wide for 16 GPUs and 56 for a cube mesh."""
    gpus = picture.topology.gpu_count
    drawn = Text(no_wrap=True, overflow="ignore")
    drawn.append(picture.name, "bold")
    drawn.append(f"   {picture.machine}, " if picture.machine else "   ")
    drawn.append(f"{_plural(gpus, 'GPU')}{_shape_phrase(picture.topology)}, {picture.free_count} free")
    if picture.unindexed_gpus:
        drawn.append(f", {picture.unindexed_gpus} taken by pods whose indices are not known")
    if gpus == 0:
        return drawn
    drawn.append("\n")
    mesh = find_cube_mesh(picture.topology)
    return drawn.append_text(draw_cube_mesh(picture, mesh) if mesh else draw_brackets(picture))


def shape_name(topology: GpuTopology) -> str:
    """Return "cube mesh", "NVSwitch", "NVLink islands of 2" …; "" if the links are unknown."""
    if topology.gpu_count < 2 or not topology.known:
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


def _shape_phrase(topology: GpuTopology) -> str:
    name = shape_name(topology)
    return f", {name}" if name else ""


def _plural(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"
