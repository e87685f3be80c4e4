"""List, then watch, for ever: turn the cluster's objects into a stream of changes.

This module has the parts that a naive watch lacks. It keeps bookmarks and a resource version, to continue
after a cut. After 410 it lists again, and reports the deletions that happened meanwhile. It has a deadline on
silence, because a dead connection reports no error, and a back-off with jitter. And it signals that all
existing objects have been seen.

Silence alone is no fault: bookmarks of an idle resource come as often as etcd reports progress, every ten
minutes by default. So a silent watch is reopened. Only if reopening fails do we know that our view is
outdated.

No object stops a watch. An object that can't be read or handled is left out (`LeftOutObjects`), and the sink
keeps its earlier state. Pages that are too large are requested again as smaller pages, and read in slices of
time.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable
from typing import Any, Generic, TypeVar

import msgspec
import structlog

from muster.adapters.kube.client import ApiError, KubeClient, Silent, TooLarge, Unreachable
from muster.adapters.kube.decode import ApiStatus, ListPage, Resource, T, Undecodable, full_name
from muster.adapters.kube.leftout import LeftOutObjects
from muster.adapters.telemetry.metrics import Metrics
from muster.adapters.turns import in_parts
from muster.config import Watch
from muster.dialects.objects import Identity
from muster.domain.printable import printable
from muster.domain.rate import Backoff, Rate

HTTP_FORBIDDEN, HTTP_NOT_FOUND, HTTP_GONE = 403, 404, 410
FORBIDDEN_TRIES = 3
CALM_S = 0.5
"""A resumed watch that has received nothing for this time has caught up."""
SHORT_LIVED_S = 1.0
"""A watch that ended sooner and received nothing counts as a failure, which prevents a hot loop against a
broken server."""
PAGE_BYTES = 8 * 1024 * 1024
"""Largest number of bytes of a page of a list. 500 pods have 3 MB, but the API server would also send 500
times 1.5 MB."""
SILENT_TIMES = 8
"""After this number of watches that received nothing, a list is read, because a proxy may hold events back.
"""
THREAD_BYTES = 256 * 1024
"""Larger texts are decoded on a thread."""

Text = TypeVar("Text", bytes, msgspec.Raw)
Decoded = TypeVar("Decoded")
LARGE_BYTES = 64 * 1024
"""Changes with more bytes than this are charged to their namespace."""
BYTES_PER_S = 2 * 1024 * 1024
"""Rate of large changes of one namespace. It costs 15 to 50 ms in a second."""
BURST_BYTES = 32 * 1024 * 1024
"""Bytes of large changes that a namespace may make at once."""
MAX_WAITING_BYTES = 64 * 1024 * 1024
"""Largest number of bytes of waiting changes, in all namespaces. A further change is read at once."""

log = structlog.get_logger(__name__)


class _Expired(Exception):
    """The resource version is too old to continue from: list again."""


Sink = Callable[[str, T | None], Awaitable[None]]
"""Takes the key of an object (`Resource.key`) and its present state; None if it was deleted, perhaps while
the watch was interrupted. Changes come in order, and the watch waits for the sink."""


class Watcher(Generic[T]):
    """Watches one resource and awaits `sink` for every change, in order. `run` ends only by cancellation.

    An `optional` resource that is not served counts as seen, without objects, and is tried again later.
    `sink` sets the pace: while it waits, nothing is read, and TCP holds the server back. `on_silence(True)`
    reports that our view is outdated, because no watch is established, and `on_silence(False)` that it has
    caught up. `on_absence(True)` reports that the resource is not served to this account, and
    `on_absence(False)` that it is.
    """

    def __init__(
        self,
        client: KubeClient,
        resource: Resource[T],
        sink: Sink[T],
        metrics: Metrics,
        settings: Watch,
        on_silence: Callable[[bool], Awaitable[None]] | None = None,
        left_out: LeftOutObjects | None = None,
        on_absence: Callable[[bool], Awaitable[None]] | None = None,
    ) -> None:
        self.synced = asyncio.Event()
        self.last_heard = time.monotonic()
        """When the server last sent anything, in monotonic seconds."""
        self._client = client
        self._resource = resource
        self._sink = sink
        self._metrics = metrics
        self._settings = settings
        self._backoff = Backoff(self._settings.backoff_first_s, self._settings.backoff_limit_s)
        self._known_versions: dict[str, str] = {}
        """Key → resource version of the objects that exist by the sink's knowledge."""
        self._version = ""
        self._path_index = 0
        """Index of the resource's path that is watched."""
        self._listed_path_index = 0
        """Index of the resource's path that was listed last."""
        self._absent = False
        self._left_out = left_out or LeftOutObjects(metrics)
        self._page_size = self._settings.page_size
        self._on_silence = on_silence
        self._on_absence = on_absence
        self._silent, self._silences = False, 0
        self._forbidden = 0
        """Number of consecutive lists that were forbidden."""

    @property
    def is_forbidden(self) -> bool:
        """Return whether the account may not read the resource. Then it counts as not served."""
        return self._absent and self._forbidden >= FORBIDDEN_TRIES

    async def run(self) -> None:
        """List, then watch, and start again after each failure with a back-off, until cancelled."""
        plural = self._resource.plural
        while True:
            reason = ""
            try:
                if not self._version:
                    await self._list()
                await self._watch()
            except Silent:
                await self._note_caught_up()
                self._silences += 1
                if self._silences >= SILENT_TIMES:
                    self._version, self._silences = "", 0
                    self._metrics.watch_restarted(plural, "silent")
            except _Expired:
                reason, delay = "expired", self._backoff.delay()
                self._version = ""
            except ApiError as refusal:
                if self._is_not_served(refusal.status):
                    await self._try_next_path()
                    continue
                reason, delay = str(refusal.status), max(self._backoff.delay(), refusal.retry_after or 0.0)
                if refusal.status == HTTP_GONE:
                    self._version = ""
                log.warning("watch refused", resource=plural, error=str(refusal))
            except Unreachable as problem:
                reason, delay = "unreachable", self._backoff.delay()
                log.warning("watch broke", resource=plural, error=str(problem), retry_in_s=delay)
            except Undecodable as problem:
                reason, delay = "undecodable", self._backoff.delay()
                self._version = ""
                log.warning("watch unreadable", resource=plural, error=printable(str(problem), 400))
            if not reason:
                if self._path_index:
                    self._version, self._path_index = (
                        "",
                        0,
                    )  # a version that is preferred may be served by now
                continue
            self._metrics.watch_restarted(plural, reason)
            await self._report_silence(True)
            await asyncio.sleep(min(delay, self._settings.backoff_limit_s))

    def _is_not_served(self, status: int) -> bool:
        """Count a refusal. Return whether it means that the resource is not served.

        Several refusals are needed, because an API server that has just started may forbid a granted request.
        """
        if status == HTTP_FORBIDDEN and self._resource.by_right:
            self._forbidden += 1
            return self._absent or self._forbidden >= FORBIDDEN_TRIES
        if status != HTTP_NOT_FOUND or not self._resource.optional:
            return False
        self._forbidden = 0
        return True

    async def _try_next_path(self) -> None:
        """Continue with the next path, because this path is not served, or wait until the CRD is
        installed."""
        self._version = ""
        self._note_heard()
        self._path_index = (self._path_index + 1) % len(self._resource.paths)
        if self._path_index:
            return
        for key in list(self._known_versions):
            await self._forget_object(key)
        if not self._absent:
            log.info("not there, looked for again", resource=self._resource.plural)
        await self._report_absence(True)
        self.synced.set()
        await asyncio.sleep(self._backoff.delay())

    async def _report_absence(self, absent: bool) -> None:
        if self._on_absence is not None and self._absent != absent:
            await self._on_absence(absent)
        self._absent = absent

    async def _report_silence(self, silent: bool) -> None:
        if self._on_silence is not None and self._silent != silent:
            await self._on_silence(silent)
            self._silent = silent

    async def _note_caught_up(self, after_s: float = 0.0) -> None:
        """Note that the watch works. Missed changes, if there are any, come at once."""
        await asyncio.sleep(after_s)
        await self._report_silence(False)
        self._backoff.reset()

    # --- list ----------------------------------------------------------------------------------------

    async def _list(self) -> None:
        """Bring the sink to the state of one list. The first list is delivered page by page. A later list is
        read to its end first, so that deletions are reported before the objects that replaced them."""
        pages: list[ListPage[T]] = []
        later = bool(self._known_versions)
        token = ""
        while True:
            page = await self._page(token)
            pages.append(page)
            if not later:
                await self._deliver(page)
            if not (token := page.token):
                break
        if later:
            await self._deliver_deletions(pages)
            if (
                self._path_index != self._listed_path_index
            ):  # the same object, but in another version of its API
                self._known_versions = dict.fromkeys(self._known_versions, "")
            for page in pages:
                await self._deliver(page)
        unreadable = {problem.key for page in pages for problem in page.unreadable}
        self._left_out.keep_only(self._resource.plural, unreadable | self._known_versions.keys())
        self._version, self._listed_path_index = pages[-1].version, self._path_index
        if self._absent or not self.synced.is_set():
            log.info("listed", resource=self._resource.plural, objects=len(self._known_versions))
        self._forbidden = 0
        await self._report_absence(False)
        await self._report_silence(False)
        self.synced.set()

    async def _page(self, token: str) -> ListPage[T]:
        raw = await self._raw_page(token)
        items, unreadable = [], []
        async for text in in_parts(raw.items):
            try:
                item = await self._decode(self._resource.item, text)
                items.append(self._resource.with_version(item, raw.api_version))
            except Undecodable as problem:
                unreadable.append(problem)
                self._leave_out(problem)
        return ListPage(items, raw.version, raw.token, tuple(unreadable))

    async def _raw_page(self, token: str) -> ListPage[msgspec.Raw]:
        """Return the next page. It has fewer objects if they are large."""
        while True:
            query = {**self._resource.select, "limit": str(self._page_size)}
            query |= {"continue": token} if token else {}
            limit = PAGE_BYTES if self._page_size > 1 else None
            try:
                body = await self._client.get(self._resource.plural, self._path, query, limit)
            except TooLarge:
                self._page_size = max(1, self._page_size // 4)
                continue
            self._note_heard()
            if 4 * len(body) <= PAGE_BYTES:
                self._page_size = min(2 * self._page_size, self._settings.page_size)
            return await self._decode(self._resource.raw_page, body)

    async def _decode(self, decode: Callable[[Text], Decoded], text: Text) -> Decoded:
        """Decode the text; a large one on a thread, because it may also be deep, which takes tens of
        milliseconds."""
        return await asyncio.to_thread(decode, text) if len(text) > THREAD_BYTES else decode(text)

    async def _deliver(self, page: ListPage[T]) -> None:
        async for item in in_parts(page.items):
            await self._take_in(item)

    async def _deliver_deletions(self, pages: list[ListPage[T]]) -> None:
        unreadable = [problem for page in pages for problem in page.unreadable]
        if any(not problem.key for problem in unreadable):
            return  # unreadable objects have no key here: rather keep a deleted one than drop one
        listed = {self._resource.key(item.metadata) for page in pages for item in page.items}
        listed.update(problem.key for problem in unreadable)
        for key in [key for key in self._known_versions if key not in listed]:
            await self._forget_object(key)

    # --- watch ---------------------------------------------------------------------------------------

    async def _watch(self) -> None:
        timeout = self._settings.timeout_s * random.uniform(1.0, 1.5)  # not all watchers come back at once
        query = {
            **self._resource.select,
            "watch": "true",
            "allowWatchBookmarks": "true",
            "resourceVersion": self._version,
            "timeoutSeconds": str(max(1, round(timeout))),
        }
        began, lines_read = time.monotonic(), 0
        async with self._client.watch(
            self._resource.plural, self._path, query, self._settings.read_deadline_s
        ) as batches:
            self._note_heard()
            calm = asyncio.create_task(self._note_caught_up(CALM_S))
            try:
                async for lines in batches:
                    self._note_heard()
                    self._silences = 0
                    lines_read += len(lines)
                    for line in lines:
                        if line:
                            await self._on_line(line)
                    await self._note_caught_up()  # a full buffer must not keep the calls of the shim waiting
            finally:
                calm.cancel()
        if not lines_read and time.monotonic() - began < SHORT_LIVED_S:
            raise Unreachable(f"WATCH {self._resource.plural}: the server ended it at once")

    async def _on_line(self, line: bytes) -> None:
        try:
            event = await self._decode(self._resource.event, line)
        except Undecodable as problem:
            if not problem.key:
                raise  # the missed change is unknown: list again
            self._leave_out(problem)
            return
        if isinstance(event, ApiStatus):
            if event.code == HTTP_GONE:
                raise _Expired
            raise ApiError(f"WATCH {self._resource.plural}", event.code, event.message)
        if event.object is not None:
            await self._take_in(event.object)
        elif key := self._resource.key(event.metadata):
            await self._forget_object(key)
        self._version = event.metadata.resource_version

    # --- to the sink ---------------------------------------------------------------------------------

    async def _take_in(self, item: T) -> None:
        key, version = self._resource.key(item.metadata), item.metadata.resource_version
        if self._known_versions.get(key) == version:
            return  # listed again, unchanged
        about_object = (self._resource.kind, self._path, item.metadata)
        with self._left_out.guard(self._resource.plural, key, full_name(item.metadata), about_object):
            await self._sink(key, item)
        self._known_versions[key] = version

    async def _forget_object(self, key: str) -> None:
        self._left_out.clear(self._resource.plural, key)
        if key in self._known_versions:
            with self._left_out.guard(self._resource.plural, key, key):
                await self._sink(key, None)
            del self._known_versions[key]

    def _leave_out(self, problem: Undecodable) -> None:
        """Leave out an object that does not have the shape of its kind. The sink keeps its earlier state."""
        about_object = (self._resource.kind, self._path, problem.metadata)
        self._left_out.add(self._resource.plural, problem.key, str(problem), about_object)

    @property
    def _path(self) -> str:
        return self._resource.paths[self._path_index]

    def _note_heard(self) -> None:
        self.last_heard = time.monotonic()


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
    """A watch in which the large changes of one namespace wait, so that they delay no other namespace.

    A user changes a label of a pod or PodGroup by a small request. If the object has 1.5 MiB, decoding takes
    10 to 40 ms here, and 4 ms for 256 KiB. So a namespace pays for the bytes of large objects. Above its
    rate, only the last change of each object is decoded, and later. New, deleted and newly bound objects are
    read at once, because they may take or free GPUs.
    """

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._waiting: dict[str, tuple[str, bytes]] = {}
        """Key → namespace and last line of a waiting change, the oldest first."""
        self._waiting_bytes = 0
        self._rate = Rate(BURST_BYTES / BYTES_PER_S)
        """The rate of large changes of each namespace."""
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
        change = await self._decode(_large_change, line) if len(line) > LARGE_BYTES else None
        if change is None:
            await super()._on_line(line)
            return
        metadata, key = change.metadata, self._resource.key(change.metadata)
        is_known = key in self._known_versions and self._nodes.get(key) == change.spec.node_name
        if is_known and self._rest_s(metadata.namespace) and self._waiting_bytes < MAX_WAITING_BYTES:
            self._drop_waiting_change(key)
            self._waiting[key] = (metadata.namespace, line)
            self._waiting_bytes += len(line)
            self._version = metadata.resource_version
            if self._later is None or self._later.done():
                self._later = asyncio.create_task(self._read_later(), name="large changes")
            return
        self._charge(metadata.namespace, line)
        await super()._on_line(line)
        self._nodes[key] = change.spec.node_name

    async def _take_in(self, item: T) -> None:
        async with self._turn:
            self._drop_waiting_change(self._resource.key(item.metadata))
            await super()._take_in(item)

    async def _forget_object(self, key: str) -> None:
        async with self._turn:
            self._drop_waiting_change(key)
            self._nodes.pop(key, None)
            await super()._forget_object(key)

    def _drop_waiting_change(self, key: str) -> None:
        """Drop the object's waiting change, because a later change has come."""
        _, line = self._waiting.pop(key, ("", b""))
        self._waiting_bytes -= len(line)

    async def _read_later(self) -> None:
        """Read waiting changes as fast as the rate of each namespace allows."""
        while self._waiting:
            key = min(self._waiting, key=lambda key: self._rest_s(self._waiting[key][0]))
            namespace, line = self._waiting[key]
            if rest_s := self._rest_s(namespace):
                await asyncio.sleep(rest_s)
                continue
            self._charge(namespace, line)
            try:
                event: Any = await self._decode(self._resource.event, line)
            except Undecodable as problem:
                event = problem
            async with self._turn:
                if self._waiting.get(key) != (namespace, line):
                    continue  # a later change has come
                self._drop_waiting_change(key)
                if isinstance(event, Undecodable):
                    self._leave_out(event)
                else:
                    await super()._take_in(event.object)

    def _charge(self, namespace: str, line: bytes) -> None:
        self._rate.forget()
        self._rate.charge(namespace, len(line) / BYTES_PER_S)

    def _rest_s(self, namespace: str) -> float:
        """Return in how many seconds a large change of the namespace may be read."""
        return self._rate.wait_s(namespace)


def _large_change(line: bytes) -> _Object | None:
    """Return the identity of a changed object and its node; None for other lines."""
    try:
        change = _change.decode(line)
    except (msgspec.DecodeError, ValueError, RecursionError):
        return None
    return change.object if change.type in ("ADDED", "MODIFIED") and change.object.metadata.uid else None
