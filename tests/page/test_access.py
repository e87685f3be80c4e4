"""Tokens: what the API server says counts, for a short time, and everything else is closed."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from muster.adapters.kube.client import ApiError, KubeError, Unreachable
from muster.adapters.page import access
from muster.adapters.page.access import Access, TokenAnswer


class Api:
    """Knows "good", "stranger" and no other token. It counts what it is asked."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, dict[str, Any]]] = []
        self.problem: KubeError | None = None
        self.said: bytes | None = None
        self.gate = asyncio.Event()
        self.gate.set()

    async def post(self, subject: str, path: str, body: Any) -> bytes:
        self.asked.append((path, body["spec"]))
        await self.gate.wait()
        if self.problem is not None:
            raise self.problem
        if self.said is not None:
            return self.said
        if subject == "TokenReview":
            user = {"good": "ann", "stranger": "bob"}.get(body["spec"]["token"])
            user_status = {"authenticated": True, "user": {"username": user, "groups": ["team"]}}
            return json.dumps({"status": user_status if user else {"authenticated": False}}).encode()
        return json.dumps({"status": {"allowed": body["spec"]["user"] == "ann"}}).encode()


@pytest.fixture
def api() -> Api:
    return Api()


HEADERS = {
    "a good token": ("Bearer good", TokenAnswer.ALLOWED),
    "the scheme in small letters": ("bearer  good ", TokenAnswer.ALLOWED),
    "a user without the right": ("Bearer stranger", TokenAnswer.FORBIDDEN),
    "an unknown token": ("Bearer bad", TokenAnswer.UNKNOWN),
    "no token": ("Bearer ", TokenAnswer.UNKNOWN),
    "no header": ("", TokenAnswer.UNKNOWN),
    "another scheme": ("Basic Z29vZA==", TokenAnswer.UNKNOWN),
    "bytes that are no text": ("Bearer \udcff", TokenAnswer.UNKNOWN),
}


@pytest.mark.parametrize(("header", "answer"), HEADERS.values(), ids=HEADERS.keys())
async def test_what_is_said_of_a_token(api: Api, header: str, answer: TokenAnswer) -> None:
    assert await Access(api.post).check(header) is answer


async def test_the_api_server_is_asked_for_exactly_this_right(api: Api) -> None:
    await Access(api.post).check("Bearer good")
    (_, token), (path, review) = api.asked
    assert token == {"token": "good"}
    assert path == "/apis/authorization.k8s.io/v1/subjectaccessreviews"
    assert review["nonResourceAttributes"] == {"path": "/muster/page", "verb": "get"}
    assert (review["user"], review["groups"]) == ("ann", ["team"])


async def test_an_answer_counts_for_a_short_time(api: Api) -> None:
    now = 0.0
    asking = Access(api.post, clock=lambda: now)
    for _ in range(3):
        assert await asking.check("Bearer good") is TokenAnswer.ALLOWED
        assert await asking.check("Bearer bad") is TokenAnswer.UNKNOWN
    assert len(api.asked) == 3
    now = access.REFUSED_S + 1
    await asking.check("Bearer bad")
    assert len(api.asked) == 4
    now = access.ALLOWED_S + 1
    await asking.check("Bearer good")
    assert len(api.asked) == 6


PROBLEMS = {
    "away": Unreachable("POST TokenReview: no answer"),
    "refuses us": ApiError("POST TokenReview", 403, "no right"),
}


@pytest.mark.parametrize("problem", PROBLEMS.values(), ids=PROBLEMS.keys())
async def test_without_the_api_server_the_page_is_closed(api: Api, problem: KubeError) -> None:
    api.problem = problem
    asking = Access(api.post)
    assert await asking.check("Bearer good") is TokenAnswer.UNAVAILABLE
    api.problem = None
    assert await asking.check("Bearer good") is TokenAnswer.ALLOWED


@pytest.mark.parametrize("body", [b"", b"{}", b"[]", b'{"status": {"authenticated": "yes"}}', b"\xff"])
async def test_an_answer_that_makes_no_sense_is_closed(api: Api, body: bytes) -> None:
    api.said = body
    assert await Access(api.post).check("Bearer good") is TokenAnswer.UNAVAILABLE


async def test_an_api_server_that_hangs_is_closed(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(access, "WAIT_S", 0.01)
    api.gate.clear()
    assert await Access(api.post).check("Bearer good") is TokenAnswer.UNAVAILABLE


async def test_few_tokens_are_asked_about_at_once(api: Api) -> None:
    api.gate.clear()
    asking = Access(api.post)
    checks = [
        asyncio.create_task(asking.check(f"Bearer {at}")) for at in range(access.MAX_CHECKS_AT_ONCE + 2)
    ]
    for _ in range(5):
        await asyncio.sleep(0)
    assert len(api.asked) == access.MAX_CHECKS_AT_ONCE
    api.gate.set()
    assert set(await asyncio.gather(*checks)) == {TokenAnswer.UNKNOWN}


async def test_a_flood_of_unknown_tokens_is_not_passed_on(api: Api) -> None:
    asking = Access(api.post, clock=lambda: 0.0)
    await asking.check("Bearer good")
    answers = [await asking.check(f"Bearer bad-{at}") for at in range(100)]
    assert answers.count(TokenAnswer.UNKNOWN) == access.BURST - 1
    assert answers.count(TokenAnswer.UNAVAILABLE) == 101 - access.BURST
    assert await asking.check("Bearer good") is TokenAnswer.ALLOWED


async def test_a_flood_of_unknown_tokens_cuts_no_user_off(api: Api) -> None:
    now = 0.0
    asking = Access(api.post, clock=lambda: now)
    await asking.check("Bearer good")
    now = access.ALLOWED_S + 1
    api.gate.clear()
    floods = [asyncio.create_task(asking.check(f"Bearer bad-{at}")) for at in range(100)]
    await asyncio.sleep(0)
    renewing = asyncio.create_task(asking.check("Bearer good"))
    await asyncio.sleep(0)
    assert api.asked[-1][1] == {"token": "good"}
    api.gate.set()
    assert await renewing is TokenAnswer.ALLOWED
    assert (await asyncio.gather(*floods)).count(TokenAnswer.UNAVAILABLE) == 100 - access.BURST


async def test_the_memory_of_tokens_is_bounded(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(access, "MAX_KNOWN_TOKENS", 3)
    monkeypatch.setattr(access, "BURST", 1e9)
    asking = Access(api.post, clock=lambda: 0.0)
    for at in range(5):
        await asking.check(f"Bearer bad-{at}")
    before = len(api.asked)
    for at in (2, 3, 4):
        await asking.check(f"Bearer bad-{at}")
    assert len(api.asked) == before
    await asking.check("Bearer bad-0")
    assert len(api.asked) == before + 1
