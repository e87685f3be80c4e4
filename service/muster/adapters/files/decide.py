"""Place gang after gang, by priority and age, in the capacity that earlier gangs leave. There is no I/O here.

The parts are those of the service: its roster groups pods, its ledger counts what is taken, and its requests
go to `placement.place`. Actions of the service over time are not here: waiting, retries, Bindings.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from itertools import chain, islice

from muster.adapters.files.victims import Clear, VictimSearch
from muster.domain.decision import Decision, Placed, Unplaceable
from muster.domain.node import DeviceClaim, Node
from muster.domain.peers import Labels
from muster.domain.pod import Pod
from muster.domain.podgroup import PodGroup
from muster.domain.policies import DEFAULT_POLICIES, Policies
from muster.domain.preemption import DisruptionBudget
from muster.domain.reasons import Cause
from muster.domain.request import Request
from muster.domain.sentences import placed_sentence, sentence
from muster.domain.snapshot import Snapshot
from muster.gangs.capacity import requests
from muster.gangs.capacity.ledger import Ledger
from muster.gangs.membership.group import Group, NameKey
from muster.gangs.membership.roster import Roster
from muster.gangs.messages.calls import InTreeAnswer
from muster.gangs.pending.refinement import GangAnswers
from muster.gangs.record.phases import usages
from muster.gangs.reporting.places import with_holders
from muster.placement.limits import Timings

Place = Callable[[Snapshot, Request, Timings], Decision]
Clock = Callable[[], float]


class OutcomeStatus(StrEnum):
    """The result for a gang: the values of `status` in JSON."""

    PLACED = "placed"
    WAITING = "waiting"
    UNPLACEABLE = "unplaceable"
    INVALID = "invalid"


@dataclass(frozen=True, slots=True)
class GangOutcome:
    """The result for one pending gang.

    `decision` is set if the planner was asked. `seconds` is how long that took, by phase of the planner, and
    "place" for all of it.
    """

    group: Group
    request: Request
    status: OutcomeStatus
    decision: Decision | None = None
    causes: tuple[Cause, ...] = ()
    seconds: Mapping[str, float] = field(default_factory=dict)

    @property
    def plan(self) -> Placed | None:
        """Return the plan; None unless the gang is placed."""
        return self.decision if isinstance(self.decision, Placed) else None

    @property
    def message(self) -> str:
        """Return the decision as a sentence, as users see it in a cluster."""
        if isinstance(self.decision, Placed):
            return placed_sentence(self.decision, self.request)
        return sentence(self.decision if self.decision is not None else self.causes)


@dataclass(frozen=True, slots=True)
class ClaimFacts:
    """The ResourceClaims that hold devices, and pod UID → the GPUs that the pod's claims match."""

    holding_claims: tuple[DeviceClaim, ...] = ()
    answers: Mapping[str, InTreeAnswer] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Cluster:
    """The facts of a cluster, and notes about the input."""

    nodes: tuple[Node, ...]
    pods: tuple[Pod, ...]
    pod_groups: tuple[PodGroup, ...] = ()
    policies: Policies = DEFAULT_POLICIES
    namespaces: Mapping[str, Labels] = field(default_factory=dict)
    """The labels of each namespace."""
    notes: tuple[str, ...] = ()
    """Sentences."""
    skipped: dict[str, int] = field(default_factory=dict)
    """Kind and API group, as "Job.batch.volcano.sh" → number of objects that are skipped."""
    made_up_names: tuple[str, ...] = ()
    """The objects with generateName, whose names here are made up."""
    claims: ClaimFacts = field(default_factory=ClaimFacts)
    budgets: tuple[DisruptionBudget, ...] = ()


@dataclass(frozen=True, slots=True)
class Outcomes:
    """All pending gangs in the order in which they were decided, and the cluster before and after."""

    outcomes: tuple[GangOutcome, ...]
    before: Snapshot
    after: Snapshot

    @property
    def all_placed(self) -> bool:
        """Return whether every gang is placed; True if there is no gang."""
        return all(outcome.status is OutcomeStatus.PLACED for outcome in self.outcomes)


def decide(cluster: Cluster, place: Place, clock: Clock, clear: Clear | None = None) -> Outcomes:
    """Place every pending gang. `clock` gives seconds and is used only for timings.

    `clear` is asked whose end would make room for a gang that is refused.
    """
    ledger, roster = Ledger(), Roster()
    ledger.set_policies(cluster.policies)
    roster.policies = cluster.policies
    for node in cluster.nodes:
        ledger.set_node(node)
    for pod_group in cluster.pod_groups:
        roster.see_pod_group(pod_group.key, pod_group)
    for name, labels in cluster.namespaces.items():
        ledger.existing_pods.see_namespace(name, labels)
    names: set[NameKey] = set()
    for pod in cluster.pods:
        ledger.see(pod)
        names |= roster.see(pod)
    for claim in cluster.claims.holding_claims:
        ledger.see_claim(claim)
    for budget in cluster.budgets:
        ledger.budgets.see(budget.key, budget)
    place = _naming_holders(place, ledger, roster)
    groups = [group for name in sorted(names) for group in roster.groups(name)]
    victims = VictimSearch(ledger, cluster.pods, groups, clear)
    first_snapshot, pending = ledger.snapshot(), _pending_gangs(groups)
    outcomes, placed_with_minimum = dict[str, GangOutcome](), list[GangOutcome]()
    for number, group in enumerate(pending):
        request = _request(group, ledger, cluster.claims.answers)
        minimum_request = requests.least_of(request)
        waiting = chain((minimum.group for minimum in placed_with_minimum), islice(pending, number + 1, None))
        if requests.asks_for_less(minimum_request, request) and _starts_with_minimum(group, request, waiting):
            minimum = _outcome(group, minimum_request, ledger, place, clock)
            if minimum.plan is not None:
                placed_with_minimum.append(replace(minimum, request=request))
                _hold(minimum, ledger)
                continue
        outcome = _outcome(group, request, ledger, place, clock)
        outcomes[group.gang.key] = _with_clearing(outcome, ledger.snapshot(), victims)
        _hold(outcome, ledger)
    for minimum in placed_with_minimum:
        ledger.release(pod.uid for pod in minimum.group.unbound)
        outcome = _outcome(minimum.group, minimum.request, ledger, place, clock)
        outcomes[minimum.group.gang.key] = outcome if outcome.plan is not None else minimum
        _hold(outcomes[minimum.group.gang.key], ledger)
    return Outcomes(tuple(outcomes[group.gang.key] for group in pending), first_snapshot, ledger.snapshot())


def _request(group: Group, ledger: Ledger, answers: Mapping[str, InTreeAnswer]) -> Request:
    """Return the request for a gang, with the GPUs that its claims match."""
    request = requests.request(group, ledger)
    matches = {pod.uid: answers[pod.uid] for pod in group.unbound if pod.uid in answers}
    return GangAnswers(ledger.nodes).renew(matches).refine(request)


def _naming_holders(place: Place, ledger: Ledger, roster: Roster) -> Place:
    """Wrap `place` so that refusals also name the gangs that hold the GPUs."""

    def decide_with_holders(snapshot: Snapshot, request: Request, timings: Timings) -> Decision:
        decision = place(snapshot, request, timings)
        if isinstance(decision, Unplaceable):
            return with_holders(decision, request.priority, ledger, roster.pods)
        return decision

    return decide_with_holders


def _with_clearing(outcome: GangOutcome, snapshot: Snapshot, victims: VictimSearch) -> GangOutcome:
    """Return a refusal together with the victims that would make room, or with what is in their way."""
    refused = outcome.decision
    if not isinstance(refused, Unplaceable) or any(cause.stays for cause in refused.causes):
        return outcome
    answer = victims.answer(outcome.group, outcome.request, snapshot)
    return replace(outcome, decision=replace(refused, clearing=answer))


def _starts_with_minimum(group: Group, request: Request, competitors: Iterable[Group]) -> bool:
    """Return whether this gang is first placed with its minimum, and extended after the others.

    This holds if the gang has optional members, and other gangs of its priority lack required members.
    Otherwise the first of two gangs would take capacity that both need.
    """
    return not group.enough_bound and any(
        competitor.priority >= request.priority
        for competitor in competitors
        if not (competitor.causes or competitor.enough_bound) and competitor.waits_for is None
    )


def _hold(outcome: GangOutcome, ledger: Ledger) -> None:
    if outcome.plan is not None:
        ledger.hold(usages(outcome.plan, {pod.uid: pod for pod in outcome.group.unbound}))


def _pending_gangs(groups: Iterable[Group]) -> list[Group]:
    """Return the gangs with pods to be placed: the highest priority first, then the oldest."""
    waiting = {group.gang.key: group for group in groups if group.unbound}
    return sorted(waiting.values(), key=lambda group: (-group.priority, group.since, group.gang.key))


def _outcome(group: Group, request: Request, ledger: Ledger, place: Place, clock: Clock) -> GangOutcome:
    if group.causes or group.waits_for is not None:
        waits: tuple[Cause, ...] = (group.waits_for,) if group.waits_for is not None else ()
        status = OutcomeStatus.INVALID if group.causes else OutcomeStatus.WAITING
        request = requests.without_followers(request)
        return GangOutcome(group, request, status, causes=group.causes or waits)
    snapshot, timings, began = ledger.snapshot(), Timings(clock), clock()
    decision, request = requests.without_followers_in_answer(place(snapshot, request, timings), request)
    took = {**timings.seconds, "place": clock() - began}
    if isinstance(decision, Unplaceable):
        return GangOutcome(group, request, OutcomeStatus.UNPLACEABLE, decision, decision.causes, took)
    return GangOutcome(group, request, OutcomeStatus.PLACED, decision, (), took)
