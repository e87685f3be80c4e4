"""Draw many nodes at a glance: one line for each node, one column for each GPU."""

from __future__ import annotations

from collections.abc import Iterable

from rich.text import Text

from muster.adapters.drawing.picture import CHOSEN_STYLE, TAKEN_STYLE, NodePicture

FREE = "·"
NAME_WIDTH = 12


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
