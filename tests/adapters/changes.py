"""What the sinks of watches are told of an object: its key, and the object."""

from __future__ import annotations

from typing import TypeVar

from muster.adapters.kube.decode import NamedObject, full_name
from muster.dialects.devices.objects import ResourceClaim
from muster.dialects.objects import CustomObject, PodObject

T = TypeVar("T", bound=NamedObject)


def seen(obj: T) -> tuple[str, T]:
    """Custom objects count as PodGroups, which have their UID as key."""
    by_uid = isinstance(obj, PodObject | ResourceClaim | CustomObject)
    return obj.metadata.uid if by_uid else full_name(obj.metadata), obj


def seen_by_name(obj: T) -> tuple[str, T]:
    """As jobs are seen."""
    return full_name(obj.metadata), obj
