"""The gauges that are read when metrics are scraped: present counts and ages.

Labels have few values. Values that users or node labels choose are limited (`LabelValues`).
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any

from muster.adapters.control_loop import ControlLoop
from muster.adapters.kube.intake import Intake
from muster.adapters.kube.leftout import LeftOutObjects
from muster.adapters.kube.watch import Watcher
from muster.adapters.telemetry.metrics import LASTING, Metrics, ReadAtScrape
from muster.adapters.telemetry.room import OTHERS, Figures, LabelValues, Room
from muster.domain import exactness
from muster.gangs.reporting.tally import NamespaceTally, Tally

MAX_QUEUES = 100
MAX_NAMESPACES = 100


class _SlowFigures:
    """Figures that take long to read. They are read in parts before a scrape, or else during the
    scrape."""

    def __init__(self, loop: ControlLoop, room: Room) -> None:
        self._loop, self._room = loop, room
        self._tally: Tally | None = None
        self._figures: Figures | None = None

    async def before_scrape(self) -> None:
        self._tally = await self._loop.count()
        snapshot = self._loop.gangs.snapshot()
        self._room.domains(snapshot)  # half of the work of the next line
        await asyncio.sleep(0)
        self._figures = self._room.figures(snapshot)
        await asyncio.sleep(0)

    def tally(self) -> Tally:
        tally, self._tally = self._tally or self._loop.gangs.tally(), None
        return tally

    def figures(self) -> Figures:
        figures, self._figures = self._figures or self._room.figures(self._loop.gangs.snapshot()), None
        return figures


def show(metrics: Metrics, loop: ControlLoop, room: Room) -> None:
    """Add the gauges about gangs and capacity."""
    read = _SlowFigures(loop, room)
    metrics.before_scrape = read.before_scrape
    metrics.read_at_scrape(
        _with_few_names(read.tally),
        ReadAtScrape("muster_gangs", "Gangs by phase.", ("phase",), lambda tally: tally.phases.items()),
        ReadAtScrape(
            "muster_oldest_gang_seconds", "Age of the oldest gang that waits in a phase.", ("phase",), _oldest
        ),
        ReadAtScrape(
            "muster_partially_bound_gangs",
            "Gangs with some members bound, and fewer than they need.",
            (),
            lambda tally: [((), tally.partially_bound)],
        ),
        ReadAtScrape(
            "muster_reserved_members",
            "Members that are not bound and have a place.",
            ("kind",),
            lambda tally: tally.reserved.items(),
        ),
        ReadAtScrape(
            "muster_queue_gangs",
            "Gangs by the queue of their PodGroup.",
            ("queue",),
            lambda tally: tally.queues.items(),
        ),
        *_namespace_gauges(),
    )
    metrics.read_at_scrape(
        lambda: loop.phases.oldest(time.monotonic()),
        ReadAtScrape(
            "muster_longest_in_phase_seconds",
            "Time since the gang that is in a phase for longest entered it.",
            ("phase",),
            lambda seconds_by_phase: seconds_by_phase,
        ),
    )
    metrics.read_at_scrape(
        loop.gangs.differences,
        ReadAtScrape(
            "muster_pods_with_other_gpus",
            "Pods whose containers have other GPUs than the planned ones.",
            (),
            lambda differences: [((), len(differences))],
        ),
    )
    metrics.read_at_scrape(
        loop.gangs.count_waiting,
        ReadAtScrape(
            "muster_planner_queue_gangs",
            "Gangs waiting for a planner.",
            ("lane",),
            lambda gangs_by_lane: gangs_by_lane.items(),
        ),
    )
    _show_exactness(metrics, loop)
    _show_room(metrics, read)


def _with_few_names(count_gangs: Callable[[], Tally]) -> Callable[[], Tally]:
    """Return a function that counts gangs, with few names of queues and namespaces."""
    queues, namespaces = LabelValues(MAX_QUEUES), LabelValues(MAX_NAMESPACES)

    def count_with_few_names() -> Tally:
        all_names = count_gangs()
        gangs = {
            name: namespace_tally.phases.total() for name, namespace_tally in all_names.namespaces.items()
        }
        largest = all_names.only_namespaces(namespaces.choose(gangs), OTHERS)
        return replace(all_names, queues=queues.cut(all_names.queues), namespaces=largest)

    return count_with_few_names


def _namespace_gauges() -> tuple[ReadAtScrape[Tally], ...]:
    """Return the gauges about the gangs of each namespace.

    Their label is not `namespace`, because Prometheus sets that label to the namespace of the scraped pod.
    """
    return (
        ReadAtScrape(
            "muster_namespace_gangs",
            "Gangs of a namespace by phase.",
            ("gang_namespace", "phase"),
            lambda tally: _values_by_namespace(tally, lambda namespace_tally: namespace_tally.phases),
        ),
        ReadAtScrape(
            "muster_namespace_causes",
            "Gangs of a namespace that wait now, by the kind of cause that blocks them.",
            ("gang_namespace", "cause"),
            lambda tally: _values_by_namespace(tally, lambda namespace_tally: namespace_tally.causes),
        ),
        ReadAtScrape(
            "muster_namespace_gpus",
            "GPUs that members of gangs in a namespace have (bound) or ask for (waiting).",
            ("gang_namespace", "state"),
            lambda tally: _values_by_namespace(tally, lambda namespace_tally: namespace_tally.gpus),
        ),
        ReadAtScrape(
            "muster_namespace_oldest_gang_seconds",
            "Age of the oldest gang of a namespace that waits, 0 if none does.",
            ("gang_namespace",),
            _oldest_of_namespaces,
        ),
    )


def _show_exactness(metrics: Metrics, loop: ControlLoop) -> None:
    metrics.read_at_scrape(
        lambda: exactness.nodes_by_why(state.node for state in loop.gangs.snapshot().nodes.values()),
        ReadAtScrape(
            "muster_nodes_not_exact",
            "Nodes where containers may get other GPUs than planned.",
            ("why",),
            lambda nodes_by_why: [(why, len(names)) for why, names in nodes_by_why.items()],
        ),
    )


def _show_room(metrics: Metrics, read: _SlowFigures) -> None:
    metrics.read_at_scrape(
        read.figures,
        ReadAtScrape(
            "muster_largest_fit_gpus",
            "Most free GPUs of a model in one domain of a scope.",
            ("scope", "model"),
            lambda figures: figures.largest,
        ),
        ReadAtScrape(
            "muster_free_gpus",
            "Free GPUs in domains of a scope, by how many are free in the domain.",
            ("scope", "size"),
            lambda figures: figures.free,
        ),
        ReadAtScrape(
            "muster_fragmentation_ratio",
            "Share of the free GPUs of a model that typical requests of one node can't use.",
            ("model",),
            lambda figures: figures.fragmented,
        ),
    )


def show_cluster(
    metrics: Metrics, watchers: Mapping[str, Watcher[Any]], intake: Intake, left_out: LeftOutObjects
) -> None:
    """Add the gauges about the API server."""

    def silence(now: float) -> Iterable[tuple[str, float]]:
        return [(name, now - watcher.last_heard) for name, watcher in watchers.items()]

    metrics.read_at_scrape(
        time.monotonic,
        ReadAtScrape(
            "muster_watch_silence_seconds", "Since the API server last said anything.", ("resource",), silence
        ),
    )
    metrics.read_at_scrape(
        lambda: intake,
        ReadAtScrape(
            "muster_nodes_with_problems",
            "Nodes that are used without something in them that can't be read.",
            ("resource",),
            lambda watched: [("nodes", watched.nodes_with_problems)],
        ),
        ReadAtScrape(
            "muster_scopes_with_repeated_names",
            "Scopes in which several domains have one name: wider labels tell them apart.",
            ("resource",),
            lambda watched: [("nodes", len(watched.repeated_names))],
        ),
        ReadAtScrape(
            "muster_policies_refused",
            "1 while the ConfigMap of policies can't be read and older ones hold.",
            ("resource",),
            lambda watched: [("policies", watched.policies_refused)],
        ),
    )
    metrics.read_at_scrape(
        left_out.counts,
        ReadAtScrape(
            "muster_objects_left_out",
            "API objects that are left out now, because they can't be read or handled.",
            ("resource",),
            lambda left_out_by_resource: left_out_by_resource.items(),
        ),
    )


def _oldest(tally: Tally) -> Iterable[tuple[str, float]]:
    now = time.time()
    since = tally.oldest.items()
    return [(phase, max(0.0, now - created)) for phase, created in since if phase not in LASTING]


def _values_by_namespace(
    tally: Tally, counts: Callable[[NamespaceTally], Mapping[str, int]]
) -> Iterable[tuple[tuple[str, str], float]]:
    namespaces = tally.namespaces.items()
    return [
        ((name, value), count)
        for name, namespace_tally in namespaces
        for value, count in counts(namespace_tally).items()
    ]


def _oldest_of_namespaces(tally: Tally) -> Iterable[tuple[str, float]]:
    now = time.time()
    return [
        (name, now - min(now, namespace_tally.oldest)) for name, namespace_tally in tally.namespaces.items()
    ]
