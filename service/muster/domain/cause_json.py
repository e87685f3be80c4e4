"""Write a cause as data: its type and its fields, the same in each answer for programs."""

from __future__ import annotations

import re
from dataclasses import fields
from typing import Any

from muster.domain.reasons import Cause
from muster.domain.words import in_bytes

_HUMP = re.compile(r"(?<=[a-z])(?=[A-Z])")


def _unit(resource: str) -> str:
    if resource == "cpu":
        return "cpu_milli"
    return "bytes" if in_bytes(resource) else "count"


def cause_type(kind: type) -> str:
    """Return the name of a type of cause, as users see it: "no-such-domain"."""
    return _HUMP.sub("-", kind.__name__).lower()


def _as_list(value: object) -> object:
    return [_as_list(item) for item in value] if isinstance(value, tuple) else value


def cause_json(cause: Cause) -> dict[str, Any]:
    """Return a cause with its type and its fields. `unit` is the unit of its numbers of a resource. `units`
    are the units of its numbers of several resources."""
    body: dict[str, Any] = {"type": cause_type(type(cause))}
    for field in fields(cause):
        value = getattr(cause, field.name)
        body[field.name] = _as_list(value)
    if "resource" in body:
        body["unit"] = _unit(body["resource"])
    if "resources" in body:
        body["units"] = [_unit(resource) for resource, _ in body["resources"]]
    return body
