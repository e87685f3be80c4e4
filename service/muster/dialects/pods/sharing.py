"""One object for equal values: the thousands of pods of a template have the same rules."""

from __future__ import annotations

from typing import Generic, TypeVar
from weakref import WeakKeyDictionary, ref

V = TypeVar("V")


class Shared(Generic[V]):
    """The values that somebody holds. They are forgotten with their last holder."""

    def __init__(self) -> None:
        self._values: WeakKeyDictionary[V, ref[V]] = WeakKeyDictionary()

    def of(self, value: V) -> V:
        """Return the object that stands for all values equal to this one."""
        reference = self._values.get(value)
        shared = reference() if reference is not None else None
        if shared is None:
            shared = value
            self._values[value] = ref(value)
        return shared

    def __len__(self) -> int:
        return len(self._values)
