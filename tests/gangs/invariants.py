"""What must hold after every input and call.

Tests check it each time. It walks over everything, so the service does not run it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from dataclasses import replace
from itertools import chain, islice

from muster.domain.snapshot import NodeState
from muster.domain.topology import bits
from muster.gangs.capacity.ledger import Ledger
from muster.gangs.coordinator import Coordinator
from muster.gangs.lifecycle.state import State
from muster.gangs.membership.group import name_key
from muster.gangs.membership.units import unit_of_gang
from muster.gangs.messages.instructions import Outcome
from muster.gangs.pending.scheduling_queue import SchedulingQueue
from muster.gangs.record.gang import Gang, Timer
from muster.gangs.record.phases import Permitted, Phase, Planned, Reserving

_TIMED = (Phase.PLANNED, Phase.RESERVING, Phase.PERMITTED, Phase.WITHDRAWN, Phase.GIVEN_UP)
"""Phases that end by themselves if nothing happens."""


def check(coordinator: Coordinator) -> list[str]:
    """Return sentences about what is broken; [] if nothing is."""
    state = coordinator.state
    broken: list[str] = []
    owners: dict[str, str] = {}
    queued = Counter(key for queue in state.queue._queues.values() for key in queue._entries)
    broken += [f"{key} waits for both planners" for key in sorted(queued) if queued[key] > 1]
    standing = waiting_or_refused(state.queue)
    questions = {(out.solve.gang, out.solve.generation) for out in state.open_questions.values()}
    for gang in state.gangs.values():
        broken += _gang(gang, state.ledger)
        broken += _goes_on(gang, gang.key in standing, (gang.key, gang.generation) in questions, state.active)
        for uid in gang.reserved_uids | gang.retained_uids:
            if uid in owners:
                broken.append(f"{uid} is held for {owners[uid]} and for {gang.key}")
            owners[uid] = gang.key
    strays = state.ledger.reservations.keys() - owners.keys() - state.orphans.keys()
    broken += [f"{uid} is held for no plan" for uid in sorted(strays)]
    planned_members = {
        gang.key: len(gang.in_phase.plan.order)
        for gang in state.gangs.values()
        if isinstance(gang.in_phase, Planned | Reserving)
    }
    if state.planned_members != planned_members:
        broken.append(f"{state.planned_members} are counted as planned, and {planned_members} are")
    for key in state.queue._lacking:
        if key not in state.gangs or state.gangs[key].phase not in (Phase.COLLECTING, Phase.PLANNING):
            broken.append(f"others wait for {key}, which does not wait for the planner")
    if state.backfill.current is not None and state.backfill.current.gang not in state.gangs:
        broken.append(f"the backfill reservation of {state.backfill.current.gang} has outlived it")
    movable = {uid for key in planned_members for uid in state.gangs[key].reserved_uids}
    for name in state.ledger.nodes:
        broken += _node(state.ledger, name, movable)
    return broken + _occupants(state)


def _occupants(state: State) -> list[str]:
    """The search for victims sees as taken what the planner sees as taken."""
    broken: list[str] = []
    while not state.occupants.settle():
        pass
    for gang in islice(state.gangs.values(), 3):
        by_node = state.occupants_for(gang)
        for name, node_state in state.snapshot_for(gang).nodes.items():
            usages = [occupant.usage for occupant in by_node.get(name, ())]
            if NodeState.of(node_state.node, usages) != node_state:
                broken.append(f"for {gang.key}, the occupants of {name} are not what it has given away")
    return broken + _units(state)


def _units(state: State) -> list[str]:
    """Each gang with bound members is a unit of these members."""
    broken: list[str] = []
    ledger, units = state.ledger, state.occupants.units
    uids_of: dict[str, set[str]] = {}
    for occupant in chain.from_iterable(state.occupants.by_node.values()):
        if occupant.unit:
            uids_of.setdefault(occupant.unit, set()).add(occupant.usage.pod_uid)
    members = set[str]()
    for gang in state.gangs.values():
        bound = {pod.uid for pod in gang.group.bound}
        pods_now = [state.roster.pods.get(pod.uid, pod) for pod in gang.group.bound]
        moved = {pod.uid for pod in pods_now if name_key(pod) != gang.name}  # it is regrouped later
        members |= bound
        if bound and replace(units[gang.key], protected="") != replace(
            unit_of_gang(gang.group), protected=""
        ):
            broken.append(f"the unit of {gang.key} is old")
        there = {uid for uid in bound & ledger.bound.keys() if ledger.bound[uid].node in ledger.nodes}
        if (there ^ uids_of.pop(gang.key, set())) - moved:
            broken.append(f"the unit of {gang.key} has not its bound members")
    existing = map(ledger.existing_pods.pod, [uid for uid, usage in ledger.bound.items() if usage.holds_gpus])
    lone = {pod.uid for pod in existing if pod is not None and (pod.claim is None or not pod.present)}
    lone = {uid for uid in lone if ledger.bound[uid].node in ledger.nodes} - members
    if lone != uids_of.keys() or any(uids_of[uid] != {uid} for uid in lone):
        broken.append(f"the units without a gang are {sorted(uids_of)}, and not {sorted(lone)}")
    return broken + [f"{key} has ended" for key in units.keys() - state.gangs.keys() - lone]


def waiting_or_refused(queue: SchedulingQueue) -> set[str]:
    """Return the keys of all gangs that wait for a planner or are refused."""
    return set(queue._hint_of).union(*(lane_queue._entries for lane_queue in queue._queues.values()))


def _gang(gang: Gang, ledger: Ledger) -> list[str]:
    broken = []
    if isinstance(gang.in_phase, Planned | Reserving):
        plan, verdict = gang.in_phase.plan, gang.verdict
        unbound = {pod.uid for pod in gang.group.unbound}
        if verdict is None or verdict.outcome is not Outcome.PLANNED:
            return [f"{gang.key} is {gang.phase} without a verdict"]
        if gang.group.causes or gang.group.present < gang.group.needed:
            broken.append(f"{gang.key} is planned, but not complete or ill-formed")
        if not set(plan.order) <= unbound:
            broken.append(f"{gang.key} plans pods that are bound or gone")
        if not set(plan.order) <= ledger.reservations.keys():
            broken.append(f"{gang.key} is planned without all its reservations")
        if len(plan.order) < plan.request.min_member:
            broken.append(f"{gang.key} is planned with {len(plan.order)} of {plan.request.min_member}")
    if isinstance(gang.in_phase, Permitted) and not gang.in_phase.awaited_bindings:
        broken.append(f"{gang.key} is permitted and waits for no Binding")
    if gang.verdict is not None and gang.verdict.generation > gang.generation:
        broken.append(f"{gang.key}: its verdict is newer than its generation")
    return broken


def _goes_on(gang: Gang, waits: bool, is_asked: bool, active: bool) -> list[str]:
    """Return sentences about phases that the gang can't leave: no input, timer or answer would move it on.

    `waits`: it waits for a planner, or is refused. `is_asked`: a planner decides about it.
    """
    broken = []
    phase = gang.phase
    if waits and phase not in (Phase.PLANNING, Phase.UNPLACEABLE):
        broken.append(f"{gang.key} is {phase} and waits for the planner")
    if phase is Phase.PLANNING and not (waits or is_asked or Timer.IN_TREE in gang.timers):
        broken.append(f"{gang.key} is {phase}, and is not queued for the planner")
    pauses = gang.ended_decisions and Timer.PHASE in gang.timers
    if phase is Phase.UNPLACEABLE and not (waits or pauses):
        broken.append(f"{gang.key} is {phase}, and nothing will move it on")
    if phase in _TIMED and Timer.PHASE not in gang.timers:
        broken.append(f"{gang.key} is {phase} without a timer")
    if (
        active
        and gang.is_partially_bound
        and phase is not Phase.GIVEN_UP
        and Timer.PARTIAL not in gang.timers
    ):
        broken.append(f"{gang.key} is partially bound without a timer")
    if gang.retained_uids - gang.lost_members.keys() and not (
        gang.is_partially_bound or phase is Phase.PERMITTED
    ):
        broken.append(f"{gang.key} is {phase} and retains the places of {sorted(gang.retained_uids)}")
    if gang.retained_uids & gang.lost_members.keys() and Timer.LOST not in gang.timers:
        broken.append(f"{gang.key} retains the places of lost members without a timer")
    return broken


def _node(ledger: Ledger, name: str, movable: Collection[str]) -> list[str]:
    """Return sentences about GPUs taken twice, and about more taken than the node has.

    Only nodes with a reservation are checked, because other schedulers answer for what they bind. A node that
    becomes smaller voids the plans that are still `movable`, but not those that are permitted.
    """
    usages = ledger.stated_usages_on(name).values()
    if not any(usage.pod_uid in ledger.reservations for usage in usages):
        return []
    whole_gpus, shared, unindexed, free = 0, 0, 0, ledger.nodes[name].allocatable
    memory = dict(enumerate(ledger.nodes[name].gpu_memory))
    broken = []
    for usage in sorted(usages, key=lambda usage: usage.pod_uid in ledger.reservations):
        is_reserved = usage.pod_uid in ledger.reservations
        if is_reserved and (twice := usage.gpus & (whole_gpus if usage.units else whole_gpus | shared)):
            broken.append(f"node {name}: GPUs {twice:b} are taken twice, by {usage.pod_uid} last")
        for gpu in bits(usage.gpus if usage.units else 0):
            memory[gpu] = memory.get(gpu, usage.units) - usage.units
            if is_reserved and memory[gpu] < 0:
                broken.append(f"node {name}: GPU {gpu} has {memory[gpu]} GiB left after {usage.pod_uid}")
        if usage.units:
            shared |= usage.gpus
        else:
            whole_gpus |= usage.gpus
        unindexed += 0 if usage.units else usage.unindexed_gpus
        free -= usage.resources
    if ledger.stated_usages_on(name).keys().isdisjoint(movable):
        return broken
    whole_gpus |= shared
    count = ledger.nodes[name].topology.gpu_count
    if whole_gpus >> count or whole_gpus.bit_count() + unindexed > count:
        broken.append(
            f"node {name}: {whole_gpus.bit_count() + unindexed} of {count} GPUs are taken: {whole_gpus:b}"
        )
    if min(free.cpu_milli, free.memory_bytes, free.pods) < 0:
        broken.append(f"node {name}: {free} is left")
    return broken
