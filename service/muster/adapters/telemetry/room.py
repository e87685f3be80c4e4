"""Measure the room of the cluster: free GPUs by domain, when metrics are scraped.

Nodes that are not ready or closed to pods are left out. Taints are ignored, because pods tolerate the taints
of GPU nodes. Cpu and memory are ignored too: the planner decides whether a gang fits.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Set
from dataclasses import dataclass, field
from heapq import nsmallest

from muster.domain.levels import domains_by_scope
from muster.domain.node import Node
from muster.domain.printable import printable
from muster.domain.rate import Allowance
from muster.domain.request import Scope
from muster.domain.snapshot import NodeState, Snapshot
from muster.placement.gpus.damage import ONE_GPU, pool_fragmentation

CLUSTER = "cluster"
MAX_MODELS = 16
"""Largest number of models with a label value of their own, because labels of nodes may name any models."""
UNKNOWN = "unknown"

Values = list[tuple[tuple[str, ...], float]]


@dataclass(slots=True)
class Figures:
    """The figures of the gauges.

    `largest`: (scope, model) → most free GPUs in one domain. `free`: (scope, size) → free GPUs in domains
    with `size` free GPUs, up to the next power of two. `fragmented`: model → the share of its free GPUs that
    requests for 1, 2, 4 and 8 GPUs of one node, equally weighted, cannot use.
    """

    largest: Values = field(default_factory=list)
    free: Values = field(default_factory=list)
    fragmented: Values = field(default_factory=list)


class Room:
    """Counts free GPUs. The domains of the nodes, which seldom change, and the last figures are kept."""

    def __init__(self, model_label: str) -> None:
        self._model_label = model_label
        self._label_values = LabelValues(MAX_MODELS)
        self._nodes: dict[str, Node] = {}
        self._levels: object = None
        self._domains: dict[str, Mapping[str, str]] = {}
        self._models: dict[str, str] = {}
        self._counted_snapshot: Snapshot | None = None
        self._figures = Figures()

    def figures(self, snapshot: Snapshot) -> Figures:
        """Return the figures of this snapshot."""
        if snapshot is not self._counted_snapshot:
            self._note_domains(snapshot)
            self._counted_snapshot, self._figures = snapshot, self._count(snapshot)
        return self._figures

    def domains(self, snapshot: Snapshot) -> Mapping[str, Mapping[str, str]]:
        """Return scope → node → its domain."""
        self._note_domains(snapshot)
        return self._domains

    def _note_domains(self, snapshot: Snapshot) -> None:
        """Note the domains of the nodes, unless they are known."""
        nodes = {name: state.node for name, state in snapshot.nodes.items()}
        levels = (snapshot.levels, snapshot.naming)
        if nodes == self._nodes and levels == self._levels:
            return
        self._nodes, self._levels = nodes, levels
        self._domains = domains_by_scope(nodes.values(), snapshot.levels, snapshot.naming)
        models = {name: self._model(node) for name, node in nodes.items()}
        with_series = self._label_values.choose(Counter(models.values()))
        self._models = {name: model if model in with_series else OTHERS for name, model in models.items()}

    def _model(self, node: Node) -> str:
        model = node.labels.get(self._model_label) or node.machine or UNKNOWN
        return printable(model, MAX_CHARACTERS)

    def _count(self, snapshot: Snapshot) -> Figures:
        by_domain: Counter[tuple[str, str, str]] = Counter()
        free, unusable_gpus = Counter[str](), Counter[str]()
        for name, state in snapshot.nodes.items():
            if not state.node.topology.gpu_count or not state.node.ready or state.node.unschedulable:
                continue
            model, count = self._models[name], state.free_gpu_count
            free[model] += count
            unusable_gpus[model] += pool_fragmentation(count)
            for scope, domain, gpus in self._parts(name, state, count):
                by_domain[scope, model, domain] += gpus
        largest: dict[tuple[str, ...], float] = {}
        sizes: Counter[tuple[str, ...]] = Counter()
        for (scope, model, _), gpus in by_domain.items():
            largest[scope, model] = max(largest.get((scope, model), 0), gpus)
            if gpus:
                sizes[scope, str(1 << (gpus.bit_length() - 1))] += gpus
        fragmented = {
            (model,): unusable_gpus[model] / (ONE_GPU * count) for model, count in free.items() if count
        }
        return Figures(list(largest.items()), list(sizes.items()), list(fragmented.items()))

    def _parts(self, name: str, state: NodeState, count: int) -> Iterator[tuple[str, str, int]]:
        """Yield each scope with the node's domain in it and the free GPUs that the node adds."""
        yield CLUSTER, "", count
        yield Scope.NODE.value, name, count
        for scope, domains in self._domains.items():
            if domains[name]:
                yield scope, domains[name], count
            elif scope == Scope.NVLINK_DOMAIN.value:
                for index, free in enumerate(state.free_by_island):
                    yield scope, f"{name}/{index}", free


# --- values of labels ----------------------------------------------------------------------------

OTHERS = "others"
MAX_CHARACTERS = 63
"""Largest number of characters of a value, as of label values in Kubernetes."""
RENEWAL_S = 900.0


class LabelValues:
    """The values of one label that have time series of their own. All other values are counted as OTHERS.

    Prometheus keeps each series that it has seen. So at most `max_values` values have a series. Once this
    many have come, one more value may come every RENEWAL_S. A value keeps its place until a larger value
    takes it.
    """

    def __init__(self, max_values: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._max_values = max_values
        self._values: set[str] = set()
        self._newcomers = Allowance(max_values, 1 / RENEWAL_S, clock)

    def choose(self, counts: Mapping[str, int]) -> Set[str]:
        """Return the values with series of their own. `counts` has the amount of each value."""
        countable = (pair for pair in counts.items() if pair[0] != OTHERS)
        for value, count in nsmallest(self._max_values, countable, key=lambda pair: (-pair[1], pair[0])):
            if value in self._values:
                continue
            if self._newcomers.available < 1 or not self._has_place(count, counts):
                break
            self._values.add(value)
            self._newcomers.spend()
        return self._values

    def cut(self, counts: Mapping[str, int]) -> Counter[str]:
        """Return the counts of short and printable values. Values without series of their own are added up as
        `OTHERS`."""
        count_by_text = Counter[str]()
        for value, count in counts.items():
            count_by_text[printable(value, MAX_CHARACTERS)] += count
        with_series, cut_counts = self.choose(count_by_text), Counter[str]()
        for value, count in count_by_text.items():
            cut_counts[value if value in with_series else OTHERS] += count
        return cut_counts

    def _has_place(self, count: int, counts: Mapping[str, int]) -> bool:
        """Return whether a value with this count gets a series. The value with the smallest count loses its
        series."""
        if len(self._values) < self._max_values:
            return True
        least = min(self._values, key=lambda value: (counts.get(value, 0), value))
        if counts.get(least, 0) >= count:
            return False
        self._values.remove(least)
        return True
