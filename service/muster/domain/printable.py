"""Text of users, as it is shown: in sentences, conditions, events, logs, tables and drawings.

A terminal obeys control characters. A line break begins a line that seems to be ours. A mark for the
direction of writing turns the rest of the line round. So each of these is shown as its escape, as in `\\x1b`.
"""

from __future__ import annotations

import unicodedata

_ESCAPED = frozenset({"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"})
"""Unicode's categories: controls, formats (bidi marks, zero width), halves of surrogate pairs, private use,
unassigned, separators of lines and of paragraphs."""


def printable(text: str, at_most: int | None = None) -> str:
    """Return `text` with an escape for each character that must not be printed.

    The result is one line of valid Unicode. With `at_most`, it has at most this number of characters, and a
    longer text ends in an ellipsis.
    """
    if at_most is not None and len(text) > at_most:
        text = text[:at_most] + "…"  # one character too many, which is cut below
    if not text.isprintable():
        text = "".join(_escape(character) for character in text)
    if at_most is not None and len(text) > at_most:
        return text[: at_most - 1] + "…"
    return text


def _escape(character: str) -> str:
    if character.isprintable() or unicodedata.category(character) not in _ESCAPED:
        return character  # spaces other than " " are not printable to Python, and harmless
    return character.encode("unicode_escape").decode()
