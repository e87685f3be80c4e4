"""What must hold of all causes and relaxations, checked by trying everything.

A conflict is checked as it is defined, on clusters and gangs that are changed by hand: with its assumptions
alone nothing fits, with any one of them dropped as well enough members do. A relaxation is applied, and then
the gang must fit.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields, replace
from itertools import combinations, product, takewhile
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from muster.domain.causes.not_planned import NotDecided
from muster.domain.causes.out_of_place import (
    DomainTooSmall,
    IndicesUnknown,
    NodesExcluded,
    NoSuchDomain,
    RoleScope,
    RunningElsewhere,
    SegmentsTooLarge,
)
from muster.domain.causes.too_little import FreeApart, FreeInPieces, NotEnoughFree
from muster.domain.constraints import (
    Affinity,
    AffinityUnsatisfied,
    AntiAffinityLimits,
    DropConstraint,
    MorePerPart,
    PerScope,
    RoomTooSmall,
    SkewTooLarge,
    SubgroupScope,
    TooFewParts,
    TopologySpread,
)
from muster.domain.decision import (
    DropSelector,
    FewerMembers,
    MoreFree,
    Placed,
    SmallerSegments,
    Tolerate,
    Uncordon,
    WiderScope,
)
from muster.domain.node import Taint, Usage, is_state_taint
from muster.domain.reasons import Cause, Relaxation
from muster.domain.request import GangId, Request, Role, RunningMember, Segment, SelectorTerm, Toleration
from muster.domain.sentences import sentence
from muster.domain.snapshot import NodeState, Snapshot
from muster.domain.topology import bits, mask_of
from muster.domain.words import GPU_MEMORY
from muster.placement.cluster.matching import GangCluster
from muster.placement.explain.assumptions import Assumption, AssumptionKind, Assumptions
from muster.placement.explain.causes import explain
from muster.placement.explain.conflict import Oracle, conflict_of, irreducible_subset
from muster.placement.explain.findings import wider_scopes
from muster.placement.gang.constraints import CONSTRAINTS
from muster.placement.gang.constraints.between_pods import BETWEEN_PODS
from muster.placement.gang.constraints.constraint import ByScope, Constraint
from muster.placement.gang.constraints.max_per import ROOM
from muster.placement.gang.constraints.together import ROLE_SCOPE, SEGMENTS, SUBGROUP
from muster.placement.gang.instance import instance_of
from muster.placement.limits import Budget, Limits
from muster.placement.place import place
from tests.placement import naive
from tests.placement.constraints import TESTED
from tests.placement.drawings import cluster, gang
from tests.placement.worlds import World, worlds

pytestmark = pytest.mark.brute_force


FEATURES = {
    "plain": (),
    "more levels": ("levels",),
    "roles with scopes of their own": ("role scope",),
    "segments": ("segments", "ranks"),
    "members that run": ("running",),
    "members that run, nobody knows on which GPUs": ("unknown running",),
    "segments of which members run": ("segments", "ranks", "running"),
    "roles of which members run": ("role scope", "running"),
    "all at once": ("role scope", "max per", "running"),
    "subgroups": ("subgroups",),
    "subgroups of which members run": ("subgroups", "running"),
    "members kept apart": ("anti-affinity",),
    "members near pods": ("affinity",),
    "members spread": ("skew",),
    "room for few": ("room",),
    "constraints and scopes": ("anti-affinity", "skew", "role scope", "room"),
    "constraints on one node": ("one node", "anti-affinity", "skew", "affinity"),
    "at most so many on one node": ("one node", "role scope", "max per"),
    "constraints beside members that run": ("affinity", "skew", "max per", "running"),
    "members spread, in segments of which members run": ("segments", "ranks", "running", "skew"),
}
BY_SCOPE = {constraint.kind: constraint for constraint in CONSTRAINTS if isinstance(constraint, ByScope)}
"""The planner's constraints that give numbers by scope."""
KIND_OF = {name: tested.kind for tested in TESTED for name in (tested.cause, tested.relaxation)}
"""What a cause or a relaxation is about."""


SLICES = {
    "slices of GPUs": ("slices",),
    "slices of GPUs, and what binds their members": ("slices", "max per", "segments"),
}
"""Where nothing is taken, there are too many ways to place these for trying everything."""
for kind_tested in TESTED:
    for name, features in kind_tested.families.items():
        (SLICES if "slices" in features else FEATURES)[name] = features


SHUT: list[dict[str, Any]] = [
    {},
    {"unschedulable": True},
    {"unschedulable": True},
    {"taints": (Taint("pool", "a", "NoSchedule"),)},
    {"taints": (Taint("node.kubernetes.io/disk-pressure", "", "NoSchedule"),)},
    {"ready": False},
]
"""What keeps pods off a node, or should."""


def examples(count: int) -> settings:
    """Derandomized: the same every time, here and in CI."""
    return settings(
        max_examples=count, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck)
    )


@examples(200)
@given(st.sets(st.frozensets(st.integers(0, 8), max_size=4), min_size=1), st.permutations(range(9)))
def test_the_deletion_filter(cores: set[frozenset[int]], order: list[int]) -> None:
    """What is left forbids, and no longer does when any of it goes."""

    def forbids(elements: frozenset[int]) -> bool:
        return any(core <= elements for core in cores)

    irreducible_set = irreducible_subset([order[:1], order[1:6], order[6:]], forbids)
    assert forbids(irreducible_set)
    assert not any(forbids(irreducible_set - {element}) for element in irreducible_set)


@pytest.mark.parametrize("name", FEATURES)
@examples(40)
@given(data=st.data())
def test_a_conflict_is_sufficient_and_irreducible(name: str, data: st.DataObject) -> None:
    snapshot, request = without_taints(data.draw(worlds(*FEATURES[name])))
    if fits(snapshot, request):
        return
    instance, limits = instance_of(GangCluster(snapshot, request), {}), Limits(deterministic_time=60)
    assumptions = Assumptions(instance, {})
    conflict = conflict_of(assumptions, Oracle(Budget(limits)), proven=False)
    assert conflict is not None
    causes = explain(instance, limits, Budget(limits), proven=True).causes
    conflict_request = replace(  # a cause that names a scope alone is about a number that is kept
        request,
        per_scope=tuple(rule for rule in request.per_scope if assumption_of(rule) in conflict.obstacles),
    )
    unsaid = {AssumptionKind.IN_USE} if any(counts_pods(cause, request) for cause in causes) else set()
    kinds = {kind for cause in causes for kind in told_by(cause, conflict_request)}
    assert {assumption.kind for assumption in conflict.obstacles} - unsaid == kinds - unsaid
    core = conflict.obstacles | conflict.roles
    assert not fits(*without_assumptions(snapshot, request, assumptions.all - core)), core
    for assumption in core:
        assert fits(*without_assumptions(snapshot, request, (assumptions.all - core) | {assumption})), (
            core,
            assumption,
        )


@pytest.mark.parametrize("name", FEATURES | SLICES)
@examples(40)
@given(data=st.data())
def test_what_is_told_to_help_helps(name: str, data: st.DataObject) -> None:
    assert_advice_helps(*without_taints(data.draw(worlds(*(FEATURES | SLICES)[name]))))


@pytest.mark.parametrize("name", ["plain", "roles with scopes of their own", "segments", "all at once"])
@examples(60)
@given(data=st.data())
def test_what_is_told_of_shut_nodes_helps(name: str, data: st.DataObject) -> None:
    snapshot, request = without_taints(data.draw(worlds(*FEATURES[name])))
    states = {
        node: replace(state, node=replace(state.node, **data.draw(st.sampled_from(SHUT))))
        for node, state in snapshot.nodes.items()
    }
    assert_advice_helps(replace(snapshot, nodes=states), request)


def assert_advice_helps(snapshot: Snapshot, request: Request) -> None:
    """Apply each advice. The gang fits then, and with a little less it does not."""
    request = replace(request, gang=GangId("default", "annotations", "gang"))
    decision = place(snapshot, request, Limits(deterministic_time=60))
    if isinstance(decision, Placed):
        return
    assert decision.causes
    assert not any(isinstance(cause, NotDecided) for cause in decision.causes)
    assert len(sentence(decision)) > 20
    for cause in decision.causes:
        cause_fields = {field.name: getattr(cause, field.name) for field in fields(cause)}
        if cause_fields.get("members_fit") is not None and not isinstance(cause, RoleScope):
            assert cause_fields["members_fit"] < cause_fields["members_needed"], cause
    for relaxation in decision.relaxations:
        assert not (isinstance(relaxation, Tolerate) and is_state_taint(relaxation.taint)), relaxation
        assert any(fits(*world) for world in worlds_after(snapshot, request, relaxation)), relaxation
        for less in smaller(relaxation, snapshot, request):
            assert not any(fits(*world) for world in worlds_after(snapshot, request, less)), (
                relaxation,
                less,
            )


def without_taints(world: World) -> World:
    """The world without taints, and with constraints that count pods whatever nodes admit: refusals are
    dropped here by changed selectors."""
    snapshot, request = world
    states = {
        name: replace(state, node=replace(state.node, taints=())) for name, state in snapshot.nodes.items()
    }
    roles = tuple(replace(role, rules=replace(role.rules, tolerations=())) for role in request.roles)
    rules = tuple(
        replace(rule, honor_affinity=False, honor_taints=False) if isinstance(rule, TopologySpread) else rule
        for rule in request.constraints
    )
    return World(replace(snapshot, nodes=states), replace(request, roles=roles, constraints=rules))


def told_by(cause: Cause, request: Request) -> set[AssumptionKind | Constraint]:  # noqa: PLR0911, PLR0912 — one return each
    """What a cause says that should be otherwise."""
    kinds: set[AssumptionKind | Constraint] = (
        {AssumptionKind.IN_USE} if getattr(cause, "even_empty", True) is False else set()
    )
    match cause:
        case NotEnoughFree() | FreeInPieces():
            return {AssumptionKind.IN_USE}
        case FreeApart():
            return kinds
        case IndicesUnknown(scope, _, name):
            return {AssumptionKind.IN_USE, *([asking_for(request, scope, name)] if scope else [])}
        case DomainTooSmall():
            return {AssumptionKind.SCOPE, *kinds}
        case NoSuchDomain(scope, name):
            return {asking_for(request, scope, name)}
        case RoleScope():
            return {ROLE_SCOPE, *kinds}
        case SegmentsTooLarge():
            return {SEGMENTS, *kinds}
        case TooFewParts(running=running):
            return {BY_SCOPE[KIND_OF[type(cause)]], *kinds, *([AssumptionKind.RUNNING] if running else [])}
        case AntiAffinityLimits() | AffinityUnsatisfied() | SkewTooLarge():
            return {BETWEEN_PODS, *kinds}
        case SubgroupScope():
            return {SUBGROUP, *kinds}
        case RoomTooSmall():
            return {ROOM, *kinds}
        case RunningElsewhere():
            return {AssumptionKind.RUNNING}
        case NodesExcluded():
            return {AssumptionKind.REFUSED}
    return set()


def counts_pods(cause: Cause, request: Request) -> bool:
    """Whether a cause does not say what holds without other pods, since its rule avoids or counts them."""
    if not isinstance(cause, AntiAffinityLimits | SkewTooLarge):
        return False
    return any(rule.name == cause.constraint and bool(rule.existing) for rule in request.constraints)


def asking_for(request: Request, scope: str, name: str) -> AssumptionKind | Constraint:
    """What asks for this scope that there is none of: the gang, a role, its segments, or a limit."""
    if scope == request.required_scope:
        return AssumptionKind.SCOPE
    for role in request.roles:
        if role.name == name and scope == role.required_scope:
            return ROLE_SCOPE
        if role.name == name and scope in {segment.scope for segment in role.segments}:
            return SEGMENTS
    limits = (BY_SCOPE[type(rule)] for rule in request.per_scope if rule.scope == scope)
    return next(limits, SUBGROUP)


def assumption_of(rule: PerScope) -> Assumption:
    """The assumption that this number by scope is kept."""
    return Assumption(BY_SCOPE[type(rule)], subject=rule.scope)


def fits(snapshot: Snapshot, request: Request) -> bool:
    """Whether the gang can be placed, by trying everything; a gang that needs no member can."""
    return request.min_member == 0 or naive.best_value_and_plan(snapshot, request) is not None


def without_assumptions(snapshot: Snapshot, request: Request, dropped: frozenset[Assumption]) -> World:
    """The cluster and the gang without these assumptions, made by hand."""
    kinds = {assumption.kind for assumption in dropped}
    request = replace(request, min_member=min(request.min_member, request.size))
    running = request.running
    roles = tuple(_relaxed_role(role, dropped) for role in request.roles)
    dropped_members = sum(
        len(role.members) for role in request.roles if Assumption(AssumptionKind.ROLE, role.name) in dropped
    )
    request = replace(request, roles=roles, min_member=max(0, request.min_member - dropped_members))
    gone_roles = {assumption.role for assumption in dropped if assumption.kind is AssumptionKind.ROLE}
    without = gone_roles | {member.role for member in running if AssumptionKind.RUNNING in kinds}
    limits = tuple(
        rule
        for rule in request.per_scope
        if assumption_of(rule) not in dropped and not any(map(rule.depends_on, without))
    )
    rules = tuple(
        rule
        for rule in request.constraints
        if Assumption(BETWEEN_PODS, subject=rule.name) not in dropped
        and not (isinstance(rule, TopologySpread) and gone_roles & rule.counted_roles)
        and not (isinstance(rule, Affinity) and gone_roles & rule.other_roles)
    )
    groups = tuple(
        group for group in request.subgroups if Assumption(SUBGROUP, "", group.name) not in dropped
    )
    request = replace(request, per_scope=limits, constraints=rules, subgroups=groups)
    if AssumptionKind.SCOPE in kinds:
        request = replace(request, required_scope=None)
    if AssumptionKind.RUNNING in kinds:
        request = replace(request, running=())
    freed_resources = {
        assumption.subject for assumption in dropped if assumption.kind is AssumptionKind.IN_USE
    }
    states = {}
    for name, state in snapshot.nodes.items():
        node = replace(
            state.node,
            unschedulable=False,
            labels={**state.node.labels, "up": "no" if state.node.unschedulable else "yes"},
        )
        own_state = NodeState.of(node, [_usage(request, r.role, r) for r in running if r.node == name])
        states[name] = replace(
            state,
            node=node,
            free=own_state.free if "cpu" in freed_resources else state.free,
            free_gpus=own_state.free_gpus if "gpu" in freed_resources else state.free_gpus,
            unindexed_gpus=own_state.unindexed_gpus if "gpu" in freed_resources else state.unindexed_gpus,
            memory=own_state.memory if GPU_MEMORY in freed_resources else state.memory,
        )
    return World(replace(snapshot, nodes=states), request)


def _relaxed_role(role: Role, dropped: frozenset[Assumption]) -> Role:
    """Where the cordon counts, the role asks for nodes that had none."""
    terms = tuple(
        term
        for term in role.rules.required
        if Assumption(AssumptionKind.REFUSED, role.name, f"selector {term.key}={term.values[0]}")
        not in dropped
    )
    if Assumption(AssumptionKind.REFUSED, role.name, "cordoned") not in dropped:
        terms = (*terms, SelectorTerm("up", "In", ("yes",)))
    role = replace(role, rules=replace(role.rules, required=terms))
    if Assumption(AssumptionKind.ROLE, role.name) in dropped:
        role = replace(role, members=())
    if Assumption(ROOM, role.name) in dropped:
        role = replace(role, room={})
    if Assumption(SEGMENTS, role.name) in dropped:
        role = replace(role, segments=())
    if Assumption(ROLE_SCOPE, role.name) in dropped:
        role = replace(role, required_scope=None)
    return role


def _usage(request: Request, role: str, running: RunningMember) -> Usage:
    gpus, node = running.gpus, running.node
    for request_role in request.roles:
        if request_role.name == role:
            return Usage("running", node, request_role.resources, gpus, 0 if gpus else request_role.gpus)
    assert running.usage is not None
    return running.usage


def worlds_after(  # noqa: PLR0911 — one relaxation, one return
    snapshot: Snapshot, request: Request, relaxation: Relaxation
) -> list[World]:
    """The cluster or the gang changed as it is told; several worlds where it is left open which GPUs."""

    def role(name: str, **changed: object) -> World:
        roles = tuple(
            replace(request_role, **changed) if request_role.name == name else request_role  # type: ignore[arg-type]
            for request_role in request.roles
        )
        return World(snapshot, replace(request, roles=roles))

    match relaxation:
        case MoreFree("GPU memory", _, nodes):
            return [World(world, request) for world in _with_free_memory(snapshot, nodes)]
        case MoreFree(_, _, nodes):
            return [World(world, request) for world in _with_free_gpus(snapshot, nodes)]
        case Uncordon(nodes):
            states = {
                name: replace(state, node=replace(state.node, unschedulable=False))
                if name in nodes
                else state
                for name, state in snapshot.nodes.items()
            }
            return [World(replace(snapshot, nodes=states), request)]
        case Tolerate(name, taint):
            old = next(request_role for request_role in request.roles if request_role.name == name)
            key, _, effect = taint.partition(":")
            key, _, value = key.partition("=")
            tolerations = (*old.rules.tolerations, Toleration(key, "Equal", value, effect))
            return [role(name, rules=replace(old.rules, tolerations=tolerations))]
        case DropSelector(name, selector):
            old = next(request_role for request_role in request.roles if request_role.name == name)
            required_terms = tuple(
                term for term in old.rules.required if f"selector {term.key}={term.values[0]}" != selector
            )
            return [role(name, rules=replace(old.rules, required=required_terms))]
        case WiderScope(_, wider, role=name):
            if name:
                return [role(name, required_scope=wider or None)]
            return [World(snapshot, replace(request, required_scope=wider or None))]
        case SmallerSegments(name, sizes):
            return [role(name, segments=tuple(Segment(*size_and_scope) for size_and_scope in sizes))]
        case MorePerPart(scope, members):
            kind = KIND_OF[type(relaxation)]
            rules = tuple(
                kind(scope, members) if (type(rule), rule.scope) == (kind, scope) else rule
                for rule in request.per_scope
            )
            return [World(snapshot, replace(request, per_scope=rules))]
        case DropConstraint(name):
            constraints = tuple(rule for rule in request.constraints if rule.name != name)
            groups = tuple(group for group in request.subgroups if group.name != name)
            return [World(snapshot, replace(request, constraints=constraints, subgroups=groups))]
        case FewerMembers(least):
            return [World(snapshot, replace(request, min_member=least))]
    raise AssertionError(f"nobody drew what {relaxation} changes")


def smaller(relaxation: Relaxation, snapshot: Snapshot, request: Request) -> Iterator[Relaxation]:
    """Yield the advice that asks for a little less, of each kind that can."""
    match relaxation:
        case MoreFree(resource, amount, nodes):
            for node, _ in nodes:
                fewer = tuple((name, of - (name == node)) for name, of in nodes if name != node or of > 1)
                yield MoreFree(resource, amount - 1, fewer)
        case Uncordon(nodes):
            cordoned = [name for name, state in snapshot.nodes.items() if state.node.unschedulable]
            yield from (Uncordon(fewer_nodes) for fewer_nodes in combinations(cordoned, len(nodes) - 1))
        case WiderScope(scope, wider, role=name):
            columns = instance_of(GangCluster(snapshot, request), {}).columns
            between = takewhile(lambda candidate: candidate != (wider or None), wider_scopes(columns, scope))
            yield from (WiderScope(scope, candidate or "", "", 0, name) for candidate in between)
        case FewerMembers(least, before):
            if least + 1 < before:
                yield FewerMembers(least + 1, before)
        case MorePerPart(members_per_part=members, before=before) if abs(members - before) > 1:
            yield replace(relaxation, members_per_part=members + (1 if before > members else -1))


def _with_free_gpus(snapshot: Snapshot, nodes: tuple[tuple[str, int], ...]) -> list[Snapshot]:
    """All ways to free these numbers of GPUs on nodes; GPUs with unknown indices come first."""
    choices = []
    for name, taken_gpus in nodes:
        state = snapshot.nodes[name]
        count = taken_gpus + max(0, state.unindexed_gpus - state.free_gpus.bit_count())
        unknown = min(count, state.unindexed_gpus)
        used_gpus = list(bits((1 << state.node.topology.gpu_count) - 1 & ~state.free_gpus))
        choices.append(
            [
                replace(
                    state,
                    free_gpus=state.free_gpus | mask_of(freed),
                    unindexed_gpus=state.unindexed_gpus - unknown,
                )
                for freed in combinations(used_gpus, count - unknown)
            ]
        )
    return [
        replace(snapshot, nodes={**snapshot.nodes, **{state.node.name: state for state in states}})
        for states in product(*choices)
    ]


def _with_free_memory(snapshot: Snapshot, nodes: tuple[tuple[str, int], ...]) -> list[Snapshot]:
    """All ways to free these amounts of GPU memory on nodes."""
    choices = []
    for name, units in nodes:
        state = snapshot.nodes[name]
        whole = NodeState.of(state.node, ()).memory
        ways = product(
            *(range(of - free_units + 1) for of, free_units in zip(whole, state.memory, strict=True))
        )
        choices.append(
            [
                replace(state, memory=tuple(map(sum, zip(state.memory, way, strict=True))))
                for way in ways
                if sum(way) == units
            ]
        )
    return [
        replace(snapshot, nodes={**snapshot.nodes, **{state.node.name: state for state in states}})
        for states in product(*choices)
    ]


def test_members_inside_a_node_keep_the_rules_over_nodes() -> None:
    """On node a is room for one member, but a spread over nodes forbids it."""
    snapshot = cluster(
        "rack r1: a[4, free 0010, cpu 1]  b[4, free 1111, cpu 1, gpu.topology/nvlink-domain=k1, cordoned]"
    )
    even = TopologySpread("even", "node", 1, frozenset("w"), frozenset("w"), {"a": 1}, honor_affinity=False)
    request = gang("2 x 1 GPU by 2 rack, scope nvlink-domain, running w-9@a/10, min 1")
    request = replace(request, constraints=(even,))
    assert not fits(snapshot, request)
    instance, limits = instance_of(GangCluster(snapshot, request), {}), Limits(deterministic_time=60)
    conflict = conflict_of(Assumptions(instance, {}), Oracle(Budget(limits)), proven=False)
    assert conflict is not None
    assert {assumption.kind for assumption in conflict.obstacles} == {
        AssumptionKind.RUNNING,
        AssumptionKind.SCOPE,
        BETWEEN_PODS,
    }
