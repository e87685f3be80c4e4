"""Decide which nodes share one box of the picture, and how the GPUs of a box are laid out."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from muster.adapters.files.pictures import Holdings
from muster.domain.topology import bits
from muster.placement.cluster.topology import Place

FOLD_FROM = 3
"""From this number of equal whole nodes in a rack, one box stands for all of them."""
IN_ROW = 8
"""The most GPUs in one row of a box."""


@dataclass(frozen=True, slots=True)
class Cell:
    """One box: a node, or several nodes of a rack that the picture would show alike."""

    places: tuple[Place, ...]

    @property
    def first(self) -> Place:
        """The node whose GPUs are drawn."""
        return self.places[0]

    @property
    def folded(self) -> bool:
        """Whether the box stands for several nodes."""
        return len(self.places) > 1

    @property
    def title(self) -> str:
        """The node's name, or how many nodes with how many GPUs."""
        if not self.folded:
            return self.first.name
        count = self.first.state.node.topology.gpu_count
        return f"{len(self.places)} nodes" + (f" × {count} GPUs" if count else "")


def fold(places: Iterable[Place], holdings: Holdings) -> list[Cell]:
    """Return the boxes for the nodes of one rack, in the order of their first nodes.

    A partly used node always has its own box, because it matters which of its GPUs are free.
    """
    boxes: dict[object, list[Place]] = {}
    for place in places:
        boxes.setdefault(_whole(place, holdings) or place.name, []).append(place)
    cells: list[Cell] = []
    for alike in boxes.values():
        together = len(alike) >= FOLD_FROM
        cells += [Cell(tuple(alike))] if together else [Cell((place,)) for place in alike]
    return cells


def _whole(place: Place, holdings: Holdings) -> object:
    """Return the use, shape and members of a node that is used as a whole; None if it is partly used."""
    state, count = place.state, place.state.node.topology.gpu_count
    holders = holdings.holders.get(place.name, {})
    members = holdings.members.get(place.name, {})
    if state.memory or state.unindexed_gpus:
        return None
    if len(holders) == count > 0 and len(members) == 1:
        use = next(iter(members))
    elif not members and state.free_gpu_count in (0, count):
        use = "free" if state.free_gpu_count else "taken"
    else:
        return None
    return use, state.node.topology, tuple(members.items()), place.wide


def grid(place: Place) -> list[list[tuple[int, ...]]]:
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
