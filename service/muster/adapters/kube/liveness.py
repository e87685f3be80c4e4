"""Whether the API server is still there while its watches say nothing.

One that is frozen behind a live connection looks like one where nothing happens: its kernel acknowledges all,
and bookmarks come once a minute at best. So it is asked for /livez when nothing has come from it for a while.
Every client may ask (system:public-info-viewer), and no queue of a busy server holds the answer up (the flow
schema `probes` is exempt). Where nothing comes all the same, all watches are given up.
"""

from __future__ import annotations

import asyncio

import structlog

from muster.adapters.kube.client import ApiError, KubeClient, Unreachable

TRIES = 2
"""The second is for a service that stood still itself: the answer to the first came, too late to be read."""

log = structlog.get_logger(__name__)


class Liveness:
    """Asks after a silence of `quiet_s`, for an answer within `deadline_s`. `run` ends only by cancellation.

    A frozen server is noticed after 8 s. That is before the gangs give up a place because no Binding was
    seen (`session_s`): the Binding may lie in the server's socket and land when it wakes.
    """

    def __init__(self, client: KubeClient, quiet_s: float = 2.0, deadline_s: float = 3.0) -> None:
        self._client = client
        self._quiet_s = quiet_s
        self._deadline_s = deadline_s

    async def run(self) -> None:
        """Ask the API server for a sign of life whenever it is silent, until cancelled."""
        while True:
            if (seconds_left := self._quiet_s - self._client.silent_s) > 0:
                await asyncio.sleep(seconds_left)
            elif not await self._answers():
                if self._client.end_watches():
                    log.warning("the API server does not answer", silent_s=round(self._client.silent_s, 1))
                await asyncio.sleep(self._quiet_s)

    async def _answers(self) -> bool:
        for _ in range(TRIES):
            try:
                async with asyncio.timeout(self._deadline_s):
                    await self._client.get("health of the API server", "/livez")
            except ApiError:
                return True  # it is not well, but it is there
            except (Unreachable, TimeoutError):
                continue
            return True
        return self._client.silent_s < self._quiet_s  # a watch may have said something meanwhile
