"""The queue that events, evictions and statuses share: what is sent again, when, and what is given up."""

from __future__ import annotations

import asyncio
import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from types import MappingProxyType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from local_cluster.patience import HANG_S
from muster.adapters.kube.client import ApiError, KubeError, Unreachable
from muster.adapters.kube.outbox import PASSING, Outbox, Retry
from muster.config import Rates
from tests.adapters.at_work import at_work

QUICK = Retry(tries=3, first_s=0.001, limit_s=0.002)
NOBODY = 0
"""A server that does not answer, where a status is meant."""


def failure(status: int, retry_after: float | None = None) -> KubeError:
    return ApiError("POST x", status, "no", retry_after) if status else Unreachable("POST x: no answer")


class Box(Outbox[str]):
    """Items are their own keys up to the slash. `answers`: by item, the statuses it fails with, in turn."""

    def __init__(
        self,
        answers: Mapping[str, Sequence[int]] = MappingProxyType({}),
        limit: int = 100,
        retry: Retry = QUICK,
        lanes: int = 1,
        rates: Rates | None = None,
    ) -> None:
        super().__init__(self, rates or Rates.of_queue(limit))  # type: ignore[arg-type]
        self.retry, self.lanes = retry, lanes
        self.answers = {item: list(statuses) for item, statuses in answers.items()}
        self.sent: list[str] = []
        self.ended: list[tuple[str, int]] = []
        self.sending = asyncio.Event()
        self.may_send = asyncio.Event()
        self.may_send.set()
        self.retry_after: float | None = None
        self.answers_others = False
        """Whether the server says something to others all the time."""
        self.slow: set[str] = set()
        """Items that the server does not answer before the test ends."""

    def put(self, *items: str, namespace: str = "ns") -> list[str | None]:
        """Return for each item which one was dropped for it."""
        return [self._put(namespace, item.partition("/")[0], item) for item in items]

    def put_of(self, of: str, *items: str) -> None:
        for item in items:
            self._put("ns", item, item, of)

    async def _send(self, item: str) -> None:
        self.sending.set()
        await self.may_send.wait()
        self.sent.append(item)
        if item in self.slow:
            await asyncio.sleep(HANG_S)
        if statuses := self.answers.get(item):
            raise failure(statuses.pop(0), self.retry_after)

    def _after_send(self, item: str, refusal: KubeError | None) -> None:
        status = refusal.status if isinstance(refusal, ApiError) else NOBODY
        self.ended.append((item, status if refusal else 200))

    @property
    def silent_s(self) -> float:
        """Of the server, as the client says it."""
        return -1.0 if self.answers_others else math.inf


async def all_of(box: Box, *items: str) -> list[tuple[str, int]]:
    box.put(*items)
    async with at_work(box):
        await asyncio.wait_for(box.until_empty(), HANG_S)
    return box.ended


@dataclass(frozen=True)
class Case:
    """What becomes of `a` and `b`, put in this order, where `a` is answered with `statuses` first."""

    statuses: tuple[int, ...]
    sent: str
    ended: dict[str, int] = field(default_factory=lambda: {"a": 200, "b": 200})


CASES = {
    "all is well": Case((), "ab"),
    "a passing refusal: the others go on": Case((503,), "aba"),
    "a final one": Case((404,), "ab", {"a": 404, "b": 200}),
    "refused for long": Case((403, 403, 403), "abaa", {"a": 403, "b": 200}),
    "at the last try": Case((403, 503), "abaa"),
    "nobody answers, for longer than there are tries": Case((NOBODY,) * 5, "abaaaaa"),
    "silence is no try": Case((NOBODY, 429, NOBODY, 429, NOBODY), "abaaaaa"),
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
async def test_what_becomes_of_an_item(case: Case) -> None:
    box = Box({"a": case.statuses})
    assert dict(await all_of(box, "a", "b")) == case.ended
    assert "".join(box.sent) == case.sent


async def test_an_item_that_is_never_answered_by_a_server_that_is_there_is_given_up() -> None:
    box = Box({"a": [NOBODY] * 100})
    box.answers_others = True
    assert sorted(await all_of(box, "a", "b")) == [("a", NOBODY), ("b", 200)]
    assert box.sent.count("a") == QUICK.tries


async def test_refusals_and_silence_count_together() -> None:
    box = Box({"a": [NOBODY, 503, NOBODY, NOBODY]})
    box.answers_others = True
    assert await all_of(box, "a") == [("a", NOBODY)]
    assert box.sent == ["a"] * QUICK.tries


@pytest.mark.parametrize("status", sorted({400, 401, 403, 404, 405, 409, 410, 413, 422, 429, 500, 501, 503}))
async def test_each_refusal_is_passing_or_final(status: int) -> None:
    box = Box({"a": [status]})
    ended = 200 if status in PASSING else status
    assert await all_of(box, "a") == [("a", ended)]


async def test_the_newest_of_a_key_is_sent_in_the_place_of_the_first() -> None:
    box = Box()
    assert await all_of(box, "a/1", "b/1", "a/2") == [("a/2", 200), ("b/1", 200)]


async def test_a_newer_item_replaces_the_one_that_is_refused_meanwhile() -> None:
    box = Box({"a/1": [503]})
    box.may_send.clear()
    box.put("a/1")
    async with at_work(box):
        await asyncio.wait_for(box.sending.wait(), HANG_S)
        box.put("a/2")
        box.may_send.set()
        await asyncio.wait_for(box.until_empty(), HANG_S)
    assert box.sent == ["a/1", "a/2"]
    assert box.ended == [("a/2", 200)]


async def test_what_does_not_fit_is_told_and_what_waits_is_replaced_all_the_same() -> None:
    box = Box(limit=2)
    assert box.put("a/1", "b/1", "c/1", "a/2") == [None, None, "c/1", None]


async def test_a_server_says_how_long_to_wait_up_to_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    loop, waits = asyncio.get_running_loop(), list[float]()
    call_later = loop.call_later

    def noted(delay: float, *arguments: Any) -> asyncio.TimerHandle:
        waits.append(delay)
        return call_later(delay, *arguments)

    monkeypatch.setattr(loop, "call_later", noted)
    box = Box({"a": [429, 429]}, retry=Retry(first_s=0.001, limit_s=0.05))
    box.retry_after = 3600.0
    await all_of(box, "a")
    assert [wait for wait in waits if wait != HANG_S] == [0.05, 0.05]


async def test_a_slow_request_holds_up_those_of_its_object_and_few_others() -> None:
    box = Box(lanes=16)
    box.slow = {"slow"}
    box.put_of("x", "slow", "after it")
    numbers = [str(number) for number in range(40)]
    box.put(*numbers)
    async with at_work(box), asyncio.timeout(HANG_S / 2):
        while len(box.ended) < 8:  # noqa: ASYNC110 - there is no event for it
            await asyncio.sleep(0.001)
    assert "after it" not in box.sent


async def test_what_is_said_of_an_object_is_sent_in_its_order() -> None:
    box = Box(lanes=4)
    items = {of: [f"{of}{number}" for number in range(5)] for of in "abcdef"}
    for number in range(5):
        for of, items_of in items.items():
            box.put_of(of, items_of[number])
    async with at_work(box):
        await asyncio.wait_for(box.until_empty(), HANG_S)
    for of, items_of in items.items():
        assert [item for item in box.sent if item[0] == of] == items_of


FLOOD = 10_000


@pytest.mark.parametrize("lanes", [1, 2, 8])
@pytest.mark.parametrize("floods", [1, 3])
async def test_a_namespace_with_many_items_delays_those_of_others_by_a_few(lanes: int, floods: int) -> None:
    box = Box(limit=(floods + 1) * FLOOD, lanes=lanes)
    for flood in range(floods):
        box.put(*(f"flood-{flood}-{number}" for number in range(FLOOD)), namespace=f"flood-{flood}")
    box.put("quiet", namespace="quiet")
    async with at_work(box):
        await asyncio.wait_for(box.until_empty(), HANG_S)
    assert box.sent.index("quiet") <= floods * max(1, lanes // 2), "one item of each line before it"
    assert len(box.ended) == floods * FLOOD + 1


@pytest.mark.parametrize("slow", [True, False], ids=["it is slow", "the lane pauses after it"])
async def test_a_namespace_that_is_never_answered_leaves_half_of_the_lanes_to_others(slow: bool) -> None:
    stuck = [f"stuck-{number}" for number in range(50)]
    box = Box({key: [NOBODY] for key in stuck}, lanes=8, retry=Retry(first_s=60.0, limit_s=60.0))
    box.slow = set(stuck) if slow else set()
    box.put(*stuck)
    box.put(*map(str, range(40)), namespace="other")
    async with at_work(box), asyncio.timeout(HANG_S / 2):
        while len(box.ended) < 40:  # noqa: ASYNC110 - there is no event for it
            await asyncio.sleep(0.001)
    assert len(set(box.sent) & set(stuck)) <= 4


def test_where_all_is_full_the_namespace_with_most_loses_its_last_item() -> None:
    box = Box(limit=4)
    assert box.put(*"abcdef", namespace="flood") == [None] * 4 + ["e", "f"]
    assert box.put("x", "y", "z", namespace="quiet") == ["d", "c", "z"]
    assert box.put("a/2", "e", namespace="flood") == [None, "e"]


async def test_what_waits_for_its_next_try_may_give_its_place_too() -> None:
    box = Box({"a": [429], "b": [429]}, limit=2, retry=Retry(first_s=60.0, limit_s=60.0))
    box.put("a", "b", namespace="flood")
    async with at_work(box):
        async with asyncio.timeout(HANG_S):
            while len(box.sent) < 2:  # noqa: ASYNC110 - there is no event for it
                await asyncio.sleep(0.001)
        assert box.put("x", namespace="quiet") == ["b"]
        assert box.put("b", namespace="flood") == ["b"]


async def test_the_next_try_of_what_was_dropped_does_not_replace_what_came_later(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    loop, later = asyncio.get_running_loop(), list[Callable[[], object]]()
    call_later = loop.call_later

    def noted(delay: float, call: Callable[..., object], *arguments: Any) -> asyncio.TimerHandle:
        if delay >= 30:
            later.append(partial(call, *arguments))
        return call_later(delay, call, *arguments)

    monkeypatch.setattr(loop, "call_later", noted)
    box = Box({"a/1": [429], "b/1": [429]}, limit=2, retry=Retry(first_s=60.0, limit_s=60.0))
    box.put("a/1", "b/1", namespace="flood")
    async with at_work(box), asyncio.timeout(HANG_S):
        while len(later) < 2:  # noqa: ASYNC110 - there is no event for it
            await asyncio.sleep(0.001)
        box.sending.clear()
        box.may_send.clear()
        assert box.put("x", namespace="quiet") == ["b/1"]
        await box.sending.wait()
        assert box.put("b/2", namespace="flood") == [None]
        for call in later:
            call()
        box.may_send.set()
        await box.until_empty()
    assert sorted(box.sent) == ["a/1", "a/1", "b/1", "b/2", "x"]


async def test_a_namespace_above_its_rate_waits_alone() -> None:
    rates = Rates(namespace_per_s=1e-6, namespace_burst=3)
    box = Box(lanes=8, rates=rates)
    box.put(*(f"flood-{number}" for number in range(50)), namespace="flood")
    box.put("a", "b", namespace="quiet")
    async with at_work(box), asyncio.timeout(HANG_S):
        while len(box.ended) < 5:  # noqa: ASYNC110 - there is no event for it
            await asyncio.sleep(0.001)
    assert Counter(item.partition("-")[0] for item in box.sent) == {"flood": 3, "a": 1, "b": 1}


async def test_refused_items_use_up_the_rate_of_their_namespace_alone() -> None:
    box = Box({"a": [503] * 9, "b": [503] * 9}, rates=Rates(namespace_per_s=1e-6, namespace_burst=5))
    box.put("a", "b", namespace="refused")
    box.put("x", namespace="other")
    async with at_work(box), asyncio.timeout(HANG_S):
        while len(box.sent) < 6:  # noqa: ASYNC110 - there is no event for it
            await asyncio.sleep(0.001)
    assert Counter(map(str, box.sent))["x"] == 1


STEPS = st.lists(st.tuples(st.sampled_from(["m", "n", "o"]), st.sampled_from("abcdefgh")), max_size=60)


@given(STEPS, st.integers(1, 6), st.integers(1, 6), st.integers(1, 4))
def test_it_is_bounded_and_each_namespace_has_its_share(
    steps: list[tuple[str, str]], limit: int, limit_of_namespace: int, lanes: int
) -> None:
    """Against a plain model: by namespace, what waits by key, in order."""

    async def sent() -> tuple[list[str], dict[str, dict[str, str]]]:
        rates = Rates.of_queue(limit).model_copy(update={"namespace_queue": limit_of_namespace})
        box = Box(lanes=lanes, rates=rates)
        waiting: dict[str, dict[str, str]] = {namespace: {} for namespace in "mno"}
        for number, (namespace, key) in enumerate(steps):
            item = f"{namespace}{key}/{number}"
            (dropped,) = box.put(item, namespace=namespace)
            replaces = namespace + key in waiting[namespace]
            waiting[namespace][namespace + key] = item
            if dropped is not None:
                assert not replaces, "an item that replaces another needs no room"
                of = waiting[dropped[0]]
                assert dropped == of.pop(list(of)[-1]), "the last of its namespace"
                is_full = dropped == item and len(of) == limit_of_namespace
                assert is_full or len(of) >= len(waiting[namespace]) - (dropped == item), "of one with most"
            assert sum(map(len, waiting.values())) <= limit
            assert all(len(of) <= limit_of_namespace for of in waiting.values())
        async with at_work(box):
            await asyncio.wait_for(box.until_empty(), HANG_S)
        return box.sent, waiting

    sent_items, waiting = asyncio.run(sent())
    assert sorted(sent_items) == sorted(item for of in waiting.values() for item in of.values())
    for namespace, of in waiting.items():
        if lanes < 4:  # one line for a namespace
            assert [item for item in sent_items if item[0] == namespace] == list(of.values())
