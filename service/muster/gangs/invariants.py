"""What must hold after every event and call. Tests ask it each time; it costs a walk over everything."""

from __future__ import annotations

from muster.gangs.coordinator import Coordinator
from muster.gangs.gang import Gang
from muster.gangs.instructions import Outcome
from muster.gangs.ledger import Ledger
from muster.gangs.life import Phase


def check(coordinator: Coordinator) -> list[str]:
    """Sentences about what is broken; none when all is well."""
    lives = coordinator.lives
    broken: list[str] = []
    owners: dict[str, str] = {}
    for gang in lives.gangs.values():
        broken += _gang(gang, lives.ledger)
        for uid in _may_hold(gang):
            if uid in owners:
                broken.append(f"{uid} is held for {owners[uid]} and for {gang.key}")
            owners[uid] = gang.key
    strays = lives.ledger.held.keys() - owners.keys() - coordinator.orphans
    broken += [f"{uid} is held for no plan" for uid in sorted(strays)]
    for name in lives.ledger.nodes:
        broken += _node(lives.ledger, name)
    return broken


def _may_hold(gang: Gang) -> set[str]:
    if gang.phase is Phase.PERMITTED:
        return set(gang.awaited)
    return set(gang.plan.order) if gang.plan is not None and gang.holds else set()


def _gang(gang: Gang, ledger: Ledger) -> list[str]:
    broken = []
    unbound = {pod.uid for pod in gang.group.unbound}
    if gang.phase in (Phase.PLANNED, Phase.RESERVING):
        plan, verdict = gang.plan, gang.verdict
        if plan is None or verdict is None or verdict.outcome is not Outcome.PLANNED:
            return [f"{gang.key} is {gang.phase} without plan and verdict"]
        if gang.group.causes or gang.group.present < gang.group.needed:
            broken.append(f"{gang.key} is planned, but not complete or ill-formed")
        if not set(plan.order) <= unbound:
            broken.append(f"{gang.key} plans pods that are bound or gone")
        if not set(plan.order) <= ledger.held.keys():
            broken.append(f"{gang.key} is planned without all its reservations")
        if len(plan.order) < plan.request.min_member:
            broken.append(f"{gang.key} is planned with {len(plan.order)} of {plan.request.min_member}")
    if gang.phase is Phase.PERMITTED and not gang.awaited:
        broken.append(f"{gang.key} is permitted and waits for no Binding")
    if gang.phase is not Phase.PERMITTED and gang.awaited:
        broken.append(f"{gang.key} is {gang.phase} and waits for Bindings")
    if gang.verdict is not None and gang.verdict.generation > gang.generation:
        broken.append(f"{gang.key}: its verdict is newer than its generation")
    return broken


def _node(ledger: Ledger, name: str) -> list[str]:
    """A GPU that is taken twice, or more taken than there is, where a reservation has a part in it: what
    other schedulers bind is theirs to answer for."""
    usages = ledger.on_node(name).values()
    if not any(usage.pod_uid in ledger.held for usage in usages):
        return []
    taken, unindexed, free = 0, 0, ledger.nodes[name].allocatable
    broken = []
    for usage in usages:
        if usage.gpus & taken:
            broken.append(
                f"node {name}: GPUs {usage.gpus & taken:b} are taken twice, by {usage.pod_uid} last"
            )
        taken |= usage.gpus
        unindexed += usage.unindexed_gpus
        free -= usage.resources
    count = ledger.nodes[name].topology.gpu_count
    if taken >> count or taken.bit_count() + unindexed > count:
        broken.append(f"node {name}: {taken.bit_count() + unindexed} of {count} GPUs are taken: {taken:b}")
    if min(free.cpu_milli, free.memory_bytes, free.pods) < 0:
        broken.append(f"node {name}: {free} is left")
    return broken
