"""The same problem, solved by trying everything: the oracle of the properties.

Every way to give members and free GPUs of every node, all combinations over the nodes, and for each that is
better than the best so far a search for who goes where that keeps every rule. Shares no code with the planner
or the judge; small clusters only.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from functools import cache
from itertools import combinations, permutations, product
from typing import NamedTuple

from muster.domain.constraints import (
    NODE,
    Affinity,
    AntiAffinity,
    PeerConstraint,
    PerScope,
    Subgroup,
    TopologySpread,
)
from muster.domain.decision import MemberPlacement, Objective, Placed
from muster.domain.quorums import Leaf, Quorum
from muster.domain.request import Member, Request, Role
from muster.domain.snapshot import NodeState, Snapshot
from muster.domain.topology import GpuTopology, bits
from tests.placement import naive_damage, naive_fit, naive_unusable
from tests.placement.constraints import OF_KIND
from tests.placement.naive_parts import label
from tests.placement.policy_parts import POLICY_PARTS

INF = float("inf")
Fill = tuple[tuple[int, ...], ...]
"""By GPU, the slices of each role on it."""


class Option(NamedTuple):
    """Members by role on the node, the mask of all their GPUs, the slices on these, and the units that they
    take of each."""

    counts: tuple[int, ...]
    mask: int
    fill: Fill
    units: tuple[int, ...]


class Spot(NamedTuple):
    """Where a member lies, or several on one node. `known`: false if the indices of its GPUs are
    unknown. `units`: by GPU, what slices take; `cpu` is what all take, in thousandths of a core."""

    state: NodeState
    mask: int
    known: bool = True
    units: tuple[int, ...] = ()
    cpu: int = 0


class Value(NamedTuple):
    """All levels, smaller is better; `weakest` is −INF where there is no link, 0 where one is unknown."""

    members: int
    by_role: tuple[int, ...]
    preferred: int
    taken: int
    """GPUs that members without GPUs make unusable, in a gang without GPUs."""
    parts: tuple[int, ...]
    beside: int
    """The same in a gang with GPUs."""
    costs: tuple[int, ...]
    opened: int
    shared: int
    weakest: float
    ring: float
    sockets: int
    damage: int
    fit: int = 0
    penalty: int = 0


@cache
def ring(topology: GpuTopology, mask: int) -> tuple[float, float]:
    """Weakest link (INF below two GPUs, 0 where unknown) and sum of the best ring, GB/s."""
    gpus = [i for i in range(topology.gpu_count) if mask >> i & 1]
    if len(gpus) < 2:
        return INF, 0.0
    best_speeds = (-1.0, -1.0)
    for order in permutations(gpus[1:]):
        circle = [gpus[0], *order]
        links = [topology.links[a][b] for a, b in zip(circle, circle[1:] + circle[:1], strict=True)]
        speeds = [link.gb_per_s if link else 0.0 for link in links]
        best_speeds = max(best_speeds, (min(speeds), sum(speeds)))
    return best_speeds


def links(state: NodeState, mask: int) -> tuple[float, float]:
    """The ring as far as the free GPUs are known: with guesses among them no link counts."""
    if state.unindexed_gpus and mask.bit_count() > 1:
        return 0.0, 0.0
    return ring(state.node.topology, mask)


@cache
def hangs(topology: GpuTopology, gpus: tuple[int, ...], kinds: tuple[str, ...]) -> list[tuple[int, ...]]:
    """The parts into which links of these kinds cut the GPUs."""
    parts: list[list[int]] = []
    for gpu in gpus:
        for part in parts:
            between = [topology.links[gpu][peer] for peer in part]
            if not any(link and link.kind in kinds for link in between):
                part.append(gpu)
                break
        else:
            parts.append([gpu])
    return [tuple(part) for part in parts]


@cache
def socket_distance(topology: GpuTopology, mask: int) -> int:
    """What the GPUs cost by the parts that they touch: 64 for a NUMA node more, 1 for a finer part."""
    far, total, parts = ("SYS", "NODE", "PHB", "PXB"), 0, [tuple(range(topology.gpu_count))]
    for depth in range(len(far)):
        parts = [finer for part in parts for finer in hangs(topology, part, far[: depth + 1])]
        touched = sum(any(mask >> gpu & 1 for gpu in part) for part in parts)
        total += (1 if depth else 64) * max(0, touched - 1)
    return total


def distance_of_known_gpus(state: NodeState, mask: int) -> int:
    """The distance as far as the free GPUs are known."""
    return 0 if state.unindexed_gpus else socket_distance(state.node.topology, mask)


def clique(state: NodeState) -> str | None:
    """The domain that the node's labels name."""
    labels = state.node.labels
    return labels.get("gpu.topology/nvlink-domain") or labels.get("nvidia.com/gpu.clique")


def all_gpus(state: NodeState) -> int:
    return (1 << state.node.topology.gpu_count) - 1


def domains(state: NodeState, snapshot: Snapshot | None = None) -> dict[str, int]:
    """The NVLink domains that the node lies in, promised or not, and its GPUs there. Without the snapshot
    one over several nodes has no name."""
    if clique(state):
        name = label(snapshot, state, "nvlink-domain") if snapshot else "wide"
        return {name: all_gpus(state)} if all_gpus(state) else {}
    return {f"{state.node.name}/{i}": mask for i, mask in enumerate(state.node.topology.islands)}


def parts_around(snapshot: Snapshot, spot: Spot, scope: str) -> frozenset[str]:
    """The parts of the scope that all of the spot lies in."""
    state, name = spot.state, spot.state.node.name
    if scope == "node":
        return frozenset({name})
    if scope not in ("gpu", "nvlink-domain"):
        return frozenset(filter(None, [label(snapshot, state, scope)]))
    whole = len(domains(state, snapshot)) == 1
    parts = domains(state, snapshot) if whole or not state.unindexed_gpus else {}
    if scope == "gpu":
        count = 0 if state.unindexed_gpus else state.node.topology.gpu_count
        parts = {f"{name}/{i}": 1 << i for i in range(count)}
    if not spot.known and not whole:
        return frozenset()
    return frozenset(part for part, mask in parts.items() if mask & spot.mask == spot.mask)


def parts_touched_by(snapshot: Snapshot, spot: Spot, scope: str) -> frozenset[str]:
    """The parts of the scope in which the spot counts: where there is none, the node or GPU is one."""
    state, name = spot.state, spot.state.node.name
    if scope == "node":
        return frozenset({name})
    if scope != "nvlink-domain":
        return frozenset({label(snapshot, state, scope) or f"alone {name}"})
    if not spot.known and len(domains(state, snapshot)) == 1:
        return frozenset(domains(state, snapshot))
    if state.unindexed_gpus and len(domains(state, snapshot)) > 1:
        return frozenset(f"guess {name} {i}" for i in range(16) if spot.mask >> i & 1)
    return frozenset(part for part, mask in domains(state, snapshot).items() if mask & spot.mask)


Look = Callable[[Snapshot, Spot, str], frozenset[str]]


def together(snapshot: Snapshot, spots: Iterable[Spot], scope: str) -> bool:
    """Whether one part of the scope holds all of these."""
    inside = [parts_around(snapshot, spot, scope) for spot in spots]
    return bool(frozenset.intersection(*inside))


def unusable(state: NodeState, free: int, memory: tuple[int, ...]) -> int:
    """F of the node in GPU-thousandths. `free` masks the wholly free GPUs, `memory` is left of the others."""
    node, total = state.node, 0
    for gpu, (every, free_units) in enumerate(zip(node.gpu_memory, memory, strict=True)):
        if every and not free >> gpu & 1 and not node.spreads_slices:
            total += 1000 * free_units * sum(free_units < every / part for part in (1, 2, 4)) // (3 * every)
            total += 1000 * free_units // every if node.gpu_resources else 0
    if node.gpu_memory and not node.gpu_resources:
        return total
    linked = any(m.bit_count() > 1 for m in state.node.topology.islands) or clique(state)
    pools = list(domains(state).values()) if linked and not state.unindexed_gpus else [all_gpus(state)]
    for pool in pools:
        k = max(0, (free & pool).bit_count() - state.unindexed_gpus)
        total += sum(250 * k for p in (1, 2, 4, 8) if k < p)
    return total


def by_rank(members: Iterable[Member]) -> list[Member]:
    """By rank, none last; then w-2 before w-10."""

    def name(member: Member) -> list[object]:
        return [int(piece) if piece.isdigit() else piece for piece in re.split(r"(\d+)", member.name)]

    return sorted(members, key=lambda m: (INF if m.rank is None else m.rank, name(m), m.uid))


class Rules:
    """What must hold of who lies where, worked out once for a request."""

    def __init__(self, snapshot: Snapshot, request: Request) -> None:
        self.snapshot, self.request = snapshot, request
        self.scopes = crossing_scopes(snapshot, request)
        self.memo: dict[object, frozenset[str]] = {}
        gpus = {role.name: role.gpus or bool(role.slice) for role in request.roles}
        stay = [r for r in request.running if r.node in snapshot.nodes]
        self.running = {
            r.member.uid: Spot(
                snapshot.nodes[r.node],
                r.gpus,
                r.gpus > 0 or not gpus.get(r.role, r.usage and r.usage.unindexed_gpus),
            )
            for r in stay
        }
        self.ranks = {role.name: by_rank(role.members) for role in request.roles}
        self.groups: list[tuple[str, list[str]]] = []
        """(scope, uids): one part of the scope holds those of them that are somewhere."""
        everyone: list[str] = []
        for role in request.roles:
            old = [r.member for r in stay if r.role == role.name]
            uids = [member.uid for member in by_rank([*role.members, *old])]
            everyone += uids
            if role.required_scope:
                self.groups.append((role.required_scope, uids))
            for segment in role.segments:
                starts = range(0, len(uids), segment.size)
                self.groups += [(segment.scope, uids[i : i + segment.size]) for i in starts]
        for group in request.subgroups:
            new = [member for role in request.roles if role.name in group.roles for member in role.members]
            old = [r.member for r in stay if r.role in group.roles]
            self.groups.append((group.scope, [member.uid for member in (*new, *old)]))
        if request.required_scope:
            self.groups.append((request.required_scope, everyone))

    def stay(self) -> bool:
        """Whether the running members keep the rules among themselves."""
        alone, self.running = self.running, {}
        rules_hold = self.hold(alone)
        self.running = alone
        return rules_hold

    def hold(self, new_spots: Mapping[str, Spot], last: str | None = None) -> bool:
        """Whether these members may lie here, next to running members.

        More members never make it better. So a search may ask before all are placed, each time for the
        `last` one. The plan is not blamed for a part where it puts no member."""
        all_spots = {**self.running, **new_spots}
        for scope, uids in self.groups:
            if last in uids or (last is None and any(uid in new_spots for uid in uids)):
                inside = [self.look(parts_around, all_spots[uid], scope) for uid in uids if uid in all_spots]
                if not frozenset.intersection(*inside):
                    return False
        return all(
            in_number(
                rule,
                *(
                    [
                        part
                        for spot in spots.values()
                        for part in self.look(parts_touched_by, spot, rule.scope)
                    ]
                    for spots in (self.running, new_spots)
                ),
            )
            for rule in self.request.per_scope
            if rule.scope != "gpu" and rule.fewer_fit
        )

    def in_number(self, counts: Mapping[str, tuple[int, ...]]) -> bool:
        """Whether all members, by node and role, keep the numbers by scopes that are no narrower than nodes.

        Here more members may make it better, unlike in `hold`."""
        for rule in self.request.per_scope:
            if rule.scope in ("gpu", "nvlink-domain"):
                continue
            old = [
                part
                for spot in self.running.values()
                for part in self.look(parts_touched_by, spot, rule.scope)
            ]
            new = [
                part
                for node, by_role in counts.items()
                for part in self.look(parts_touched_by, Spot(self.snapshot.nodes[node], 0), rule.scope)
                for _ in range(sum(by_role))
            ]
            if not in_number(rule, old, new):
                return False
        return True

    def look(self, how: Look, spot: Spot, scope: str) -> frozenset[str]:
        """`parts_around` or `parts_touched_by`, remembered: the search asks again and again."""
        key = how, scope, spot.state.node.name, spot.mask, spot.known
        if key not in self.memo:
            self.memo[key] = how(self.snapshot, spot, scope)
        return self.memo[key]


def in_number(rule: PerScope, old: list[str], new: list[str]) -> bool:
    """Whether the number holds in each part that gets a member: a part for each member, old and new."""
    keeps_number = OF_KIND[type(rule)].kept
    return all(keeps_number(rule.members, old.count(part) + new.count(part)) for part in set(new))


def admits(state: NodeState, role: Role) -> bool:
    """As far as the drawn clusters go: resources, selectors by value, readiness, cordons and taints. A
    toleration without a key covers all taints, another one the taint that it repeats."""
    tolerations = {
        (toleration.key, toleration.value, toleration.effect) for toleration in role.rules.tolerations
    }
    taints = {(taint.key, taint.value, taint.effect) for taint in state.node.taints}
    return (
        state.node.ready
        and (
            any(not key for key, _, _ in tolerations)
            or (not state.node.unschedulable and taints <= tolerations)
        )
        and (not role.gpus or role.gpu_resource in state.node.gpu_resources)
        and (
            not role.slice
            or (bool(state.node.gpu_memory) and role.slice.resource in state.node.memory_resources)
        )
        and all(state.node.labels.get(term.key) in term.values for term in role.rules.required)
    )


def options(state: NodeState, rules: Rules, running: int) -> list[Option]:
    """All ways to use the node, one for each distinct outcome. `running`: GPUs of the gang there already."""
    request = rules.request
    distinct_options: list[Option] = []
    by_gpu = "gpu" in {request.required_scope, *request.preferred_scopes}
    limited = {rule.scope for rule in request.per_scope}
    by_gpu |= any(role.slice for role in request.roles) and "gpu" in limited
    for counts in product(*(range(len(role.members) + 1) for role in request.roles)):
        pairs = list(zip(counts, request.roles, strict=True))
        cpu = sum(n * role.resources.cpu_milli for n, role in pairs)
        gpus = sum(n * role.gpus for n, role in pairs)
        if (cpu and cpu > state.free.cpu_milli) or gpus > state.free_gpu_count:
            continue
        if any(n and not admits(state, role) for n, role in pairs):
            continue
        outcomes = set()
        for fill, mask in product(fills(state, pairs), range(1 << state.node.topology.gpu_count)):
            sliced = sum(1 << gpu for gpu, slices in enumerate(fill) if any(slices))
            if mask & ~state.free_gpus or mask.bit_count() != gpus or mask & sliced:
                continue
            units = units_of(fill, request)
            spot = Spot(state, mask | sliced, units=units)
            outcome = (
                tuple((mask & part).bit_count() for part in domains(state).values()),
                tuple((sliced & part).bit_count() for part in domains(state).values()),
                tuple(preferences(rules, {state.node.name: spot}, 0).values()) if request.terms else 0,
                links(state, mask | sliced | running),
                distance_of_known_gpus(state, mask | sliced | running),
                unusable_after(spot),
                (sliced & state.free_gpus).bit_count(),
                (sliced & ~running).bit_count(),
                mask | sliced if by_gpu or (mask | sliced).bit_count() == 1 else 0,
                sorted(fill) if by_gpu else 0,
                left_of(spot) if rules.snapshot.typical else 0,
            )
            if repr(outcome) not in outcomes:
                outcomes.add(repr(outcome))
                distinct_options.append(Option(counts, mask | sliced, fill, units))
    return distinct_options


def fills(state: NodeState, pairs: list[tuple[int, Role]]) -> list[Fill]:
    """All ways to put these numbers of members of each role on GPUs as slices."""
    all_fills: set[Fill] = {((0,) * len(pairs),) * state.node.topology.gpu_count}
    for r, (count, role) in enumerate(pairs):
        for _ in range(count if role.slice else 0):
            more = set()
            for fill in all_fills:
                for gpus in combinations(range(len(fill)), role.slice.gpus if role.slice else 0):
                    ways = [
                        [n + (g in gpus and i == r) for i, n in enumerate(fill[g])] for g in range(len(fill))
                    ]
                    more.add(tuple(map(tuple, ways)))
            all_fills = {fill for fill in more if not overfull(state, fill, [role for _, role in pairs])}
    return sorted(all_fills)


def overfull(state: NodeState, fill: Fill, roles: list[Role]) -> bool:
    """Whether the slices take more than is left of some GPU."""
    units = [role.slice.units if role.slice else 0 for role in roles]
    taken_units = [sum(n * size for n, size in zip(slices, units, strict=True)) for slices in fill]
    free_units = [*state.free_memory, *[0] * len(taken_units)]
    return any(have > room for have, room in zip(taken_units, free_units, strict=False))


def cpu_of(request: Request, counts: Iterable[int]) -> int:
    """The cpu of these numbers of members of each role, in thousandths of a core."""
    return sum(n * role.resources.cpu_milli for n, role in zip(counts, request.roles, strict=True))


def units_of(fill: Fill, request: Request) -> tuple[int, ...]:
    """What these slices take of each GPU."""
    units = [role.slice.units if role.slice else 0 for role in request.roles]
    return tuple(sum(n * size for n, size in zip(slices, units, strict=True)) for slices in fill)


def unusable_after(spot: Spot) -> int:
    """F of the node once the plan has what it takes of it."""
    return unusable(spot.state, spot.state.free_gpus & ~spot.mask, left_of(spot))


def left_of(spot: Spot) -> tuple[int, ...]:
    """By GPU, the units left once the plan has what it takes."""
    return tuple(
        free_units - taken_units if taken_units else free_units * (1 - (spot.mask >> gpu & 1))
        for gpu, (free_units, taken_units) in enumerate(
            zip(spot.state.free_memory, spot.units or (0,) * 99, strict=False)
        )
    )


NodeOptions = list[tuple[NodeState, Option]]


def shared_out(rules: Rules, node_options: NodeOptions) -> dict[str, Spot] | None:
    """Who goes where and on which GPUs, every rule kept; None if that can't be. The last ranks stay out."""
    roles = rules.request.roles
    queue = [
        (r, member.uid)
        for r, role in enumerate(roles)
        for member in rules.ranks[role.name][: sum(option.counts[r] for _, option in node_options)]
    ]
    queue.sort(key=lambda item: -sum(item[1] in uids for _, uids in rules.groups))  # the hardest first
    open_shares = [
        (list(option.counts), whole_of(option), [list(n) for n in option.fill]) for _, option in node_options
    ]
    spot_by_uid: dict[str, Spot] = {}

    def fill(at: int) -> bool:
        if at == len(queue):
            return True
        r, uid = queue[at]
        for n, (state, _) in enumerate(node_options):
            counts, mask, slices = open_shares[n]
            if not counts[r]:
                continue
            for gpus in shares(state, mask, slices, roles[r], r):
                spot_by_uid[uid] = Spot(state, gpus)
                counts[r] -= 1
                give(slices, gpus, r, roles[r], -1)
                open_shares[n] = (counts, mask if roles[r].slice else mask & ~gpus, slices)
                if rules.hold(spot_by_uid, uid) and fill(at + 1):
                    return True
                counts[r] += 1
                give(slices, gpus, r, roles[r], 1)
                open_shares[n] = (counts, mask, slices)
                del spot_by_uid[uid]
        return False

    return spot_by_uid if fill(0) else None


def whole_of(option: Option) -> int:
    """The GPUs that members take whole."""
    return option.mask & ~sum(1 << gpu for gpu, slices in enumerate(option.fill) if any(slices))


def give(slices: list[list[int]], gpus: int, r: int, role: Role, by: int) -> None:
    """Take a member's slices from those that are to be given, or give them back."""
    for gpu, of_roles in enumerate(slices):
        if role.slice and gpus >> gpu & 1:
            of_roles[r] += by


def shares(state: NodeState, mask: int, slices: list[list[int]], role: Role, r: int) -> Iterator[int]:
    """The sets of the node's GPUs that a member may have.

    Of whole GPUs it is one set for each way to take them from the domains. Of shared GPUs it is every set,
    those with most memory left first, so that the members use different ones."""
    if role.slice:
        gpus = sorted((g for g in range(len(slices)) if slices[g][r]), key=lambda g: -slices[g][r])
        yield from (sum(1 << gpu for gpu in gpu_set) for gpu_set in combinations(gpus, role.slice.gpus))
        return
    size = role.gpus
    kinds = set()
    for gpu_set in combinations([i for i in range(state.node.topology.gpu_count) if mask >> i & 1], size):
        share = sum(1 << gpu for gpu in gpu_set)
        kind = tuple((share & part).bit_count() for part in domains(state).values())
        if kind not in kinds:
            kinds.add(kind)
            yield share


def value(
    rules: Rules, counts: Iterable[int], unions: Mapping[str, Spot], by_node: Mapping[str, tuple[int, ...]]
) -> Value:
    """What a plan is worth: members by role, where they lie, and members by node and role."""
    unusable_gpus = unusable_by(rules, by_node) or 0
    snapshot, request = rules.snapshot, rules.request
    spots = [*unions.values(), *rules.running.values()]
    reached = [i for i, scope in enumerate(request.preferred_scopes) if together(snapshot, spots, scope)]
    has_gpus = any(spot.mask or not spot.known for spot in spots)
    gang = {name: spot.mask for name, spot in unions.items()}
    alone = dict.fromkeys(unions, 0)
    for spot in rules.running.values():
        if spot.state.node.name in gang:
            gang[spot.state.node.name] |= spot.mask
            alone[spot.state.node.name] |= spot.mask
    rings = [links(spot.state, gang[name]) for name, spot in unions.items()]
    by_role = tuple(-n for n in counts)
    crossed = crossings(rules, unions)
    return Value(
        sum(by_role),
        by_role,
        min(reached, default=99),
        0 if has_gpus else unusable_gpus,
        tuple(count for scope, count in crossed if scope != "nvlink-domain"),
        unusable_gpus if has_gpus else 0,
        tuple(preferences(rules, unions, dict(crossed).get("nvlink-domain", 0)).values()),
        sum(count_opened(spot)[0] for spot in unions.values()),
        sum(count_opened(spot, alone[name])[1] for name, spot in unions.items()),
        -min((weakest for weakest, _ in rings), default=INF),
        -sum(total for _, total in rings),
        sum(distance_of_known_gpus(spot.state, gang[name]) for name, spot in unions.items()),
        sum(
            naive_damage.damage(snapshot, spot.state, spot.mask, spot.units, spot.cpu)
            for spot in unions.values()
        )
        if naive_damage.is_priced(snapshot, request)
        else sum(
            unusable_after(spot) - unusable(spot.state, spot.state.free_gpus, spot.state.free_memory)
            for spot in unions.values()
        ),
    )


def rails(spots: Iterable[Spot], request: Request) -> set[int]:
    """The network rails of the GPUs; none if all GPUs lie on one node, or are shared."""
    with_gpus = [spot for spot in spots if spot.mask]
    several = len({spot.state.node.name for spot in with_gpus}) > 1
    if not several or any(role.slice for role in request.roles if role.members):
        return set()
    return {rail for spot in with_gpus for rail in rails_on(spot.state, spot.mask)}


def rails_on(state: NodeState, mask: int) -> frozenset[int]:
    """The rails of these GPUs: as the node says, else by index on boards of eight. Larger nodes have none."""
    gpus = state.node.topology.gpu_count
    of_node = state.node.rails or (range(gpus) if gpus == 8 else ()) if gpus <= 8 else ()
    return frozenset(rail for gpu, rail in enumerate(of_node) if mask >> gpu & 1)


def crossings(rules: Rules, unions: Mapping[str, Spot]) -> tuple[tuple[str, int], ...]:
    """The parts touched, scope by scope."""
    every = [*unions.values(), *rules.running.values()]
    spots = [spot for spot in every if spot.mask or not spot.known] or every
    return tuple(
        (scope, len(frozenset[str]().union(*(rules.look(parts_touched_by, spot, scope) for spot in spots))))
        for scope in rules.scopes
    )


def preferences(rules: Rules, unions: Mapping[str, Spot], nvlink: int) -> dict[str, int]:
    """What policies ask for, in order, and the NVLink domains touched where none is about them, by level."""
    cost_by_level: dict[str, int] = {}
    terms = [(term.topology, term.strategy == "spread") for term in rules.request.terms]
    for topology, spread in (*terms, *([] if "nvlink" in dict(terms) else [("nvlink", False)])):
        if (topology, spread) == ("nvlink", False):
            cost_by_level["nvlink_domains"] = nvlink
            continue
        old = {name: [s for s in rules.running.values() if s.state.node.name == name] for name in unions}
        packed = {"nvswitch": "nvswitch"} | {
            word: node_parts.packed for word, node_parts in POLICY_PARTS.items()
        }
        cost_by_level[f"{topology}_spread" if spread else packed[topology]] = sum(
            cost(rules.snapshot, topology, spread, spot, old[name]) for name, spot in unions.items()
        )
    return cost_by_level


def costs(rules: Rules, unions: Mapping[str, Spot], got: Value) -> tuple[tuple[str, int], ...]:
    """What policies and slices count, but for NVLink domains."""
    cost_by_level = preferences(rules, unions, 0)
    if any(role.slice and role.members for role in rules.request.roles):
        cost_by_level |= {"sharing": got.opened, "shared_gpus": got.shared}
    return tuple((level, count) for level, count in cost_by_level.items() if level != "nvlink_domains")


def cost(snapshot: Snapshot, topology: str, spread: bool, spot: Spot, old: list[Spot]) -> int:
    """What a policy counts on one node; what running members touch costs nothing."""
    node = spot.state.node
    if topology == "nvswitch":
        has = node.labels.get("nvidia.com/nvswitch.present") == "true"
        has_old_gpus = any(old_spot.mask or not old_spot.known for old_spot in old)
        return bool(spot.mask) * (has == spread) * (not has_old_gpus)
    if topology == "nvlink":
        touched = [parts_touched_by(snapshot, gang_spot, "nvlink-domain") for gang_spot in (spot, *old)]
        return -len(touched[0].difference(*touched[1:]))
    gpus = range(node.topology.gpu_count)
    parts = [set(gpus)] if spot.state.unindexed_gpus else POLICY_PARTS[topology].parts(spot.state)
    old_gpus = [gpu for old_spot in old for gpu in gpus if old_spot.mask >> gpu & 1]
    new_gpus = [gpu for gpu in gpus if spot.mask >> gpu & 1]
    count = sum(bool(part & set(new_gpus)) and not part & set(old_gpus) for part in parts)
    return -count if spread else count


def count_opened(spot: Spot, running: int = 0) -> tuple[int, int]:
    """GPUs that slices open, and GPUs that they touch where none of the gang ran; less where nodes spread."""
    shared = [gpu for gpu, units in enumerate(spot.units) if units]
    sign = -1 if spot.state.node.spreads_slices else 1
    new = [gpu for gpu in shared if not running >> gpu & 1]
    return sign * sum(spot.state.free_gpus >> gpu & 1 for gpu in shared), sign * len(new)


def crossing_scopes(snapshot: Snapshot, request: Request) -> list[str]:
    levels = [level.scope for level in snapshot.levels]
    scopes = [s for s in levels if any(label(snapshot, state, s) for state in snapshot.nodes.values())]
    asked_gpus = sum((role.gpus + bool(role.slice)) * len(role.members) for role in request.roles)
    return [*scopes, "node", "nvlink-domain"] if asked_gpus else [*scopes, "node"]


def best_value_and_plan(snapshot: Snapshot, request: Request) -> tuple[Value, Placed] | None:
    """The best value there is, and a plan that has it; None when there is none."""
    plain = replace(request, role_preferences=())
    plain_best = best_without_preferences(snapshot, plain)
    if plain_best is None or not request.role_preferences:
        return plain_best
    first_levels = plain_best[0].by_role, plain_best[0].preferred
    for scopes in product(*((*preference.scopes, None) for preference in request.role_preferences)):
        pairs = zip(request.role_preferences, scopes, strict=True)
        shared = tuple(
            Subgroup(preference.name, scope, preference.roles) for preference, scope in pairs if scope
        )
        candidate = best_without_preferences(snapshot, replace(plain, subgroups=(*plain.subgroups, *shared)))
        if candidate is not None and (candidate[0].by_role, candidate[0].preferred) == first_levels:
            return candidate[0], plan(snapshot, request, candidate[1].members)
    raise AssertionError("without any preference there was a plan")


def best_without_preferences(snapshot: Snapshot, request: Request) -> tuple[Value, Placed] | None:
    """The same where no role has preferences."""
    rules = Rules(snapshot, request)
    states = list(snapshot.nodes.values())
    sizes = [len(role.members) for role in request.roles]
    best_so_far: tuple[Value, dict[str, Spot]] | None = None
    tried: dict[object, dict[str, Spot] | None] = {}

    def judge(unplaced_members: list[int], node_options: NodeOptions) -> None:
        nonlocal best_so_far
        if best_so_far is not None and sum(unplaced_members) - sum(sizes) > best_so_far[0].members:
            return
        unions = {
            state.node.name: Spot(state, option.mask, units=option.units, cpu=cpu_of(request, option.counts))
            for state, option in node_options
        }
        counts = {state.node.name: option.counts for state, option in node_options}
        if not can_start(request, [size - n for size, n in zip(sizes, unplaced_members, strict=True)]):
            return
        if not keeps_constraints(snapshot, request, counts) or not rules.in_number(counts):
            return
        if request.required_scope and not together(
            snapshot, [*unions.values(), *rules.running.values()], request.required_scope
        ):
            return
        got = value(
            rules, (size - n for size, n in zip(sizes, unplaced_members, strict=True)), unions, counts
        )
        got = with_fit_and_penalty(snapshot, request, got, counts)
        if best_so_far is not None and got >= best_so_far[0]:
            return
        kind = tuple(
            (
                state.node.name,
                counts,
                *((mask & part).bit_count() for part in domains(state).values()),
                fill * any(units),
            )
            for state, (counts, mask, fill, units) in node_options
        )
        if tried.get(kind, True) is None:
            return
        tried[kind] = spot_by_uid = shared_out(rules, node_options)
        if spot_by_uid is not None:
            best_so_far = got, spot_by_uid

    def walk(at: int, unplaced_members: list[int], node_options: NodeOptions) -> None:
        if sum(sizes) - sum(unplaced_members) + sum(most[at:]) < least:
            return
        if at == len(states):
            if node_options:
                judge(unplaced_members, node_options)
            return
        for option in all_options[at]:
            if all(n <= have for n, have in zip(option.counts, unplaced_members, strict=True)):
                still_unplaced = [have - n for n, have in zip(option.counts, unplaced_members, strict=True)]
                more_options = [*node_options, (states[at], option)] if any(option.counts) else node_options
                walk(at + 1, still_unplaced, more_options)

    def gang_on(state: NodeState) -> int:
        masks = [spot.mask for spot in rules.running.values() if spot.state.node.name == state.node.name]
        return sum({1 << gpu for mask in masks for gpu in range(16) if mask >> gpu & 1})

    all_options = [options(state, rules, gang_on(state)) for state in states]
    most = [max((sum(option.counts) for option in of_node), default=0) for of_node in all_options]
    least = min(request.min_member, sum(sizes))
    walk(0, sizes, [])
    return best_so_far and (best_so_far[0], plan(snapshot, request, members(request, best_so_far[1])))


def can_start(request: Request, counts: list[int]) -> bool:
    """Whether some choice of subgroups says these numbers: each that is chosen has as many chosen ones below
    it as it needs, and members are in chosen leaves alone, as many as the leaf needs."""
    if request.quorum is None:
        return True
    by_role = {role.name: n for role, n in zip(request.roles, counts, strict=True)}
    return any(
        all(enough(leaf, sum(by_role[role] for role in leaf.roles if role in by_role)) for leaf in leaves)
        and all(n == 0 or any(role in leaf.roles for leaf in leaves) for role, n in by_role.items())
        for leaves in choices(request.quorum)
    )


def enough(leaf: Leaf, members: int) -> bool:
    """Whether this number of members is enough for the leaf, in whole replicas with those that have begun."""
    replicas = [n * leaf.unit - leaf.begun for n in range(members + leaf.unit + 1)]
    whole = members <= leaf.back or members in replicas
    return members >= leaf.min_members and whole and not 0 <= leaf.max_members < members


def choices(part: Quorum | Leaf) -> Iterator[tuple[Leaf, ...]]:
    """All sets of leaves with which this part starts."""
    if isinstance(part, Leaf):
        yield (part,)
        return
    for size in range(part.min_parts, (part.min_parts if part.only else len(part.parts)) + 1):
        for subset in combinations(part.parts, size):
            for below in product(*map(choices, subset)):
                yield tuple(leaf for leaves in below for leaf in leaves)


def members(request: Request, spot_by_uid: Mapping[str, Spot]) -> tuple[MemberPlacement, ...]:
    """The members' places as a decision lists them."""
    return tuple(
        MemberPlacement(member.uid, member.name, role.name, spot.state.node.name, gpus, units)
        for role in request.roles
        for member in by_rank(role.members)
        if (spot := spot_by_uid.get(member.uid))
        for gpus in [tuple(i for i in range(16) if spot.mask >> i & 1)]
        for units in [role.slice.units if role.slice else 0]
    )


def unions_of(snapshot: Snapshot, request: Request, members: tuple[MemberPlacement, ...]) -> dict[str, Spot]:
    """All members on one node as one."""
    unions: dict[str, Spot] = {}
    cpu_by_role = {role.name: role.resources.cpu_milli for role in request.roles}
    for m in members:
        state = snapshot.nodes[m.node]
        _, old, _, units, cpu = unions.get(m.node, Spot(state, 0, units=(0,) * 16))
        units = tuple(have + m.units * (gpu in m.gpus) for gpu, have in enumerate(units))
        unions[m.node] = Spot(
            state, old | sum(1 << gpu for gpu in m.gpus), units=units, cpu=cpu + cpu_by_role[m.role]
        )
    return unions


def worth(snapshot: Snapshot, request: Request, members: tuple[MemberPlacement, ...]) -> Value:
    """All levels of a plan."""
    counts = [sum(m.role == role.name for m in members) for role in request.roles]
    by_node = on_nodes(request, members)
    got = value(Rules(snapshot, request), counts, unions_of(snapshot, request, members), by_node)
    return with_fit_and_penalty(snapshot, request, got, by_node)


def on_nodes(request: Request, members: tuple[MemberPlacement, ...]) -> dict[str, tuple[int, ...]]:
    """How many members of each role lie on each node."""
    return {
        m.node: tuple(
            sum(n.role == role.name and n.node == m.node for n in members) for role in request.roles
        )
        for m in members
    }


def unusable_by(rules: Rules, by_node: Mapping[str, tuple[int, ...]]) -> int | None:
    """GPUs that members without GPUs make unusable; None if every member has GPUs."""
    running = {spot.state.node.name for spot in rules.running.values() if spot.mask or not spot.known}
    return naive_unusable.unusable(rules.snapshot, rules.request, by_node, running)


def with_fit_and_penalty(
    snapshot: Snapshot, request: Request, value: Value, counts: Mapping[str, tuple[int, ...]]
) -> Value:
    """The value with the best fit and, below it, the scores of the nodes, where a role has any."""
    value = value._replace(fit=naive_fit.best_fit(snapshot, request, counts))
    if not any(role.scores and role.members for role in request.roles):
        return value
    penalty = sum(
        n * (100 - role.scores.get(name, 0))
        for name, by_role in counts.items()
        for n, role in zip(by_role, request.roles, strict=True)
    )
    return value._replace(penalty=penalty)


def plan(snapshot: Snapshot, request: Request, members: tuple[MemberPlacement, ...]) -> Placed:
    """The decision that places these members so, every claim in it true; they must lie on the cluster."""
    rules, unions = Rules(snapshot, request), unions_of(snapshot, request, members)
    got = worth(snapshot, request, members)
    crossed = crossings(rules, unions)
    spots = [*unions.values(), *rules.running.values()]
    narrow = ["gpu"] if any(spot.mask for spot in spots) else []
    narrow += ["nvlink-domain", "node", *(level.scope for level in reversed(snapshot.levels))]
    scope = next((scope for scope in narrow if spots and together(snapshot, spots, scope)), None)
    part = min(frozenset.intersection(*(parts_around(snapshot, s, scope) for s in spots))) if scope else ""
    objective = Objective(
        preferred_reached=None if got.preferred == 99 else request.preferred_scopes[got.preferred],
        crossings=crossed,
        weakest_link_gb_per_s=None if got.weakest in (0, -INF) else -got.weakest,
        ring_gb_per_s=-got.ring,
        socket_distance=got.sockets,
        damage=got.damage,
        best_fit=got.fit,
        preference_penalty=got.penalty if any(r.scores and r.members for r in request.roles) else None,
        costs=costs(rules, unions, got),
        role_preferences=tuple(reached_by(rules, members)),
        unusable_gpus=unusable_by(rules, on_nodes(request, members)),
        rails=len(rails(spots, request)) or None,
    )
    return Placed(
        request.gang,
        members,
        objective,
        scope,
        f"{scope} {part}" if scope else "",
        optimal=True,
        unknown_links=unknown_links(snapshot, request, members),
        unknown_indices=tuple(
            sorted({m.node for m in members if m.gpus and snapshot.nodes[m.node].unindexed_gpus})
        ),
    )


def unknown_links(
    snapshot: Snapshot, request: Request, members: tuple[MemberPlacement, ...]
) -> tuple[str, ...]:
    """Nodes of new members with GPUs where the gang has several GPUs, and no link is known."""
    gpus: dict[str, set[int]] = {}
    for member in members:
        gpus.setdefault(member.node, set()).update(member.gpus)
    new = {name for name, gpu_set in gpus.items() if gpu_set}
    for running_member in request.running:
        gpus.setdefault(running_member.node, set()).update(bits(running_member.gpus))
    blind = (name for name in new if not snapshot.nodes[name].node.topology.is_known)
    return tuple(sorted(name for name in blind if len(gpus[name]) > 1))


def reached_by(rules: Rules, members: tuple[MemberPlacement, ...]) -> Iterator[tuple[str, str | None]]:
    """By preference of roles, the first scope that holds them in one part."""
    for preference in rules.request.role_preferences:
        spots = [
            Spot(rules.snapshot.nodes[m.node], sum(1 << gpu for gpu in m.gpus))
            for m in members
            if m.role in preference.roles
        ]
        old = [r.member.uid for r in rules.request.running if r.role in preference.roles]
        spots += [rules.running[uid] for uid in old if uid in rules.running]
        scopes = (scope for scope in preference.scopes if spots and together(rules.snapshot, spots, scope))
        yield preference.name, next(scopes, None)


def honest(snapshot: Snapshot, request: Request, decision: Placed) -> bool:
    """Whether every claim of a valid plan is true."""
    truth = plan(snapshot, request, decision.members)
    domain = truth.domain
    if truth.scope_reached:  # several domains may hold members without GPUs
        rules = Rules(snapshot, request)
        spots = [Spot(snapshot.nodes[m.node], sum(1 << i for i in m.gpus)) for m in decision.members]
        spots += rules.running.values()
        parts = frozenset.intersection(*(parts_around(snapshot, s, truth.scope_reached) for s in spots))
        domain = next((d for p in parts if (d := f"{truth.scope_reached} {p}") == decision.domain), "")
    proof = not decision.optimal or (decision.gap is None and not decision.truncated)
    claimed = (decision.gang, decision.objective, decision.scope_reached, decision.domain)
    true = (request.gang, truth.objective, truth.scope_reached, domain)
    doubts = (decision.unknown_links, decision.unknown_indices) == (
        truth.unknown_links,
        truth.unknown_indices,
    )
    return proof and claimed == true and doubts


def valid(snapshot: Snapshot, request: Request, members: tuple[MemberPlacement, ...]) -> bool:
    """Whether these are places that the gang may have: every rule, member by member, by definition."""
    if not are_members(snapshot, request, members) or not room(snapshot, request, members):
        return False
    counts = {
        m.node: tuple(
            sum(n.role == role.name and n.node == m.node for n in members) for role in request.roles
        )
        for m in members
    }
    rules = Rules(snapshot, request)
    if not keeps_constraints(snapshot, request, counts) or not rules.in_number(counts):
        return False
    spots = {m.uid: Spot(snapshot.nodes[m.node], sum(1 << gpu for gpu in m.gpus)) for m in members}
    return rules.hold(spots)


def keeps_constraints(snapshot: Snapshot, request: Request, counts: Mapping[str, tuple[int, ...]]) -> bool:
    """Whether these members by node and role keep every constraint, and the room of each role."""
    names = [role.name for role in request.roles]
    pods = [
        (name, node)
        for node, by_role in counts.items()
        for name, n in zip(names, by_role, strict=True)
        for _ in range(n)
    ]
    room = all(
        pods.count((role.name, node)) <= most for role in request.roles for node, most in role.room.items()
    )
    return room and all(is_kept(snapshot, request, rule, pods) for rule in request.constraints)


def is_kept(snapshot: Snapshot, request: Request, rule: PeerConstraint, pods: list[tuple[str, str]]) -> bool:
    """Whether these pods, as (role, node), keep one constraint: pod by pod, by definition."""

    def at(node: str) -> str | None:
        """The domain that the node lies in."""
        if node not in snapshot.nodes:
            return None
        return node if rule.topology_key == NODE else snapshot.nodes[node].node.labels.get(rule.topology_key)

    own_domains = [(i, at(node)) for i, (role, node) in enumerate(pods) if role in rule.roles]
    if isinstance(rule, AntiAffinity):
        other_domains = [(i, at(node)) for i, (role, node) in enumerate(pods) if role in rule.other_roles]
        apart = all(a is None or i == j or a != b for i, a in own_domains for j, b in other_domains)
        return apart and all(a is None or a != at(node) for _, a in own_domains for node in rule.existing)
    if any(domain is None for _, domain in own_domains):
        return False
    if isinstance(rule, Affinity):
        pod_domains = {at(node) for node in rule.existing}
        pod_domains |= {at(node) for role, node in pods if role in rule.other_roles - rule.roles}
        closed = {domain for _, domain in own_domains if domain not in pod_domains}
        if not closed:
            return True
        themselves = {at(node) for role, node in pods if role in rule.roles & rule.other_roles}
        return not rule.existing and len(closed) == 1 and closed <= themselves
    return all(even(snapshot, rule, role, at, pods) for role in request.roles if role.name in rule.roles)


def even(
    snapshot: Snapshot,
    rule: TopologySpread,
    role: Role,
    at: Callable[[str], str | None],
    pods: list[tuple[str, str]],
) -> bool:
    """Whether no domain with a member of the role holds too many more than the emptiest."""
    eligible = []
    for name, state in snapshot.nodes.items():
        labels = state.node.labels
        matches_selector = all(labels.get(term.key) in term.values for term in role.rules.required)
        clean = not state.node.taints or bool(role.rules.tolerations)
        if (
            at(name) is not None
            and all(key in labels for key in rule.required_keys)
            and (matches_selector or not rule.honor_affinity)
            and (clean or not rule.honor_taints)
        ):
            eligible.append(name)
    matching = [at(node) for r, node in pods if r in rule.counted_roles and node in eligible]
    matching += [at(node) for node in eligible for _ in range(rule.existing.get(node, 0))]
    domains = {at(node) for node in eligible}
    least = min(map(matching.count, domains)) if len(domains) >= max(1, rule.min_domains) else 0
    return all(matching.count(at(node)) - least <= rule.max_skew for name, node in pods if name == role.name)


def are_members(snapshot: Snapshot, request: Request, members: tuple[MemberPlacement, ...]) -> bool:
    """Whether these are members of the gang, enough of them, none twice, the first ranks of each role."""
    ranks = Rules(snapshot, request).ranks
    expected = [
        (member.uid, member.name, role.name)
        for role in request.roles
        for member in ranks[role.name][: sum(m.role == role.name for m in members)]
    ]
    ask_by_role = {
        role.name: (role.slice.gpus, role.slice.units) if role.slice else (role.gpus, 0)
        for role in request.roles
    }
    return (
        len(members) >= max(1, min(request.min_member, request.size))
        and sorted((m.uid, m.name, m.role) for m in members) == sorted(expected)
        and all(m.node in snapshot.nodes and (len(m.gpus), m.units) == ask_by_role[m.role] for m in members)
        and all(list(m.gpus) == sorted(m.gpus) for m in members)
    )


def room(snapshot: Snapshot, request: Request, members: tuple[MemberPlacement, ...]) -> bool:
    """Whether every node admits who lies there and has what they take."""
    roles = {role.name: role for role in request.roles}
    for name, state in snapshot.nodes.items():
        node_members = [m for m in members if m.node == name]
        whole_gpus = [gpu for m in node_members for gpu in m.gpus if not m.units]
        units = Counter({gpu: 0 for m in node_members for gpu in m.gpus if m.units})
        for m in node_members:
            units.update(dict.fromkeys(m.gpus, m.units) if m.units else {})
            if len(set(m.gpus)) < len(m.gpus):
                return False
        memory = state.free_memory
        if set(units) & set(whole_gpus) or any(
            not 0 <= g < len(memory) or n > memory[g] for g, n in units.items()
        ):
            return False
        cpu = sum(roles[m.role].resources.cpu_milli for m in node_members)
        free = {gpu for gpu in range(state.node.topology.gpu_count) if state.free_gpus >> gpu & 1}
        if (
            len(set(whole_gpus)) != len(whole_gpus)
            or not set(whole_gpus) <= free
            or len(whole_gpus) > state.free_gpu_count
        ):
            return False
        if (cpu and cpu > state.free.cpu_milli) or not all(
            admits(state, roles[m.role]) for m in node_members
        ):
            return False
    return True
