"""Read from labels in which part of a scope a node lies. The wider parts around it tell equal names apart."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import pairwise

from muster.domain.node import Node
from muster.domain.snapshot import Snapshot

Names = tuple[str, ...]
"""The names that a node gives for a scope and for the wider ones around it, "" if it gives none."""

NVLINK = ("nvlink-domain", ("gpu.topology/nvlink-domain", "nvidia.com/gpu.clique"))
UNIQUE = (
    "nvidia.com/gpu.clique",
    "accelerator.topograph.run/domain",
    "network.topology.nvidia.com/accelerator",
)
"""Labels whose values are unique in the cluster."""


class Labels:
    """The labels of a snapshot's nodes."""

    def __init__(self, snapshot: Snapshot) -> None:
        self._snapshot = snapshot
        self._order = [*((level.scope, level.labels) for level in snapshot.levels), NVLINK]

    def parts(self, scope: str, nodes: Iterable[Node], *, in_words: bool = False) -> Mapping[str, str]:
        """Return node → its part, as a text with everything that its labels say about it; "" for none.

        Equal texts are one part. A node that lacks labels belongs to the part that fits it in the whole
        cluster. This is looked up where these nodes differ in their labels. With `in_words` it always is, so
        that each text has the names of the wider parts.
        """
        around = self._around(scope)
        names_by_node = self._names_by_node(nodes, around)
        alike: dict[str, set[Names]] = {}
        for names in set(names_by_node.values()):
            alike.setdefault(names[0], set()).add(names)
        unclear = {
            name: several
            for name, several in alike.items()
            if name and (in_words or len(several) > 1) and any("" in names for names in several)
        }
        every = self._all_named(unclear, around)
        homes = dict[Names, Names]()
        for name, several in unclear.items():
            homes |= _homes(several, every[name])
        words = [word for word, _ in around]
        texts = {names: _text(words, homes.get(names, names)) for names in set(names_by_node.values())}
        return {node: texts[names] for node, names in names_by_node.items()}

    def _all_named(
        self, wanted: Iterable[str], around: list[tuple[str, tuple[str, ...]]]
    ) -> Mapping[str, set[Names]]:
        """Return what all nodes of the cluster say, for each of these names."""
        names_by_first: dict[str, set[Names]] = {name: set() for name in wanted}
        if names_by_first:
            every = [state.node for state in self._snapshot.nodes.values()]
            for names in set(self._names_by_node(every, around).values()):
                if names[0] in names_by_first:
                    names_by_first[names[0]].add(names)
        return names_by_first

    def _names_by_node(
        self, nodes: Iterable[Node], around: list[tuple[str, tuple[str, ...]]]
    ) -> Mapping[str, Names]:
        """Return the names that each node gives. Nodes with equal labels are read once."""
        keys = [key for _, labels in around for key in labels]
        names_by_values: dict[tuple[object, ...], Names] = {}
        names_by_node = {}
        for node in nodes:
            values = (node.topology.gpu_count > 0, *map(node.labels.get, keys))
            names = names_by_values.get(values)
            if names is None:
                names = names_by_values[values] = self._names(node, around)
            names_by_node[node.name] = names
        return names_by_node

    def _names(self, node: Node, around: list[tuple[str, tuple[str, ...]]]) -> Names:
        found, labels = [""] * len(around), node.labels
        for i, (word, keys) in enumerate(around):
            apart = keys == NVLINK[1] and not node.topology.gpu_count
            for key in () if apart else keys:
                if name := labels.get(key):
                    found[i] = name
                    break
            if not found[0]:
                break
            if found[i] and (key in UNIQUE or word in self._snapshot.naming.unique):
                break
        return tuple(found)

    def _around(self, scope: str) -> list[tuple[str, tuple[str, ...]]]:
        """Return the scope and those around it, outwards: the levels of the snapshot and of its trees."""
        known = [i for i, (word, keys) in enumerate(self._order) if scope in (word, *keys)]
        inside = self._order[known[0] :] if known else []
        whole = [each for each in inside[:1] if scope == each[0] or each[1] == (scope,)]
        found = whole or [(scope, (scope,))]
        for _, keys in found:  # `found` grows in this loop
            wider = [self._order[i - 1] for i, each in enumerate(self._order) if i and keys[0] in each[1]]
            for tree in self._snapshot.naming.trees:
                for outer, inner in pairwise(tree):
                    if inner in keys:
                        alone = (each for each in self._order if each[1] == (outer,))
                        wider.append(next(alone, (outer, (outer,))))
            for each in wider:
                if each not in found and each not in inside:
                    found.append(each)
        return found


def _homes(touched: set[Names], every: set[Names]) -> Mapping[Names, Names]:
    """Return for each of these names the part that it belongs to.

    All may be one part. Otherwise names that lack a label belong to the only part that fits and says more.
    """
    levels = list(zip(*every, strict=True))
    if all(len({*level} - {""}) < 2 for level in levels):
        return dict.fromkeys(touched, max(every, key=lambda names: (len(names) - names.count(""), names)))
    found = {}
    for names in touched:
        fuller = [each for each in every if each != names and _fits(names, each)]
        fullest = [each for each in fuller if not any(each != one and _fits(each, one) for one in fuller)]
        found[names] = fullest[0] if len(fullest) == 1 else names
    return found


def _fits(names: Names, other: Names) -> bool:
    return all(mine in ("", theirs) for mine, theirs in zip(names, other, strict=True))


def _text(words: list[str], names: Names) -> str:
    around = zip(words[1:], names[1:], strict=True)
    return names[0] and names[0] + "".join(f" of {word} {name}" for word, name in around if name)


def in_wide(node: Node) -> bool:
    """Return whether labels name the node's NVLink domain, which may span nodes."""
    return node.topology.gpu_count > 0 and any(node.labels.get(key) for key in NVLINK[1])


def describes(said: str, part: str) -> bool:
    """Return whether a description fits a part: it has the part's name, and some of its wider parts.

    "of no zone" fits a part without a zone.
    """
    (name, *around), (known, *wider) = said.split(" of "), part.split(" of ")
    named = {f"no {each.partition(' ')[0]}" for each in wider}
    absent = {each for each in around if each.startswith("no ")} - named
    return name == known and {*around} <= {*wider, *absent}
