"""Quantities are read exactly."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from muster.dialects.quantities import LARGEST, MAX_AMOUNT, MAX_THOUSANDTHS, Quantity, milli, parse

GOOD: dict[Quantity, Fraction] = {
    "0": Fraction(0),
    "4": Fraction(4),
    4: Fraction(4),
    0.5: Fraction(1, 2),
    "500m": Fraction(1, 2),
    "0.1": Fraction(1, 10),
    ".5": Fraction(1, 2),
    "5.": Fraction(5),
    "+2": Fraction(2),
    "-1": Fraction(-1),
    "1k": Fraction(1000),
    "1Ki": Fraction(1024),
    "1.5Gi": Fraction(3 * 2**29),
    "2M": Fraction(2_000_000),
    "1e3": Fraction(1000),
    "1E3": Fraction(1000),
    "1E": Fraction(10**18),
    "1Ei": Fraction(2**60),
    "12e-1": Fraction(6, 5),
    "100n": Fraction(1, 10**7),
    "1u": Fraction(1, 10**6),
    "16Ei": Fraction(LARGEST),
    "1e999999999": Fraction(LARGEST),
    "-1e99": Fraction(-LARGEST),
}
BAD: tuple[Quantity, ...] = (
    "", " 1", "1 ", "one", "1.2.3", "1K", "1ki", "Gi", "1e", "1e1.5", "--1", "١", "0x10", "1_000", "9" * 65,
    float("nan"), float("inf"), True,
)  # fmt: skip


@pytest.mark.parametrize(("text", "value"), GOOD.items())
def test_what_is_a_quantity(text: Quantity, value: Fraction) -> None:
    assert parse(text) == value


@pytest.mark.parametrize("text", BAD)
def test_what_is_none(text: Quantity) -> None:
    assert parse(text) is None


def test_thousandths_are_rounded_up() -> None:
    assert milli(Fraction(1, 10**7)) == 1


def test_what_no_node_could_have_is_cut_off_so_that_sums_hold() -> None:
    assert milli(Fraction(LARGEST)) == MAX_THOUSANDTHS
    assert 100_000 * MAX_AMOUNT < 2**63


@given(st.integers(0, 10**6), st.sampled_from(["m", "", "k", "Ki"]))
def test_a_number_and_its_unit(number: int, unit: str) -> None:
    scale = {"m": Fraction(1, 1000), "": Fraction(1), "k": Fraction(1000), "Ki": Fraction(1024)}[unit]
    assert parse(f"{number}{unit}") == number * scale


@given(st.text(max_size=80) | st.floats() | st.integers())
def test_anything_is_a_quantity_or_none(value: Quantity) -> None:
    read = parse(value)
    assert read is None or abs(read) <= LARGEST
