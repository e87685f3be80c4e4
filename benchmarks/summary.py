"""The figures of a cell, from its instances."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from textwrap import shorten

from benchmarks.measure import PEERS, PHASES, Sample
from benchmarks.suite import Cell

TARGETED = 5_000
"""Targets are for clusters of this many nodes, under load, without zones."""
LARGE = 20_000
LARGE_FACTOR = 5
"""Clusters of `LARGE` nodes may take `LARGE_FACTOR` times as long."""


@dataclass(frozen=True, slots=True)
class Spread:
    """Milliseconds (or what is said) at the median, the 99th percentile (nearest rank) and at most."""

    p50: float
    p99: float
    max: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread | None:
        """Return median, p99 and maximum of the values, or None if there are none."""
        ordered = sorted(values)
        if not ordered:
            return None
        return cls(_rank(ordered, 0.5), _rank(ordered, 0.99), ordered[-1])


@dataclass(frozen=True, slots=True)
class Against:
    """Muster and one peer on the same instances. `saved` are mean shares over those that both place.

    `refused_by_us`: the peer placed what we refused. `broken`: its plan broke what the gang requires, which
    counts as refused.
    """

    ms: Spread | None
    better: int
    equal: int
    worse: int
    refused_by_us: int
    refused_by_peer: int
    broken: int
    racks_saved: float | None
    nodes_saved: float | None


@dataclass(frozen=True, slots=True)
class Summary:
    """One row. Latencies are of warm instances with the answer that the case is about; shares are of the
    plans among all instances, cold ones too."""

    site: str
    nodes: int
    load: float
    load_taken: float | None
    case: str
    drawn: int
    measured: int
    answered: int
    ms: Spread | None
    cold_ms: Spread | None
    target_ms: float | None
    optimal: float | None
    compact: float | None
    gap: Spread | None
    undecided: int
    phases_ms: Mapping[str, Spread]
    peers: Mapping[str, Against]
    defects: tuple[str, ...]

    @property
    def failures(self) -> tuple[str, ...]:
        """What must never be: broken rules, worse than a greedy, refused where a greedy places."""
        subject = f"{self.case} on {self.site}"
        sentences = []
        if self.defects:
            sentences.append(
                f"{subject}: {len(self.defects)} defects, the first: {shorten(self.defects[0], 200)}"
            )
        for name, peer in self.peers.items():
            if peer.worse:
                sentences.append(f"{subject}: {peer.worse} plans less compact than {name}'s")
            if peer.refused_by_us:
                sentences.append(f"{subject}: {peer.refused_by_us} gangs refused that {name} places")
        return tuple(sentences)


def summary(cell: Cell) -> Summary:
    """The row of a cell."""
    samples, answered = cell.samples, cell.answered
    plans = [sample for sample in samples if sample.plan is not None]
    proofs = [sample.proven_compact for sample in plans]
    factor = LARGE_FACTOR if cell.site.nodes >= LARGE else 1
    aimed = cell.site.load and cell.site.nodes >= TARGETED and not cell.site.racks_per_zone
    target = cell.case.target_ms if aimed else None
    return Summary(
        site=cell.site.name,
        nodes=cell.site.nodes,
        load=cell.site.load,
        load_taken=fmean(cell.loads) if cell.loads else None,
        case=cell.case.name,
        drawn=len(samples) + cell.skipped,
        measured=len(samples),
        answered=len(answered),
        ms=Spread.of([sample.ms for sample in answered if sample.warm]),
        cold_ms=Spread.of([sample.ms for sample in answered if not sample.warm]),
        target_ms=target and target * factor,
        optimal=fmean(sample.optimal for sample in plans) if plans else None,
        compact=fmean(proofs) if len(proofs) == len(plans) and plans else None,
        gap=Spread.of([sample.gap for sample in plans if sample.gap is not None]),
        undecided=sum(sample.undecided for sample in samples),
        phases_ms={name: spread for name in PHASES if (spread := _phase(answered, name)) is not None},
        peers={name: _against(samples, name) for name in PEERS},
        defects=tuple(sample.defect for sample in samples if sample.defect)
        + tuple("placed what can't be" for sample in plans if not cell.case.placeable),
    )


def _phase(samples: Sequence[Sample], name: str) -> Spread | None:
    return Spread.of(
        [sample.phases_ms[name] for sample in samples if sample.warm and name in sample.phases_ms]
    )


def _against(samples: Sequence[Sample], name: str) -> Against:
    pairs = [(sample.plan, sample.peers[name].plan) for sample in samples]
    plan_pairs = [(ours, theirs) for ours, theirs in pairs if ours and theirs]
    return Against(
        ms=Spread.of([sample.peers[name].ms for sample in samples]),
        better=sum(ours < theirs for ours, theirs in plan_pairs),
        equal=sum(ours == theirs for ours, theirs in plan_pairs),
        worse=sum(ours > theirs for ours, theirs in plan_pairs),
        refused_by_us=sum(theirs is not None and ours is None for ours, theirs in pairs),
        refused_by_peer=sum(ours is not None and theirs is None for ours, theirs in pairs),
        broken=sum(sample.peers[name].broken for sample in samples),
        racks_saved=_saved([(ours.racks, theirs.racks) for ours, theirs in plan_pairs]),
        nodes_saved=_saved([(ours.nodes, theirs.nodes) for ours, theirs in plan_pairs]),
    )


def _saved(pairs: Sequence[tuple[int, int]]) -> float | None:
    return fmean(1 - ours / theirs for ours, theirs in pairs) if pairs else None


def _rank(ordered: Sequence[float], share: float) -> float:
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]
