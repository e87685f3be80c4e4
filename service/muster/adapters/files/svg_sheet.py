"""Provide the sheet that a picture is drawn on, and the sizes that its parts share."""

from __future__ import annotations

from dataclasses import dataclass, field
from xml.sax.saxutils import escape

from muster.domain.printable import printable

WIDTH, MARGIN = 1180, 24
PANEL_PAD, PANEL_TITLE, BETWEEN = 12, 28, 14
CHARACTER, BOLD, SMALL, LINE = 7.6, 8.5, 6.4, 18
"""Widths of a character, of 12 px plain and bold ("n" in DejaVu Sans) and of 11 px, and a line's height."""


@dataclass(slots=True)
class Sheet:
    """SVG elements, and the lowest y that they reach."""

    parts: list[str] = field(default_factory=list)
    bottom: float = 0

    def rect(self, x: float, y: float, width: float, height: float, attributes: str, title: str = "") -> None:
        """Add a rectangle. A browser shows `title` when the pointer is on it."""
        lines = "\n".join(map(printable, title.split("\n")))
        end = f"><title>{escape(lines)}</title></rect>" if title else "/>"
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
        self, at: tuple[float, float, float], attributes: str, text: str, style: str, title: str = ""
    ) -> None:
        """Add a square at (x, y, size) with a text in its middle."""
        x, y, size = at
        self.rect(x, y, size, size, attributes, title)
        if text:
            self.text(x + size / 2, y + size / 2 + 4, text, style)


def cut(text: str, room: float) -> str:
    """Return the text, cut to `room` characters."""
    return text if len(text) <= room else text[: int(room) - 1] + "…"
