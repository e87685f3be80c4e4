"""Victims: name, in the refusal of a gang, the gangs of lower priority whose end would make room for it.

No pod is evicted. A process of its own answers one question at a time, so no decision waits for an answer.
Only the publication of a refusal waits for a moment, because each one costs a scheduling cycle of each pod.
"""

from __future__ import annotations

import math
from dataclasses import replace

from muster.domain.clearing import Clearing, ClearQuestion, NoClearing, Occupancy, Occupant, Unit
from muster.domain.clearing_words import clearing_json
from muster.domain.decision import Unplaceable
from muster.domain.sentences import refusal_sentence
from muster.gangs.capacity import requests
from muster.gangs.lifecycle.state import State
from muster.gangs.messages.inputs import VictimsFound
from muster.gangs.messages.instructions import EventReason, FindVictims, Outcome
from muster.gangs.messages.settings import Preempt
from muster.gangs.pending.victims import OpenQuestion
from muster.gangs.record import phases
from muster.gangs.record.gang import Gang, PlannerQuestion, Timer
from muster.gangs.record.phases import Phase
from muster.gangs.record.victims import VictimsAnswer, VictimsQuestion
from muster.gangs.reporting.publisher import shorten

MAX_GANGS_PER_INPUT = 32
"""Largest number of gangs that one input looks at until a gang needs a question."""
MAX_MEMBERS_PER_INPUT = 1024
"""After this number of members has got victims, the next input goes on: the verdict lists each member."""
MAX_LISTED = 64
"""Largest number of victims, and of pods of each, that programs get."""
_RESERVED = "what comes free on its nodes is reserved for another gang"
_SAME_TIME_S = 10.0
"""Ages count from the last full 10 s, so that the next question may have the same occupancy."""


def question_for(
    state: State, gang: Gang, question: PlannerQuestion, decision: Unplaceable
) -> VictimsQuestion | None:
    """Return the question for the victims of a refused gang; None if no end of a pod may help.

    Optional members have no victims: a gang that has started waits for them.
    """
    if state.settings.preempt is Preempt.OFF or gang.group.enough_bound:
        return None
    priorities = [pod.priority for pod in gang.group.unbound]
    lowest_bound = min(state.ledger.existing_pods.priorities, default=math.inf)
    if not priorities or min(priorities) <= lowest_bound or any(cause.stays for cause in decision.causes):
        return None
    request, excluded = requests.least_of(question.request), question.solve.excluded
    return VictimsQuestion.of(request, priorities, excluded, _reserved_for(state, gang))


def begin(state: State, gang: Gang, question: VictimsQuestion | None) -> None:
    """Take the known victims of a gang that was just refused. Ask if none are known, or they are old."""
    gang.victims = state.victims.answer(question, gang.victims) if question is not None else None
    if question is not None and (gang.victims is None or _is_old(state, gang.victims)):
        state.victims.add(gang, question)
    else:
        state.victims.remove(gang)


def publish(state: State, gang: Gang) -> None:
    """Publish why the gang does not fit, with its victims if they are known.

    If they may be known soon, wait for `victims_s`. While a watch is interrupted, nothing is asked and no
    timer expires, so do not wait.
    """
    refused = gang.in_phase
    assert isinstance(refused, phases.Unplaceable)
    if gang.victims is None and state.victims.waits(gang) and not state.interrupted:
        gang.reason = shorten(f"{refused.text}{refused.notes}")
        state.timers.set(gang, state.now + state.settings.victims_s, Timer.REPORT_REFUSAL)
    else:
        publish_now(state, gang)


def publish_now(state: State, gang: Gang) -> None:
    """Publish why the gang does not fit, with its victims if they are known.

    A sentence about victims makes another refusal when it comes first. From then on it counts as a number,
    because victims come and go with each pod that ends.
    """
    refused = gang.in_phase
    assert isinstance(refused, phases.Unplaceable)
    text, kinds = refused.text, refused.kinds
    kinds_with_victims = (*kinds, "victims")
    is_refused = gang.verdict is not None and gang.verdict.outcome is Outcome.REFUSED
    if is_refused and gang.refusal_kinds == kinds_with_victims:
        kinds = kinds_with_victims
    if gang.victims is not None and (facts := gang.victims.facts) is not None and facts["says"]:
        text = refusal_sentence(gang.refusal_causes, gang.relaxations, facts["says"])
        kinds = kinds_with_victims
    state.publisher.refuse(gang, EventReason.UNPLACEABLE, kinds, f"{text}{refused.notes}")


def may_ask(state: State) -> bool:
    """Return whether a question can be asked now."""
    is_ready = state.active and not state.interrupted and not state.catches_up
    return is_ready and state.victims.any_waits and state.victims.open is None


def ask(state: State) -> None:
    """Ask about the next gang whose victims are not known, once all occupants are read."""
    if not may_ask(state) or not state.occupants.settle():
        return
    members_told = 0
    for _ in range(MAX_GANGS_PER_INPUT):
        if not state.victims.any_waits or members_told >= MAX_MEMBERS_PER_INPUT:
            return
        key, question = state.victims.pop()
        gang = state.gangs.get(key)
        if gang is None or gang.phase is not Phase.UNPLACEABLE:
            continue
        question = replace(question, reserved_for=_reserved_for(state, gang))
        answer = state.victims.answer(question)
        if answer is None or _is_old(state, answer):
            _ask_about(state, gang, question)
            return
        members_told += len(gang.group.unbound)
        _tell(state, gang, answer)


def take_answer(state: State, message: VictimsFound) -> None:
    """Handle the answer to the open question. Without an answer, the gang asks again with a later refusal."""
    question = state.victims.open
    if question is None or question.number != message.number:
        return
    state.victims.open = None
    gang = state.gangs.get(question.gang)
    if gang is None:
        return
    clearing = message.answer or NoClearing(gang.group.gang, proven=False)
    if isinstance(clearing, Clearing) and not _may_still_go(state, question.question, clearing):
        if gang.phase is Phase.UNPLACEABLE and not state.victims.waits(gang):
            state.victims.add(gang, question.question)
        return
    answer = _answer(state, question.question, clearing)
    state.victims.keep(answer)
    if gang.phase is Phase.UNPLACEABLE and not state.victims.waits(gang):
        _tell(state, gang, answer)


def _ask_about(state: State, gang: Gang, question: VictimsQuestion) -> None:
    units = dict(state.occupants.units)
    units.pop(gang.key, None)
    by_node = state.occupants_for(gang)
    if question.reserved_for:
        _keep_reserved(state, by_node, units)
    now = state.wall_clock() // _SAME_TIME_S * _SAME_TIME_S
    occupancy = Occupancy(by_node, units, now, dict(state.ledger.budgets.allowed))
    request = ClearQuestion(question.request, occupancy, question.priority)
    number = next(state.numbers)
    state.victims.open = OpenQuestion(number, gang.key, question)
    snapshot = state.snapshot_for(gang)
    state.publisher.instruct(FindVictims(gang.key, number, request, snapshot, question.excluded))


def _reserved_for(state: State, gang: Gang) -> str:
    """Return the key of the gang whose reservation this gang must not use; "" if there is none."""
    current = state.backfill.current
    return current.gang if current is not None and current.hides_from(gang) else ""


def _keep_reserved(state: State, by_node: dict[str, tuple[Occupant, ...]], units: dict[str, Unit]) -> None:
    """Let no pod of the reserved nodes be a victim, because the reservation gets what the pod frees."""
    assert state.backfill.current is not None
    for name in state.backfill.current.wants:
        occupants = by_node.get(name, ())
        if any(pod.ends for pod in occupants):
            by_node[name] = tuple(replace(pod, unit="") if pod.ends else pod for pod in occupants)
        for key in {pod.unit for pod in occupants} & units.keys():
            if not units[key].protected:
                units[key] = replace(units[key], protected=_RESERVED)


def _answer(state: State, question: VictimsQuestion, answer: Clearing | NoClearing) -> VictimsAnswer:
    """Return what users read of an answer. The plan and the pods are forgotten, because there may be many."""
    victims = answer.victims if isinstance(answer, Clearing) else ()
    is_decided = isinstance(answer, Clearing) or answer.proven
    facts = clearing_json(answer, MAX_LISTED) if is_decided else None
    return VictimsAnswer(question, facts, tuple(victim.unit for victim in victims), state.now)


def _may_still_go(state: State, question: VictimsQuestion, clearing: Clearing) -> bool:
    """Return whether the victims may still go: some may have ended or changed while the question was open."""
    state.occupants.settle()
    units = [state.occupants.units.get(victim.unit) for victim in clearing.victims]
    if any(unit is None or unit.protected or unit.priority >= question.priority for unit in units):
        return False
    pods = [pod for victim in clearing.victims for pod in victim.pods]
    nodes = {pod.usage.node for pod in pods}
    occupants = (pod for node in nodes for pod in state.occupants.by_node.get(node, ()))
    running_uids = {pod.usage.pod_uid for pod in occupants if pod.unit and not pod.ends}
    return all(pod.usage.pod_uid in running_uids for pod in pods)


def _is_old(state: State, answer: VictimsAnswer) -> bool:
    return state.now >= answer.found_at + state.settings.numbers_s


def _tell(state: State, gang: Gang, answer: VictimsAnswer) -> None:
    """Add the victims to the refusal of a gang."""
    gang.victims = answer
    publish_now(state, gang)
