"""Who is planned next."""

from __future__ import annotations

from muster.gangs.queue import FAIR_TURN, Queue


def popped(queue: Queue) -> list[str]:
    out = []
    while (key := queue.pop()) is not None:
        out.append(key)
    return out


def test_priority_then_age_then_key() -> None:
    queue = Queue()
    for key, priority, created in (
        ("d", 0, 2.0),
        ("c", 0, 2.0),
        ("b", 0, 1.0),
        ("a", 5, 9.0),
        ("e", -1, 0.0),
    ):
        queue.put(key, priority, created)
    assert popped(queue) == ["a", "b", "c", "d", "e"]


def test_a_gang_stands_in_it_once_and_may_move_or_leave() -> None:
    queue = Queue()
    queue.put("a", 0, 1.0)
    queue.put("b", 0, 2.0)
    queue.put("b", 1, 2.0)
    queue.put("c", 9, 0.0)
    queue.drop("c")
    assert popped(queue) == ["b", "a"]


def test_a_young_gang_gets_its_turn_among_old_ones_that_come_back_for_ever() -> None:
    queue = Queue()
    for number in range(20):
        queue.put(f"old-{number}", 5, 1.0)
    turns = []
    for turn in range(40 * FAIR_TURN):
        if turn == 20 * FAIR_TURN:  # all old ones have been asked about
            queue.put("young", 0, 2.0)
        key = queue.pop()
        assert key is not None
        turns.append(key)
        if key != "young":
            queue.put(key, 5, 1.0)
    assert turns[: FAIR_TURN - 1] == ["old-0"] * (FAIR_TURN - 1)
    assert 0 <= turns.index("young") - 20 * FAIR_TURN < FAIR_TURN


def test_what_is_put_and_dropped_for_ever_does_not_pile_up() -> None:
    """A standby plans nobody."""
    queue = Queue()
    for _ in range(1000):
        queue.put("g", 0, 1.0)
        queue.drop("g")
    assert len(queue._by_priority) + len(queue._by_last_turn) <= 4 * FAIR_TURN
