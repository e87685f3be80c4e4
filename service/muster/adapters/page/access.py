"""Access to the page by token. The API server tells the user of a token, and the user's rights.

Everything fails closed. An answer of the API server is valid for a short time, so that it is asked rarely.
The number of questions is limited, because requests of the scheduler must not wait for the page. Tokens that
were allowed before have a limit of their own, so a flood of unknown tokens cuts no user off.
"""

from __future__ import annotations

import asyncio
import hashlib
import secrets
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from enum import Enum
from typing import Any

import msgspec

from muster.adapters.kube.client import KubeError
from muster.domain.rate import Allowance

PATH = "/muster/page"
"""A non-resource URL: a ClusterRole grants `get` of it."""

MAX_KNOWN_TOKENS = 1024
"""Largest number of tokens whose answer is kept: this many allowed tokens, and as many other tokens."""
ALLOWED_S = 60.0
REFUSED_S = 10.0
MAX_CHECKS_AT_ONCE = 4
"""Largest number of checks at the same time: this many of new tokens, and as many of tokens that were
allowed."""
WAIT_S = 5.0
"""Time limit of one check."""
PER_S = 10.0
BURST = 20.0


class TokenAnswer(Enum):
    """The answer about a token."""

    ALLOWED = 200
    UNKNOWN = 401
    FORBIDDEN = 403
    UNAVAILABLE = 503
    """The API server does not answer now, or too many checks run."""


class _User(msgspec.Struct, rename={"user": "username"}):
    user: str = ""
    uid: str = ""
    groups: list[str] = []
    extra: dict[str, list[str]] = {}


class _Status(msgspec.Struct):
    """The status of a TokenReview or a SubjectAccessReview."""

    authenticated: bool = False
    user: _User = msgspec.field(default_factory=_User)
    allowed: bool = False


class _Review(msgspec.Struct):
    status: _Status


class Access:
    """Asks the API server about tokens, by `post` of its client. Only keyed digests of tokens are kept."""

    def __init__(
        self,
        post: Callable[[str, str, object], Awaitable[bytes]],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._post = post
        self._clock = clock
        self._key = secrets.token_bytes(32)
        self._known_tokens: dict[TokenAnswer, OrderedDict[bytes, float]] = {
            answer: OrderedDict()
            for answer in (TokenAnswer.ALLOWED, TokenAnswer.UNKNOWN, TokenAnswer.FORBIDDEN)
        }
        self._new, self._renewed = (
            (Allowance(BURST, PER_S, clock), asyncio.Semaphore(MAX_CHECKS_AT_ONCE)) for _ in range(2)
        )

    async def check(self, authorization: str) -> TokenAnswer:
        """Return the answer about the token in an Authorization header."""
        scheme, _, token = authorization.partition(" ")
        token = token.strip()
        if scheme.lower() != "bearer" or not token:
            return TokenAnswer.UNKNOWN
        digest = hashlib.blake2b(token.encode("utf-8", "surrogateescape"), key=self._key).digest()
        if (answer := self._recall(digest)) is not None:
            return answer
        budget, turns = self._renewed if digest in self._known_tokens[TokenAnswer.ALLOWED] else self._new
        if budget.available < 1:
            return TokenAnswer.UNAVAILABLE
        budget.spend()
        try:
            async with asyncio.timeout(WAIT_S), turns:
                answer = await self._ask(token)
        except (KubeError, TimeoutError, msgspec.DecodeError):
            return TokenAnswer.UNAVAILABLE
        self._remember(digest, answer)
        return answer

    def _recall(self, digest: bytes) -> TokenAnswer | None:
        for answer, expiries in self._known_tokens.items():
            until = expiries.get(digest)
            if until is not None and until > self._clock():
                return answer
        return None

    def _remember(self, digest: bytes, answer: TokenAnswer) -> None:
        for expiries in self._known_tokens.values():
            expiries.pop(digest, None)
        expiries_of_answer = self._known_tokens[answer]
        expiries_of_answer[digest] = self._clock() + (
            ALLOWED_S if answer is TokenAnswer.ALLOWED else REFUSED_S
        )
        while len(expiries_of_answer) > MAX_KNOWN_TOKENS:
            expiries_of_answer.popitem(last=False)

    async def _ask(self, token: str) -> TokenAnswer:
        token_status = await self._review("authentication.k8s.io", "TokenReview", {"token": token})
        if not token_status.authenticated:
            return TokenAnswer.UNKNOWN
        attributes = {"nonResourceAttributes": {"path": PATH, "verb": "get"}}
        spec = msgspec.structs.asdict(token_status.user) | attributes
        user_status = await self._review("authorization.k8s.io", "SubjectAccessReview", spec)
        return TokenAnswer.ALLOWED if user_status.allowed else TokenAnswer.FORBIDDEN

    async def _review(self, group: str, kind: str, spec: dict[str, Any]) -> _Status:
        body = {"apiVersion": f"{group}/v1", "kind": kind, "spec": spec}
        answer = await self._post(kind, f"/apis/{group}/v1/{kind.lower()}s", body)
        return msgspec.json.decode(answer, type=_Review).status
