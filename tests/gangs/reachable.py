"""How many entries the containers have that can be reached from an object, by their path."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterator, Mapping
from types import BuiltinFunctionType, FunctionType, MethodType, ModuleType
from typing import Any

_LEAVES = (str, bytes, int, float, bool, type(None), type, ModuleType, FunctionType, BuiltinFunctionType)


def sizes(root: object) -> Counter[str]:
    """Return the entries of all containers below `root`: path → sum of their lengths.

    A path names attributes; `[]` stands for any key or position in a container. So the path of a leak names
    the attribute that leaks.
    """
    size_of: Counter[str] = Counter()
    visited = {id(root)}
    waiting: list[tuple[str, Any]] = [(type(root).__name__, root)]
    while waiting:
        path, value = waiting.pop()
        if isinstance(value, (dict, list, set, frozenset, tuple, deque)):
            size_of[path] += len(value)
        for name, part in _parts(value):
            if not isinstance(part, _LEAVES) and id(part) not in visited:
                visited.add(id(part))
                waiting.append((f"{path}{name}", part))
    return size_of


def _parts(value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, Mapping):
        for key, part in value.items():
            yield "[]", part
            yield "[key]", key
    elif isinstance(value, (list, set, frozenset, tuple, deque)):
        for part in value:
            yield "[]", part
    elif isinstance(value, MethodType):
        yield "", value.__self__
    if type(value).__module__.startswith(("muster", "tests")):
        for kind in type(value).__mro__:
            for slot in getattr(kind, "__slots__", ()):
                if hasattr(value, slot):
                    yield f".{slot}", getattr(value, slot)
        for name, part in getattr(value, "__dict__", {}).items():
            yield f".{name}", part
