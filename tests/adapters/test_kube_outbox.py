"""The queue that events, evictions and statuses share: what is sent again, when, and what is given up."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

import pytest

from muster.adapters.kube.client import ApiError, KubeError, Unreachable
from muster.adapters.kube.outbox import PASSING, Outbox, Retry
from tests.adapters.at_work import at_work
from tests.adapters.fake_api import DEADLINE_S

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
    ) -> None:
        super().__init__(limit, retry, lanes)
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

    def put(self, *items: str) -> list[bool]:
        return [self._put(item.partition("/")[0], item) for item in items]

    def put_of(self, of: str, *items: str) -> None:
        for item in items:
            self._put(item, item, of)

    async def _send(self, item: str) -> None:
        self.sending.set()
        await self.may_send.wait()
        self.sent.append(item)
        if item in self.slow:
            await asyncio.sleep(DEADLINE_S)
        if statuses := self.answers.get(item):
            raise failure(statuses.pop(0), self.retry_after)

    def _ended(self, item: str, refusal: KubeError | None) -> None:
        status = refusal.status if isinstance(refusal, ApiError) else NOBODY
        self.ended.append((item, status if refusal else 200))

    def _heard_at(self) -> float:
        return math.inf if self.answers_others else super()._heard_at()


async def all_of(box: Box, *items: str) -> list[tuple[str, int]]:
    box.put(*items)
    async with at_work(box):
        await asyncio.wait_for(box.drained(), DEADLINE_S)
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
        await asyncio.wait_for(box.sending.wait(), DEADLINE_S)
        box.put("a/2")
        box.may_send.set()
        await asyncio.wait_for(box.drained(), DEADLINE_S)
    assert box.sent == ["a/1", "a/2"]
    assert box.ended == [("a/2", 200)]


async def test_what_does_not_fit_is_told_and_what_waits_is_replaced_all_the_same() -> None:
    box = Box(limit=2)
    assert box.put("a/1", "b/1", "c/1", "a/2") == [True, True, False, True]


async def test_a_server_says_how_long_to_wait_up_to_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    loop, waits = asyncio.get_running_loop(), list[float]()
    call_later = loop.call_later

    def noted(delay: float, *rest: Any) -> asyncio.TimerHandle:
        waits.append(delay)
        return call_later(delay, *rest)

    monkeypatch.setattr(loop, "call_later", noted)
    box = Box({"a": [429, 429]}, retry=Retry(first_s=0.001, limit_s=0.05))
    box.retry_after = 3600.0
    await all_of(box, "a")
    assert [wait for wait in waits if wait != DEADLINE_S] == [0.05, 0.05]


async def test_a_slow_request_holds_up_those_of_its_object_and_few_others() -> None:
    box = Box(lanes=4)
    box.slow = {"slow"}
    box.put_of("x", "slow", "after it")
    others = [str(number) for number in range(40)]
    box.put(*others)
    async with at_work(box), asyncio.timeout(DEADLINE_S / 2):
        while len(box.ended) < 8:  # noqa: ASYNC110 - there is no event for it
            await asyncio.sleep(0.001)
    assert "after it" not in box.sent


async def test_what_is_said_of_an_object_is_sent_in_its_order() -> None:
    box = Box(lanes=4)
    items = {of: [f"{of}{number}" for number in range(5)] for of in "abcdef"}
    for number in range(5):
        for of, mine in items.items():
            box.put_of(of, mine[number])
    async with at_work(box):
        await asyncio.wait_for(box.drained(), DEADLINE_S)
    for of, mine in items.items():
        assert [item for item in box.sent if item[0] == of] == mine
