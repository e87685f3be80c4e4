"""A watch of pods in which the large changes of one namespace wait for their turn, and hold up no other.

To change a label of a pod of 1.5 MiB costs its user a small request, and the service 10 to 40 ms. One of 256
KiB costs 4 ms. So a namespace pays for the bytes of large objects. Above its rate the last change of each
object waits, and those between are never decoded. What is new, gone or bound now is read at once: GPUs may
be taken.
"""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec

from muster.adapters.kube.decode import Added, T, Undecodable
from muster.adapters.kube.watch import Watcher
from muster.dialects.objects import Identity
from muster.domain.rate import Rate

LARGE_BYTES = 64 * 1024
"""Changes above this are paid for."""
BYTES_PER_S = 2 * 1024 * 1024
"""Of large changes of one namespace: this costs 15 to 50 ms in a second."""
BURST_BYTES = 32 * 1024 * 1024
"""What a namespace may change at once."""
MAX_WAITING_BYTES = 64 * 1024 * 1024
"""Of changes that wait, in all namespaces. What is above is read at once."""


class _Spec(msgspec.Struct, rename="camel"):
    node_name: str = ""


class _Object(msgspec.Struct):
    metadata: Identity = Identity()
    spec: _Spec = msgspec.field(default_factory=_Spec)


class _Change(msgspec.Struct):
    type: str
    object: _Object


_change = msgspec.json.Decoder(_Change)


class PacedWatcher(Watcher[T]):
    """A `Watcher` that puts off large changes of namespaces that are above their rate."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._waiting: dict[str, tuple[str, bytes]] = {}
        """Key → namespace and last line of a change that waits, the first to come first."""
        self._waiting_bytes = 0
        self._rate = Rate(BURST_BYTES / BYTES_PER_S)
        """By namespace."""
        self._nodes: dict[str, str] = {}
        """Key → node of each large object, as it was read last."""
        self._turn = asyncio.Lock()
        self._later: asyncio.Task[None] | None = None

    async def run(self) -> None:
        """Watch until cancelled."""
        try:
            await super().run()
        finally:
            if self._later is not None:
                self._later.cancel()

    async def _on_line(self, line: bytes) -> None:
        change = await self._decoded(_large_change, line) if len(line) > LARGE_BYTES else None
        if change is None:
            await super()._on_line(line)
            return
        metadata, key = change.metadata, self._resource.key(change.metadata)
        is_known = key in self._known and self._nodes.get(key) == change.spec.node_name
        if is_known and self._rest_s(metadata.namespace) and self._waiting_bytes < MAX_WAITING_BYTES:
            self._forget(key)
            self._waiting[key] = (metadata.namespace, line)
            self._waiting_bytes += len(line)
            self._version = metadata.resource_version
            if self._later is None or self._later.done():
                self._later = asyncio.create_task(self._read_later(), name="large changes")
            return
        self._charge(metadata.namespace, line)
        await super()._on_line(line)
        self._nodes[key] = change.spec.node_name

    async def _seen(self, item: T) -> None:
        async with self._turn:
            self._forget(self._resource.key(item.metadata))
            await super()._seen(item)

    async def _gone(self, key: str) -> None:
        async with self._turn:
            self._forget(key)
            self._nodes.pop(key, None)
            await super()._gone(key)

    def _forget(self, key: str) -> None:
        """Drop a change that waits: there is a later one."""
        _, line = self._waiting.pop(key, ("", b""))
        self._waiting_bytes -= len(line)

    async def _read_later(self) -> None:
        """Read what waits as each namespace has paid."""
        while self._waiting:
            key = min(self._waiting, key=lambda key: self._rest_s(self._waiting[key][0]))
            namespace, line = self._waiting[key]
            if rest_s := self._rest_s(namespace):
                await asyncio.sleep(rest_s)
                continue
            self._charge(namespace, line)
            event: Added[T] | Any
            try:
                event = await self._decoded(self._resource.event, line)
            except Undecodable as problem:
                event = problem
            async with self._turn:
                if self._waiting.get(key) != (namespace, line):
                    continue  # a later change has come
                self._forget(key)
                if isinstance(event, Added):
                    await super()._seen(event.object)
                elif isinstance(event, Undecodable):
                    self._leave_out(event)

    def _charge(self, namespace: str, line: bytes) -> None:
        self._rate.forget()
        self._rate.charge(namespace, len(line) / BYTES_PER_S)

    def _rest_s(self, namespace: str) -> float:
        """Return in how many seconds a large change of the namespace may be read."""
        return self._rate.rest_s(namespace)


def _large_change(line: bytes) -> _Object | None:
    """Return what tells a changed object and its node; None for all other lines."""
    try:
        change = _change.decode(line)
    except (msgspec.DecodeError, ValueError, RecursionError):
        return None
    return change.object if change.type in ("ADDED", "MODIFIED") and change.object.metadata.uid else None
