"""The levels of the fabric above the node: which node labels say in which part of a scope a node lies."""

from __future__ import annotations

from dataclasses import dataclass

from muster.domain.node import Node
from muster.domain.request import Scope


@dataclass(frozen=True, slots=True)
class Level:
    """A scope wider than a node, and the node labels that name its parts: the first one that a node carries
    counts."""

    scope: str
    labels: tuple[str, ...]


DEFAULT_LEVELS = (
    Level(Scope.ZONE.value, ("topology.kubernetes.io/zone",)),
    Level(Scope.RACK.value, ("topology.kubernetes.io/rack",)),
)
"""Widest first, as all lists of levels."""


def part_of(node: Node, scope: str, levels: tuple[Level, ...]) -> str:
    """Return the part of a scope that is given by labels in which the node lies; "" where it carries none of
    them.

    A scope that is no level is a label key of its own.
    """
    labels = next((level.labels for level in levels if level.scope == scope), (scope,))
    return next((node.labels[label] for label in labels if node.labels.get(label)), "")
