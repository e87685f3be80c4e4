"""Nodes in classes: the coarse problem (largest patterns) and, with parts and nodes counted, the fine one.

Everything that is dropped here is dropped exactly: a node, rack or pattern goes only when no plan of the
decided number of racks and nodes can use it, or when an equal one stays.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from muster.placement.bounds import Price, capacity, group, region_of, worth
from muster.placement.damage import left_over
from muster.placement.fabric import Place, natural
from muster.placement.gpusets import best_sets
from muster.placement.model.problem import NodeClass, Pattern, Problem
from muster.placement.site import Counts, Site, mixes_on

Parts = Mapping[tuple[str, ...], Mapping[str, int]]
"""Part of the scopes asked for → {node: mask of the GPUs it may use there}."""


class Indices:
    """Dense indices of names. A node without a label counts as a part of its own; where the scope is no level
    in this cluster, all nodes lie in part 0."""

    def __init__(self, site: Site) -> None:
        self._scopes = site.scopes
        self._seen: dict[tuple[str, str, str], int] = {}

    def of(self, place: Place, scope: str) -> int:
        if scope not in self._scopes:
            return 0
        label = place.zone if scope == "zone" else place.rack
        return self.number(scope, label, "" if label else place.name)

    def number(self, kind: str, name: str, node: str = "") -> int:
        return self._seen.setdefault((kind, name, node), len(self._seen))


def coarse(site: Site, parts: Parts, need: Counts, by_price: Iterable[Price]) -> tuple[Problem, bool]:
    """The problem of counting zones, racks and nodes, without parts that are too small; and whether the lists
    of patterns are complete."""
    indices = Indices(site)
    by_price = tuple(by_price)
    classes: list[NodeClass] = []
    complete = True
    for part, (_, nodes) in enumerate(sorted(parts.items())):
        found: dict[tuple[int, int, tuple[Counts, ...]], list[str]] = {}
        for name, mask in nodes.items():
            place = site.places[name]
            mixes = mixes_on(site, place, mask, need)
            complete &= mixes.complete
            if mixes.largest:
                key = (indices.of(place, "zone"), indices.of(place, "rack"), mixes.largest)
                found.setdefault(key, []).append(name)
        inside = [
            NodeClass(part, zone, rack, -1, tuple(Pattern(counts) for counts in largest), tuple(names))
            for (zone, rack, largest), names in found.items()
        ]
        if all(
            sum(capacity(price, cls) * cls.size for cls in inside) >= worth(price, need) for price in by_price
        ):
            classes += inside
    return Problem(need, tuple(classes), exact=False), complete


def fine(
    site: Site, coarse_problem: Problem, by_price: tuple[Price, ...], incumbent: Mapping[str, Counts]
) -> tuple[Problem, bool]:
    """The problem with all patterns, for the levels below the nodes, the decided ones kept.

    `incumbent`, members by node, is always among its solutions.
    """
    decided = dict(coarse_problem.at_most)
    racks, nodes = decided["racks"], decided["nodes"]
    need = coarse_problem.need
    indices = Indices(site)
    tables: dict[tuple[object, ...], tuple[Pattern, ...]] = {}
    complete, classes = True, list[NodeClass]()
    for region in group(coarse_problem.classes, region_of(coarse_problem)).values():
        least = _least(region, need, by_price, nodes)
        if least is None:
            continue
        found: dict[tuple[int, int, int, int, tuple[Pattern, ...]], list[str]] = {}
        for cls in region:
            if any(capacity(price, cls) < bound for price, bound in least.items()):
                continue
            for name in cls.nodes:
                place = site.places[name]
                key = (
                    place.shape,
                    place.state.free_gpus,
                    place.wide != "",
                    _fit_key(site, place, name),
                    incumbent.get(name),
                )
                if key not in tables:
                    mixes = mixes_on(site, place, place.all_gpus, need)
                    complete &= mixes.complete
                    kept = [mix for mix in mixes.all if all(worth(p, mix) >= b for p, b in least.items())]
                    if name in incumbent and incumbent[name] not in kept:
                        kept.append(incumbent[name])
                    tables[key] = tuple(p for mix in kept for p in patterns(site, place, place.all_gpus, mix))
                if tables[key]:
                    domain = indices.number("domain", place.wide) if place.wide else -1
                    found.setdefault((cls.part, cls.zone, cls.rack, domain, tables[key]), []).append(name)
        tables.clear()  # the least a node must take is the region's own
        classes += [
            NodeClass(part, zone, rack, domain, table, _first(names, nodes, incumbent))
            for (part, zone, rack, domain, table), names in found.items()
        ]
    kept_classes = _without_equal_racks(classes, racks, incumbent)
    return Problem(need, tuple(kept_classes), exact=True, at_most=coarse_problem.at_most), complete


def patterns(site: Site, place: Place, gpu_mask: int, mix: Counts) -> tuple[Pattern, ...]:
    """The patterns of one mix of members on one node: one for each GPU set that can be in a best plan."""
    gpus = site.gpus(mix)
    rest = left_over(place.state, gpus, site.cpu(mix))
    return tuple(
        Pattern(mix, i, 0 if place.wide else s.domains, s.weakest, s.ring, s.damage, rest, gpus)
        for i, s in enumerate(best_sets(place.shape, place.state.free_gpus, gpus, gpu_mask))
    )


def _fit_key(site: Site, place: Place, name: str) -> tuple[object, ...]:
    """What besides GPUs decides a node's patterns and their best-fit cost."""
    state = place.state
    return (
        tuple(name in admitted for admitted in site.admits),
        state.free,
        state.node.allocatable.cpu_milli,
        state.free_gpu_count,
    )


def _least(
    region: list[NodeClass], need: Counts, by_price: tuple[Price, ...], nodes: int
) -> dict[Price, int] | None:
    """What each node must take at least, by price, if `nodes` nodes of the region are to hold all; None if
    they can't."""
    least = {}
    for price in by_price:
        values = sorted((capacity(price, cls) for cls in region for _ in range(cls.size)), reverse=True)
        wanted = worth(price, need)
        if sum(values[:nodes]) < wanted:
            return None
        least[price] = wanted - sum(values[: nodes - 1])
    return {price: bound for price, bound in least.items() if bound > 0}


def _first(names: list[str], count: int, incumbent: Mapping[str, Counts]) -> tuple[str, ...]:
    """Of equal nodes, no more than can be used: those of the incumbent, then by name."""
    return tuple(sorted(names, key=lambda name: (name not in incumbent, natural(name)))[:count])


def _without_equal_racks(
    classes: list[NodeClass], racks: int, incumbent: Mapping[str, Counts]
) -> list[NodeClass]:
    """Of racks with equal rows of classes, no more than can be used."""
    in_racks: dict[int, set[int]] = {}
    for cls in classes:
        in_racks.setdefault(cls.domain, set()).add(cls.rack)
    rows: dict[object, list[list[NodeClass]]] = {}
    for row in group(classes, lambda cls: (cls.part, cls.rack)).values():
        row.sort(key=lambda cls: (cls.zone, cls.domain >= 0, cls.size, cls.patterns))
        local: dict[int, int] = {-1: -1}
        for cls in row:
            shared = cls.domain >= 0 and len(in_racks[cls.domain]) > 1
            local.setdefault(cls.domain, cls.domain if shared else -2 - len(local))
        key = (row[0].part, tuple((c.zone, local[c.domain], c.size, c.patterns) for c in row))
        rows.setdefault(key, []).append(row)
    kept: list[NodeClass] = []
    for equal in rows.values():
        equal.sort(
            key=lambda row: (
                not any(name in incumbent for cls in row for name in cls.nodes),
                natural(min((name for cls in row for name in cls.nodes), key=natural)),
            )
        )
        kept += [cls for row in equal[:racks] for cls in row]
    return kept
