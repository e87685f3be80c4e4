"""The table of transitions, and the page that shows it."""

from __future__ import annotations

from pathlib import Path

import pytest

from muster.gangs.record.phases import TRANSITIONS, ImpossibleTransitionError, Phase, Trigger, after, table

PAGE = Path(__file__).parents[2] / "docs" / "gang-life.md"


def test_the_page_shows_the_table() -> None:
    """`python -m muster.gangs.record.phases` prints it."""
    assert table() in PAGE.read_text()


def test_every_phase_is_reached_and_every_trigger_is_used() -> None:
    assert set(TRANSITIONS.values()) | {Phase.COLLECTING} == set(Phase)
    assert {trigger for _, trigger in TRANSITIONS} == set(Trigger)


def test_a_transition_that_is_not_in_the_table_is_a_defect() -> None:
    with pytest.raises(ImpossibleTransitionError, match="a collecting gang: the planner placed it"):
        after(Phase.COLLECTING, Trigger.PLACED)
