"""Keys in groups: the pods of a job, the claims of a volume, the agents of a node."""

from __future__ import annotations

from collections.abc import Collection, Hashable
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)
G = TypeVar("G", bound=Hashable)


class KeyGroups(Generic[K, G]):
    """Keys, each in one group. A group is forgotten with its last key."""

    def __init__(self) -> None:
        self._group_of: dict[K, G] = {}
        self._keys: dict[G, dict[K, None]] = {}

    def put(self, key: K, group: G | None) -> G | None:
        """Put a key in a group, or in none. Return the group in which it was."""
        old_group = self._group_of.pop(key, None)
        if old_group is not None:
            del self._keys[old_group][key]
            if not self._keys[old_group]:
                del self._keys[old_group]
        if group is not None:
            self._group_of[key] = group
            self._keys.setdefault(group, {})[key] = None
        return old_group

    def group_of(self, key: K) -> G | None:
        """Return the group of a key; None if it has none."""
        return self._group_of.get(key)

    def keys_of(self, group: G) -> Collection[K]:
        """Return the keys of a group."""
        return self._keys.get(group, {}).keys()

    @property
    def groups(self) -> Collection[G]:
        """Return the groups that have a key."""
        return self._keys.keys()
