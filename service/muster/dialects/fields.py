"""Read an untrusted object field by field, and gather what is ill-formed as causes."""

from __future__ import annotations

import re
from collections.abc import Mapping
from difflib import get_close_matches
from typing import Any

from muster.dialects.reading import SHOWN
from muster.domain.causes.ill_formed import BadValue

MAX_COUNT = 2**31 - 1
"""Kubernetes' counts are int32."""
MAX_CAUSES = 8
"""Of one object: a list of thousands with the same slip in each says it a few times only."""
MAX_UNKNOWN = 16
"""Fields of unknown names that are compared with those that are known."""
NEARLY = 0.8
"""Similarity of two names (`difflib`) from which one counts as the other misspelt."""


class Fields:
    """The members of one JSON object; all parts of one whole share `causes`. null is a field not given."""

    def __init__(self, where: str, path: str, value: dict[str, Any], causes: list[BadValue]) -> None:
        self.causes = causes
        self._where = where
        self._path = path
        self._value = value

    @classmethod
    def of(cls, where: str, path: str, value: object) -> Fields:
        """Return the object `value`, which is at `path` of `where` (kind/namespace/name); None is an empty
        one."""
        fields = cls(where, "", {} if value is None else {path: value}, [])
        return fields.part(path)

    def bad(self, field: str, value: object, expected: str) -> None:
        """Say that a field can't be used."""
        if len(self.causes) < MAX_CAUSES:
            self.causes.append(BadValue(self._where, f"{self._path}{field}", _shown(value), expected))

    def said(self, what: str, value: object, expected: str) -> None:
        """Say that something else of the object can't be used: an annotation."""
        if len(self.causes) < MAX_CAUSES:
            self.causes.append(BadValue(self._where, what, _shown(value), expected))

    def beside(self, path: str, value: Mapping[str, Any]) -> Fields:
        """Return another part of the same object, whose problems are gathered with these."""
        return Fields(self._where, path, dict(value), self.causes)

    def names(self) -> list[str]:
        """Return the names of the fields that are there, in order."""
        return sorted(str(field) for field, value in self._value.items() if value is not None)

    def raw(self, field: str) -> Any:
        """Return the field as it is; None if it is not given."""
        return self._value.get(field)

    def given(self, field: str) -> bool:
        """Return whether the field is there and not null."""
        return self._value.get(field) is not None

    def known(self, *fields: str) -> None:
        """Note a field that is none of these."""
        unknown = sorted(str(field) for field in set(self._value) - set(fields))
        if unknown:
            self.bad(unknown[0][:SHOWN], "", f"none of this name: known are {', '.join(fields)}")

    def misspelt(self, *fields: str) -> None:
        """Note a field whose name is nearly one of these: a slip. Any other may be another scheduler's."""
        for name in sorted(str(field)[:SHOWN] for field in set(self._value) - set(fields))[:MAX_UNKNOWN]:
            for meant in get_close_matches(name, fields, 1, NEARLY):
                self.bad(name, "", f"none of this name: {meant} is nearly the same")

    def part(self, field: str) -> Fields:
        """Return the object in a field, an empty one where there is none."""
        value = self._value.get(field)
        if value is not None and not isinstance(value, dict):
            self.bad(field, value, "an object")
            value = None
        return Fields(self._where, f"{self._path}{field}.", value or {}, self.causes)

    def listed(self, field: str, at_most: int) -> tuple[Fields, ...]:
        """Return the objects in a list; () where it is none."""
        value = self._list(field, at_most)
        parts = []
        for number, item in enumerate(value or ()):
            if not isinstance(item, dict):
                self.bad(f"{field}[{number}]", item, "an object")
                return ()
            parts.append(Fields(self._where, f"{self._path}{field}[{number}].", item, self.causes))
        return tuple(parts)

    def text(self, field: str, required: bool = False) -> str | None:
        """Return the field as a string, or None with a problem noted if it is something else."""
        value = self._value.get(field)
        if isinstance(value, str):
            return value
        if value is not None or required:
            shown = f"the number {value}" if _is_number(value) else value
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

    def matching(
        self, field: str, pattern: re.Pattern[str], expected: str, required: bool = False
    ) -> str | None:
        """Return the field's text, or None with a problem noted if `pattern` does not match all of it."""
        text = self.text(field, required)
        if text is not None and not pattern.fullmatch(text):
            self.bad(field, text, expected)
            return None
        return text

    def positive(self, field: str) -> int | None:
        """Return the field as a whole number from 1, or None with a problem noted."""
        return self._count(field, 1, "a positive whole number: 1, 2, …")

    def natural(self, field: str) -> int | None:
        """Return the field as a whole number from 0, or None with a problem noted."""
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


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


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
