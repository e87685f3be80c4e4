"""Attributes of a device of a ResourceSlice, by domain and name, and what its taints do."""

from __future__ import annotations

from muster.dialects.devices.dra_objects import Attribute, DeviceTaint, SliceDevice
from muster.dialects.devices.selectors import Value

KEEPS_AWAY = ("NoSchedule", "NoExecute")
OWNED = "muster.dev/owned"
"""The key of a taint that keeps other schedulers away: planned devices are shown without it."""


def keeps_away(taint: DeviceTaint) -> bool:
    """Return whether the taint keeps pods away from its device."""
    return taint.effect in KEEPS_AWAY and taint.key != OWNED


def text(value: Value | None) -> str:
    """Return the value of an attribute that is a text; "" for any other."""
    return value if isinstance(value, str) else ""


def attributes(driver: str, device: SliceDevice) -> dict[tuple[str, str], Value]:
    """Return the attributes of a device that selectors can compare with constants."""
    values = ((name, _value(each)) for name, each in (device.attributes or {}).items())
    return {qualified(driver, name): value for name, value in values if value is not None}


def _value(each: Attribute) -> Value | None:
    return next((it for it in (each.string, each.int_, each.bool_) if it is not None), None)


def qualified(driver: str, name: str) -> tuple[str, str]:
    """Return an attribute's domain and name; the driver is the domain of a name without one."""
    domain, slash, rest = name.partition("/")
    return (domain, rest) if slash else (driver, name)
