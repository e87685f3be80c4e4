"""Ineffective keys of pods: misspelt keys, labels among the annotations, and annotations among the labels.

Such a pod is refused, and the cause names the key that was probably meant. The pod is grouped as if it had
the correct key. So all pods of a template are in one gang with one message, and the gang cannot start without
them.

A key of another system may resemble one of our keys. So a key is compared only with keys of its own prefix,
and KAI's keys are listed here, whether Muster reads them or not. Keys with a prefix of `other_systems` are
not compared at all.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from itertools import islice

import msgspec

from muster.dialects.gangs import kai, other_systems, own
from muster.dialects.keys import ACK_NAME, ACK_REPLICAS, SHARED_GPUS
from muster.dialects.objects import Metadata
from muster.dialects.reading import ANNOTATION, EITHER, LABEL, SHOWN
from muster.domain.allocation import RESERVED_KEYS
from muster.domain.causes.ill_formed import BadValue
from muster.domain.words import list_names, nearest

KAI_KEYS = tuple(
    f"kai.scheduler/{name}"
    for name in (
        "queue", "node-pool", "preemptibility", "preemption-delay", "task-priority", "accounting",
        "topology", "topology-required-placement", "topology-preferred-placement", "batch-min-member",
        "segment-size", "segment-topology-required-placement", "segment-topology-preferred-placement",
        "skip-podgrouper", "staleness-grace-period", "top-owner-metadata", "stale-podgroup-timestamp",
        "last-start-timestamp", "last-eviction-timestamp",
        "numa-placement-predicted", "numa-placement-observed",
    )
)  # fmt: skip
"""Keys of KAI on pods and on their owners that `kai` does not read (pkg/common/constants and
pkg/podgrouper/podgrouper/plugins/constants of NVIDIA/KAI-Scheduler)."""
NEAR_NAME, NEAR_PREFIX, NEAR_KEY = 0.8, 0.9, 0.9
"""Least similarity (`words.nearest`) of names under one prefix, of prefixes, and of keys without a prefix."""
MAX_COMPARED = 64
"""Largest number of labels, and of annotations, of one pod that are compared: a pod may carry thousands."""

_PODGROUP_KEYS = frozenset({*kai.GANG_KEYS, *other_systems.PODGROUP_KEYS})
_NAMED = 3


@lru_cache(maxsize=1)
def known_keys() -> Mapping[str, str]:
    """Return each key of pods → whether it is a label or an annotation."""
    annotations = (*own.KEYS, *RESERVED_KEYS, kai.GROUP, kai.KAI_GROUP, kai.POLICY, kai.ROLE)
    labels = (ACK_NAME, ACK_REPLICAS, SHARED_GPUS, kai.SUBGROUP)
    return {
        **dict.fromkeys(KAI_KEYS, EITHER),
        **dict.fromkeys(annotations, ANNOTATION),
        **dict.fromkeys((*labels, *own.NODE_KEYS), LABEL),
        **other_systems.places(),
    }


@lru_cache(maxsize=4096)
def meant_key(key: str) -> str:
    """Return the known key that this key resembles; "" if it resembles none, or is known itself."""
    prefix, _, name = key.rpartition("/")
    if key in known_keys() or prefix in other_systems.PREFIXES or len(key) > own.MAX_CHARACTERS:
        return ""
    compared = [
        pod_key for pod_key in known_keys() if pod_key.rpartition("/")[0] not in other_systems.PREFIXES
    ]
    prefixes = {pod_key.rpartition("/")[0] for pod_key in compared}
    if prefix not in prefixes:
        prefix = nearest(prefix, prefixes, NEAR_PREFIX)
    if not prefix:
        return nearest(key, (pod_key for pod_key in compared if "/" not in pod_key), NEAR_KEY)
    names = [pod_key.rpartition("/")[2] for pod_key in compared if pod_key.startswith(f"{prefix}/")]
    near_name = name if name in names else nearest(name, names, NEAR_NAME)
    return f"{prefix}/{near_name}" if near_name else ""


@dataclass(frozen=True, slots=True)
class _IneffectiveKey:
    """A label or annotation (`place`) without effect."""

    place: str
    key: str
    value: str
    right: str
    """The key that was probably meant; "" if unknown."""


def correct_keys(object_name: str, meta: Metadata) -> tuple[Metadata, tuple[BadValue, ...]]:
    """Return the metadata with the keys that were probably meant, and a cause for each ineffective key."""
    slips = [
        *_ineffective_keys(ANNOTATION, meta.annotations or {}),
        *_ineffective_keys(LABEL, meta.labels or {}),
    ]
    if not slips:
        return meta, ()
    places, right = known_keys(), {ANNOTATION: dict(meta.annotations or {}), LABEL: dict(meta.labels or {})}
    for slip in slips:
        if slip.right:
            right[places[slip.right] or slip.place].setdefault(slip.right, slip.value)
    unknown = tuple(_unknown_keys_cause(object_name, [slip for slip in slips if not slip.right]))
    causes = tuple(_cause(object_name, slip, places[slip.right]) for slip in slips if slip.right)
    meta = msgspec.structs.replace(meta, labels=right[LABEL], annotations=right[ANNOTATION])
    return meta, (*unknown, *causes)


def misspelt_pairs(meta: Metadata) -> Iterator[tuple[str, str]]:
    """Yield each misspelt key of a pod with the key that was meant."""
    for place, values in ((ANNOTATION, meta.annotations), (LABEL, meta.labels)):
        yield from ((slip.key, slip.right) for slip in _ineffective_keys(place, values or {}) if slip.right)


def _ineffective_keys(place: str, values: Mapping[str, str]) -> Iterator[_IneffectiveKey]:
    place_of = known_keys()
    for key in sorted(values.keys() & place_of.keys()):
        if place_of[key] not in (place, EITHER) and not (key in own.NODE_KEYS or key in RESERVED_KEYS):
            yield _IneffectiveKey(place, key, values[key], key)
    unknown = sorted(values.keys() - place_of.keys(), key=lambda key: (not key.startswith(own.PREFIX), key))
    for key in islice(unknown, MAX_COMPARED):
        right = meant_key(key)
        if right or key.startswith(own.PREFIX):
            yield _IneffectiveKey(place, key, values[key], right)


def _cause(object_name: str, slip: _IneffectiveKey, place: str) -> BadValue:
    if slip.key == slip.right:
        expected = f"none: it is {'an annotation' if place == ANNOTATION else 'a label'}"
        return BadValue(object_name, f"{slip.place} {slip.key}", slip.value, expected)
    right_place = f"the {place} " if place not in (slip.place, EITHER) else ""
    relative_clause = ", which names a PodGroup" if slip.right in _PODGROUP_KEYS else ""
    expected = f"none: did you mean {right_place}{slip.right}{relative_clause}?"
    return BadValue(object_name, _field(slip), slip.value, expected)


def _unknown_keys_cause(object_name: str, slips: list[_IneffectiveKey]) -> Iterator[BadValue]:
    """Yield one cause for all keys of our own prefix that resemble no known key."""
    if not slips:
        return
    first, *more_slips = slips
    names = ", ".join(key.removeprefix(own.PREFIX) for key in own.KEYS)
    ending = f"; nor is there {list_names([*map(_field, more_slips)], _NAMED)}" if more_slips else ""
    expected = f"none: the annotations {own.PREFIX}… are {names}{ending}"
    yield BadValue(object_name, _field(first), first.value, expected)


def _field(slip: _IneffectiveKey) -> str:
    return f"{'label ' if slip.place == LABEL else ''}{slip.key[:SHOWN]}"
