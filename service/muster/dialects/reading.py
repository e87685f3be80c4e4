"""Read the keys of one pod, and agree on the gang that the keys of several systems name."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace

from muster.domain.causes.ill_formed import BadValue, DialectsDisagree
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

SHOWN = 80
"""Characters of a key that a sentence shows."""
_MAX_DIGITS = 9


@dataclass(frozen=True, slots=True)
class Reading:
    """The gang that a pod claims in one dialect (None: it does not speak it, or says no name), and what is
    ill-formed in that."""

    claim: GangClaim | None = None
    causes: tuple[Cause, ...] = ()


class Values:
    """The labels or annotations of a pod. A value that can't be read counts as not given, and is a cause."""

    def __init__(self, where: str, texts: Mapping[str, str]) -> None:
        self.causes: list[BadValue] = []
        self.texts = texts
        self._where = where

    def text(self, key: str) -> str | None:
        """Return the value of a key, None if there is none."""
        return self.texts.get(key)

    def matching(self, key: str, pattern: re.Pattern[str], expected: str) -> str | None:
        """Return the value if `pattern` matches all of it."""
        text = self.text(key)
        if text is not None and not pattern.fullmatch(text):
            self.bad(key, text, expected)
            return None
        return text

    def number(self, key: str, parse: Callable[[str | None], int | None], expected: str) -> int | None:
        """Return the number that the value is, by `natural` or `positive`."""
        text = self.text(key)
        number = parse(text)
        if text is not None and number is None:
            self.bad(key, text, expected)
        return number

    def names(self, key: str, pattern: re.Pattern[str], most: int, expected: str) -> tuple[str, ...]:
        """Return the names in a list with commas between: at most `most`, each once."""
        text = self.text(key)
        names = [name.strip() for name in text.split(",", most)] if text is not None else []
        if not all(map(pattern.fullmatch, names)) or not len(set(names)) == len(names) <= most:
            self.bad(key, text or "", expected)
            return ()
        return tuple(names)

    def bad(self, field: str, value: str, expected: str) -> None:
        """Note a value that can't be used."""
        self.causes.append(BadValue(self._where, field, value, expected))


def agreed(pod: str, readings: Iterable[Reading]) -> Reading:
    """Return one reading of a pod: the first claim with the counts of other claims, and all causes.

    Two claims that contradict each other are one more cause.
    """
    claim: GangClaim | None = None
    causes: list[Cause] = []
    for reading in readings:
        causes.extend(reading.causes)
        more = reading.claim
        if claim is None or more is None:
            claim = claim or more
        elif _contradict(claim, more):
            causes.append(DialectsDisagree(pod, _words(claim), _words(more)))
        else:
            counted = claim if claim.min_member is not None else more
            claim = replace(
                claim,
                min_member=counted.min_member,
                count_key=counted.count_key,
                replicas=claim.replicas or more.replicas,
                size=claim.size or more.size,
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
