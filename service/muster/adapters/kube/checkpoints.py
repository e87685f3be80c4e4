"""Collect when pods saved their work, and pass that on in few inputs.

A job may renew the annotation last-checkpoint of each of its pods every second. A pod with a changed
annotation is read anew, which is slow. So this annotation is taken off a bound pod before the pod is compared
with its earlier state. The newest time of each pod is passed on with a pause after each input.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from itertools import islice

import msgspec

from muster.dialects.gangs import own
from muster.dialects.objects import PodObject
from muster.dialects.reading import seconds_since_epoch
from muster.gangs.messages.inputs import CheckpointsSeen, Input

SENT_AT_ONCE = 2_048
"""Largest number of pods in one input: about 3 ms to read their times."""
PAUSE_S = 10.0
"""The pause after each input."""


def take_off(obj: PodObject) -> tuple[PodObject, str]:
    """Return a bound pod without its annotation last-checkpoint, and the annotation; "" if it has none."""
    annotations = obj.metadata.annotations or {}
    if own.LAST_CHECKPOINT not in annotations or not obj.spec.node_name:
        return obj, ""
    other_annotations = dict(annotations)
    text = other_annotations.pop(own.LAST_CHECKPOINT)[: own.MAX_CHARACTERS]
    metadata = msgspec.structs.replace(obj.metadata, annotations=other_annotations or None)
    return msgspec.structs.replace(obj, metadata=metadata), text


class Checkpoints:
    """The last checkpoints of bound pods. `put` takes the inputs, with a pause of `pause_s` after each."""

    def __init__(self, put: Callable[[Input], Awaitable[None]], pause_s: float = PAUSE_S) -> None:
        self._put = put
        self._pause_s = pause_s
        self._texts: dict[str, str] = {}
        """UID → annotation, of the pods that have one."""
        self._unsent: dict[str, None] = {}
        """UIDs of pods whose annotation changed, the oldest change first."""
        self.sender: asyncio.Task[None] | None = None
        """Passes the changes on."""

    def see(self, uid: str, text: str) -> None:
        """Take in the annotation of a pod that was passed on; "" if it has none."""
        if text == self._texts.get(uid, ""):
            return
        self._texts[uid] = text
        self._unsent[uid] = None
        if self.sender is None or self.sender.done():
            self.sender = asyncio.create_task(self._send(), name="checkpoints")

    def forget(self, uid: str) -> None:
        """Forget a pod that is gone."""
        self._texts.pop(uid, None)
        self._unsent.pop(uid, None)

    async def _send(self) -> None:
        while self._unsent:
            uids = list(islice(self._unsent, SENT_AT_ONCE))
            saved = {}
            for uid in uids:
                del self._unsent[uid]
                saved[uid] = seconds_since_epoch(self._texts[uid])
                if not self._texts[uid]:
                    del self._texts[uid]
            await self._put(CheckpointsSeen(time.monotonic(), saved))
            await asyncio.sleep(self._pause_s)
