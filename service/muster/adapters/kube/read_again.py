"""Read pods again because an object that says something about them has changed.

A claim, a DeviceClass or a job may say something about thousands of pods, and its user may change it all the
time. So a few pods are read at once and the others later, with pauses, and the namespaces take turns.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable

READ_AT_ONCE = 16
"""How many pods are read at once when what says something about them has changed."""
REST_SHARE = 4
"""The pause after them and after each further pod, as a multiple of the time that reading took."""


class ReadAgain:
    """`read` reads the pod with this UID as it is now, if it is still there.

    While the service starts (`starts`), all pods are read at once: it plans nothing before it knows them.
    """

    def __init__(self, read: Callable[[str], Awaitable[None]]) -> None:
        self._read = read
        self.starts = True
        self._later: dict[str, dict[str, None]] = {}
        """Namespace → UIDs of pods to be read. The namespace whose turn is next comes first."""
        self.reader: asyncio.Task[None] | None = None
        """Reads pods again. In the pause after a reading, pods wait for the next reading."""

    async def pods(self, pods: Iterable[tuple[str, str]], at_once: bool = False) -> None:
        """Read these pods again, each given by its namespace and UID: the first ones now, the others later.

        `at_once`: read all now, since they have waited for what says something about them.
        """
        affected, began = list(pods), time.monotonic()
        at_once = at_once or self.starts
        most = len(affected) if at_once else READ_AT_ONCE if self._idle else 0
        for number, (_, uid) in enumerate(affected[:most], 1):
            await self._read(uid)
            if number % READ_AT_ONCE == 0:
                await asyncio.sleep(0)  # there may be thousands, and the shim's calls wait meanwhile
        for namespace, uid in affected[most:]:
            self._later.setdefault(namespace, {})[uid] = None
        if affected and not at_once and self._idle:
            rest_s = REST_SHARE * (time.monotonic() - began)
            self.reader = asyncio.create_task(self._read_the_rest(rest_s), name="pods to be read again")

    @property
    def _idle(self) -> bool:
        return self.reader is None or self.reader.done()

    async def _read_the_rest(self, rest_s: float) -> None:
        await asyncio.sleep(rest_s)
        while self._later:
            namespace = next(iter(self._later))
            uids = self._later.pop(namespace)
            uid = next(iter(uids))
            del uids[uid]
            if uids:
                self._later[namespace] = uids
            began = time.monotonic()
            await self._read(uid)
            await asyncio.sleep(REST_SHARE * (time.monotonic() - began))
