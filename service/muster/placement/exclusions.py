"""Represent nodes that a role must not use, because a plugin of kube-scheduler refuses them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, eq=False)
class ByRole(Mapping[tuple[str, str], str]):
    """(role, node) → what refuses the pair, stored by role.

    With 64 roles that all but one of 5,000 nodes refuse, there are 64 dictionaries. A look-up for one role
    does not search those of the others.
    """

    roles: Mapping[str, Mapping[str, str]]

    def __getitem__(self, pair: tuple[str, str]) -> str:
        return self.roles[pair[0]][pair[1]]

    def __contains__(self, pair: object) -> bool:
        return isinstance(pair, tuple) and pair[1] in self.roles.get(pair[0], ())

    def __iter__(self) -> Iterator[tuple[str, str]]:
        return ((role, node) for role, nodes in self.roles.items() for node in nodes)

    def __len__(self) -> int:
        return sum(map(len, self.roles.values()))


@dataclass(frozen=True, slots=True, eq=False)
class _Common(Mapping[str, str]):
    """Node → what refuses it in the first of these maps, for the nodes that all of them refuse."""

    first: Mapping[str, str]
    others: tuple[Mapping[str, str], ...]

    def __getitem__(self, node: str) -> str:
        if all(node in other for other in self.others):
            return self.first[node]
        raise KeyError(node)

    def __iter__(self) -> Iterator[str]:
        return (node for node in self.first if all(node in other for other in self.others))

    def __len__(self) -> int:
        return sum(1 for _ in self)


def common(refused: Iterable[Mapping[str, str]]) -> Mapping[str, str]:
    """Return node → what refuses it, for the nodes that all of these maps refuse; at least one is given.

    The maps are not copied.
    """
    first, *others = refused
    return _Common(first, tuple(others)) if others else first


def of_role(excluded: Mapping[tuple[str, str], str], role: str) -> Mapping[str, str]:
    """Return node → what refuses it, for one role."""
    if isinstance(excluded, ByRole):
        return excluded.roles.get(role, {})
    return {node: by for (name, node), by in excluded.items() if name == role}
