"""Find mistakes in documents of users: misspelt fields, and words and forms that an API server refuses.

kubectl refuses an unknown field, and an API server drops it. Here it has no effect, so a note names it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import lru_cache

from msgspec import inspect

from muster.adapters.files.reading.shapes import Spec
from muster.adapters.files.reading.sources import Document, Object, objects_at, quote_value
from muster.dialects.jobs.pruned import FIELDS
from muster.dialects.kinds import jobset, leaderworkerset
from muster.dialects.objects import NodeSpec
from muster.domain.words import nearest

_NEAR, _NEAR_IN_JOB, _BEGINNING = 0.85, 0.9, 8
"""Least similarity of a misspelt field to the field that was meant, in pods and around them. Least number of
letters with which a field must begin to be taken for the field that was meant."""
_OTHERS = frozenset({"restartPolicyRules"})
"""Fields of Kubernetes that resemble fields which are read here."""
_NOT_KUBERNETES = frozenset({"labels", "annotations", "nodeSelector", "matchLabels", "limits", "requests"})
"""Maps whose keys are the user's own."""
_EXCLUSIVE = {
    "JobSet": (jobset.EXCLUSIVE,),
    "LeaderWorkerSet": (leaderworkerset.EXCLUSIVE, leaderworkerset.SUBGROUP_EXCLUSIVE),
}
"""Kind → annotations that a controller reads on its objects. A misspelt annotation would be lost silently."""
_EFFECTS = ("NoSchedule", "PreferNoSchedule", "NoExecute")
_RESTARTS = ("Always", "OnFailure", "Never")
_WORDS = {
    ("matchExpressions", "operator"): ("In", "NotIn", "Exists", "DoesNotExist", "Gt", "Lt"),
    ("tolerations", "operator"): ("Exists", "Equal", "Lt", "Gt"),
    ("tolerations", "effect"): _EFFECTS,
    ("taints", "effect"): _EFFECTS,
    ("topologySpreadConstraints", "whenUnsatisfiable"): ("DoNotSchedule", "ScheduleAnyway"),
    ("containers", "restartPolicy"): _RESTARTS,
    ("initContainers", "restartPolicy"): _RESTARTS,
    ("spec", "restartPolicy"): _RESTARTS,
    ("spec", "completionMode"): ("Indexed", "NonIndexed"),
    ("spec", "podManagementPolicy"): ("OrderedReady", "Parallel"),
    ("spec", "startupPolicy"): ("LeaderCreated", "LeaderReady"),
    ("spec", "launcherCreationPolicy"): ("AtStartup", "WaitForWorkersReady"),
}
"""(object or list of objects that has a field, field) → the words that the field may have."""
_KINDS = frozenset(
    {"", "apps", "batch", "jobset.x-k8s.io", "leaderworkerset.x-k8s.io", "kubeflow.org", "ray.io"}
)
"""API groups whose objects have pods, or are nodes."""


def misspelt_fields(document: Document) -> Iterator[str]:
    """Yield a note for each misspelt field. In a document that a cluster has stored, each field has its form.

    Raises:
        Malformed: A field has a word or a form that an API server refuses. The message names it.
    """
    meta, spec = document.metadata, document.value.get("spec")
    if not meta or meta.get("creationTimestamp"):
        return
    yield from _misspelt_keys(meta, _EXCLUSIVE.get(document.kind, ()))
    if document.group in _KINDS and isinstance(spec, dict):
        shape = NodeSpec if document.kind == "Node" else None
        yield from _walk(document, spec, "spec", "spec", shape, False, set())


def _misspelt_keys(meta: Object, annotations: tuple[str, ...]) -> Iterator[str]:
    """Yield a note for each key that resembles one of these annotations, and for each annotation that is set
    as a label."""
    for field_name in ("annotations", "labels"):
        place = field_name.removesuffix("s")
        keys = meta.get(field_name)
        for key in keys if isinstance(keys, dict) else ():
            if place == "label" and key in annotations:
                yield f"label {key} has no effect: it is an annotation"
            elif near := nearest(str(key), annotations, _NEAR):
                yield f"{place} {key} has no effect: did you mean the annotation {near}?"


def _walk(
    document: Document,
    value: Object,
    object_path: str,
    field_name: str,
    shape: type | None,
    in_pod: bool,
    visited: set[object],
) -> Iterator[str]:
    """Yield a note for each misspelt field of an object and of the objects in it.

    `object_path`: the object's path. `field_name`: the field that holds it. `shape`: the type that it is read
    as, None if it is not read. `visited`: the objects that were walked through: an alias in YAML can name one
    very often.
    """
    if (place := (id(value), field_name, shape, in_pod)) in visited:
        return
    visited.add(place)
    if "containers" in value:
        shape, in_pod = Spec, True
        _check_claims(document, value, object_path)
    _check_words(document, value, object_path, field_name)
    # Other parts of jobs have fields that resemble fields which are read, as replicatedJob of a coordinator.
    compared = in_pod or shape is not None or field_name == "spec" or "template" in value
    for name, inner in value.items():
        path = f"{object_path}.{name}"
        if compared and (meant := _field_meant(str(name), shape, in_pod)):
            yield f"{path} has no effect: did you mean {meant}?"
        elif name not in _NOT_KUBERNETES:
            inner_shape = _fields(shape).get(name)
            if name == "nodeSelectorTerms" and inner == []:
                raise document.error(f"{path}: expected at least one term")
            if isinstance(inner, dict):
                yield from _walk(document, inner, path, name, inner_shape, in_pod, visited)
            for number, item in enumerate(objects_at(inner)):
                yield from _walk(document, item, f"{path}[{number}]", name, inner_shape, in_pod, visited)


@lru_cache(maxsize=4096)
def _field_meant(name: str, shape: type | None, in_pod: bool) -> str:
    """Return the field that a name resembles; "" if the name is a field itself, or resembles none."""
    names = FIELDS if shape is None and not in_pod else frozenset(_fields(shape))
    if name in names or name in _OTHERS:
        return ""
    begun = (full for full in sorted(names) if in_pod and len(name) >= _BEGINNING and full.startswith(name))
    return next(begun, "") or nearest(name, names, _NEAR if in_pod else _NEAR_IN_JOB)


@lru_cache(maxsize=64)
def _fields(shape: type | None) -> Mapping[str, type | None]:
    """Return each field of this shape → the type of the objects in the field; None without objects."""
    info = inspect.type_info(shape) if shape is not None else None
    fields = info.fields if isinstance(info, inspect.StructType) else ()
    return {struct_field.encode_name: _objects_in(struct_field.type) for struct_field in fields}


def _objects_in(field_type: inspect.Type) -> type | None:
    """Return the type of the objects that a field has, itself or in a list."""
    match field_type:
        case inspect.StructType(cls):
            return cls
        case inspect.ListType(item_type):
            return _objects_in(item_type)
        case inspect.UnionType(types):
            return next(filter(None, map(_objects_in, types)), None)
        case _:
            return None


def _check_words(document: Document, value: Object, object_path: str, field_name: str) -> None:
    """Raise Malformed if a field has a word that it may not have, or values that its operator does not
    allow."""
    for name, word in value.items():
        words = _WORDS.get((field_name, name), ())
        if words and isinstance(word, str) and word and word not in words:
            expected = f"expected {', '.join(words[:-1])} or {words[-1]}"
            raise document.error(f"{object_path}.{name}: {expected}, got {quote_value(word)}")
    operator, values, expected = value.get("operator"), value.get("values") or [], ""
    if field_name == "matchExpressions" and isinstance(values, list):
        if operator in ("In", "NotIn") and not values:
            expected = ".values: expected at least one value"
        elif operator in ("Exists", "DoesNotExist") and values:
            expected = ".values: expected none"
        elif operator in ("Gt", "Lt") and len(values) != 1:
            expected = ".values: expected one value"
    elif field_name == "tolerations" and operator == "Exists" and value.get("value"):
        expected = ".value: expected none"
    elif field_name == "tolerations" and operator != "Exists" and not value.get("key"):
        expected = ".key: expected one, unless the operator is Exists, which tolerates every taint"
    if expected:
        with_operator = f" with operator {operator}" if operator else ""
        raise document.error(f"{object_path}{expected}{with_operator}")


def _check_claims(document: Document, spec: Object, object_path: str) -> None:
    """Raise Malformed if a container names a claim that the pod does not have."""
    names = [claim_entry.get("name") for claim_entry in objects_at(spec, "resourceClaims")]
    for list_name in ("containers", "initContainers"):
        for number, container in enumerate(objects_at(spec, list_name)):
            for claim in objects_at(container, "resources", "claims"):
                if (name := claim.get("name")) not in names:
                    path = f"{object_path}.{list_name}[{number}].resources.claims"
                    raise document.error(
                        f"{path}: expected a name of {object_path}.resourceClaims, got {quote_value(name)}"
                    )
