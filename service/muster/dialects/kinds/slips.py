"""Find keys of jobs that have no effect there: misspelt keys of KAI, and our annotations of pods.

A misspelt key of KAI would lose a constraint silently, so it is a cause. Our annotations count on the pod
template alone. Misspelt keys on a pod template are found on its pods (`misspelt`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import islice

from muster.dialects import misspelt, own
from muster.dialects.fields import Fields
from muster.dialects.kinds import kai_keys

_SHOWN = 80


def meant(keys: Iterable[str], most: int = misspelt.MAX_COMPARED) -> Mapping[str, str]:
    """Return each of these keys that has no effect on a job → the key that was meant, "" if unknown.

    At most `most` keys are compared, those of our own prefix first.
    """
    known = misspelt.keys()
    unknown = (key for key in keys if key.startswith(own.PREFIX) or key not in known)
    ordered = sorted(unknown, key=lambda key: (not key.startswith((own.PREFIX, kai_keys.PREFIX)), key))
    return {key: right for key in islice(ordered, most) if (right := _meant(key)) is not None}


def _meant(key: str) -> str | None:
    """Return the key that was meant. Return None for a key of another system."""
    if key in own.KEYS:
        return key
    right = misspelt.meant(key)
    if right in own.KEYS or right.startswith(kai_keys.PREFIX):
        return right
    return "" if key.startswith(own.PREFIX) else None


def note_misspelt(fields: Fields, place: str, said: Mapping[str, str]) -> None:
    """Note a problem for each misspelt key of KAI."""
    for key, right in meant(said).items():
        if right.startswith(kai_keys.PREFIX):
            fields.said(f"{place} {key[:_SHOWN]}", said[key], f"none: did you mean {right}?")


def of_kai(keys: Iterable[str]) -> bool:
    """Return whether a misspelt key of KAI is among these."""
    return any(right.startswith(kai_keys.PREFIX) for right in meant(keys).values())


def unheard(said: Iterable[str]) -> Iterator[str]:
    """Yield a sentence for each of our annotations that stands on a job."""
    for key, right in meant(said).items():
        if key == right:
            yield f"{key} has no effect on the job: it belongs on the pod template"
        elif right in own.KEYS:
            yield f"{key[:_SHOWN]} has no effect on the job: {right} belongs on the pod template"
        elif key.startswith(own.PREFIX):
            yield f"{key[:_SHOWN]} has no effect on the job"
