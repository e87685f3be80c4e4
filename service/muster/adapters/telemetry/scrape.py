"""The gauges that are read when metrics are scraped: what there is now, and since when.

Labels have few values. Those that users or node labels choose are cut: the most frequent stay, the others are
added up.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

from muster.adapters.kube.intake import Intake
from muster.adapters.kube.leftout import LeftOut
from muster.adapters.kube.watch import Watcher
from muster.adapters.owner import Owner
from muster.adapters.telemetry.metrics import Metrics
from muster.adapters.telemetry.room import OTHERS, Figures, Room
from muster.gangs.record.phases import Phase

MOST_QUEUES = 100
_LASTING = (Phase.RUNNING, Phase.FINISHED)


def show(metrics: Metrics, owner: Owner, room: Room) -> None:
    """Add the gauges about gangs and capacity."""

    def phases() -> Iterable[tuple[str, float]]:
        return [(phase, float(count)) for phase, count in owner.counts()[0].items()]

    def oldest() -> Iterable[tuple[str, float]]:
        now = time.time()
        since = owner.waits()[0].items()
        return [(phase, max(0.0, now - created)) for phase, created in since if phase not in _LASTING]

    def reservations() -> Iterable[tuple[str, float]]:
        return [(kind, float(count)) for kind, count in owner.waits()[2].items()]

    def figures() -> Figures:
        return room.figures(owner.snapshot())

    add = metrics.read_at_scrape
    add("muster_gangs", "Gangs by phase.", ("phase",), phases)
    add("muster_oldest_gang_seconds", "Age of the oldest gang that waits in a phase.", ("phase",), oldest)
    add(
        "muster_longest_in_phase_seconds",
        "Time since the gang that is in a phase for longest entered it.",
        ("phase",),
        lambda: owner.phases.oldest(time.monotonic()),
    )
    add(
        "muster_partially_bound_gangs",
        "Gangs with some members bound, and fewer than they need.",
        (),
        lambda: [((), float(owner.waits()[1]))],
    )
    add(
        "muster_pods_with_other_gpus",
        "Pods whose containers have other GPUs than the planned ones.",
        (),
        lambda: [((), float(len(owner.differences())))],
    )
    add("muster_reserved_members", "Members that are not bound and have a place.", ("kind",), reservations)
    add(
        "muster_planner_queue_gangs",
        "Gangs waiting for a planner.",
        ("lane",),
        lambda: [(lane, float(count)) for lane, count in owner.waiting().items()],
    )
    add(
        "muster_queue_gangs",
        "Gangs by the queue of their PodGroup.",
        ("queue",),
        lambda: most(owner.counts()[1], MOST_QUEUES),
    )
    add(
        "muster_largest_fit_gpus",
        "Most free GPUs of a model in one domain of a scope.",
        ("scope", "model"),
        lambda: figures().largest,
    )
    add(
        "muster_free_gpus",
        "Free GPUs in domains of a scope, by how many are free in the domain.",
        ("scope", "size"),
        lambda: figures().free,
    )
    add(
        "muster_fragmentation_ratio",
        "Share of the free GPUs of a model that typical requests of one node can't use.",
        ("model",),
        lambda: figures().fragmented,
    )


def show_cluster(
    metrics: Metrics, watchers: Mapping[str, Watcher[Any]], intake: Intake, left_out: LeftOut
) -> None:
    """Add the gauges about what the API server says."""

    def silence() -> Iterable[tuple[str, float]]:
        now = time.monotonic()
        return [(name, now - watcher.last_heard) for name, watcher in watchers.items()]

    add = metrics.read_at_scrape
    add("muster_watch_silence_seconds", "Since the API server last said anything.", ("resource",), silence)
    add(
        "muster_nodes_with_problems",
        "Nodes that are used without something in them that can't be read.",
        ("resource",),
        lambda: [("nodes", float(intake.nodes_with_problems))],
    )
    add(
        "muster_scopes_with_repeated_names",
        "Scopes in which several domains have one name: wider labels tell them apart.",
        ("resource",),
        lambda: [("nodes", float(len(intake.repeated_names)))],
    )
    add(
        "muster_objects_left_out",
        "API objects that are left out now, because they can't be read or handled.",
        ("resource",),
        lambda: [(name, float(count)) for name, count in left_out.counts().items()],
    )
    add(
        "muster_policies_refused",
        "1 while the ConfigMap of policies can't be read and older ones hold.",
        ("resource",),
        lambda: [("policies", float(intake.policies_refused))],
    )


def most(counts: Counter[str], kept: int) -> list[tuple[str, float]]:
    """Return the most frequent values, and the sum of the others."""
    common = counts.most_common()
    rest = sum(count for _, count in common[kept:])
    return [(name, float(count)) for name, count in common[:kept]] + ([(OTHERS, float(rest))] if rest else [])
