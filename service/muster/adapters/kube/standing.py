"""Events about objects that the watches show: each replica sees these, and only the one that leads posts.

A replica that does not lead keeps what it has to say, until it leads or until it no longer holds.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable

from muster.gangs.messages.instructions import EmitEvent


def always() -> bool:
    """Return true: of a service without other replicas."""
    return True


class Standing:
    """Events to post, by the object that they are about. `emit` posts an event; `leads`: whether this replica
    posts.

    It keeps one event for each key. Callers bound the number of keys: a key goes when its object goes.
    """

    def __init__(self, emit: Callable[[EmitEvent], None], leads: Callable[[], bool] = always) -> None:
        self._emit = emit
        self._leads = leads
        self._held: dict[Hashable, EmitEvent] = {}

    def say(self, key: Hashable, event: EmitEvent) -> None:
        """Post the event, or keep it as the newest about `key`."""
        self._held.pop(key, None)
        if self._leads():
            self._emit(event)
        else:
            self._held[key] = event

    def drop(self, key: Hashable) -> None:
        """Note that nothing is to be said about `key` any more."""
        self._held.pop(key, None)

    def post_held(self) -> None:
        """Post what was kept, when this replica begins to lead."""
        events, self._held = self._held, {}
        for event in events.values():
            self._emit(event)
