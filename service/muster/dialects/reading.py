"""Read an untrusted object field by field, and agree on the gang that the keys of several systems name.

Ill-formed fields are collected as causes.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from difflib import get_close_matches
from typing import Any, Self

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
"""The place of a key on a pod."""

SHOWN = 80
"""Characters of a key that a sentence shows."""
MAX_COUNT = 2**31 - 1
"""Kubernetes' counts are int32."""
MAX_CAUSES = 8
"""Largest number of causes of one object. A list may have thousands of items with the same mistake."""
MAX_UNKNOWN = 16
"""Largest number of unknown fields that are compared with the known fields."""
NEARLY = 0.8
"""Similarity of two names (`words.nearest`) from which on a name counts as misspelt."""
_MAX_DIGITS = 9


@dataclass(frozen=True, slots=True)
class Reading:
    """The gang that a pod claims in one dialect, and the causes for ill-formed keys of this dialect.

    The claim is None if the pod has no keys of the dialect, or states no name.
    """

    claim: GangClaim | None = None
    causes: tuple[Cause, ...] = ()


class Fields:
    """The fields of one JSON object. All parts of an API object share `causes`. null counts as missing."""

    def __init__(self, object_name: str, path: str, value: Mapping[str, Any], causes: list[BadValue]) -> None:
        self.causes = causes
        self._where = object_name
        self._path = path
        self._value = value

    @classmethod
    def of_keys(cls, object_name: str, texts: Mapping[str, str]) -> Self:
        """Return the labels or annotations of the object `object_name`."""
        return cls(object_name, "", texts, [])

    @classmethod
    def of(cls, object_name: str, path: str, value: object) -> Fields:
        """Return the fields of `value`, which is at `path` of `object_name` (kind/namespace/name).

        None counts as an empty object.
        """
        fields = cls(object_name, "", {} if value is None else {path: value}, [])
        return fields.part(path)

    def bad(self, field: str, value: object, expected: str) -> None:
        """Add a cause: this field can't be used."""
        self.bad_value(f"{self._path}{field}", value, expected)

    def bad_value(self, name: str, value: object, expected: str) -> None:
        """Add a cause: another part of the object, such as an annotation, can't be used."""
        if len(self.causes) < MAX_CAUSES:
            self.causes.append(BadValue(self._where, name, _shown(value), expected))

    def sibling(self, path: str, value: Mapping[str, Any]) -> Fields:
        """Return another part of the same API object, with the same list of causes."""
        return Fields(self._where, path, value, self.causes)

    def names(self) -> list[str]:
        """Return the names of the fields that are given, sorted."""
        return sorted(str(field) for field, value in self._value.items() if value is not None)

    def raw(self, field: str) -> Any:
        """Return the field as it is; None if it is not given."""
        return self._value.get(field)

    def note_unknown(self, *fields: str) -> None:
        """Add a cause for the first field that is none of these."""
        unknown = sorted(str(field) for field in set(self._value) - set(fields))
        if unknown:
            self.bad(unknown[0][:SHOWN], "", f"none of this name: known are {', '.join(fields)}")

    def note_misspelt(self, *fields: str) -> None:
        """Add a cause for each field that resembles one of `fields`. Others may be for another scheduler."""
        for name in sorted(str(field)[:SHOWN] for field in set(self._value) - set(fields))[:MAX_UNKNOWN]:
            for known_field in get_close_matches(name, fields, 1, NEARLY):
                self.bad(name, "", f"none of this name: {known_field} is nearly the same")

    def part(self, field: str) -> Fields:
        """Return the object in a field; an empty one if the field is missing."""
        value = self._value.get(field)
        if value is not None and not isinstance(value, dict):
            self.bad(field, value, "an object")
            value = None
        return Fields(self._where, f"{self._path}{field}.", value or {}, self.causes)

    def objects_in(self, field: str, at_most: int) -> tuple[Fields, ...]:
        """Return the objects in a list; () if the field is no list."""
        value = self._list(field, at_most)
        parts = []
        for number, item in enumerate(value or ()):
            if not isinstance(item, dict):
                self.bad(f"{field}[{number}]", item, "an object")
                return ()
            parts.append(Fields(self._where, f"{self._path}{field}[{number}].", item, self.causes))
        return tuple(parts)

    def text(self, field: str, required: bool = False) -> str | None:
        """Return the field if it is a string, else None. Add a cause for any other value."""
        value = self._value.get(field)
        if isinstance(value, str):
            return value
        if value is not None or required:
            is_number = isinstance(value, int | float) and not isinstance(value, bool)
            shown = f"the number {value}" if is_number else value
            self.bad(field, "" if value is None else shown, "a string")
        return None

    def texts(self, field: str, at_most: int) -> tuple[str, ...] | None:
        """Return the strings in a list: () if it is not given, None if it can't be read."""
        value = self._list(field, at_most)
        if value is None:
            return None
        if not all(isinstance(item, str) for item in value):
            self.bad(field, value, 'strings: write them with quotes, "true"')
            return None
        return tuple(value)

    def text_matching(
        self, field: str, pattern: re.Pattern[str], expected: str, required: bool = False
    ) -> str | None:
        """Return the field's text if the pattern matches the whole text; else None, and add a cause."""
        text = self.text(field, required)
        if text is not None and not pattern.fullmatch(text):
            self.bad(field, text, expected)
            return None
        return text

    def number(self, field: str, parse: Callable[[str | None], int | None], expected: str) -> int | None:
        """Return the number that `parse` (`natural` or `positive`) reads from the field's text."""
        text = self.text(field)
        number = parse(text)
        if text is not None and number is None:
            self.bad(field, text, expected)
        return number

    def names_in(self, field: str, pattern: re.Pattern[str], limit: int, expected: str) -> tuple[str, ...]:
        """Return the names in a text, separated by commas: at most `limit`, each once."""
        text = self.text(field)
        names = [name.strip() for name in text.split(",", limit)] if text is not None else []
        if not all(map(pattern.fullmatch, names)) or not len(set(names)) == len(names) <= limit:
            self.bad(field, text or "", expected)
            return ()
        return tuple(names)

    def positive(self, field: str) -> int | None:
        """Return the field if it is a whole number from 1, else None. Add a cause for any other value."""
        return self._count(field, 1, "a positive whole number: 1, 2, …")

    def natural(self, field: str) -> int | None:
        """Return the field if it is a whole number from 0, else None. Add a cause for any other value."""
        return self._count(field, 0, "a whole number that is not negative: 0, 1, …")

    def _count(self, field: str, least: int, expected: str) -> int | None:
        value = self._value.get(field)
        if value is None:
            return None
        if isinstance(value, int) and not isinstance(value, bool) and least <= value <= MAX_COUNT:
            return value
        self.bad(field, f'the string "{value[:SHOWN]}"' if isinstance(value, str) else value, expected)
        return None

    def _list(self, field: str, at_most: int) -> list[Any] | None:
        value = self._value.get(field)
        if value is None:
            return []
        if not isinstance(value, list) or len(value) > at_most:
            self.bad(field, value, f"a list of at most {at_most}")
            return None
        return value


def _shown(value: object) -> str:
    match value:
        case bool():
            return str(value).lower()
        case str() | int() | float():
            return str(value)
        case list():
            return f"a list of {len(value)}"
        case _:
            return "an object"


def merge_readings(pod: str, readings: Iterable[Reading]) -> Reading:
    """Return one reading of a pod: the first claim, completed by the counts of the other claims, and all
    causes.

    If two claims contradict each other, the contradiction is a further cause.
    """
    claim: GangClaim | None = None
    causes: list[Cause] = []
    for reading in readings:
        causes.extend(reading.causes)
        other_claim = reading.claim
        if claim is None or other_claim is None:
            claim = claim or other_claim
        elif _contradict(claim, other_claim):
            causes.append(DialectsDisagree(pod, _describe_claim(claim), _describe_claim(other_claim)))
        else:
            count_claim = claim if claim.min_member is not None else other_claim
            claim = replace(
                claim,
                min_member=count_claim.min_member,
                count_key=count_claim.count_key,
                replicas=claim.replicas or other_claim.replicas,
                size=claim.size or other_claim.size,
            )
    return Reading(claim, tuple(causes))


def natural(text: str | None) -> int | None:
    """Return the text as an integer from 0; None for other texts."""
    if text is None or len(text) > _MAX_DIGITS or not (text.isascii() and text.isdigit()):
        return None
    return int(text)


def positive(text: str | None) -> int | None:
    """Return the text as a positive integer; None for other texts."""
    return natural(text) or None


def seconds_since_epoch(timestamp: str | None) -> float:
    """Return a time of the API in seconds since the epoch; 0 if the text is no time since then."""
    try:
        moment = datetime.fromisoformat(timestamp or "")
        return max(0.0, (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp())
    except (ValueError, OverflowError):
        return 0.0


def mask_of_list(text: str, gpu_count: int) -> tuple[int, list[str]]:
    """Return the bit mask of the GPUs in a list as "0,2", and the items that are no GPU below `gpu_count`."""
    mask, slips = 0, list[str]()
    for part in map(str.strip, text.split(",")):
        gpu = natural(part)
        if gpu is not None and gpu < gpu_count:
            mask |= 1 << gpu
        elif part:
            slips.append(part)
    return mask, slips


def _contradict(first: GangClaim, second: GangClaim) -> bool:
    if first.name != second.name or (
        first.by_object and second.by_object and first.dialect != second.dialect
    ):
        return True  # a gang has one PodGroup, of one API
    counts = {count for count in (first.min_member, second.min_member) if count is not None}
    return len(counts) > 1


def _describe_claim(claim: GangClaim) -> str:
    count = "" if claim.min_member is None else f" of {claim.min_member}"
    return f"{claim.dialect}: gang {claim.name}{count}"
