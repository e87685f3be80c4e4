"""What one dialect finds in one pod, and how the findings of several become one."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from muster.domain.pod import GangClaim
from muster.domain.reasons import Cause, DialectsDisagree

_MAX_DIGITS = 9


@dataclass(frozen=True, slots=True)
class Reading:
    """The gang that a pod claims in one dialect (None: it does not speak it, or says no name), and what is
    ill-formed in that."""

    claim: GangClaim | None = None
    causes: tuple[Cause, ...] = ()


def agreed(pod: str, readings: Iterable[Reading]) -> Reading:
    """One reading of a pod: the first claim, all causes, and one cause more where two claims contradict."""
    claim: GangClaim | None = None
    causes: list[Cause] = []
    for reading in readings:
        causes.extend(reading.causes)
        other = reading.claim
        if claim is None:
            claim = other
        elif other is not None and _contradict(claim, other):
            causes.append(DialectsDisagree(pod, _words(claim), _words(other)))
    return Reading(claim, tuple(causes))


def natural(text: str | None) -> int | None:
    """The integer from 0 that `text` is; None for anything else."""
    if text is None or len(text) > _MAX_DIGITS or not (text.isascii() and text.isdigit()):
        return None
    return int(text)


def positive(text: str | None) -> int | None:
    """The positive integer that `text` is; None for anything else."""
    return natural(text) or None


def _contradict(first: GangClaim, second: GangClaim) -> bool:
    if first.name != second.name:
        return True
    counts = {count for count in (first.min_member, second.min_member) if count is not None}
    return len(counts) > 1


def _words(claim: GangClaim) -> str:
    count = "" if claim.min_member is None else f" of {claim.min_member}"
    return f"{claim.dialect}: gang {claim.name}{count}"
