"""Make arrays by row from those of the previous view.

Only rows that changed are set. An array without changed rows is shared.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

Codes = NDArray[np.int32]
Source = NDArray[np.intp] | None
"""[row] The row of the same node in the previous view, -1 for a new node. None if all rows are the same."""
T = TypeVar("T")


def with_rows(
    old: NDArray[Any], source: Source, rows: Sequence[int], values: Sequence[object]
) -> NDArray[Any]:
    """Return the array with these rows set. The last axis is the row.

    `rows` must include the rows of all new nodes.
    """
    if source is None:
        if not rows:
            return old
        new = old.copy()
    else:
        new = np.zeros((*old.shape[:-1], len(source)), old.dtype)
        kept = source >= 0
        new[..., kept] = old[..., source[kept]]
    if rows:
        new[..., rows] = np.array(values, old.dtype).T
    return fixed(new)


def coded(
    codes: Codes,
    values: tuple[T, ...],
    source: Source,
    rows: Sequence[int],
    new: Sequence[T | None],  # a list, because it is compared with one
    order: Callable[[T], Any] | None,
) -> tuple[Codes, tuple[T, ...]]:
    """Return codes with these rows set, and the values that the codes stand for.

    Values are sorted by `order`, or by the first row that has each if `order` is None. If nothing changed,
    the same array is returned.
    """
    if source is None and (not rows or [values[c] if c >= 0 else None for c in codes[rows].tolist()] == new):
        return codes, values
    known = {value: code for code, value in enumerate(values)}
    given = [-1 if value is None else known.setdefault(value, len(known)) for value in new]
    codes, values = with_rows(codes, source, rows, given), tuple(known)
    # The last assignment wins, so going backwards leaves the first row of each code. The last entry is for
    # -1.
    first = np.full(len(values) + 1, len(codes))
    first[codes[::-1]] = np.arange(len(codes) - 1, -1, -1)
    used = np.flatnonzero(first[:-1] < len(codes)).tolist()
    used.sort(key=lambda code: order(values[code]) if order else first[code])
    rank = np.full(len(values) + 1, -1, np.int32)
    rank[used] = np.arange(len(used))
    return fixed(rank[codes]), tuple(values[code] for code in used)


def fixed(array: NDArray[Any]) -> NDArray[Any]:
    """Make the array read-only and return it."""
    array.setflags(write=False)
    return array
