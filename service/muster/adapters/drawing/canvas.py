"""Provide a sheet of characters, each with a style, and the boxes that GPUs are drawn as."""

from __future__ import annotations

from itertools import groupby
from operator import itemgetter

from rich.text import Text

from muster.adapters.drawing.picture import NodePicture

BOX_HEIGHT = 3
_LIGHT, _HEAVY = tuple("┌─┐│└┘"), tuple("┏━┓┃┗┛")


class Canvas:
    """Characters by (row, column). Later characters replace earlier ones."""

    def __init__(self) -> None:
        self._cells: dict[tuple[int, int], tuple[str, str]] = {}

    def put(self, row: int, column: int, text: str, style: str = "") -> None:
        """Write text from (row, column) to the right, over what is there."""
        for offset, character in enumerate(text):
            self._cells[row, column + offset] = (character, style)

    def text(self) -> Text:
        """Return the whole sheet, without blanks at the ends of lines."""
        drawn = Text(no_wrap=True, overflow="ignore")
        height = 1 + max((row for row, _ in self._cells), default=-1)
        for row in range(height):
            width = 1 + max((column for r, column in self._cells if r == row), default=-1)
            cells = [self._cells.get((row, column), (" ", "")) for column in range(width)]
            for style, alike in groupby(cells, key=itemgetter(1)):
                drawn.append("".join(character for character, _ in alike), style)
            if row < height - 1:
                drawn.append("\n")
        return drawn


def put_box(canvas: Canvas, at: tuple[int, int], width: int, picture: NodePicture, gpu: int) -> None:
    """Draw one GPU at (row, column): its index and its holder's letter. The frame is heavy if the GPU is
    chosen.
    """
    row, column = at
    style = picture.style(gpu)
    left_top, line, right_top, side, left_bottom, right_bottom = _HEAVY if picture.is_chosen(gpu) else _LIGHT
    letter = picture.marks[gpu].letter if gpu in picture.marks else " "
    inside = width - 2
    text = f"{gpu:<2}{letter}" if inside == 3 else f" {gpu:<2}{letter} "
    canvas.put(row, column, left_top + line * inside + right_top, style)
    canvas.put(row + 1, column, side + text.ljust(inside) + side, style)
    canvas.put(row + 2, column, left_bottom + line * inside + right_bottom, style)
