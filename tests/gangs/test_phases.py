"""The table of transitions, and the page that shows it."""

from __future__ import annotations

import re
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
    next_phase,
    table,
)

PAGE = Path(__file__).parents[2] / "docs" / "gang-life.md"


def test_the_page_draws_transitions_of_the_table() -> None:
    """It draws each phase, and no arrow that the table lacks."""
    page = PAGE.read_text().replace("given_up", Phase.GIVEN_UP)
    arrows = set(re.findall(r"(?m)^ {4}([\w ]+) --> ([\w ]+):", page))
    assert {phase for arrow in arrows for phase in arrow} == set(Phase)
    assert arrows <= {(start, end) for (start, _), end in TRANSITIONS.items()}


def test_the_table_has_a_line_for_each_trigger_and_phase_reached() -> None:
    lines = table().splitlines()[2:]
    assert len(lines) == len({(trigger, to) for (_, trigger), to in TRANSITIONS.items()})


def test_every_phase_is_reached_and_every_trigger_is_used() -> None:
    assert set(TRANSITIONS.values()) | {Phase.COLLECTING} == set(Phase)
    assert {trigger for _, trigger in TRANSITIONS} == set(Trigger)


def test_each_phase_has_a_type() -> None:
    types = {phase_type.__name__: phase_type.phase for phase_type in InPhase.__subclasses__()}
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
        next_phase(Phase.COLLECTING, Trigger.PLACED)
