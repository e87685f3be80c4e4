"""Events about objects that the watches show, and the objects that are left out because reading them failed.

Whatever one object causes (a decoder's RecursionError, a defect in a dialect), the service goes on without
it, and what was known of it stays. Each object is reported once, and again when the problem is another one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Hashable, Iterator
from contextlib import contextmanager

import structlog

from muster.adapters.telemetry.metrics import Metrics
from muster.dialects.objects import Identity
from muster.domain.printable import printable
from muster.gangs.messages.instructions import EmitEvent, EventReason

PROBLEM_LIMIT = 400
"""Characters of a problem that are shown."""

log = structlog.get_logger(__name__)


def always() -> bool:
    """Return true: of a service without other replicas."""
    return True


class Standing:
    """Events to post, by the object that they are about. `emit` posts an event; `leads`: whether this replica
    posts.

    Each replica sees the objects, and only the one that leads posts. Another one keeps what it has to say,
    until it leads or until that no longer holds. It keeps one event for each key. Callers bound the number of
    keys: a key goes when its object goes.
    """

    def __init__(self, emit: Callable[[EmitEvent], None], leads: Callable[[], bool]) -> None:
        self.emit = emit
        self.leads = leads
        self._unposted_events: dict[Hashable, EmitEvent] = {}

    def say(self, key: Hashable, event: EmitEvent) -> None:
        """Post the event, or keep it as the newest about `key`."""
        self._unposted_events.pop(key, None)
        if self.leads():
            self.emit(event)
        else:
            self._unposted_events[key] = event

    def drop(self, key: Hashable) -> None:
        """Note that nothing is to be said about `key` any more."""
        self._unposted_events.pop(key, None)

    def post_held(self) -> None:
        """Post what was kept, when this replica begins to lead."""
        events, self._unposted_events = self._unposted_events, {}
        for event in events.values():
            self.emit(event)


On = tuple[str, str, Identity]
"""An object that an event can be posted on: its kind, the path of its kind in the API, and its metadata."""


class LeftOut:
    """The objects that are left out now, by resource ("pods") and key. `emit` posts an event on each, if this
    replica `leads`."""

    def __init__(
        self,
        metrics: Metrics,
        emit: Callable[[EmitEvent], None] = lambda _: None,
        leads: Callable[[], bool] = always,
    ) -> None:
        self._metrics = metrics
        self._standing = Standing(emit, leads)
        self.post_held = self._standing.post_held
        self._problems: dict[tuple[str, str], str] = {}

    def add(self, resource: str, key: str, problem: str, on: On | None = None) -> None:
        """Note that an object is left out. `problem` names the object; "" as a key: the name is not known.

        `on` is the object, if a user is to see an event on it.
        """
        problem = printable(problem, PROBLEM_LIMIT)
        if self._problems.get((resource, key)) == problem:
            return
        if key:
            self._problems[resource, key] = problem
        self._metrics.unreadable_object(resource)
        log.error("object left out", resource=resource, problem=problem)
        if on is not None and on[2].name and on[2].uid:
            kind, path, meta = on
            _, root, *version = path.split("/")
            api_version = version[0] if root == "api" else "/".join(version[:2])
            message = f"left out by Muster: {problem}"
            objects, namespace = ((meta.name, meta.uid),), meta.namespace or "default"
            event = EmitEvent(namespace, objects, EventReason.INVALID, message, kind, api_version)
            self._standing.say((resource, key), event)

    def clear(self, resource: str, key: str) -> None:
        """Note that an object is read again, or gone."""
        self._problems.pop((resource, key), None)
        self._standing.drop((resource, key))

    def keep(self, resource: str, keys: Collection[str]) -> None:
        """Note that a list had objects of these keys and no others."""
        for entry in [entry for entry in self._problems if entry[0] == resource and entry[1] not in keys]:
            self.clear(*entry)

    @contextmanager
    def guard(self, resource: str, key: str, name: str, on: On | None = None) -> Iterator[None]:
        """Leave the object out if handling it raises anything."""
        try:
            yield
        except Exception as problem:  # the point of it: no object ends the service
            log.debug("traceback", exc_info=problem)
            self.add(resource, key, f"{resource} {name}: {type(problem).__name__}: {problem}", on)
        else:
            self.clear(resource, key)

    def counts(self) -> dict[str, int]:
        """How many objects of each resource are left out now."""
        return dict(Counter(resource for resource, _ in self._problems))
