"""Report what is wrong with the input: one line for each file, with file, object and field."""

from __future__ import annotations

from collections.abc import Sequence

from muster.domain.printable import printable

_SHOWN = 80


class Malformed(Exception):
    """Report one problem of the input. `place` is where: "document 3, Pod default/x"."""

    def __init__(self, source: str, place: str, problem: str) -> None:
        self.source = source
        super().__init__(printable(": ".join(part for part in (source, place, problem) if part)))


class BadInput(Exception):
    """Report input that cannot be used. `lines` has one line for each malformed file."""

    def __init__(self, problems: Sequence[Malformed]) -> None:
        first: dict[str, Malformed] = {}
        count: dict[str, int] = {}
        for problem in problems:
            first.setdefault(problem.source, problem)
            count[problem.source] = count.get(problem.source, 0) + 1
        self.lines = tuple(
            f"{problem} (and {count[source] - 1} more in this file)" if count[source] > 1 else str(problem)
            for source, problem in first.items()
        )
        super().__init__("\n".join(self.lines))


def shown(value: object) -> str:
    """Return a value from a file as text for a sentence; for lists and objects only their type."""
    if isinstance(value, list | dict):
        return type_name(value)
    text = str(value)
    return f'"{text[:_SHOWN]}…"' if len(text) > _SHOWN else f'"{text}"'


def type_name(value: object) -> str:
    """Return JSON's word for the type of a value."""
    if value is None:
        return "null"
    for kinds, name in _TYPES:
        if isinstance(value, kinds):
            return name
    return type(value).__name__


_TYPES: tuple[tuple[type | tuple[type, ...], str], ...] = (
    (bool, "boolean"),
    (str, "string"),
    (int, "integer"),
    (float, "number"),
    (list, "list"),
    (dict, "object"),
)
