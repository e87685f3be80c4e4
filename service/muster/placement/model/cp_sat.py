"""Import CP-SAT without pandas.

OR-Tools imports pandas for methods that make many variables at once. Muster calls none of them. pandas would
add 84 MB to the image, and 40 MB of memory and most of a second to the start of each planner.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from types import ModuleType

__all__ = ["cp_model"]


class _NeverMade:
    """Stand for a class of pandas, for `isinstance` and in annotations. No object has this class."""

    def __init__(self) -> None:
        raise ModuleNotFoundError("Muster imports OR-Tools without pandas: no method that needs it is called")


@contextlib.contextmanager
def _without_pandas() -> Iterator[None]:
    """Let `import pandas` find two empty classes, unless pandas is loaded already."""
    if "pandas" in sys.modules:
        yield
        return
    pandas = ModuleType("pandas")
    vars(pandas).update(Index=type("Index", (_NeverMade,), {}), Series=type("Series", (_NeverMade,), {}))
    sys.modules["pandas"] = pandas
    try:
        yield
    finally:
        del sys.modules["pandas"]  # a later import of pandas finds the real one


with _without_pandas():
    from ortools.sat.python import cp_model
