"""Compare the planner with one plain CP-SAT model of the whole problem, on random clusters of 8 to 40 nodes.

`python -m tests.placement.plain_model_check --seed S --clusters N` prints where the planner is worse, refuses
wrongly or does not decide, and a line of JSON; it exits with 1 if there is any such cluster.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections import Counter
from random import Random

from benchmarks.measure import proven_compact
from muster.domain.constraints import MaxPer, Subgroup
from muster.domain.decision import Decision, Placed
from muster.domain.node import Node, Resources, Usage
from muster.domain.request import GangId, Member, NodeRules, Request, Role, Segment, SelectorTerm
from muster.domain.sentences import sentence
from muster.domain.snapshot import Snapshot
from muster.domain.topology import GpuTopology
from muster.placement.place import Limits, place
from tests.placement.drawings import LABELS, RESOURCE, islands
from tests.placement.naive import crossing_scopes, on_nodes, together, unions_of
from tests.placement.naive_parts import label
from tests.placement.naive_unusable import unusable
from tests.placement.plain_model import NVLINK, PlainModel, Worth
from tests.placement.worlds import World

SHAPES = [
    islands([8]),
    islands([4, 4]),
    islands([4]),
    islands([2, 2]),
    islands([1] * 8),
    GpuTopology.unknown(0),
]
SCOPES = ["zone", "rack", "rack", "node", NVLINK]
TIME = 20.0
"""Deterministic time for each level of the plain model."""


def draw(rng: Random) -> World:
    """A cluster and a gang that asks for a tenth of it up to a little more than it has."""
    snapshot = _cluster(rng)
    return World(snapshot, _gang(rng, [state.free_gpu_count for state in snapshot.nodes.values()]))


def _cluster(rng: Random) -> Snapshot:
    nodes, usages = [], []
    shapes = rng.sample(SHAPES, rng.choice([1, 1, 2, 3]))
    zones, racks, load = rng.choice([0, 0, 2, 3]), rng.choice([0, 2, 3, 5, 8]), rng.choice([0, 0.2, 0.5, 0.8])
    cliques, bare = rng.random() < 0.2, rng.choice([0, 0, 0.15])
    for i in range(rng.randint(8, 40)):
        name, shape, labels = f"n{i:02}", rng.choice(shapes), {"pool": rng.choice("ppq")}
        if zones and rng.random() >= bare:
            labels[LABELS["zone"]] = f"z{rng.randrange(zones)}"
        if racks and rng.random() >= bare:
            labels[LABELS["rack"]] = f"r{rng.randrange(racks)}"
        if cliques and rng.random() < 0.5:
            labels["nvidia.com/gpu.clique"] = f"k{rng.randrange(4)}"
        resources = Resources(rng.choice([8, 16, 64]) * 1000, 2**40, 110)
        cordoned = rng.random() < 0.05
        nodes.append(Node(name, resources, shape, frozenset({RESOURCE}), labels, unschedulable=cordoned))
        taken_gpus = sum(1 << gpu for gpu in range(shape.gpu_count) if rng.random() < load)
        usages.append(Usage(f"{name}-taken", name, Resources(pods=0), gpus=taken_gpus))
    return Snapshot.of(nodes, usages)


def _gang(rng: Random, free: list[int]) -> Request:
    names, share = "wxy"[: rng.choice([1, 1, 2, 2, 3])], rng.choice([0.1, 0.3, 0.6, 1.1])
    roles = [_role(rng, name, share * sum(free) / len(names), max(free)) for name in names]
    size = sum(len(role.members) for role in roles)
    limits = [MaxPer(scope, rng.randint(1, 6)) for scope in ("rack", "node") if rng.random() < 0.15]
    subgroups = [Subgroup("s", rng.choice(SCOPES[:3]), frozenset(names[:2]))] if len(names) > 2 else []
    return Request(
        GangId("default", "test", "gang"),
        tuple(roles),
        rng.choice([size, size, max(1, size // 2), 1]),
        rng.choice([None, None, None, None, None, *SCOPES]),
        rng.choice([(), (), ("rack",), ("node", "rack"), (NVLINK, "rack", "zone")]),
        tuple(limits),
        subgroups=tuple(subgroups) if rng.random() < 0.5 else (),
    )


def _role(rng: Random, name: str, gpus: float, most: int) -> Role:
    member_gpus = min(most, rng.choice([0, 1, 1, 2, 2, 3, 4, 8]))
    count = min(rng.choice([4, 12, 40]), max(1, round(gpus / max(1, member_gpus))))
    segments: tuple[Segment, ...] = ()
    if count > 2 and rng.random() < 0.3:
        size = rng.choice([2, 3, 4])
        segments = (Segment(size, rng.choice(SCOPES)),)
        if rng.random() < 0.3:
            segments = (Segment(2 * size, "rack"), Segment(size, rng.choice(["node", NVLINK])))
    selector = NodeRules((SelectorTerm("pool", "In", ("p",)),)) if rng.random() < 0.2 else NodeRules()
    return Role(
        name,
        tuple(Member(f"{name}{i}", f"{name}-{i}") for i in range(count)),
        Resources(rng.choice([0, 1, 2, 6]) * 1000),
        member_gpus,
        RESOURCE if member_gpus else "",
        selector,
        rng.choice(SCOPES) if rng.random() < 0.2 else None,
        segments,
    )


def difference(snapshot: Snapshot, request: Request, decision: Decision) -> str:
    """Say how the decision is worse than the plain model's, or contradicts it; "" where it is as good."""
    best_worth, proven = PlainModel(snapshot, request, TIME).best_worth()
    if not isinstance(decision, Placed):
        return f"refused, but {best_worth} is possible: {sentence(decision)}" if best_worth else ""
    worth = worth_of(snapshot, request, decision)
    if best_worth is None:
        return f"impossible, but placed as {worth}" if proven else ""
    if worth > best_worth:
        return f"{worth} is worse than {best_worth}"
    if proven and worth < best_worth:
        return f"{worth} is better than the best, {best_worth}"
    if proven and not proven_compact(decision):
        return f"not proven in {decision.unproven}: {worth}"
    return ""


def worth_of(snapshot: Snapshot, request: Request, decision: Placed) -> Worth:
    """What a plan is worth, counted from its members."""
    by_role = tuple(-sum(m.role == role.name for m in decision.members) for role in request.roles)
    spots = list(unions_of(snapshot, request, decision.members).values())
    reached = [i for i, scope in enumerate(request.preferred_scopes) if together(snapshot, spots, scope)]
    parts = []
    touching = [spot for spot in spots if spot.mask] or spots
    by_node = on_nodes(request, decision.members)
    unusable_gpus = 0 if any(spot.mask for spot in spots) else unusable(snapshot, request, by_node, ()) or 0
    for scope in crossing_scopes(snapshot, request):
        if scope != NVLINK:
            names = [(label(snapshot, s.state, scope), s.state.node.name) for s in touching]
            parts.append(len({name if scope == "node" else part or (name,) for part, name in names}))
    return Worth(
        sum(by_role),
        by_role,
        min(reached, default=len(request.preferred_scopes)),
        unusable_gpus,
        tuple(parts),
    )


def main() -> int:
    """Compare as many clusters as are asked for."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--clusters", type=int, default=1000)
    arguments = parser.parse_args()
    began, outcomes = time.monotonic(), Counter[str]()
    for number in range(arguments.clusters):
        world = draw(Random(f"{arguments.seed} {number}"))
        decision = place(*world, Limits())
        problem = difference(*world, decision)
        outcomes[type(decision).__name__] += 1
        if problem:
            outcomes["different"] += 1
            print(f"{arguments.seed} {number}: {problem}", world, file=sys.stderr, flush=True)
    seconds = round(time.monotonic() - began)
    print(
        json.dumps({"seed": arguments.seed, "clusters": arguments.clusters, "seconds": seconds, **outcomes})
    )
    return 1 if outcomes["different"] else 0


if __name__ == "__main__":
    sys.exit(main())
