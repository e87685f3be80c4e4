"""Read pods again because an object that says something about them has changed.

A claim, a DeviceClass or a job may say something about thousands of pods, and its user may change it all the
time. So a few pods are read at once and the others later, with pauses, and the namespaces take turns.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable

from muster.adapters.kube.rate import Rate

READ_AT_ONCE = 16
"""How many pods are read at once when what says something about them has changed."""
REST_SHARE = 4
"""The pause after each further pod, as a multiple of the time that reading it took."""
AT_ONCE_PER_S = 256
"""How many pods of a namespace are read at once in a second, after as many in advance."""


class ReadAgain:
    """`read` reads the pod with this UID as it is now, if it is still there."""

    def __init__(self, read: Callable[[str], Awaitable[None]]) -> None:
        self._read = read
        self._rate = Rate(advance_s=1.0)
        self._later: dict[str, dict[str, None]] = {}
        """Namespace → UIDs of pods to be read. The namespace whose turn is next comes first."""
        self._reader: asyncio.Task[None] | None = None

    async def pods(self, pods: Iterable[tuple[str, str]], at_once: bool = False) -> None:
        """Read these pods again, each given by its namespace and UID: the first ones now, the others later.

        `at_once`: read all now, since they have waited for what says something about them.
        """
        self._rate.forget()
        for number, (namespace, uid) in enumerate(pods):
            rests = namespace in self._later or self._rate.rest_s(namespace) > 0
            if at_once or (number < READ_AT_ONCE and not rests):
                self._rate.charge(namespace, 1 / AT_ONCE_PER_S)
                await self._read(uid)
            else:
                self._later.setdefault(namespace, {})[uid] = None
            if number % READ_AT_ONCE == READ_AT_ONCE - 1:
                await asyncio.sleep(0)  # there may be thousands, and the shim's calls wait meanwhile
        if self._later and (self._reader is None or self._reader.done()):
            self._reader = asyncio.create_task(self._read_the_rest(), name="pods to be read again")

    async def _read_the_rest(self) -> None:
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
