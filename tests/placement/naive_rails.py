"""On how few network rails a plan's GPUs may lie: all sets of GPUs of equal value are tried, node by node."""

from __future__ import annotations

from itertools import product

from muster.domain.decision import Placed
from muster.domain.request import Request
from muster.domain.snapshot import Snapshot
from tests.placement import naive, naive_damage
from tests.placement.naive import Rules, Spot

INSIDE = {"gpu", "nvlink-domain"}


def assert_fewest(snapshot: Snapshot, request: Request, plan: Placed) -> None:
    """Each node keeps its members and the values of its GPUs. Where rules bind members to NVLink domains, it
    is not known here which ways keep the rules: one with as many GPUs in each domain does."""
    rules = Rules(snapshot, request)
    unions = naive.unions_of(snapshot, request, plan.members)
    claimed = naive.rails([*unions.values(), *rules.running.values()], request)
    assert plan.objective.rails == (len(claimed) or None)
    if claimed:
        fewest, most = (_fewest(rules, unions, as_many) for as_many in (False, True))
        assert fewest <= len(claimed) <= most, (claimed, plan.members)
        assert len(claimed) == fewest or _binds_domains(request), (claimed, plan.members)


def _fewest(rules: Rules, unions: dict[str, Spot], as_many: bool) -> int:
    """On how few rails the plan may lie. `as_many`: with as many GPUs in each NVLink domain."""
    running = [naive.rails_on(spot.state, spot.mask) for spot in rules.running.values()]
    sets = {frozenset[int]().union(*running)}
    for spot in unions.values():
        sets = {rails | way for rails, way in product(sets, _ways(rules, spot, as_many))}
    return min(map(len, sets))


def _ways(rules: Rules, spot: Spot, as_many: bool) -> set[frozenset[int]]:
    """The rails of all sets of free GPUs of the node that have the value of the plan's."""
    state, name = spot.state, spot.state.node.name
    running_masks = [stay.mask for stay in rules.running.values() if stay.state.node.name == name]
    running = sum({1 << gpu for mask in running_masks for gpu in range(16) if mask >> gpu & 1})

    def value(mask: int) -> tuple[object, ...]:
        new = spot._replace(mask=mask)
        priced = naive_damage.is_priced(rules.snapshot, rules.request)
        touched = naive.parts_touched_by(rules.snapshot, spot._replace(mask=mask | running), "nvlink-domain")
        domains = naive.domains(state).values()
        return (
            len(touched),
            [(mask & part).bit_count() for part in domains] if as_many else 0,
            naive.preferences(rules, {name: new}, 0),
            naive.links(state, mask | running),
            naive.distance_of_known_gpus(state, mask | running),
            0 if priced else naive.unusable_after(new),
        )

    masks = [mask for mask in range(state.free_gpus + 1) if not mask & ~state.free_gpus]
    equal = [mask for mask in masks if mask.bit_count() == spot.mask.bit_count()]
    return {naive.rails_on(state, mask) for mask in equal if value(mask) == value(spot.mask)}


def _binds_domains(request: Request) -> bool:
    """Whether the request asks for anything inside nodes."""
    scopes = {request.required_scope, *request.preferred_scopes, *(rule.scope for rule in request.per_scope)}
    scopes |= {group.scope for group in request.subgroups}
    scopes |= {scope for preference in request.role_preferences for scope in preference.scopes}
    for role in request.roles:
        scopes |= {role.required_scope, *(segment.scope for segment in role.segments)}
    return not scopes.isdisjoint(INSIDE)
