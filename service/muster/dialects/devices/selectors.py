"""Selectors of DeviceClasses: the part of CEL that DRA drivers ship with their classes.

    device.driver == 'gpu.nvidia.com' && device.attributes['gpu.nvidia.com'].type == 'gpu'

These selectors compare the driver and attributes with constants, joined by `&&`. Any other expression is
reported as unreadable, and its class has no devices here. In the end kube-scheduler's own allocator evaluates
all of CEL. So a mistake here costs a plan, and no device is allocated wrongly. This module also reads
attributes and taints of devices.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from muster.dialects.devices.objects import DeviceTaint, SliceDevice

Value = str | int | bool

MAX_CHARACTERS = 10 * 1024
"""Largest number of characters of an expression, as in the API server."""
KEEPS_AWAY = ("NoSchedule", "NoExecute")
OWNED = "muster.dev/owned"
"""The key of a taint that keeps other schedulers away. The shim shows planned devices without this taint."""

_TEXT = r"""'[^'\\]*'|"[^"\\]*\""""
_TERM = re.compile(
    rf"\s*(?:device\.driver|device\.attributes\[(?P<domain>{_TEXT})\]\.(?P<name>[A-Za-z_]\w*))"
    rf"\s*==\s*(?P<value>{_TEXT}|true|false|-?[0-9]{{1,18}})\s*"
)


class UnreadableSelectorError(ValueError):
    """Its text says which expression can't be read."""


@dataclass(frozen=True, slots=True)
class AttributeTerm:
    """An attribute that must have a value, as (domain, name); ("", "") stands for the driver."""

    attribute: tuple[str, str]
    value: Value


def read(expressions: Iterable[str]) -> tuple[AttributeTerm, ...]:
    """Return the terms that a device must satisfy, all of them.

    Raises:
        UnreadableSelectorError: an expression is of another form.
    """
    return tuple(term for expression in expressions for term in _read_terms(expression))


def are_satisfied(
    terms: Iterable[AttributeTerm], driver: str, attributes: Mapping[tuple[str, str], Value]
) -> bool:
    """Return whether a device of this driver with these attributes satisfies all terms."""
    for term in terms:
        value = driver if term.attribute == ("", "") else attributes.get(term.attribute)
        if type(value) is not type(term.value) or value != term.value:
            return False
    return True


def _read_terms(expression: str) -> list[AttributeTerm]:
    terms, position = list[AttributeTerm](), 0
    if len(expression) <= MAX_CHARACTERS:
        while (match := _TERM.match(expression, position)) is not None:
            domain, name = match["domain"], match["name"]
            attribute = (domain[1:-1], name) if domain else ("", "")
            terms.append(AttributeTerm(attribute, _read_value(match["value"])))
            position = match.end()
            if position == len(expression):
                return terms
            if not expression.startswith("&&", position):
                break
            position += 2
    raise UnreadableSelectorError(
        f"selector {expression[:80]!r} is not of the form device.driver == '…' && "
        "device.attributes['…'].name == '…', and other CEL is not read yet"
    )


def _read_value(text: str) -> Value:
    if text[0] in "'\"":
        return text[1:-1]
    return text == "true" if text in ("true", "false") else int(text)


def keeps_away(taint: DeviceTaint) -> bool:
    """Return whether the taint keeps pods away from its device."""
    return taint.effect in KEEPS_AWAY and taint.key != OWNED


def text_value(value: Value | None) -> str:
    """Return the value of an attribute if the value is a text; else ""."""
    return value if isinstance(value, str) else ""


def attributes(driver: str, device: SliceDevice) -> dict[tuple[str, str], Value]:
    """Return the attributes of a device that selectors can compare with constants."""
    values = {
        qualified_name(driver, name): (attribute.string, attribute.int_, attribute.bool_)
        for name, attribute in (device.attributes or {}).items()
    }
    return {key: value for key, key_values in values.items() for value in key_values if value is not None}


def qualified_name(driver: str, name: str) -> tuple[str, str]:
    """Return an attribute's domain and name. The driver is the domain of a name without a domain."""
    domain, slash, short_name = name.partition("/")
    return (domain, short_name) if slash else (driver, name)
