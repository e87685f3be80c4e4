"""Names that several domains have, as sentences: the labels may be meant otherwise."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from muster.domain.levels import NVLINK, Hierarchy, Level, Naming, domains_of
from muster.domain.node import Node
from muster.domain.words import listed

_NAMES, _DOMAINS = 3, 3
"""Names in one sentence, and domains of one name, at most."""


def repeated_names(nodes: Iterable[Node], levels: tuple[Level, ...], naming: Naming) -> Iterator[str]:
    """Yield a sentence for each scope in which a name occurs under several wider domains."""
    nodes = tuple(nodes)
    labels_of_levels = {label for level in levels for label in level.labels}
    labels = (label for tree in naming.trees for label in tree if label not in labels_of_levels)
    for scope in dict.fromkeys((*(level.scope for level in levels), NVLINK.scope, *labels)):
        several = _several(nodes, Hierarchy.of(scope, levels, naming))
        if several:
            more = f"; and {len(several) - _NAMES} names more" if len(several) > _NAMES else ""
            listed = "; ".join(several[:_NAMES])
            yield (
                f"{scope}: several domains have one name; the wider ones tell them apart: {listed}{more}. "
                f"If each name is one {scope}, say uniqueNames: [{scope}] in the policies"
            )


def _several(nodes: Iterable[Node], hierarchy: Hierarchy) -> list[str]:
    """Return the names that several domains have, each with its domains."""
    alike: dict[str, list[str]] = {}
    for domain in sorted({*domains_of(nodes, hierarchy).values()} - {""}):
        alike.setdefault(domain.partition(" ")[0], []).append(domain)
    return [listed(domains, _DOMAINS) for domains in alike.values() if len(domains) > 1]
