"""The table of transitions, and the page that shows it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from muster.gangs.record.gang import Gang
from muster.gangs.record.phases import (
    TRANSITIONS,
    ImpossibleTransitionError,
    InPhase,
    Invalid,
    Phase,
    Planning,
    Trigger,
    after,
    table,
)

PAGE = Path(__file__).parents[2] / "docs" / "gang-life.md"


def test_the_page_shows_the_table() -> None:
    """`python -m muster.gangs.record.phases` prints it."""
    assert table() in PAGE.read_text()


def test_every_phase_is_reached_and_every_trigger_is_used() -> None:
    assert set(TRANSITIONS.values()) | {Phase.COLLECTING} == set(Phase)
    assert {trigger for _, trigger in TRANSITIONS} == set(Trigger)


def test_each_phase_has_a_type() -> None:
    types = {each.__name__: each.phase for each in InPhase.__subclasses__()}
    assert sorted(types.values()) == sorted(Phase)


def test_a_gang_goes_where_the_table_says() -> None:
    group: Any = None  # it is not looked at
    gang = Gang("ns/ack/g", ("ns", "ack", "g", ""), group)
    with pytest.raises(ImpossibleTransitionError, match=r"a collecting gang: all .*, to invalid"):
        gang.enter(Trigger.COMPLETE, Invalid())
    gang.enter(Trigger.COMPLETE, Planning())
    assert gang.in_phase == Planning()


def test_a_transition_that_is_not_in_the_table_is_a_defect() -> None:
    with pytest.raises(ImpossibleTransitionError, match="a collecting gang: the planner placed it"):
        after(Phase.COLLECTING, Trigger.PLACED)
