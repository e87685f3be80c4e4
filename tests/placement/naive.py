"""The same problem, solved by trying everything: the oracle of the properties.

Every way to give members and free GPUs of every node, all combinations over the nodes. Shares no code with
the planner; small clusters only.
"""

from __future__ import annotations

from functools import cache
from itertools import permutations, product

from muster.domain.request import Request
from muster.domain.snapshot import NodeState, Snapshot
from muster.domain.topology import GpuTopology

INF = float("inf")
Option = tuple[tuple[int, ...], int]
"""Members by role on the node, the mask of their GPUs."""


@cache
def ring(topology: GpuTopology, mask: int) -> tuple[float, float]:
    """Weakest link (INF below two GPUs, 0 where unknown) and sum of the best ring, GB/s."""
    gpus = [i for i in range(topology.gpu_count) if mask >> i & 1]
    if len(gpus) < 2:
        return INF, 0.0
    best = (-1.0, -1.0)
    for order in permutations(gpus[1:]):
        circle = [gpus[0], *order]
        links = [topology.links[a][b] for a, b in zip(circle, circle[1:] + circle[:1], strict=True)]
        speeds = [link.gb_per_s if link else 0.0 for link in links]
        best = max(best, (min(speeds), sum(speeds)))
    return best


def domains(state: NodeState) -> dict[str, int]:
    node, everything = state.node, (1 << state.node.topology.gpu_count) - 1
    clique = node.labels.get("gpu.topology/nvlink-domain") or node.labels.get("nvidia.com/gpu.clique")
    if clique:
        return {clique: everything} if everything else {}
    return {f"{node.name}/{i}": mask for i, mask in enumerate(node.topology.islands)}


def parts(state: NodeState, scope: str) -> dict[str, int]:
    """Parts of the scope that the node lies in, and its GPUs there."""
    everything = (1 << state.node.topology.gpu_count) - 1
    if scope == "gpu":
        return {f"{state.node.name}/{i}": 1 << i for i in range(state.node.topology.gpu_count)}
    if scope == "nvlink-domain":
        return domains(state)
    if scope == "node":
        return {state.node.name: everything}
    value = state.node.labels.get(f"topology.kubernetes.io/{scope}")
    return {value: everything} if value else {}


def unusable(state: NodeState, free: int) -> int:
    known = domains(state)
    linked = any(m.bit_count() > 1 for m in state.node.topology.islands) or "clique" in str(state.node.labels)
    pools = list(known.values()) if linked else [(1 << state.node.topology.gpu_count) - 1]
    total = 0
    for pool in pools:
        k = (free & pool).bit_count()
        total += sum(250 * k for p in (1, 2, 4, 8) if k < p)
    return total


def options(state: NodeState, request: Request) -> list[Option]:
    """All ways to use the node, one for each distinct outcome."""
    found: list[Option] = []
    for counts in product(*(range(len(role.members) + 1) for role in request.roles)):
        pairs = list(zip(counts, request.roles, strict=True))
        cpu = sum(n * role.resources.cpu_milli for n, role in pairs)
        gpus = sum(n * role.gpus for n, role in pairs)
        if cpu > state.free.cpu_milli or (state.node.unschedulable and any(counts)):
            continue
        if gpus and "nvidia.com/gpu" not in state.node.gpu_resources:
            continue
        if any(
            n and any(state.node.labels.get(t.key) not in t.values for t in role.rules.required)
            for n, role in pairs
        ):
            continue
        seen = set()
        for mask in range(1 << state.node.topology.gpu_count):
            if mask & ~state.free_gpus or mask.bit_count() != gpus:
                continue
            touched = frozenset(name for name, part in domains(state).items() if part & mask)
            outcome = (
                touched, ring(state.node.topology, mask), unusable(state, state.free_gpus & ~mask),
                mask.bit_count() == 1 and mask,
            )  # fmt: skip
            if outcome not in seen:
                seen.add(outcome)
                found.append((counts, mask))
    return found


def holds(scope: str, used: list[tuple[NodeState, Option]]) -> bool:
    """Whether one part of the scope holds everything in use."""
    common: set[str] | None = None
    for state, (_, mask) in used:
        here = {name for name, part in parts(state, scope).items() if mask & ~part == 0}
        common = here if common is None else common & here
    return bool(common)


def value(snapshot: Snapshot, request: Request, used: list[tuple[NodeState, Option]]) -> tuple[float, ...]:
    """All levels, smaller is better: members (all, by role), preferred scopes, crossings, links, damage."""
    counts = [sum(option[0][r] for _, option in used) for r in range(len(request.roles))]
    reached = [i for i, scope in enumerate(request.preferred_scopes) if holds(scope, used)]
    crossed: list[float] = []
    for scope in ("zone", "rack"):
        if any(parts(state, scope) for state in snapshot.nodes.values()):
            crossed.append(len({next(iter(parts(s, scope)), f"alone {s.node.name}") for s, _ in used}))
    crossed.append(len(used))
    if any(role.gpus for role in request.roles):
        crossed.append(len({d for s, (_, mask) in used for d, part in domains(s).items() if part & mask}))
    rings = [ring(state.node.topology, mask) for state, (_, mask) in used]
    damage = sum(
        unusable(state, state.free_gpus & ~mask) - unusable(state, state.free_gpus)
        for state, (_, mask) in used
    )
    return (
        -sum(counts), *(-n for n in counts), min(reached, default=99), *crossed,
        -min((weakest for weakest, _ in rings), default=INF), -sum(total for _, total in rings), damage,
    )  # fmt: skip


def best(snapshot: Snapshot, request: Request) -> tuple[float, ...] | None:
    """The value of the best plan; None when there is none."""
    states = list(snapshot.nodes.values())
    found: tuple[float, ...] | None = None
    sizes = [len(role.members) for role in request.roles]

    def walk(at: int, left: list[int], used: list[tuple[NodeState, Option]]) -> None:
        nonlocal found
        if at == len(states):
            if sum(sizes) - sum(left) < request.min_member or not used:
                return
            if request.required_scope and not holds(request.required_scope, used):
                return
            got = value(snapshot, request, used)
            if found is None or got < found:
                found = got
            return
        for option in all_options[at]:
            if all(n <= have for n, have in zip(option[0], left, strict=True)):
                rest = [have - n for n, have in zip(option[0], left, strict=True)]
                walk(at + 1, rest, [*used, (states[at], option)] if any(option[0]) else used)

    all_options = [options(state, request) for state in states]
    walk(0, sizes, [])
    return found
