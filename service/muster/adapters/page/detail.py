"""Describe one gang for the page: its place with links and bandwidth, refused nodes, and its timeline."""

from __future__ import annotations

import time
from collections import defaultdict, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from muster.adapters.page.layout import islands_of
from muster.domain.decision import Objective, Placed
from muster.domain.printable import printable
from muster.domain.sentences import as_far_as, doubts
from muster.domain.snapshot import Snapshot
from muster.domain.topology import GpuTopology, bits
from muster.gangs.messages.instructions import Moved
from muster.gangs.reporting.places import GangDetails, PodGpus
from muster.placement.cluster.fabric import MAX_RING_GPUS
from muster.placement.gpus.links import MB_PER_GB, rings
from muster.placement.model.objective import values_of

MAX_NODES = 64
MAX_PODS = 256
MAX_REFUSED = 64


def describe(
    details: GangDetails, snapshot: Snapshot, steps: Sequence[PhaseStep], known_since: float
) -> dict[str, Any]:
    """Return the details of a gang that the browser shows.

    This may take long the first time for each kind of node, because its rings are computed.
    """
    by_node = _by_node(details.places)
    nodes = [_node(name, places, snapshot) for name, places in list(by_node.items())[:MAX_NODES]]
    plan = details.view.plan
    view = msgspec.to_builtins(details.view)
    del view["plan"]
    return {
        "gang": view | {"name": printable(details.view.name), "reason": printable(details.view.reason)},
        "nodes": nodes,
        "nodes_left_out": max(0, len(by_node) - MAX_NODES),
        "pods": [_pod(place) for place in details.places[:MAX_PODS]],
        "pods_left_out": max(0, len(details.places) - MAX_PODS),
        "without_place": details.without_place,
        "plan": _plan(plan) if plan is not None else None,
        "refused": [
            {"node": refusal.node, "plugin": printable(refusal.plugin), "message": printable(refusal.message)}
            for refusal in details.refused[:MAX_REFUSED]
        ],
        "refused_left_out": max(0, len(details.refused) - MAX_REFUSED),
        "timeline": msgspec.to_builtins(steps),
        "timeline_cut": len(steps) == MAX_STEPS,
        "known_since": known_since,
    }


def _by_node(places: Sequence[PodGpus]) -> Mapping[str, list[PodGpus]]:
    places_by_node = defaultdict[str, list[PodGpus]](list)
    for place in places:
        places_by_node[place.node].append(place)
    return places_by_node


def _node(name: str, places: Sequence[PodGpus], snapshot: Snapshot) -> dict[str, Any]:
    """Return the gang's GPUs on a node, and the links between them."""
    state = snapshot.nodes.get(name)
    mask = 0
    for place in places:
        mask |= place.gpus
    shown_node: dict[str, Any] = {
        "node": name,
        "pods": len(places),
        "gpus": list(bits(mask)),
        "unindexed": sum(place.unindexed for place in places),
        "reserved": any(place.reserved for place in places),
    }
    if state is None or mask >> state.node.topology.gpu_count:
        return shown_node | {"links": None, "ring": None, "islands": ""}
    topology = state.node.topology
    return shown_node | {
        "links": _links(topology, mask),
        "ring": _ring(topology, mask),
        "islands": islands_of(topology),
    }


def _links(topology: GpuTopology, mask: int) -> list[list[str]] | None:
    """Return the kind of link of each pair of these GPUs; None if no link of the node is known."""
    gpus = list(bits(mask))
    if not topology.is_known or len(gpus) < 2:
        return None
    return [
        ["X" if a == b else link.kind if (link := topology.link(a, b)) is not None else "?" for b in gpus]
        for a in gpus
    ]


def _ring(topology: GpuTopology, mask: int) -> dict[str, float] | None:
    """Return the bandwidth of the best ring over these GPUs, in modelled GB/s; None if there is no ring, or
    links are unknown."""
    if mask.bit_count() < 2 or not topology.is_known or topology.gpu_count > MAX_RING_GPUS:
        return None
    table = rings(topology)
    weakest = int(table.weakest[mask])
    return {"weakest": weakest / MB_PER_GB, "total": int(table.total[mask]) / MB_PER_GB} if weakest else None


def _pod(place: PodGpus) -> dict[str, Any]:
    return {
        "pod": place.pod,
        "node": place.node,
        "gpus": list(bits(place.gpus)),
        "unindexed": place.unindexed,
        "units": place.units,
        "reserved": place.reserved,
    }


def _plan(plan: Placed) -> dict[str, Any]:
    """Return the planner's steps and proof."""
    objective = plan.objective
    return {
        "domain": printable(plan.domain),
        "scope_reached": plan.scope_reached,
        "optimal": plan.optimal,
        "as_far_as": as_far_as(plan),
        "doubts": list(doubts(plan)),
        "gap": plan.gap,
        "unproven": plan.unproven,
        "truncated": plan.truncated,
        "weakest_link_gb_per_s": objective.weakest_link_gb_per_s,
        "ring_gb_per_s": objective.ring_gb_per_s,
        "preferred_reached": objective.preferred_reached,
        "crossings": [list(crossing) for crossing in objective.crossings],
        "levels": [[name, printable(str(value))] for name, value in _levels(objective)],
        "steps": [
            {
                "level": step.level,
                "method": step.method,
                "declined": [list(reason) for reason in step.declined],
            }
            for step in plan.steps
        ],
    }


def _levels(objective: Objective) -> Iterator[tuple[str, str]]:
    """Yield each level and its value as text; a dash if there is none."""
    for row, value in values_of(objective):
        if isinstance(value, tuple):
            yield row.field, ", ".join(f"{part}: {number}" for part, number in value) or "–"
        else:
            yield row.field, "–" if value is None else str(value)


# --- the timeline --------------------------------------------------------------------------------

MAX_STEPS = 32
"""Largest number of steps of one gang that are kept: the last steps."""


@dataclass(frozen=True, slots=True)
class PhaseStep:
    """A gang entered `phase` at this time (seconds since the Unix epoch), because of `why`."""

    at: float
    phase: str
    why: str


class History:
    """The last steps of each existing gang. `since` is when this service began to record."""

    def __init__(self, wall: Callable[[], float] = time.time, clock: Callable[[], float] = time.monotonic):
        self._wall, self._clock = wall, clock
        self._steps: dict[str, deque[PhaseStep]] = {}
        self.since = wall()

    def __len__(self) -> int:
        return len(self._steps)

    def note_move(self, move: Moved) -> None:
        """Take in that a gang has entered a phase. A finished gang is forgotten."""
        if move.phase == "finished":
            self._steps.pop(move.gang, None)
            return
        wall_time = self._wall() - (self._clock() - move.moved_at)
        steps = self._steps.setdefault(move.gang, deque(maxlen=MAX_STEPS))
        steps.append(PhaseStep(wall_time, move.phase, move.why))

    def of(self, gang: str) -> tuple[PhaseStep, ...]:
        """Return the gang's steps, oldest first. If there are MAX_STEPS, earlier steps may be missing."""
        return tuple(self._steps.get(gang, ()))
