"""The scene of the traces: each gang that was placed has a whole one, and one of them is shown."""

from __future__ import annotations

import time
from collections.abc import Mapping, Set

from local_cluster.collector import Collector
from local_cluster.demo.claims import Claim
from local_cluster.demo.facts import Facts
from local_cluster.demo.show import Show
from local_cluster.patience import Guard
from local_cluster.traces import Trace, of_gangs

WRITTEN_S = 60.0
"""Each process sends its spans with a delay. A slow machine has longer."""
LOOK_EVERY_S = 0.25
SHOWN = "finetune"
"""A gang with two members: its trace fits on a screen."""
TEXT = "each gang's trace is whole, from service to etcd, and explains 95 % of its time"


def tell(collector: Collector, facts: Facts, show: Show) -> Claim:
    """Wait for the traces of the gangs that were placed, show one, and check all."""
    members = {
        name: frozenset(seat.pod for seat in gang_placed.muster.seats)
        for name, gang_placed in facts.placed.items()
    }
    guard = Guard(WRITTEN_S)
    traces = of_gangs(collector.spans(), members)
    while any(wrong(traces, members).values()) and not guard.over:
        time.sleep(LOOK_EVERY_S)
        traces = of_gangs(collector.spans(), members)
    show.scene(
        "The trace of a gang",
        str(collector.file),
        "One trace for each gang and attempt. A line is a span: its process, its name, and how long it took.",
    )
    if SHOWN in traces:
        show.trace(traces[SHOWN])
    return check(traces, members)


def wrong(traces: Mapping[str, Trace], members: Mapping[str, Set[str]]) -> dict[str, list[str]]:
    """Return gang → what is wrong with its trace."""
    nothing = Trace(())
    return {name: traces.get(name, nothing).wrong(len(pods)) for name, pods in members.items()}


def check(traces: Mapping[str, Trace], members: Mapping[str, Set[str]]) -> Claim:
    """The claim about traces."""
    faults = [
        f"{name}: {', '.join(faults_of_gang)}"
        for name, faults_of_gang in wrong(traces, members).items()
        if faults_of_gang
    ]
    least = min((trace.covered for trace in traces.values()), default=0.0)
    evidence = "; ".join(faults) or f"{len(traces)} gangs; spans explain at least {least:.1%} of the time"
    return Claim("traces_whole", TEXT, bool(members) and not faults, evidence)
