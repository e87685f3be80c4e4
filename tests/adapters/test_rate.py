"""A rate: what each owner may do, on a clock of the test's own."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from muster.domain.rate import Rate

STEPS = st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 3)), max_size=120)


@given(STEPS, st.integers(1, 4), st.sampled_from([0.5, 2.0, 10.0]))
def test_each_owner_has_its_burst_and_then_its_rate(
    steps: list[tuple[str, int]], burst: int, per_s: float
) -> None:
    now = 0.0
    rate = Rate((burst - 1) / per_s, lambda: now)
    times: dict[str, list[float]] = {owner: [] for owner in "abc"}
    for owner, pause in steps:
        now += pause / 4
        rate.forget()
        if not rate.wait_s(owner):
            rate.charge(owner, 1 / per_s)
            times[owner].append(now)
    for of_owner in times.values():
        for i, first in enumerate(of_owner):
            for j, last in enumerate(of_owner[i:], 1):
                assert j <= burst + (last - first) * per_s + 1e-6
    for owner in times:
        now += rate.wait_s(owner)
        assert rate.wait_s(owner) < 1e-9, "none waits for ever"


def test_an_owner_that_owes_nothing_is_forgotten() -> None:
    now = 0.0
    rate = Rate(1.0, lambda: now)
    for number in range(100):
        now = float(number)
        rate.charge(f"owner-{number}", 0.5)
        rate.forget()
    assert len(rate._paid) == 1
