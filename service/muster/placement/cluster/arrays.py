"""Arrays by row, made from those of the view before: only rows that changed are set, and an array that none
of them changes is shared."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

Codes = NDArray[np.int32]
Source = NDArray[np.intp] | None
"""[row] The row of that node in the view before, -1 for a new node; None where rows are the same."""
T = TypeVar("T")


def with_rows(
    old: NDArray[Any], source: Source, rows: Sequence[int], values: Sequence[object]
) -> NDArray[Any]:
    """The array (last axis: rows) with these rows set; rows of new nodes are to be among them."""
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
    new: Sequence[T | None],  # a list, to be compared with one
    order: Callable[[T], Any] | None,
) -> tuple[Codes, tuple[T, ...]]:
    """Codes, and what they stand for, with these rows set; in `order`, or by the first row that has each.

    The very same codes come back where nothing has changed.
    """
    if source is None and (not rows or [values[c] if c >= 0 else None for c in codes[rows].tolist()] == new):
        return codes, values
    known = {value: code for code, value in enumerate(values)}
    given = [-1 if value is None else known.setdefault(value, len(known)) for value in new]
    codes, values = with_rows(codes, source, rows, given), tuple(known)
    # The last assignment wins: going backwards leaves the first row of each. The last slot is that of -1.
    first = np.full(len(values) + 1, len(codes))
    first[codes[::-1]] = np.arange(len(codes) - 1, -1, -1)
    used = np.flatnonzero(first[:-1] < len(codes)).tolist()
    used.sort(key=lambda code: order(values[code]) if order else first[code])
    rank = np.full(len(values) + 1, -1, np.int32)
    rank[used] = np.arange(len(used))
    return fixed(rank[codes]), tuple(values[code] for code in used)


def fixed(array: NDArray[Any]) -> NDArray[Any]:
    array.setflags(write=False)
    return array
