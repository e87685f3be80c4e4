"""Objects that change again and again."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

from benchmarks.headofline.neighbour import Loop
from benchmarks.headofline.stats import Changes
from local_cluster.api import MERGE_PATCH, Api, Object

Change = Callable[[int], tuple[str, Object]]
"""The number of a change → the path of an object, and the merge patch that changes it."""

REFUSAL_CHARACTERS = 300


class NothingAcceptedError(RuntimeError):
    """The API server took no change: the case shows nothing."""


@contextlib.contextmanager
def changing(client: Api, change: Change, per_s: float) -> Iterator[Changes]:
    """Send `per_s` changes a second, as this user, and count them. A change may be refused.

    Raises:
        NothingAcceptedError: all were.
    """
    changes = Changes()

    def step(index: int) -> None:
        path, patch = change(index)
        answer = client.send("PATCH", path, patch, content_type=MERGE_PATCH)
        if answer.ok:
            changes.accepted += 1
            changes.largest = max(changes.largest, len(answer.body))
        else:
            changes.refused += 1
            changes.refusal = answer.body.decode(errors="replace")[:REFUSAL_CHARACTERS]

    with Loop(step, per_s):
        yield changes
    if not changes.accepted:
        raise NothingAcceptedError(
            f"of {changes.refused} changes the API server took none: {changes.refusal}"
        )
