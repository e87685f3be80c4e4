"""Offer one resource of the node to one kubelet: register, and stay while nothing changes."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path

from muster.adapters.agent.kubelet import Sockets, creation_time, register
from muster.adapters.agent.plugin import Backend, Plugin

SETTLED_AFTER_S = 10.0
"""A plugin registers within so long after it has made its socket."""

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Times:
    """How often things are done, in seconds. `settled_after_s`: see SETTLED_AFTER_S."""

    kubelet_every_s: float = 0.5
    look_every_s: float = 4.0
    compare_every_s: float = 30.0
    settled_after_s: float = SETTLED_AFTER_S


@dataclass(frozen=True, slots=True)
class Offer:
    """A resource, the backend that answers for it, and the name of its socket. `first` is the socket of the
    plugin to which this plugin is a second endpoint, None if there is no other plugin."""

    resource: str
    backend: Backend
    endpoint: str
    first: Path | None = None


@dataclass(frozen=True, slots=True)
class _Peers:
    """When the kubelet and the first plugin made their sockets, 0 for a socket that is missing. Until it is
    `settled`, the first plugin may still register, and the kubelet would then ask that plugin."""

    kubelet: int
    first: int
    settled: bool


class Offering:
    """Serves an offer until the kubelet or the first plugin is another one, or `wanted` is false.

    `ready` hears whether containers get what is planned, and `inexact` hears why they may not. `compare` is
    called from time to time while the kubelet has the offer.
    """

    def __init__(
        self,
        offer: Offer,
        sockets: Sockets,
        times: Times,
        *,
        ready: Callable[[bool], None],
        inexact: Callable[[str], None],
        compare: Callable[[], Awaitable[None]],
    ) -> None:
        self._offer = offer
        self._sockets = sockets
        self._times = times
        self._ready = ready
        self._inexact = inexact
        self._compare = compare
        self._plugin = Plugin(sockets.plugins / offer.endpoint, offer.backend)
        self._registered = False

    async def run(self, is_wanted: Callable[[], bool]) -> None:
        """Serve it.

        Raises:
            OSError: the socket can't be made.
            KubeletError: the kubelet refused the offer. It may know the socket's name already.
            Refused: the first plugin does not answer.
        """
        peers = self._peers()
        has_peers = bool(peers.kubelet and peers.first)
        look_at, compare_at = 0.0, time.monotonic() + self._times.compare_every_s
        try:
            while self._peers() == peers and is_wanted():
                if has_peers and time.monotonic() >= look_at:
                    look_at = time.monotonic() + self._times.look_every_s
                    await self._look(peers)
                if self._registered and not self._plugin.socket.exists():
                    return  # a kubelet that starts removes all sockets
                if self._registered and time.monotonic() >= compare_at:
                    await self._compare()
                    compare_at = time.monotonic() + self._times.compare_every_s
                await asyncio.sleep(self._times.kubelet_every_s)
        finally:
            self._ready(False)
            await self._plugin.stop()

    async def _look(self, peers: _Peers) -> None:
        why = await self._offer.backend.look()
        if not self._registered:
            await self._plugin.start()
            await register(self._sockets, self._offer.endpoint, self._offer.resource)
            self._registered = True
            log.info("offered as %s", self._offer.resource)
        self._ready(self._registered and peers.settled and not why)
        if why:
            self._inexact(why)

    def _peers(self) -> _Peers:
        kubelet, first = creation_time(self._sockets.registration), self._offer.first
        if first is None:
            return _Peers(kubelet, 1, True)
        since = creation_time(first)
        age_s = time.time() - since / 1e9  # below 0 where the clock was set back
        return _Peers(kubelet, since, not 0 <= age_s < self._times.settled_after_s)
