"""What happened on the API server, in its own order: lists and watches into one history.

Waiting for something is waiting for a change of this history, and a guard ends a wait for
what never comes.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from types import TracebackType
from typing import Self, TypeVar

from e2e.client import Client, Watch
from local_cluster.api import ApiError, ApiUnreachable, Object
from local_cluster.patience import HANG_S, Guard

Answer = TypeVar("Answer")

PODS, EVENTS, NODES = "/api/v1/pods", "/api/v1/events", "/api/v1/nodes"
RECONNECT_EVERY_S = 0.2
ASKS_EVERY_S = 1.0
"""Also without a change, since a question may be about a process."""
GONE = 410
BUSY = frozenset({429, 500, 502, 503, 504})
"""What an API server says that comes up or is overloaded: asked again."""


class TooLateError(AssertionError):
    """Something that a test waits for did not come in time."""


@dataclass(frozen=True, slots=True)
class Change:
    """One watch event. `at` is this process's monotonic clock, in seconds; `kind` the collection's path.

    `watched`: false for an object that is missing in a list. Its body may be an old one.
    """

    at: float
    kind: str
    deed: str
    body: Object
    watched: bool = True

    @property
    def uid(self) -> str:
        return str(self.body["metadata"]["uid"])


class Record:
    """A history of pods, nodes and events, from when it is entered to when it is left.

    With `relists`, all is listed anew whenever the server was away, instead of going on where the watch
    broke: what the cluster holds then is seen, whatever became of the history. With a `namespace`, only what
    is in it is seen, and nodes.
    """

    def __init__(
        self,
        client: Client,
        kinds: Iterable[str] = (PODS, EVENTS, NODES),
        *,
        relists: bool = False,
        namespace: str = "",
    ) -> None:
        self._namespace = namespace
        self._client = client
        self._relists = relists
        self._kinds = tuple(kinds)
        self._changed = threading.Condition()
        self._changes: list[Change] = []
        self._live: dict[str, dict[str, Object]] = {kind: {} for kind in self._kinds}
        self._since: dict[str, str] = {}
        self._watches: dict[str, Watch] = {}
        self._threads: list[threading.Thread] = []
        self._over = threading.Event()
        self._failures: list[str] = []

    def __enter__(self) -> Self:
        for kind in self._kinds:
            self._list(kind)
            thread = threading.Thread(target=self._follow, args=(kind,), name=f"record {kind}", daemon=True)
            thread.start()
            self._threads.append(thread)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over.set()
        with self._changed:
            watches = list(self._watches.values())
        for watch in watches:
            watch.close()
        for thread in self._threads:
            thread.join(timeout=5)

    # --- reading --------------------------------------------------------------------------------

    def live(self, kind: str) -> list[Object]:
        """The objects that exist now."""
        with self._changed:
            return list(self._live[kind].values())

    def changes(self, since: int = 0) -> list[Change]:
        """The history, oldest first."""
        with self._changed:
            return self._changes[since:]

    @property
    def length(self) -> int:
        with self._changed:
            return len(self._changes)

    def until(self, question: Callable[[], Answer | None], event: str, quiet_s: float = HANG_S) -> Answer:
        """Ask again after every change, and every second, until the answer is neither None nor False.

        Raises:
            TooLateError: no such answer within `quiet_s` of a quiet machine.
        """
        guard = Guard(quiet_s)
        with self._changed:
            while True:
                if self._failures:
                    raise AssertionError("; ".join(self._failures))
                answer = question()
                if answer is not None and answer is not False:
                    return answer
                if guard.over:
                    raise TooLateError(f"not within {guard.whole_s:.0f} s: {event}")
                self._changed.wait(min(guard.left_s, ASKS_EVERY_S))

    # --- writing --------------------------------------------------------------------------------

    def _list(self, kind: str) -> None:
        """Take up what exists, and note the resource version to watch from."""
        listed = self._client.get(within(kind, self._namespace))
        now = time.monotonic()
        with self._changed:
            fresh = {str(item["metadata"]["uid"]): item for item in listed.get("items") or ()}
            for uid in [uid for uid in self._live[kind] if uid not in fresh]:
                self._add(Change(now, kind, "DELETED", self._live[kind][uid], watched=False))
            for uid, item in fresh.items():
                item_before = self._live[kind].get(uid)
                if item_before is None or _version(item_before) != _version(item):
                    self._add(Change(now, kind, "LISTED", item))
        self._since[kind] = _version(listed)

    def _add(self, change: Change) -> None:
        """Note one change. The lock is held."""
        self._changes.append(change)
        if change.deed == "DELETED":
            self._live[change.kind].pop(change.uid, None)
        else:
            self._live[change.kind][change.uid] = change.body
        self._changed.notify_all()

    def _follow(self, kind: str) -> None:
        """Watch one collection until the record is left; list again where the server forgot the version."""
        stale = False
        try:
            while not self._over.is_set():
                try:
                    if stale:
                        self._list(kind)
                        stale = False
                    self._read(kind)
                except ApiUnreachable:
                    stale = stale or self._relists
                    self._over.wait(RECONNECT_EVERY_S)  # the server is down: ask again
                except ApiError as problem:
                    if problem.status not in BUSY | {GONE}:
                        raise
                    stale = stale or problem.status == GONE
                    self._over.wait(RECONNECT_EVERY_S)
        except Exception as problem:  # noqa: BLE001  a thread that dies in silence would pass tests
            with self._changed:
                self._failures.append(f"the record of {kind} broke: {problem!r}")
                self._changed.notify_all()

    def _read(self, kind: str) -> None:
        watch = self._client.watch(within(kind, self._namespace), self._since[kind])
        with self._changed:
            self._watches[kind] = watch
        if self._over.is_set():
            watch.close()
        for event in watch:
            body = event["object"]
            if event["type"] == "ERROR":
                raise ApiError("WATCH", kind, int(body.get("code", 500)), str(body.get("message", "")))
            self._since[kind] = _version(body)
            if event["type"] != "BOOKMARK":
                with self._changed:
                    self._add(Change(time.monotonic(), kind, event["type"], body))


def within(kind: str, namespace: str) -> str:
    """Return the collection's path in a namespace; as it is for nodes, and without one."""
    if not namespace or kind == NODES:
        return kind
    of_api, _, plural = kind.rpartition("/")
    return f"{of_api}/namespaces/{namespace}/{plural}"


def _version(body: Object) -> str:
    return str(body["metadata"]["resourceVersion"])
