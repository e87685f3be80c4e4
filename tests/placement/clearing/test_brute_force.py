"""The cheapest victims against every choice: some in each family here, thousands with the marker."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from muster.domain.clearing import Clearing, ClearQuestion, Occupancy
from muster.placement.clearing import clear
from muster.placement.clearing.relaxation import Relaxation
from tests.placement.clearing.drawn import KINDS, drawn
from tests.placement.clearing.oracle import assert_cheapest
from tests.placement.clearing.questions import FAMILIES, questions

FEW, MANY = 50, 500
"""Cases of each kind in a unit test, and in all."""


def examples(count: int) -> settings:
    """Derandomized: the same every time, here and in CI."""
    return settings(
        max_examples=count,
        deadline=None,
        derandomize=True,
        suppress_health_check=list(HealthCheck),
        phases=(Phase.generate, Phase.shrink),
    )


@pytest.mark.parametrize("kind", KINDS)
def test_no_victims_are_cheaper(kind: str) -> None:
    for number in range(FEW):
        assert_cheapest(drawn(kind, number))


@pytest.mark.brute_force
@pytest.mark.parametrize("kind", KINDS)
def test_no_victims_are_cheaper_in_thousands_of_cases(kind: str) -> None:
    for number in range(FEW, MANY):
        assert_cheapest(drawn(kind, number))


@pytest.mark.brute_force
@pytest.mark.parametrize("name", FAMILIES)
@examples(40)
@given(data=st.data())
def test_no_victims_are_cheaper_with_all_that_a_gang_may_ask(name: str, data: st.DataObject) -> None:
    assert_cheapest(data.draw(questions(*FAMILIES[name])))


@pytest.mark.parametrize("number", range(20))
def test_the_order_of_facts_does_not_matter(number: int) -> None:
    rng, (snapshot, question) = random.Random(number), drawn("several roles", number)
    occupants, units = list(question.occupancy.occupants), list(question.occupancy.units.items())
    rng.shuffle(occupants)
    rng.shuffle(units)
    nodes = list(snapshot.nodes.items())
    rng.shuffle(nodes)
    by_node = Occupancy.of(occupants, {}, 0.0).by_node
    occupancy = replace(question.occupancy, by_node=by_node, units=dict(units))
    shuffled = ClearQuestion(question.request, occupancy, question.priority)
    assert clear(snapshot, question) == clear(replace(snapshot, nodes=dict(nodes)), shuffled)


def test_sums_that_promise_too_much_cost_solves_and_not_the_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the model believes, the search decides what fits, and cuts say so to the model."""
    right = Relaxation._freed_amount
    monkeypatch.setattr(Relaxation, "_freed_amount", lambda self, name: 3 * right(self, name))

    for number in range(20):
        assert_cheapest(drawn("plain", number))


@pytest.mark.parametrize("number", range(20))
def test_a_unit_that_is_protected_makes_a_clearing_dearer(number: int) -> None:
    snapshot, question = drawn("cpu", number)
    before = clear(snapshot, question)
    first = next(iter(question.occupancy.units))
    unit = replace(question.occupancy.units[first], protected="it says never")
    occupancy = replace(question.occupancy, units={**question.occupancy.units, first: unit})
    after = clear(snapshot, replace(question, occupancy=occupancy))
    if isinstance(after, Clearing):
        assert isinstance(before, Clearing)
        assert _cost(before) <= _cost(after)
        assert first not in {victim.unit for victim in after.victims}


def _cost(clearing: Clearing) -> tuple[float, int, int]:
    priority = float("-inf") if clearing.priority is None else clearing.priority
    return priority, clearing.loss, len(clearing.victims)
