"""Rows of the table: what was compared, and how that ended."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from importlib.util import find_spec

SAME, DIFFERS, UNKNOWN, FIGURE = "same", "DIFFERS", "not checked", "figure"
PACKAGES = {"pynvml": "nvidia-ml-py", "grpc": "grpcio", "betterproto2": "betterproto2", "msgspec": "msgspec"}
"""What Python imports → the package that has it, of those that the agent needs."""
BRING = "`make device-packages` elsewhere, and copy out/device-packages here"


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the table."""

    what: str
    ended: str
    text: str = ""


class NotCheckedError(Exception):
    """Something can't be compared on this machine. The text says why."""


def same(title: str, agents: object, nvidias: object, text: str = "") -> Row:
    """Return the row of two answers to one question. The agent's comes first."""
    if agents == nvidias:
        return Row(title, SAME, text or str(nvidias))
    return Row(title, DIFFERS, f"agent: {agents}; NVIDIA: {nvidias}")


def rows_of(title: str, part: Callable[[], Iterable[Row]]) -> Iterator[Row]:
    """Yield the rows of a part, and one that says what has ended it early."""
    try:
        yield from part()
    except NotCheckedError as why:
        yield Row(title, UNKNOWN, str(why))
    except ImportError as missing:
        lacking = [package for module, package in PACKAGES.items() if find_spec(module) is None]
        yield Row(title, UNKNOWN, f"missing: {', '.join(lacking)}: {BRING}" if lacking else str(missing))
    except Exception as problem:  # noqa: BLE001 - whatever it is, the other parts go on
        yield Row(title, DIFFERS, f"{type(problem).__name__}: {problem}")


def printed(rows: Iterable[Row]) -> Iterator[str]:
    """Yield the lines of the table."""
    listed = [("what", "result", ""), *((row.what, row.ended, row.text) for row in rows)]
    first, second = (max(len(row[at]) for row in listed) for at in (0, 1))
    for what, ended, text in listed:
        yield f"{what:{first}}  {ended:{second}}  {text}".rstrip()
