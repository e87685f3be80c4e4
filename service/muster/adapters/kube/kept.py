"""What is kept and compared of an object that was seen: an object may be large, and little of it is read."""

from __future__ import annotations

import hashlib

import msgspec

from muster.dialects.gangs import other_systems
from muster.dialects.objects import CustomObject, Metadata, PodObject
from muster.dialects.pods import bounds, requests, resize
from muster.dialects.settings import Settings
from muster.domain import allocation

LARGE_BYTES = 16 * 1024
"""Of JSON. In a smaller pod nothing is cut off, since all of it is soon read."""

_encoder = msgspec.json.Encoder()


def kept_of(pod: PodObject, size: int, settings: Settings) -> PodObject:
    """Return what is kept of a pod that has `size` bytes of JSON.

    What a large bound pod asks for is summed up already here, on the thread that decodes it. The sum is
    remembered.
    """
    if size <= LARGE_BYTES:
        return pod
    pod = bounds.bounded(pod, settings)
    if pod.spec.node_name:
        requests.read("", pod.spec, settings, pod.status)
    return pod


def digest(pod: PodObject) -> bytes:
    """16 bytes for all that is decoded of it but its version and the conditions that say nothing here:
    annotations alone may have 256 KiB."""
    metadata = msgspec.structs.replace(pod.metadata, resource_version="")
    status = msgspec.structs.replace(pod.status, conditions=resize.conditions(pod.status))
    decoded = _encoder.encode((metadata, pod.spec, status))
    return hashlib.blake2b(decoded, digest_size=16, usedforsecurity=False).digest()


def usage_alone(obj: PodObject) -> PodObject:
    """Return the pod without a scheduler, and with only the annotations that name its GPUs."""
    annotations = obj.metadata.annotations or {}
    device_annotations = {key: annotations[key] for key in allocation.RESERVED_KEYS if key in annotations}
    metadata = Metadata(
        obj.metadata.name, "", obj.metadata.namespace, obj.metadata.uid, annotations=device_annotations
    )
    spec = msgspec.structs.replace(
        obj.spec, scheduler_name="", affinity=None, tolerations=None, topology_spread_constraints=None
    )
    return msgspec.structs.replace(obj, metadata=metadata, spec=spec)


def without_labels(obj: CustomObject) -> CustomObject:
    """Return what is read of a PodGroup or Topology: it may have 1.5 MB of labels."""
    meta = obj.metadata
    more = {key: "…" for key in other_systems.MORE_OF_GROUPS if (meta.annotations or {}).get(key)}
    named_alone = Metadata(
        meta.name, "", meta.namespace, meta.uid, meta.resource_version, annotations=more or None
    )
    return msgspec.structs.replace(obj, metadata=named_alone)
