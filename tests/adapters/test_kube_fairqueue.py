"""The fair queue: bounds, rates and turns of its keys, on a clock of the test's own."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from muster.adapters.kube.fairqueue import SWEEP_FROM, FairQueue, Shares

WIDE = Shares(limit=1000, line_limit=1000, per_s=1000.0, burst=1000, window=1000)


def take_all(queue: FairQueue[str], now: float, done: bool = True) -> list[str]:
    """What may be taken at this time; items are "key/…"."""
    items = []
    while queue.ready_in(now) == 0:
        items.append(queue.take(now))
        if done:
            queue.done(items[-1].partition("/")[0], now)
    return items


def test_keys_take_turns() -> None:
    queue = FairQueue[str](WIDE)
    for item in ("a/1", "a/2", "a/3", "b/1", "c/1", "c/2"):
        assert queue.put(item[0], item, 0.0) is None
    assert take_all(queue, 0.0) == ["a/1", "b/1", "c/1", "a/2", "c/2", "a/3"]


def test_a_key_has_its_burst_and_then_its_rate() -> None:
    queue = FairQueue[str](Shares(100, 100, per_s=2.0, burst=3, window=100))
    for number in range(10):
        queue.put("a", f"a/{number}", 0.0)
    assert len(take_all(queue, 0.0)) == 3
    assert queue.ready_in(0.0) == 0.5
    assert len(take_all(queue, 0.5)) == 1
    assert len(take_all(queue, 10.0)) == 3, "after a pause the burst again, no more"


def test_a_flood_neither_delays_nor_drops_what_others_put() -> None:
    queue = FairQueue[str](Shares(limit=50, line_limit=40, per_s=10.0, burst=5, window=100))
    dropped = [queue.put("flood", f"flood/{number}", 0.0) for number in range(10_000)]
    assert len([item for item in dropped if item]) == 9_960
    for number in range(5):
        assert queue.put("quiet", f"quiet/{number}", 0.0) is None
    assert [item for item in take_all(queue, 0.0)[:10] if item.startswith("quiet")] == [
        f"quiet/{number}" for number in range(5)
    ]


def test_where_all_is_full_the_longest_line_makes_room() -> None:
    queue = FairQueue[str](Shares(limit=10, line_limit=10, per_s=1.0, burst=1, window=1))
    for number in range(10):
        queue.put("flood", f"flood/{number}", 0.0)
    assert queue.put("flood", "flood/10", 0.0) == "flood/10"
    assert queue.put("quiet", "quiet/0", 0.0) == "flood/9"
    assert len(queue) == 10


def test_a_key_whose_items_are_never_done_holds_up_itself_alone() -> None:
    queue = FairQueue[str](Shares(100, 100, per_s=100.0, burst=100, window=2))
    for number in range(5):
        queue.put("stuck", f"stuck/{number}", 0.0)
    assert take_all(queue, 0.0, done=False) == ["stuck/0", "stuck/1"]
    assert queue.ready_in(100.0) is None
    queue.put("b", "b/0", 100.0)
    assert take_all(queue, 100.0) == ["b/0"]
    queue.done("stuck", 100.0)
    assert take_all(queue, 100.0, done=False) == ["stuck/2"]


def test_idle_keys_are_forgotten() -> None:
    queue = FairQueue[str](Shares(100, 100, per_s=10.0, burst=2, window=2))
    for number in range(20 * SWEEP_FROM):
        queue.put(f"k{number}", f"k{number}/0", float(number))
        assert take_all(queue, float(number)) == [f"k{number}/0"]
    assert queue.keys <= SWEEP_FROM


STEPS = st.lists(
    st.tuples(st.sampled_from("abcd"), st.sampled_from(["put", "put", "take", "done"]), st.integers(0, 3)),
    max_size=120,
)


@given(STEPS)
def test_it_is_bounded_and_keeps_each_keys_order(steps: list[tuple[str, str, int]]) -> None:
    shares = Shares(limit=6, line_limit=4, per_s=2.0, burst=2, window=2)
    queue, now = FairQueue[str](shares), 0.0
    waiting: dict[str, list[str]] = {key: [] for key in "abcd"}
    under_way: Counter[str] = Counter()
    taken_at: list[tuple[str, float]] = []
    for number, (key, deed, pause) in enumerate(steps):
        now += pause / 4
        if deed == "put":
            waiting[key].append(f"{key}/{number}")
            if (dropped := queue.put(key, f"{key}/{number}", now)) is not None:
                assert dropped == waiting[dropped[0]].pop(), "the last of its key"
                assert dropped[0] == key or len(waiting[dropped[0]]) >= len(waiting[key])
        elif deed == "take" and queue.ready_in(now) == 0:
            item = queue.take(now)
            assert item == waiting[item[0]].pop(0)
            under_way[item[0]] += 1
            taken_at.append((item[0], now))
        elif deed == "done" and under_way[key]:
            under_way[key] -= 1
            queue.done(key, now)
        assert len(queue) == sum(map(len, waiting.values())) <= shares.limit
        assert all(len(line) <= shares.line_limit for line in waiting.values())
        assert all(count <= shares.window for count in under_way.values())
    for key in "abcd":
        times = [at for of, at in taken_at if of == key]
        for i, first in enumerate(times):
            for j in range(i, len(times)):
                assert j - i + 1 <= shares.burst + (times[j] - first) * shares.per_s + 1e-6
    for key, count in under_way.items():
        for _ in range(count):
            queue.done(key, now)
    remaining = []
    while (wait := queue.ready_in(now)) is not None:
        now += wait
        remaining += take_all(queue, now)
    assert Counter(remaining) == Counter(item for line in waiting.values() for item in line), "none is lost"
