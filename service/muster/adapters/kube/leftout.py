"""Events about objects that the watches show, and the objects that are left out because reading them failed.

An object may cause an error (a decoder's RecursionError, a defect in a dialect). Then the service continues
without its new state, and keeps the earlier one. Each object is reported once, and again when its problem
changes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Hashable, Iterator
from contextlib import contextmanager

import structlog

from muster.adapters.kube.decode import api_version_of
from muster.adapters.telemetry.metrics import Metrics
from muster.dialects.objects import Identity
from muster.domain.printable import printable
from muster.gangs.messages.instructions import EmitEvent, EventReason

PROBLEM_LIMIT = 400
"""Largest number of characters of a problem that are shown."""

log = structlog.get_logger(__name__)


def leads_always() -> bool:
    """Return True, for a service without other replicas."""
    return True


class PendingEvents:
    """Events to post, by the object that they are about. `emit` posts an event. `leads` returns whether this
    replica posts.

    Each replica sees the objects, but only the leader posts. Another replica keeps its events, one for each
    key, until it leads or until the problem is gone. Callers limit the number of keys: they drop a key with
    its object.
    """

    def __init__(self, emit: Callable[[EmitEvent], None], leads: Callable[[], bool]) -> None:
        self.emit = emit
        self.leads = leads
        self._unposted_events: dict[Hashable, EmitEvent] = {}

    def post(self, key: Hashable, event: EmitEvent) -> None:
        """Post the event, or keep it as the newest about `key`."""
        self._unposted_events.pop(key, None)
        if self.leads():
            self.emit(event)
        else:
            self._unposted_events[key] = event

    def drop(self, key: Hashable) -> None:
        """Drop the kept event about `key`: the problem is gone."""
        self._unposted_events.pop(key, None)

    def post_held(self) -> None:
        """Post the kept events, when this replica begins to lead."""
        events, self._unposted_events = self._unposted_events, {}
        for event in events.values():
            self.emit(event)


EventTarget = tuple[str, str, Identity]
"""An object that an event can be posted on: its kind, the path of its kind in the API, and its metadata."""


class LeftOutObjects:
    """The objects that are left out now, by resource ("pods") and key. `emit` posts an event on each, if this
    replica `leads`."""

    def __init__(
        self,
        metrics: Metrics,
        emit: Callable[[EmitEvent], None] = lambda _: None,
        leads: Callable[[], bool] = leads_always,
    ) -> None:
        self._metrics = metrics
        self._standing = PendingEvents(emit, leads)
        self.post_held = self._standing.post_held
        self._problems: dict[tuple[str, str], str] = {}

    def add(self, resource: str, key: str, problem: str, about_object: EventTarget | None = None) -> None:
        """Note that an object is left out. `problem` names the object. The key is "" if the name is not
        known.

        `about_object` is the object, if a user is to see an event on it.
        """
        problem = printable(problem, PROBLEM_LIMIT)
        if self._problems.get((resource, key)) == problem:
            return
        if key:
            self._problems[resource, key] = problem
        self._metrics.unreadable_object(resource)
        log.error("object left out", resource=resource, problem=problem)
        if about_object is not None and about_object[2].name and about_object[2].uid:
            kind, path, meta = about_object
            message = f"left out by Muster: {problem}"
            objects, namespace = ((meta.name, meta.uid),), meta.namespace or "default"
            event = EmitEvent(namespace, objects, EventReason.INVALID, message, kind, api_version_of(path))
            self._standing.post((resource, key), event)

    def clear(self, resource: str, key: str) -> None:
        """Note that an object is read again, or gone."""
        self._problems.pop((resource, key), None)
        self._standing.drop((resource, key))

    def keep_only(self, resource: str, keys: Collection[str]) -> None:
        """Note that a list had objects of these keys and no others."""
        for entry in [entry for entry in self._problems if entry[0] == resource and entry[1] not in keys]:
            self.clear(*entry)

    @contextmanager
    def guard(
        self, resource: str, key: str, name: str, about_object: EventTarget | None = None
    ) -> Iterator[None]:
        """Leave the object out if its handling raises an exception."""
        try:
            yield
        except Exception as problem:  # no object may end the service
            log.debug("traceback", exc_info=problem)
            self.add(resource, key, f"{resource} {name}: {type(problem).__name__}: {problem}", about_object)
        else:
            self.clear(resource, key)

    def counts(self) -> dict[str, int]:
        """Return resource → number of objects that are left out now."""
        return dict(Counter(resource for resource, _ in self._problems))
