"""Values of labels that users choose: few at a time, few over time, and the largest stay visible."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from muster.adapters.telemetry.room import MAX_CHARACTERS, OTHERS, RENEWAL_S, LabelValues


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def test_the_largest_have_a_value_of_their_own() -> None:
    counted = LabelValues(2).cut({f"queue {i}": i for i in range(1000)})
    assert counted == {"queue 999": 999, "queue 998": 998, OTHERS: sum(range(998))}


def test_values_are_short_and_printable() -> None:
    counted = LabelValues(5).cut({"q\n" + "x" * 200_000: 1, "q\n" + "x" * 300_000: 2})
    (value,) = counted
    assert (len(value) <= MAX_CHARACTERS + 1, value.isprintable(), counted[value]) == (True, True, 3)


def test_a_value_that_is_called_like_the_sum_is_part_of_it() -> None:
    assert LabelValues(1).cut({OTHERS: 5, "a": 1, "b": 2}) == {OTHERS: 6, "b": 2}


def test_a_value_comes_back_at_its_place() -> None:
    """Nothing is shown of a queue without gangs, and that costs it no series."""
    values = LabelValues(2, Clock())
    for counts in ({"a": 1, "b": 1}, {}, {"b": 1}, {"a": 2, "b": 1}):
        assert values.cut(counts) == counts


def test_a_larger_value_takes_the_place_of_one_that_is_gone_once_in_a_while() -> None:
    clock = Clock()
    values = LabelValues(2, clock)
    values.cut({"a": 1, "b": 1})
    assert values.cut({"b": 1, "c": 3, "d": 2}) == {"b": 1, OTHERS: 5}
    clock.now += RENEWAL_S
    assert values.cut({"b": 1, "c": 3, "d": 2}) == {"b": 1, "c": 3, OTHERS: 2}
    assert values.cut({"b": 1, "c": 3, "d": 2}) == {"b": 1, "c": 3, OTHERS: 2}


@given(st.lists(st.dictionaries(st.text(max_size=3), st.integers(1, 9), max_size=12), max_size=30))
def test_whatever_comes_nothing_is_lost_and_series_are_few(scrapes: list[dict[str, int]]) -> None:
    clock = Clock()
    values, series = LabelValues(3, clock), set[str]()
    for counts in scrapes:
        counted = values.cut(counts)
        assert counted.total() == sum(counts.values())
        assert len(counted) <= 4
        series |= counted.keys()
        clock.now += RENEWAL_S / 10
    assert len(series - {OTHERS}) <= 3 + len(scrapes) / 10
