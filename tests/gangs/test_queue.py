"""Who is planned next."""

from __future__ import annotations

from muster.gangs.pending.scheduling_queue import FAIR_TURN, Queue
from muster.gangs.record.gang import QueueOrder


def order(priority: int, created: float, is_partial: bool = False, is_covered: bool = False) -> QueueOrder:
    return QueueOrder.of(is_covered=is_covered, priority=priority, has_precedence=is_partial, created=created)


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
        queue.put(key, order(priority, created))
    assert popped(queue) == ["a", "b", "c", "d", "e"]


def test_a_partially_bound_gang_goes_first_among_its_equals_and_before_all_where_it_takes_nothing() -> None:
    queue = Queue()
    queue.put("old", order(0, 1.0))
    queue.put("partial", order(0, 9.0, is_partial=True))
    queue.put("urgent", order(5, 9.0))
    assert queue.pop(only_partial=True) is None  # it would pass what is more urgent
    queue.put("holds all", order(-1, 9.0, is_partial=True, is_covered=True))
    assert queue.pop(only_partial=True) == "holds all"
    assert queue.pop(only_partial=True) is None
    assert queue.pop() == "urgent"
    assert queue.pop(only_partial=True) == "partial"
    assert queue.pop(only_partial=True) is None
    assert popped(queue) == ["old"]


def test_a_gang_stands_in_it_once_and_may_move_or_leave() -> None:
    queue = Queue()
    queue.put("a", order(0, 1.0))
    queue.put("b", order(0, 2.0))
    queue.put("b", order(1, 2.0))
    queue.put("c", order(9, 0.0))
    queue.drop("c")
    assert popped(queue) == ["b", "a"]


def test_a_young_gang_gets_its_turn_among_old_ones_that_come_back_for_ever() -> None:
    queue = Queue()
    for number in range(20):
        queue.put(f"old-{number}", order(5, 1.0))
    turns = []
    for turn in range(40 * FAIR_TURN):
        if turn == 20 * FAIR_TURN:  # all old ones have been asked about
            queue.put("young", order(0, 2.0))
        key = queue.pop()
        assert key is not None
        turns.append(key)
        if key != "young":
            queue.put(key, order(5, 1.0))
    assert turns[: FAIR_TURN - 1] == ["old-0"] * (FAIR_TURN - 1)
    assert 0 <= turns.index("young") - 20 * FAIR_TURN < FAIR_TURN


def test_what_is_put_and_dropped_for_ever_does_not_pile_up() -> None:
    """A standby does not plan."""
    queue = Queue()
    for _ in range(1000):
        queue.put("g", order(0, 1.0))
        queue.drop("g")
    assert len(queue._by_priority) + len(queue._by_last_turn) <= 4 * FAIR_TURN


def test_gangs_of_a_resting_namespace_come_after_all_others_and_not_never() -> None:
    queue = Queue()
    for key in ("hog/ack/1", "hog/ack/2", "other/ack/3"):
        queue.put(key, order(9 if key.startswith("hog") else 0, 1.0))
    assert [queue.pop(resting={"hog"}) for _ in range(4)] == ["other/ack/3", "hog/ack/1", "hog/ack/2", None]


def test_of_a_held_namespace_only_partially_bound_gangs_are_planned() -> None:
    queue = Queue()
    queue.put("hog/ack/1", order(9, 1.0))
    queue.put("hog/ack/2", order(8, 1.0, is_partial=True))
    queue.put("hog/ack/3", order(0, 1.0, is_partial=True, is_covered=True))
    queue.put("other/ack/4", order(0, 1.0))
    turns = [queue.pop(paused={"hog"}) for _ in range(4)]
    assert turns == ["hog/ack/3", "hog/ack/2", "other/ack/4", None]
    assert queue.pop() == "hog/ack/1"


def test_a_namespace_that_rests_no_more_has_its_old_place() -> None:
    queue = Queue()
    for key, priority in (("hog/ack/1", 9), ("hog/ack/2", 8), ("a/ack/3", 1), ("a/ack/4", 0)):
        queue.put(key, order(priority, 1.0))
    assert queue.pop(resting={"hog"}) == "a/ack/3"
    queue.put("hog/ack/2", order(10, 1.0))
    queue.drop("hog/ack/1")
    assert queue.pop() == "hog/ack/2"
    assert queue.pop() == "a/ack/4"


def test_what_rests_and_is_put_again_for_ever_does_not_pile_up() -> None:
    queue = Queue()
    queue.put("hog/ack/0", order(0, 1.0))
    for number in range(1000):
        queue.put("hog/ack/1", order(0, 1.0))
        queue.put(f"a/ack/{number}", order(0, 1.0))
        assert queue.pop(resting={"hog"}) == f"a/ack/{number}"
    assert len(queue._by_priority) + len(queue._by_last_turn) <= 4 * FAIR_TURN + 16
