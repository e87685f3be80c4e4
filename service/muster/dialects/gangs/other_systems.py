"""The keys by which other systems name a gang, in two tables: keys with the same meaning as ours (`READ`),
and keys with another meaning (`REFUSED`).

Keys of `READ` are read. A pod with a key of `REFUSED` would start without its gang. So the pod is refused,
unless another key names its gang. The refusal names the system, and the keys to use.

The keys are those of kubernetes-sigs/scheduler-plugins (pkg/coscheduling), koordinator-sh/koordinator
(apis/extension/coscheduling.go, also ACK's labels), volcano-sh/apis (scheduling/v1beta1/labels.go),
kubernetes-sigs/kueue (pkg/controller/jobs/pod/constants), armadaproject/armada (docs/scheduling.md),
flux-framework/flux-k8s, apache/yunikorn-k8shim (pkg/common/constants), ai-dynamo/grove (operator/api/common),
kubewharf/godel-scheduler (pkg/util/constants.go). The keys of HiveD, Sakkara, KubeShare and batch-scheduler
are from their documents.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice

from muster.dialects.gangs import own
from muster.dialects.keys import ACK_NAME, ACK_REPLICAS
from muster.dialects.objects import Metadata, PodSpec
from muster.dialects.reading import (
    AN_OBJECT_NAME,
    ANNOTATION,
    EITHER,
    LABEL,
    NAME_PATTERN,
    OBJECT_NAME,
    SHOWN,
    Reading,
    merge_readings,
    positive,
)
from muster.domain.causes.ill_formed import BadValue
from muster.domain.pod import GangClaim

COSCHEDULING, VOLCANO = "coscheduling", "volcano"
"""Dialects whose gangs are described by a PodGroup."""
TASK = "volcano.sh/task-spec"
"""The label or annotation of Volcano that names a pod's role, as in `minTaskMember` of its PodGroup."""
WAY_OUT = f"the annotations {own.GROUP} and {own.MIN_MEMBER}"

_COUNT = 'a positive whole number: "1", "2", …'
_ALL_REPLICAS = 'the number of all replicas, masters and workers together: "1", "2", …'
_MAX_UNKNOWN = 4
"""Largest number of keys of unknown systems that are reported for one pod."""


@dataclass(frozen=True, slots=True)
class ForeignGangKeys:
    """The keys of one other system for a gang, with the same meaning as ours."""

    dialect: str
    place: str
    """Whether the keys are labels or annotations."""
    name_keys: tuple[str, ...]
    """Keys of the gang's name. All that a pod has must agree."""
    min_key: str = ""
    """Key of the number of pods that must start together."""
    alt_min_key: str = ""
    """Key that is read if the pod has no `min_key`."""
    size_key: str = ""
    """Key of the expected number of pods."""
    by_object: str = ""
    """Dialect of the PodGroup that has the number if the pod has none; "" if there is no such PodGroup."""
    fallback_only: bool = False
    """Whether the keys count only if no other key names a gang."""
    not_gang_if: Mapping[str, str] = field(default_factory=dict)
    """Annotation → value ("" for any). A pod with one of them need not start together with its group."""
    unsupported: Mapping[str, str] = field(default_factory=dict)
    """Key that is not supported → what to use in its place."""


_KOORDINATOR = "gang.scheduling.koordinator.sh"
GANG_GROUPS = f"{_KOORDINATOR}/groups"
NETWORK_TOPOLOGY = f"{_KOORDINATOR}/network-topology-spec"
MORE_OF_GROUPS = (GANG_GROUPS, NETWORK_TOPOLOGY)
"""Annotations of Koordinator on pods and PodGroups that ask for more than a gang and its number."""
_OLD_GROUP = "pod-group.scheduling.sigs.k8s.io"
_VOLCANO_KEYS = ("scheduling.k8s.io/group-name", "scheduling.volcano.sh/group-name")
_KUEUE = "kueue.x-k8s.io"
_ARMADA = "armadaproject.io"
_HIVED, _KUBESHARE = "hivedscheduler.microsoft.com/pod-scheduling-spec", "sharedgpu/"
_NO_GROUP = re.compile(r"affinityGroup[\"']?[ \t]*:[ \t]*(?:null|~)[ \t]*(?:[,}#\r\n]|$)", re.IGNORECASE)
"""How HiveD's annotation, in YAML or JSON, says that a pod has no group."""
READ = (
    ForeignGangKeys(
        COSCHEDULING, LABEL, ("scheduling.x-k8s.io/pod-group", _OLD_GROUP), by_object=COSCHEDULING
    ),
    ForeignGangKeys(VOLCANO, ANNOTATION, _VOLCANO_KEYS, by_object=VOLCANO),
    ForeignGangKeys(
        "ack-pod-group",
        LABEL,
        (f"{_OLD_GROUP}/name",),
        min_key=f"{_OLD_GROUP}/min-available",
        alt_min_key=f"{_KOORDINATOR}/min-available",
        by_object=COSCHEDULING,
    ),
    ForeignGangKeys(
        "koordinator",
        ANNOTATION,
        (f"{_KOORDINATOR}/name",),
        min_key=f"{_KOORDINATOR}/min-available",
        alt_min_key=f"{_OLD_GROUP}/min-available",
        size_key=f"{_KOORDINATOR}/total-number",
        by_object=COSCHEDULING,
        unsupported={
            GANG_GROUPS: f"one gang for all: {WAY_OUT}",
            NETWORK_TOPOLOGY: f"the annotation {own.SCOPE} or {own.PREFERRED_SCOPES}",
        },
    ),
    ForeignGangKeys(
        "armada",
        ANNOTATION,
        (f"{_ARMADA}/gangId",),
        min_key=f"{_ARMADA}/gangCardinality",
        size_key=f"{_ARMADA}/gangCardinality",
        unsupported={f"{_ARMADA}/gangNodeUniformityLabel": f"the annotation {own.SCOPE} with this label"},
    ),
    ForeignGangKeys(
        "fluence", LABEL, ("fluence.pod-group",), min_key="fluence.group-size", size_key="fluence.group-size"
    ),
    ForeignGangKeys(
        "kueue",
        EITHER,
        (f"{_KUEUE}/pod-group-name",),
        min_key=f"{_KUEUE}/pod-group-total-count",
        size_key=f"{_KUEUE}/pod-group-total-count",
        fallback_only=True,
        # Kueue's groups for a StatefulSet or LeaderWorkerSet, whose controllers make pods one after another.
        not_gang_if={
            f"{_KUEUE}/pod-group-serving": "true",
            f"{_KUEUE}/pod-group-fast-admission": "true",
            f"{_KUEUE}/pod-suspending-parent": "",
        },
    ),
)
REFUSED = {
    "yunikorn.apache.org/task-group-name": "YuniKorn",
    "yunikorn.apache.org/task-groups": "YuniKorn",
    "grove.io/podgang": "Grove",
    "godel.bytedance.com/pod-group-name": "Gödel",
    "scheduling.godel.bytedance.com/pod-group-name": "Gödel",
    "scheduling.volcano.sh/group-min-member": "Volcano without a PodGroup",
    _HIVED: "HiveD",
    "sakkara.group.name": "Sakkara",
    f"{_KUBESHARE}group_name": "KubeShare",
    "group.batch.scheduler.tencent.com": "batch-scheduler",
}
"""Labels or annotations that name a gang in another meaning than ours, each with its system."""

PODGROUP_KEYS = tuple(key for gang_keys in READ if not gang_keys.min_key for key in gang_keys.name_keys)
"""Keys that name a PodGroup, which states the other facts."""
GANG_KEYS = (*(key for gang_keys in READ for key in gang_keys.name_keys), *REFUSED)
"""Labels and annotations that make a pod one of a gang."""


def places() -> dict[str, str]:
    """Return each key that is read → whether it is a label or an annotation."""
    place_of = {key: gang_keys.place for gang_keys in READ for key in gang_keys.name_keys}
    for gang_keys in READ:
        place = ANNOTATION if gang_keys.place == EITHER else gang_keys.place
        place_of |= {
            key: place
            for key in (gang_keys.min_key, gang_keys.size_key, *gang_keys.unsupported, *gang_keys.not_gang_if)
            if key
        }
    return {**place_of, **dict.fromkeys((*REFUSED, TASK), EITHER)}


PREFIXES = frozenset(key.rpartition("/")[0] for key in places() if "/" in key) - {"scheduling.x-k8s.io"}
"""Prefixes of these systems, except coscheduling's. Further keys of these systems may resemble ours."""


def claim(object_name: str, meta: Metadata) -> Reading:
    """Return the gang that the pod `object_name` names by keys of other systems."""
    readings = (_read_gang(object_name, meta, gang_keys) for gang_keys in READ if not gang_keys.fallback_only)
    return merge_readings(meta.name, readings)


def ack_claim(object_name: str, meta: Metadata) -> Reading:
    """Return the gang that ACK's labels of the pod `object_name` (kind/namespace/name) name.

    gpu-topology: <gang's name, within its namespace>    gpu-topology-replica: "<all its pods>"
    """
    labels = meta.labels or {}
    name, replicas = labels.get(ACK_NAME), labels.get(ACK_REPLICAS)
    if name is None and replicas is None:
        return Reading()
    causes = []
    if not name:
        expected = f"the gang's name: {ACK_REPLICAS} alone says no gang"
        causes.append(BadValue(object_name, ACK_NAME, name or "", expected))
    count = positive(replicas)
    if count is None:
        causes.append(BadValue(object_name, ACK_REPLICAS, replicas or "", _ALL_REPLICAS))
    if not name:
        return Reading(causes=tuple(causes))
    gang = GangClaim("ack", name, min_member=count, replicas=count, count_key=ACK_REPLICAS)
    return Reading(gang, tuple(causes))


def fallback_claim(object_name: str, meta: Metadata, spec: PodSpec, with_gpus: bool) -> Reading:
    """Return the gang of a pod that no other dialect names, read or refused. `with_gpus`: the pod requests
    GPUs or shares of GPUs."""
    reading = merge_readings(
        meta.name, (_read_gang(object_name, meta, gang_keys) for gang_keys in READ if gang_keys.fallback_only)
    )
    if reading.claim is not None or reading.causes or spec.node_name:
        return reading
    for key, system in REFUSED.items():
        if (value := _value(meta, key)) is not None and not _names_none(meta, key, value, with_gpus):
            shown = " ".join(value[:SHOWN].split())
            cause = BadValue(object_name, key, shown, f"{WAY_OUT} beside it: gangs of {system} are not read")
            is_name = OBJECT_NAME.fullmatch(value) and positive(value) is None
            gang = GangClaim(system, value) if is_name else None
            return Reading(gang, (cause,))
    numbers = ((gang_keys, key) for gang_keys in READ for key in (gang_keys.min_key, gang_keys.size_key))
    for gang_keys, key in numbers:
        if (value := _value(meta, key)) is not None and not _is_no_gang(meta, gang_keys):
            expected = f"a gang beside it: add {' or '.join(gang_keys.name_keys)}, or {own.GROUP}"
            return Reading(causes=(BadValue(object_name, key, value, expected),))
    return Reading()


def _names_none(meta: Metadata, key: str, value: str, with_gpus: bool) -> bool:
    """Return whether the value of a key of `REFUSED` names no gang. HiveD's annotation may have no group, and
    a key like KubeShare's may be a user's own."""
    if key == _HIVED:
        return "affinityGroup" not in value or bool(_NO_GROUP.search(value))
    other_keys = {*(meta.labels or {}), *(meta.annotations or {})} - {key}
    return (
        key.startswith(_KUBESHARE) and not with_gpus and not any(k.startswith(_KUBESHARE) for k in other_keys)
    )


def check_workload_ref(object_name: str, spec: PodSpec) -> tuple[BadValue, ...]:
    """Return a cause if the pod names its gang as Kubernetes 1.35 did. No later version serves that API."""
    if (workload := spec.workload_ref) is None:
        return ()
    expected = f"none: Kubernetes has spec.schedulingGroup in place of it since 1.36. Use that, or {WAY_OUT}"
    return (BadValue(object_name, "spec.workloadRef", f"{workload.name}/{workload.pod_group}", expected),)


def volcano_role(meta: Metadata) -> str:
    """Return the role of a pod in a gang of Volcano; "" without a role."""
    task = _value(meta, TASK) or ""
    in_group = any(key in (meta.annotations or {}) for key in _VOLCANO_KEYS)
    return task if in_group and NAME_PATTERN.fullmatch(task) else ""


_GANG_LIKE = re.compile(
    r"(?:^|[-_.])(?:[gG]ang|[pP]od-?[gG]roup|[tT]ask-?[gG]roup|[cC]oscheduling|[mM]in-?([mM]ember|[aA]vailable))"
    r"(?:$|[-_.A-Z]|s$)"
)


def unknown_gang_keys(meta: Metadata, known_keys: Mapping[str, str]) -> Iterator[str]:
    """Yield a sentence for each key outside `known_keys` that looks like another system's key for gangs."""
    place_of = {
        **dict.fromkeys(meta.annotations or {}, ANNOTATION),
        **dict.fromkeys(meta.labels or {}, LABEL),
    }
    gang_keys = (
        key
        for key in sorted(place_of)
        if key not in known_keys
        and key.rpartition("/")[0] != _KUEUE  # Its groups whose pods come one after another have more keys.
        and _GANG_LIKE.search(key.rpartition("/")[2])
    )
    for key in islice(gang_keys, _MAX_UNKNOWN):
        yield f"{place_of[key]} {key[:SHOWN]} is not read: if it is about a gang, use {WAY_OUT}"


def _value(meta: Metadata, key: str, place: str = EITHER) -> str | None:
    label = (meta.labels or {}).get(key) if place != ANNOTATION else None
    return label if label is not None or place == LABEL else (meta.annotations or {}).get(key)


def _is_no_gang(meta: Metadata, gang_keys: ForeignGangKeys) -> bool:
    """Return whether the pod's annotations say that its group need not start together."""
    annotations = meta.annotations or {}
    return any(
        key in annotations and value in ("", annotations[key]) for key, value in gang_keys.not_gang_if.items()
    )


def _read_gang(object_name: str, meta: Metadata, gang_keys: ForeignGangKeys) -> Reading:
    values = ((key, _value(meta, key, gang_keys.place)) for key in gang_keys.name_keys)
    names = [(key, name) for key, name in values if name is not None]
    if not names or _is_no_gang(meta, gang_keys):
        return Reading()
    unsupported_causes = tuple(
        BadValue(object_name, key, value, f"{instead}, in place of it")
        for key, instead in gang_keys.unsupported.items()
        if (value := _value(meta, key)) is not None
    )
    by_other_key = (
        gang_keys.alt_min_key
        and _value(meta, gang_keys.min_key) is None
        and _value(meta, gang_keys.alt_min_key) is not None
    )
    count_key = gang_keys.alt_min_key if by_other_key else gang_keys.min_key
    least, wrong = _read_count(object_name, meta, count_key)
    size, wrong_size = _read_count(object_name, meta, gang_keys.size_key)
    causes = (*wrong, *(wrong_size if gang_keys.size_key != gang_keys.min_key else ()), *unsupported_causes)
    if size is not None and size < (least or 1):
        causes += (
            BadValue(
                object_name, gang_keys.size_key, str(size), f"at least {gang_keys.min_key}, which is {least}"
            ),
        )
    if gang_keys.min_key and least is None and not wrong and not gang_keys.by_object:
        causes += (BadValue(object_name, gang_keys.min_key, "", f"how many pods start together: {_COUNT}"),)
    by_object = least is None and not wrong and bool(gang_keys.by_object)
    stated_count = (count_key, least, size)
    claims = (
        _read_named_gang(object_name, gang_keys, key, name, None if by_object else stated_count)
        for key, name in names
    )
    return merge_readings(meta.name, (*claims, Reading(causes=causes)))


def _read_named_gang(
    object_name: str,
    gang_keys: ForeignGangKeys,
    key: str,
    name: str,
    stated_count: tuple[str, int | None, int | None] | None,
) -> Reading:
    """Return the gang `name`. `stated_count` has the key of its number, the number, and its size; None if a
    PodGroup states them."""
    by_object = stated_count is None
    if not (OBJECT_NAME.fullmatch(name) or (not by_object and NAME_PATTERN.fullmatch(name))):
        subject = "a PodGroup in the pod's namespace" if by_object else "a gang"
        return Reading(causes=(BadValue(object_name, key, name, f"the name of {subject}: {AN_OBJECT_NAME}"),))
    if stated_count is None:
        return Reading(GangClaim(gang_keys.by_object, name, by_object=True))
    count_key, least, size = stated_count
    return Reading(GangClaim(gang_keys.dialect, name, least, size=size, count_key=count_key))


def _read_count(object_name: str, meta: Metadata, key: str) -> tuple[int | None, tuple[BadValue, ...]]:
    text = _value(meta, key) if key else None
    number = positive(text)
    if text is None or number is not None:
        return number, ()
    return None, (BadValue(object_name, key, text, _COUNT),)
