"""Keep only the parts of a job that its description reads.

The service keeps the jobs of all namespaces in memory, and any user may create large jobs. `muster capture`
writes jobs to a file that must hold no secrets. Both keep the known fields, KAI's labels and annotations, and
misspelt forms of these keys.
"""

from __future__ import annotations

from typing import Any

import msgspec

from muster.dialects.gangs import kai, misspelt
from muster.dialects.jobs import slips
from muster.dialects.kinds.description import Kind
from muster.dialects.kinds.table import KINDS
from muster.dialects.objects import CustomObject
from muster.dialects.pods import bounds

MAX_LEVELS = 24
"""Largest number of levels of a job's spec that are kept. A JobSet needs twelve."""
MAX_VALUES = 8_000
"""Largest number of values of a job's spec that are kept: 64 roles with 60 values each need 4,000. To copy
8,000 takes 8 to 15 ms, in which the event loop stands."""
MAX_CHARACTERS = 1024
"""Longer strings are cut. Every usable value is shorter."""

KEYS = frozenset(key for kind in KINDS.values() for key in kind.keys)
"""Labels and annotations, other than KAI's, that descriptions read."""
FIELDS = frozenset({
    "affinity", "containers", "effect", "initContainers", "key", "matchExpressions", "matchFields",
    "metadata", "name", "nodeAffinity", "nodeSelectorTerms", "operator", "replicas",
    "requiredDuringSchedulingIgnoredDuringExecution", "resourceClaimName", "resourceClaimTemplateName",
    "resourceClaims", "resources", "restartPolicy", "schedulerName", "spec", "status", "suspend", "template",
    "tolerations", "value", "values",
    *(field for kind in KINDS.values() for field in kind.fields),
})  # fmt: skip
"""The fields of pod templates and of all kinds that are read, at any level."""
MAPS = frozenset({
    "limits", "nodeSelector", "overhead", "requests",
    *(field for kind in KINDS.values() for field in kind.maps),
})  # fmt: skip
"""Fields whose members may have any name: resources, labels of nodes, and kubeflow's replica types."""
WORDS = frozenset({"labels", "annotations"})


def prune(kind: Kind, obj: CustomObject) -> CustomObject:
    """Return the parts of a job that are read, without its status.

    A Job or StatefulSet of a list has no API version of its own, so the version is added. A spec with too
    many values is replaced by a sentence that says so. The job's description then reports this sentence,
    because it expects an object.
    """
    meta = obj.metadata
    pruned_meta = msgspec.structs.replace(
        meta, resource_version="", labels=words(meta.labels), annotations=words(meta.annotations)
    )
    version = obj.api_version or f"{kind.group}/{kind.versions[0]}"
    spec = _Copier().of(obj.spec)
    return msgspec.structs.replace(obj, api_version=version, metadata=pruned_meta, spec=spec, status=None)


def words(texts: dict[str, str] | None) -> dict[str, str] | None:
    """Return the labels or annotations that are read; none if there are more than `MAX_VALUES`."""
    try:
        return _Copier().words(texts or {}) or None
    except _TooManyError:
        return None


class _TooManyError(Exception):
    """There are more than `MAX_VALUES` values."""


class _Copier:
    """Copies the parts of one job that are read, at most `MAX_VALUES` values."""

    def __init__(self) -> None:
        self._values_left = MAX_VALUES
        self._compared = misspelt.MAX_COMPARED

    def of(self, spec: Any) -> Any:
        """Return the parts of a spec that are read, or a sentence if they have too many values."""
        try:
            return self._value(spec, MAX_LEVELS)
        except _TooManyError:
            return f"an object with more than {MAX_VALUES:,} values"

    def words(self, texts: dict[str, Any]) -> dict[str, Any]:
        """Return the labels or annotations that are read, and misspelt ones."""
        if len(texts) > bounds.MAX_KEYS:
            known_keys = {*misspelt.known_keys(), *KEYS, kai.PRIORITY, *kai.FRACTIONS}
            texts = bounds.first_entries(texts, bounds.MAX_KEYS, known_keys)
        other_keys = [key for key in texts if not (kai.is_read_on_job(key) or key in KEYS)]
        wrong = slips.meant_keys(other_keys, self._compared) if self._compared else {}
        self._compared -= min(len(other_keys), self._compared)
        return {
            key: self._value(value, 0)
            for key, value in texts.items()
            if kai.is_read_on_job(key) or key in KEYS or key in wrong
        }

    def _value(self, value: Any, levels: int) -> Any:
        """Return the parts of a value that are read; None for values that are nested too deeply."""
        self._values_left -= 1
        if self._values_left < 0:
            raise _TooManyError
        match value:
            case str():
                return value[:MAX_CHARACTERS]
            case list():
                return [self._value(item, levels - 1) for item in value] if levels > 0 else None
            case dict():
                return self._members(value, FIELDS, levels) if levels > 0 else None
            case _:
                return value

    def _members(self, value: dict[str, Any], names: frozenset[str] | None, levels: int) -> dict[str, Any]:
        """Return the members of an object that have these names; without `names`, all members."""
        members = dict[str, Any]()
        for key, member in value.items():
            if key in WORDS and isinstance(member, dict):
                members[key] = self.words(member)
            elif key in MAPS and isinstance(member, dict):
                members[key] = self._members(member, None, levels - 1) if levels > 1 else None
            elif key in names if names is not None else len(key) <= MAX_CHARACTERS:
                members[key] = self._value(member, levels - 1)
        return members
