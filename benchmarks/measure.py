"""One instance: place it, verify it once more, let the peers place it, and note all of it."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field

from benchmarks.compactness import Compactness, compactness, holds
from benchmarks.gangs import Case
from benchmarks.peers.fabric import Fabric, Peer
from benchmarks.peers.kai import kai
from benchmarks.peers.kueue import kueue
from muster.domain.causes.not_planned import NotDecided
from muster.domain.decision import Decision, Placed, Unplaceable
from muster.domain.request import Request
from muster.domain.snapshot import Snapshot
from muster.placement.gpus.costs import Cost
from muster.placement.limits import Limits, Timings
from muster.placement.model.objective import WithoutGpus, quality_levels
from muster.placement.place import PlacementDefect, place
from muster.placement.verify import verify

PEERS: Mapping[str, Peer] = {"kueue": kueue, "kai": kai}

PHASES = ("scan", "bound", "build", "solve", "sets", "verify")

HANGS_AFTER = 10
"""Times the guard's wall clock after which a decision counts as hanging."""


class NoAnswer(Exception):
    """The planner did not come back."""


@dataclass(frozen=True, slots=True)
class PeerResult:
    """A peer's answer. `refused` too where its plan breaks what the gang requires (`broken`)."""

    ms: float
    plan: Compactness | None
    broken: bool = False


@dataclass(frozen=True, slots=True)
class Sample:
    """One instance. `plan` is None if nothing was placed; `undecided` if that is not proven.

    `proven_compact`: zones, racks and nodes are proven fewest. `phases_ms` is what the planner reports of
    itself."""

    seed: int
    warm: bool
    ms: float
    plan: Compactness | None
    optimal: bool
    proven_compact: bool
    gap: float | None
    undecided: bool
    phases_ms: Mapping[str, float]
    defect: str | None = None
    peers: Mapping[str, PeerResult] = field(default_factory=dict)


def measured(fabric: Fabric, case: Case, *, seed: int, warm: bool, guard_s: float) -> Sample:
    """Place the case's gang on the fabric's snapshot, and let the peers do so."""
    snapshot = fabric.snapshot
    request = case.request(snapshot)
    until = time.monotonic() + guard_s
    timings = Timings(time.perf_counter)
    limits = Limits(seconds_left=lambda: until - time.monotonic(), timings=timings)
    start = time.perf_counter()
    try:
        with _answer_within(HANGS_AFTER * guard_s):
            decision: Decision | None = place(snapshot, request, limits)
        defect = None
    except (PlacementDefect, NoAnswer) as error:
        decision, defect = None, str(error)
    except Exception as error:  # noqa: BLE001 — whatever a planner throws is a result here
        decision, defect = None, repr(error)
    ms = _since(start)
    if isinstance(decision, Placed):
        defect = defect or "; ".join(verify(snapshot, request, decision)) or None
    plan = _plan(snapshot, request, decision)
    return Sample(
        seed=seed,
        warm=warm,
        ms=ms,
        plan=plan,
        optimal=isinstance(decision, Placed) and decision.optimal,
        proven_compact=proven_compact(decision),
        gap=decision.gap if isinstance(decision, Placed) else None,
        undecided=isinstance(decision, Unplaceable)
        and any(isinstance(cause, NotDecided) for cause in decision.causes),
        phases_ms={phase: seconds * 1000 for phase, seconds in timings.seconds.items()},
        defect=defect,
        peers={name: _asked(peer, fabric, request) for name, peer in PEERS.items()},
    )


@contextmanager
def _answer_within(seconds: float) -> Iterator[None]:
    """Give up a planner that does not mind its guard, so that a run ends. Main thread only."""

    def give_up(*_: object) -> None:
        raise NoAnswer(f"no answer within {seconds:g} s")

    before = signal.signal(signal.SIGALRM, give_up)
    timer_left_s, _ = signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, timer_left_s)
        signal.signal(signal.SIGALRM, before)


def _plan(snapshot: Snapshot, request: Request, decision: Decision | None) -> Compactness | None:
    if not isinstance(decision, Placed):
        return None
    return compactness(snapshot, request, {member.uid: member.node for member in decision.members})


def proven_compact(decision: Decision | None) -> bool:
    """Whether zones, racks and nodes are proven fewest."""
    below_nodes = {level.name for level in quality_levels(tuple(Cost), WithoutGpus.SOME_MEMBERS)}
    return isinstance(decision, Placed) and (decision.optimal or decision.unproven in below_nodes)


def _asked(peer: Peer, fabric: Fabric, request: Request) -> PeerResult:
    start = time.perf_counter()
    assignment = peer(fabric, request)
    ms = _since(start)
    if assignment is None:
        return PeerResult(ms, None)
    if not holds(fabric.snapshot, request, assignment):
        return PeerResult(ms, None, broken=True)
    return PeerResult(ms, compactness(fabric.snapshot, request, assignment))


def _since(start: float) -> float:
    """Milliseconds since then."""
    return (time.perf_counter() - start) * 1e3
