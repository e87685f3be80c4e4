"""The gangs to place, by name: those that the targets name, and two that can't be placed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType

from benchmarks.clusters import GPU
from muster.domain.levels import part_of
from muster.domain.node import Resources
from muster.domain.request import GangId, Member, Request, Role, Scope, Segment
from muster.domain.snapshot import Snapshot

CPU_PER_GPU = 8_000
MEMORY_PER_GPU = 64 << 30
FEW = 0.2
LOADER_CPU = 24_000
"""Thousandths of a core of a member that feeds data and has no GPU."""


@dataclass(frozen=True, slots=True)
class Case:
    """A kind of gang. `target_ms` is the p99 to reach at 5,000 nodes and loads of 50 to 95 %, at 20,000 five
    times as much. Where it is not `placeable`, the answer to reach is a refusal with its causes. Of the
    instances of a site only `share` are measured: variants need fewer."""

    name: str
    request: Callable[[Snapshot], Request]
    target_ms: float
    placeable: bool = True
    share: float = 1.0


def _role(name: str, members: int, gpus: int = 1, cpu_milli: int | None = None) -> Role:
    cpu = gpus * CPU_PER_GPU if cpu_milli is None else cpu_milli
    return Role(
        name,
        tuple(Member(f"{name}-{i}", f"{name}-{i}", i) for i in range(members)),
        Resources(cpu, max(1, gpus) * MEMORY_PER_GPU),
        gpus,
        GPU if gpus else "",
    )


def _gang(*roles: Role, scope: Scope | None = None) -> Request:
    size = sum(len(role.members) for role in roles)
    return Request(GangId("bench", "", "gang"), roles, size, scope)


def _always(request: Request) -> Callable[[Snapshot], Request]:
    return lambda snapshot: request


def _roomiest_rack(snapshot: Snapshot) -> int:
    """The most GPUs that are free in one rack."""
    free: Counter[str] = Counter()
    for state in snapshot.nodes.values():
        free[part_of(state.node, Scope.RACK, snapshot.levels)] += state.free_gpu_count
    return max(free.values())


def _one_too_many(snapshot: Snapshot) -> Request:
    return _gang(_role("worker", _roomiest_rack(snapshot) + 1), scope=Scope.RACK)


def _together_too_many(snapshot: Snapshot) -> Request:
    """Each role alone would find a rack; the first two together do not."""
    room = _roomiest_rack(snapshot)
    prefill = max(1, room * 3 // 5)
    return _gang(
        _role("prefill", prefill),
        _role("decode", (room - prefill) // 2 + 1, gpus=2),
        _role("loader", 2, gpus=0, cpu_milli=LOADER_CPU),
        scope=Scope.RACK,
    )


def cases(shrink: int = 1) -> tuple[Case, ...]:
    """All kinds of gangs; those that span racks have `shrink` times fewer members, for clusters smaller
    than the targets'."""

    def spread(name: str, members: int, gpus: int = 1, cpu_milli: int | None = None) -> Role:
        return _role(name, members // shrink, gpus, cpu_milli)

    segments = (Segment(16, Scope.RACK), Segment(4, Scope.NVLINK_DOMAIN))
    unlike = _gang(spread("prefill", 256), spread("decode", 256, gpus=2))
    odd = _gang(spread("prefill", 256, gpus=2), spread("decode", 256, gpus=3))
    feeding = _gang(spread("worker", 256), spread("loader", 256, gpus=0, cpu_milli=LOADER_CPU))
    nested = _gang(replace(spread("worker", 512), segments=segments))
    return (
        Case("rack16", _always(_gang(_role("worker", 16), scope=Scope.RACK)), 10),
        Case("rack16x2", _always(_gang(_role("worker", 16, gpus=2), scope=Scope.RACK)), 10, share=FEW),
        Case("rails8x3", _always(_gang(_role("worker", 8, gpus=3), scope=Scope.RACK)), 60, share=FEW),
        Case("many512", _always(_gang(spread("worker", 512))), 60),
        Case("many512x2", _always(_gang(spread("worker", 512, gpus=2))), 60, share=FEW),
        Case("many2048", _always(_gang(spread("worker", 2048))), 150),
        Case("many2048x2", _always(_gang(spread("worker", 2048, gpus=2))), 150, share=FEW),
        Case("two_roles_256", _always(unlike), 100),
        Case("two_roles_2_3", _always(odd), 100, share=FEW),
        Case("two_roles_cpu", _always(feeding), 100, share=FEW),
        Case("segments512", _always(nested), 60),
        Case("infeasible_one", _one_too_many, 10, placeable=False),
        Case("infeasible_many", _together_too_many, 50, placeable=False),
    )


CASES: Mapping[str, Case] = MappingProxyType({case.name: case for case in cases()})
"""By name. `x2`, `x3`: two or three GPUs a member, else one. `rails8x3` has a choice of network rails."""
