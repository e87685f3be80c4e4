"""What one dialect finds in one pod, and how the findings of several become one."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, replace

from muster.domain.causes.ill_formed import DialectsDisagree
from muster.domain.pod import GangClaim
from muster.domain.reasons import Cause
from muster.domain.request import Scope

NAME_PATTERN = re.compile(r"[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?")
A_NAME = "a name as labels have it: at most 63 letters, digits, '-', '_' and '.'"
OBJECT_NAME = re.compile(r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?")
AN_OBJECT_NAME = "at most 253 lower-case letters, digits, '-' and '.'"
LABEL_KEY = re.compile(rf"([a-z0-9]([-a-z0-9.]{{0,251}}[a-z0-9])?/)?{NAME_PATTERN.pattern}")
A_SCOPE = f"one of {', '.join(scope.value for scope in Scope)}, or a label key of nodes"

LABEL, ANNOTATION, EITHER = "label", "annotation", ""
"""Where a key of a pod stands."""

_MAX_DIGITS = 9


@dataclass(frozen=True, slots=True)
class Reading:
    """The gang that a pod claims in one dialect (None: it does not speak it, or says no name), and what is
    ill-formed in that."""

    claim: GangClaim | None = None
    causes: tuple[Cause, ...] = ()


def agreed(pod: str, readings: Iterable[Reading]) -> Reading:
    """One reading of a pod: the first claim with the counts that others add to it, all causes, and one cause
    more where two claims contradict."""
    claim: GangClaim | None = None
    causes: list[Cause] = []
    for reading in readings:
        causes.extend(reading.causes)
        other = reading.claim
        if claim is None or other is None:
            claim = claim or other
        elif _contradict(claim, other):
            causes.append(DialectsDisagree(pod, _words(claim), _words(other)))
        else:
            counted = claim if claim.min_member is not None else other
            claim = replace(
                claim,
                min_member=counted.min_member,
                count_key=counted.count_key,
                replicas=claim.replicas or other.replicas,
                size=claim.size or other.size,
            )
    return Reading(claim, tuple(causes))


def natural(text: str | None) -> int | None:
    """Return the integer from 0 that `text` is; None for anything else."""
    if text is None or len(text) > _MAX_DIGITS or not (text.isascii() and text.isdigit()):
        return None
    return int(text)


def positive(text: str | None) -> int | None:
    """Return the positive integer that `text` is; None for anything else."""
    return natural(text) or None


def _contradict(first: GangClaim, second: GangClaim) -> bool:
    if first.name != second.name or (
        first.by_object and second.by_object and first.dialect != second.dialect
    ):
        return True  # a gang has one PodGroup, of one API
    counts = {count for count in (first.min_member, second.min_member) if count is not None}
    return len(counts) > 1


def _words(claim: GangClaim) -> str:
    count = "" if claim.min_member is None else f" of {claim.min_member}"
    return f"{claim.dialect}: gang {claim.name}{count}"
