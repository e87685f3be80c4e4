"""What a run says in the end, as JSON."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass

from e2e.chaos.crowd import Counts
from e2e.chaos.hostile import HostileReport
from e2e.chaos.meter import LoadReport
from e2e.chaos.waits import WaitReport


@dataclass(frozen=True, slots=True)
class Hit:
    """One fault. `phase`: the gang's when the fault came ("" without one); `running`: how many of its members
    ran when it had come, of `needed`. It hit when the gang was between plan and running, before and after.
    `back_after_s`: from the fault until all processes were well again, `whole_after_s`: until the gang was
    bound, null where that was not waited for or did not come in time."""

    number: int
    at_s: float
    fault: str
    moment: str
    gang: str
    phase: str
    generation: int
    running: int
    needed: int
    hit: bool
    back_after_s: float
    whole_after_s: float | None
    note: str = ""


@dataclass(frozen=True, slots=True)
class Report:
    """`violations`: rule → texts. `strangers_placed`: pods that another scheduler put on the same nodes.
    `unfinished`: gangs that did not end on the empty cluster. `allocations`: how often a claim got devices;
    `longest_left_s`: how long one had them without a bound pod, while the processes were well. `waits`: of
    gangs that no fault was aimed at; `baseline`: of pods of the other scheduler. `hostile`: what hostile
    actors sent, None without them."""

    seed: int
    seconds: float
    wanted: int
    hits: Sequence[Hit]
    counts: Counts
    load: LoadReport
    waits: WaitReport
    baseline: WaitReport
    hostile: HostileReport | None
    binds: int
    strangers_placed: int
    relisted: int
    pods_gone: int
    evicted: Sequence[str]
    longest_partial_s: float
    allocations: int
    longest_left_s: float
    settled_rounds: int
    unfinished: Sequence[str]
    violations: Mapping[str, Sequence[str]]

    @property
    def clean(self) -> bool:
        return not any(self.violations.values()) and not self.unfinished

    @property
    def enough(self) -> bool:
        """Whether as many faults hit as were asked for."""
        return sum(hit.hit for hit in self.hits) >= self.wanted

    @property
    def ok(self) -> bool:
        return self.clean and self.enough

    def json(self) -> str:
        by_fault: dict[str, Counter[str]] = defaultdict(Counter)
        for hit in self.hits:
            by_fault[hit.fault][hit.phase if hit.hit else "missed"] += 1
        return json.dumps(
            {
                "ok": self.ok,
                "seed": self.seed,
                "seconds": round(self.seconds, 1),
                "violations": {rule: len(texts) for rule, texts in self.violations.items()},
                "violations_found": self.violations,
                "unfinished": self.unfinished,
                "faults": {
                    "wanted": self.wanted,
                    "injected": len(self.hits),
                    "hit": sum(hit.hit for hit in self.hits),
                    "by_phase": Counter(hit.phase for hit in self.hits if hit.hit),
                    "by_fault": by_fault,
                },
                "submitted": asdict(self.counts),
                "binds": self.binds,
                "pods_placed_by_another_scheduler": self.strangers_placed,
                "pods_gone": self.pods_gone,
                "pods_listed_after_the_server_was_away": self.relisted,
                "evicted": self.evicted,
                "longest_partial_s": round(self.longest_partial_s, 2),
                "allocations": self.allocations,
                "longest_left_s": round(self.longest_left_s, 2),
                "load": asdict(self.load),
                "time_to_bound": asdict(self.waits),
                "baseline": asdict(self.baseline),
                "hostile": None if self.hostile is None else vars(self.hostile),
                "settled_rounds": self.settled_rounds,
                "each_fault": [asdict(hit) for hit in self.hits],
            },
            indent=2,
        )
