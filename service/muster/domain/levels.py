"""The levels of the fabric above the node, and the domain of each node by scope.

A domain is a path: the name that a node's label gives the domain, and the names of the wider domains around
it. So rack r1 of zone a and rack r1 of zone b are two racks.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from muster.domain.node import Node
from muster.domain.request import Scope
from muster.domain.words import list_names, nearest

_MAX_NAMES, _MAX_DOMAINS = 3, 3
"""Largest numbers of names in a sentence about repeated names, and of domains of one name."""


@dataclass(frozen=True, slots=True)
class FabricLevel:
    """A scope wider than a node, and the node labels that name its parts. The first of these labels on a node
    counts."""

    scope: str
    labels: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Naming:
    """Facts that tell equal names of domains apart, in addition to the levels.

    `unique`: scopes in which each domain has a unique name, whatever wider labels say. `trees`: label keys of
    further hierarchies (KAI's Topologies), each widest first.
    """

    unique: tuple[str, ...] = ()
    trees: tuple[tuple[str, ...], ...] = ()


DEFAULT_LEVELS = (
    FabricLevel(Scope.ZONE.value, ("topology.kubernetes.io/zone",)),
    FabricLevel(Scope.RACK.value, ("topology.kubernetes.io/rack",)),
)
"""The widest level first, as in all lists of levels."""

PRESETS: Mapping[str, tuple[FabricLevel, ...]] = MappingProxyType(
    {
        "topograph": (
            DEFAULT_LEVELS[0],
            FabricLevel("tier-2", ("fabric.topograph.run/tier-2", "network.topology.nvidia.com/core")),
            FabricLevel("tier-1", ("fabric.topograph.run/tier-1", "network.topology.nvidia.com/spine")),
            FabricLevel(
                Scope.RACK.value, ("fabric.topograph.run/tier-0", "network.topology.nvidia.com/leaf")
            ),
            FabricLevel(
                "accelerator-domain",
                ("accelerator.topograph.run/domain", "network.topology.nvidia.com/accelerator"),
            ),
        ),
        "eks": (
            DEFAULT_LEVELS[0],
            FabricLevel("network-layer-1", ("topology.k8s.aws/network-node-layer-1",)),
            FabricLevel("network-layer-2", ("topology.k8s.aws/network-node-layer-2",)),
            FabricLevel(Scope.RACK.value, ("topology.k8s.aws/network-node-layer-3",)),
        ),
        "gke": (
            DEFAULT_LEVELS[0],
            FabricLevel("block", ("cloud.google.com/gce-topology-block",)),
            FabricLevel(Scope.RACK.value, ("cloud.google.com/gce-topology-subblock",)),
        ),
        "oke": (
            DEFAULT_LEVELS[0],
            FabricLevel("hpc-island", ("oci.oraclecloud.com/rdma.hpc_island_id",)),
            FabricLevel("network-block", ("oci.oraclecloud.com/rdma.network_block_id",)),
            FabricLevel(Scope.RACK.value, ("oci.oraclecloud.com/rdma.local_block_id",)),
        ),
        "coreweave": (
            DEFAULT_LEVELS[0],
            FabricLevel("fabric", ("backend.coreweave.cloud/fabric", "ib.coreweave.cloud/fabric")),
            FabricLevel("superpod", ("backend.coreweave.cloud/superpod", "ib.coreweave.cloud/superpod")),
            FabricLevel(
                Scope.RACK.value, ("backend.coreweave.cloud/leafgroup", "ib.coreweave.cloud/leafgroup")
            ),
        ),
        "lingjun": (
            DEFAULT_LEVELS[0],
            FabricLevel("point-of-delivery", ("alibabacloud.com/point-of-delivery",)),
            FabricLevel(Scope.RACK.value, ("alibabacloud.com/asw-id",)),
        ),
    }
)
"""The levels of known fabrics, widest first, by the labels that each fabric puts on nodes.

- Topograph: its page "node labels". Tier 0 is the switch next to the node. Versions before 1.0 had other
  labels.
- EKS: its user guide, "network topology labels". Layer 3 is the nearest.
- GKE, OKE: the levels of their examples for Kueue's Topology.
- CoreWeave: its page "InfiniBand and RoCE labels".
- ACK's Lingjun nodes: its page "using network topology aware scheduling".
"""

DEFAULT_NAMING = Naming()

_PARTS = re.compile(r"[-_.]")
_NEAR_KEY = 0.8
"""Least similarity at which a label key counts as meant. The limit is high, because keys with the same prefix
are alike by more than half."""

NVLINK = FabricLevel(Scope.NVLINK_DOMAIN.value, ("gpu.topology/nvlink-domain", "nvidia.com/gpu.clique"))
"""The level of NVLink domains over nodes. These domains lie inside the narrowest level, although no level of
the snapshot says so."""

FABRIC = "gpu.topology/nvlink-fabric"
"""The scope of one NVLink fabric, which contains its cliques. Each node is read with this label, whose value
is the first part of its clique's name."""

UNIQUE_LABELS = frozenset(
    {
        "nvidia.com/gpu.clique",
        "accelerator.topograph.run/domain",
        "network.topology.nvidia.com/accelerator",
    }
)
"""Labels whose values their writers make unique in the cluster: a clique begins with the cluster's UUID."""

Path = tuple[str, ...]
"""The names of a domain and of the domains around it, narrowest first; "" if no label gives a name."""


def part_of(node: Node, scope: str, levels: tuple[FabricLevel, ...]) -> str:
    """Return the name of the node's part of a scope, by its labels; "" if it has none of the labels.

    Equal names may be different domains: see `Hierarchy`. A scope that is no level is itself a label key.
    """
    labels = next((level.labels for level in levels if level.scope == scope), (scope,))
    return next((node.labels[label] for label in labels if node.labels.get(label)), "")


def preset_with(scope: str, keys: Collection[str]) -> tuple[str, str]:
    """Return the first preset that has this scope, and its label for the scope. The label must be among
    `keys`, the label keys of nodes. Return ("", "") without such a preset."""
    presets = (
        (name, label)
        for name, levels in PRESETS.items()
        for level in levels
        for label in level.labels
        if level.scope == scope and label in keys
    )
    return next(presets, ("", ""))


def scope_meant(scope: str, scopes: Collection[str], keys: Collection[str]) -> str:
    """Return the scope that was probably meant, for a scope without nodes; "" if no scope is near.

    `keys` are label keys of nodes. A key that ends in the word of the scope, such as example.com/rack, may be
    meant.
    """
    similar_keys = [
        key for key in sorted(keys) if "/" in key and _PARTS.split(key.rpartition("/")[2])[-1] == scope
    ]
    if similar_keys or "/" not in scope:
        return similar_keys[0] if similar_keys else nearest(scope, scopes)
    return nearest(scope, keys, _NEAR_KEY)


@dataclass(frozen=True, slots=True)
class Hierarchy:
    """A scope and the levels around it, narrowest first. `unique`: as in `Naming`."""

    levels: tuple[FabricLevel, ...]
    unique: tuple[str, ...] = ()

    @classmethod
    def of(cls, scope: str, levels: tuple[FabricLevel, ...], naming: Naming = DEFAULT_NAMING) -> Hierarchy:
        """Return the hierarchy above a scope: the wider levels of the cluster, and of all trees."""
        order = (*levels, NVLINK)
        own_level = _level_of_label(scope, order)
        own_level = next((level for level in order if level.scope == scope), own_level)
        narrower = order[_place_in_order(own_level, order, len(order)) :]
        path = [own_level]
        for level in path:  # the list grows in the loop
            wider_levels = dict.fromkeys(_next_wider_levels(level, order, naming.trees))
            path += [wider for wider in wider_levels if wider not in path and wider not in narrower]
        return cls(tuple(path), naming.unique)

    def path(self, node: Node) -> Path:
        """Return the names of the node's domains, up to the first unique name.

        A node without GPUs lies in no NVLink domain.
        """
        names: list[str] = []
        ended = False
        for level in self.levels:
            read = level != NVLINK or node.topology.gpu_count > 0
            label = next((label for label in level.labels if read and node.labels.get(label)), None)
            names.append("" if ended or label is None else node.labels[label])
            ended |= label is not None and (level.scope in self.unique or label in UNIQUE_LABELS)
        return tuple(names)

    def names(self, paths: Iterable[Path]) -> Mapping[Path, str]:
        """Return the domain of each path: "r1", or "r1 of zone a" if other domains are named r1. Equal
        strings are one domain.

        Nodes with one name lie in one domain, unless they have different names for a wider domain. Then a
        node that lacks wider labels lies in the domain that its other labels fit, if only one domain fits.
        Otherwise nodes with the same labels are a domain of their own.
        """
        paths_by_name: dict[str, set[Path]] = {}
        for path in paths:
            paths_by_name.setdefault(path[0], set()).add(path)
        name_of = dict.fromkeys(paths_by_name.pop("", ()), "")
        for name, several in paths_by_name.items():
            if any(len({path[i] for path in several} - {""}) > 1 for i in range(1, len(self.levels))):
                domain_by_path = _domain_by_path(several)
                suffix_of = self._suffixes(set(domain_by_path.values()))
                name_of.update((path, name + suffix_of[domain_by_path[path]]) for path in several)
            else:
                name_of.update(dict.fromkeys(several, name))
        return name_of

    def _suffixes(self, domains: Collection[Path]) -> Mapping[Path, str]:
        """Return a different suffix for each domain: the names of wider domains in which the domains differ.
        The nearest comes first, and as many are named as are needed."""
        differ = [i for i in range(1, len(self.levels)) if len({path[i] for path in domains}) > 1]
        for count in range(1, len(differ) + 1):
            wider_names = {path: tuple(path[i] for i in differ[:count]) for path in domains}
            if len(set(wider_names.values())) == len(domains):
                break
        words = [self.levels[i].scope for i in differ]
        return {
            path: "".join(
                f" of {word} {name}" if name else f" of no {word}"
                for word, name in zip(words, names, strict=False)
            )
            for path, names in wider_names.items()
        }


def domains_of(nodes: Iterable[Node], hierarchy: Hierarchy) -> Mapping[str, str]:
    """Return node → its domain of the hierarchy's narrowest scope; "" for none."""
    paths = {node.name: hierarchy.path(node) for node in nodes}
    names = hierarchy.names(set(paths.values()))
    return {node: names[path] for node, path in paths.items()}


def domains_by_scope(
    nodes: Collection[Node], levels: tuple[FabricLevel, ...], naming: Naming = DEFAULT_NAMING
) -> dict[str, Mapping[str, str]]:
    """Return scope → node → its domain, for the levels of the cluster and for NVLink domains."""
    scopes = dict.fromkeys((*(level.scope for level in levels), NVLINK.scope))
    return {scope: domains_of(nodes, Hierarchy.of(scope, levels, naming)) for scope in scopes}


def repeated_names(nodes: Iterable[Node], levels: tuple[FabricLevel, ...], naming: Naming) -> Iterator[str]:
    """Yield a sentence for each scope in which a name occurs under several wider domains."""
    nodes = tuple(nodes)
    labels_of_levels = {label for level in levels for label in level.labels}
    labels = (label for tree in naming.trees for label in tree if label not in labels_of_levels)
    for scope in dict.fromkeys((*(level.scope for level in levels), NVLINK.scope, *labels)):
        several = _domains_of_one_name(nodes, Hierarchy.of(scope, levels, naming))
        if several:
            and_more = f"; and {len(several) - _MAX_NAMES} names more" if len(several) > _MAX_NAMES else ""
            names = "; ".join(several[:_MAX_NAMES])
            yield (
                f"{scope}: several domains have one name; the wider ones tell them apart: {names}{and_more}. "
                f"If each name is one {scope}, say uniqueNames: [{scope}] in the policies"
            )


def _domains_of_one_name(nodes: Iterable[Node], hierarchy: Hierarchy) -> list[str]:
    """Return a text for each name that several domains have: the list of these domains."""
    domains_by_name: dict[str, list[str]] = {}
    for domain in sorted({*domains_of(nodes, hierarchy).values()} - {""}):
        domains_by_name.setdefault(domain.partition(" ")[0], []).append(domain)
    return [list_names(domains, _MAX_DOMAINS) for domains in domains_by_name.values() if len(domains) > 1]


def _level_of_label(label: str, order: Iterable[FabricLevel]) -> FabricLevel:
    """Return the level that this label alone defines; else a level of the label itself."""
    return next((level for level in order if level.labels == (label,)), FabricLevel(label, (label,)))


def _place_in_order(level: FabricLevel, order: Sequence[FabricLevel], default: int) -> int:
    """Return the index in `order` of the level that has the first label of this level; else `default`."""
    return next(
        (i for i, level_in_order in enumerate(order) if level.labels[0] in level_in_order.labels), default
    )


def _next_wider_levels(
    level: FabricLevel, order: Sequence[FabricLevel], trees: Iterable[tuple[str, ...]]
) -> Iterable[FabricLevel]:
    """Yield the next wider levels of this level: one of the cluster, and one of each tree."""
    yield from order[: _place_in_order(level, order, 0)][-1:]
    for tree in trees:
        index = next((i for i, label in enumerate(tree) if label in level.labels), 0)
        yield from (_level_of_label(label, order) for label in tree[:index][-1:])


def _domain_by_path(paths: Collection[Path]) -> Mapping[Path, Path]:
    """Return path → path of its domain, for paths with one name. The domain is the only path that agrees and
    has more names. Without such a path, or with several, the path itself is the domain."""
    domains: dict[Path, Path] = {}
    fitting: dict[tuple[bool, ...], dict[Path, set[Path]]] = {}
    for path in sorted(paths, key=lambda path: (path.count(""), path)):  # paths with more names first
        has_name = tuple(map(bool, path))
        if has_name not in fitting:
            fitting[has_name] = {}
            for earlier, domain in domains.items():
                cut = tuple(
                    name if is_there else "" for name, is_there in zip(earlier, has_name, strict=True)
                )
                fitting[has_name].setdefault(cut, set()).add(domain)
        fits = fitting[has_name].get(path, set())
        domains[path] = next(iter(fits)) if len(fits) == 1 else path
    return domains
