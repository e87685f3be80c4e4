"""Groups of Kubernetes' own API (scheduling.k8s.io) → facts, and the gang of a pod that names a PodGroup.

    schedulingPolicy                 gang {minCount}: the pods are a gang. basic: each pod is planned alone,
                                     but with a topology constraint the pods share its domain
    parentCompositePodGroupName      the CompositePodGroup that makes one gang of several groups (`forest`)
    schedulingConstraints.topology   the node label of the gang's required scope
    priority, preemptionPolicy       the pods' priority must be the same; no gang preempts a pod
    resourceClaims                   pods that share such a claim lie on one node (devices.sharers);
                                     with the policy basic they are a gang that starts with one pod
    disruptionMode                   kept
    workloadRef                      the Workload whose annotations count where no nearer object states them
    priorityClassName                only checked: the API server has copied the number of the class
    status.conditions                the condition of type SCHEDULED, which the service writes

A CompositePodGroup has the same fields, but minGroupCount in place of minCount, and no resourceClaims.
The annotations `gpu.topology/…` that speak of a whole gang add what the API lacks. A field that is unknown in
the policy or in the constraints would change their meaning, so it is a cause. Other unknown fields are
problems. The fields are those of k8s.io/api, scheduling/v1beta1/types.go of Kubernetes 1.37; its v1alpha3 has
CompositePodGroup.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal

import msgspec

from muster.dialects.gangs import misspelt, own, subgroups
from muster.dialects.objects import ApiObject, CustomObject, Metadata, PodObject, PodSpec
from muster.dialects.reading import (
    AN_OBJECT_NAME,
    LABEL_KEY,
    MAX_CAUSES,
    OBJECT_NAME,
    SHOWN,
    Fields,
    Reading,
)
from muster.dialects.settings import DialectSettings
from muster.domain.causes.ill_formed import BadValue
from muster.domain.levels import FabricLevel
from muster.domain.pod import COMPOSITE, KUBERNETES, NO_TOPOLOGY_REQUEST, GangClaim, TopologyRequest
from muster.domain.podgroup import SCHEDULED, Condition, PodGroup, PodGroupKey

API_GROUP = "scheduling.k8s.io"
APIS = ("scheduling.k8s.io/v1", "scheduling.k8s.io/v1beta1", "scheduling.k8s.io/v1alpha3")
"""The versions that are read. Their fields are the same."""
FIELDS = (
    "parentCompositePodGroupName", "workloadRef", "schedulingPolicy", "schedulingConstraints",
    "resourceClaims", "disruptionMode", "priorityClassName", "priority", "preemptionPolicy",
)  # fmt: skip
"""The fields of the spec of a PodGroup."""
COMPOSITE_FIELDS = tuple(field for field in FIELDS if field != "resourceClaims")
"""The fields of the spec of a CompositePodGroup."""
MAX_PRIORITY = 10**9
"""Largest priority of a user's priority class."""
MIN_COUNT = "spec.schedulingPolicy.gang.minCount"
PARENT = "parentCompositePodGroupName"
MIN_GROUP_COUNT = "minGroupCount"
_SCOPE_FIELD = "spec.schedulingConstraints.topology[0].key"
_MAX_KEYS = 1
"""Number of topology constraints that the API allows. If a later version allows more, none is dropped: the
PodGroup is refused."""
_MAX_CLAIMS = 4
_CLAIM_SOURCES = ("resourceClaimName", "resourceClaimTemplateName")
_PREEMPTION = ("PreemptLowerPriority", "Never")
_NEEDS = {KUBERNETES: (APIS[1], "GenericWorkload"), COMPOSITE: (APIS[2], "CompositePodGroup")}
"""Kind → the version in which Kubernetes 1.37 has it, and the feature gate that it needs."""
_OF_PODS = (own.GROUP, own.ROLE, own.ROLE_SCOPE, own.ROLE_PREFERRED_SCOPES, own.RANK, *own.OF_VICTIMS)
"""Annotations that speak of one pod or of a role."""
_OF_COMPOSITES = (own.SCOPE, own.PREFERRED_SCOPES)
"""Annotations that a CompositePodGroup may have."""
_OF_ONE_GROUP = (own.MIN_MEMBER, own.SIZE)
"""Annotations that speak of one PodGroup. A Workload may have several PodGroups."""


@dataclass(frozen=True, slots=True)
class WorkloadTerms:
    """What the annotations of a Workload add to each gang of its PodGroups."""

    topology_request: TopologyRequest
    causes: tuple[BadValue, ...] = ()


def claim(object_name: str, namespace: str, spec: PodSpec, group: PodGroup | None) -> Reading:
    """Return the gang of the PodGroup that the pod `object_name` names in spec.schedulingGroup.

    `group` is this PodGroup, or the CompositePodGroup whose tree it is in (`Forest.root_of`); None if it does
    not exist (yet), so that its pods wait for it.
    """
    if spec.scheduling_group is None or (group is not None and not group.makes_gang):
        return Reading()
    name = spec.scheduling_group.pod_group_name or ""
    if not OBJECT_NAME.fullmatch(name):
        expected = f"the name of a PodGroup in namespace {namespace}: {AN_OBJECT_NAME}"
        return Reading(causes=(BadValue(object_name, "spec.schedulingGroup.podGroupName", name, expected),))
    return Reading(claim_of_member(name, group))


def claim_of_member(pod_group: str, group: PodGroup | None) -> GangClaim:
    """Return the claim of a pod that names this PodGroup. `group` as in `claim`, and it makes a gang."""
    if group is not None and group.dialect == COMPOSITE:
        request = TopologyRequest(role=pod_group)
        return GangClaim(COMPOSITE, group.name, topology_request=request, by_object=True)
    return GangClaim(KUBERNETES, pod_group, by_object=True)


def role_in_tree(
    object_name: str, spec: PodSpec, role: str, group: PodGroup | None
) -> tuple[str, tuple[BadValue, ...]]:
    """Return the pod's role, and a cause if the pod states another: in the tree of a CompositePodGroup, the
    role is the pod's PodGroup. `role`: the role that the pod states; `group` as in `claim`."""
    if group is None or group.dialect != COMPOSITE or spec.scheduling_group is None:
        return role, ()
    name = spec.scheduling_group.pod_group_name or ""
    if role in ("", name):
        return name, ()
    expected = f"none: in {group.title} the role of a pod is its PodGroup {name}"
    return name, (BadValue(object_name, "role", role, expected),)


def key_of(namespace: str, spec: PodSpec) -> PodGroupKey:
    """Return the key of the PodGroup that a pod names in spec.schedulingGroup. If the pod names none, the key
    has no name, so that it is the key of no PodGroup."""
    scheduling_group = spec.scheduling_group
    name = scheduling_group.pod_group_name if scheduling_group is not None else None
    return (namespace, KUBERNETES, name or "")


def counts_as_foreign(obj: PodObject, settings: DialectSettings) -> bool:
    """Return whether the pod names a PodGroup, is for another scheduler, and has not ended.

    Static pods do not count: a kubelet may make such a pod in any namespace.
    """
    is_foreign = obj.spec.scheduler_name not in settings.scheduler_names and not obj.is_static
    return obj.spec.scheduling_group is not None and is_foreign and not has_ended(obj)


def has_ended(obj: PodObject) -> bool:
    """Return whether the pod has succeeded or failed."""
    return obj.status.phase in ("Succeeded", "Failed")


def read(obj: CustomObject, levels: tuple[FabricLevel, ...]) -> PodGroup:
    """Return the facts of one PodGroup or CompositePodGroup, without its parents and children.

    `levels` have the words for the labels of topology constraints. The `min_member` of a CompositePodGroup is
    its number of groups.
    """
    meta, dialect = obj.metadata, COMPOSITE if obj.kind == COMPOSITE else KUBERNETES
    object_name = f"{dialect.lower()}/{meta.namespace}/{meta.name}"
    spec = Fields.of(object_name, "spec", obj.spec)
    count = MIN_GROUP_COUNT if dialect == COMPOSITE else "minCount"
    min_count = _read_policy(spec, count)
    scope = _read_scope(spec, levels)
    if dialect == COMPOSITE:
        topology_request, size = _annotations_of_composite(object_name, meta, spec, scope), None
    else:
        topology_request, size = _merge_annotations(object_name, meta, spec, min_count, scope)
    disruption = _read_union(spec, "disruptionMode", ("single", "all")) or "single"
    parent, workload = _read_links(spec, meta.namespace, dialect)
    _check_other_fields(spec, dialect)
    is_gang = min_count is not None or topology_request != NO_TOPOLOGY_REQUEST or _shares_claims(spec)
    fields = COMPOSITE_FIELDS if dialect == COMPOSITE else FIELDS
    unread_fields = [field for field in spec.names() if field not in fields][:MAX_CAUSES]
    return PodGroup(
        meta.namespace,
        dialect,
        meta.name,
        uid=meta.uid,
        min_member=min_count or 1,
        topology_request=topology_request,
        causes=tuple(spec.causes),
        problems=tuple(f"spec.{field[:SHOWN]} is not read" for field in unread_fields),
        api_version=obj.api_version,
        size=size,
        makes_gang=is_gang or bool(spec.causes),
        count_field=f"spec.schedulingPolicy.gang.{count}" if min_count is not None else "",
        priority=_read_priority(spec),
        disruption=disruption,
        preempts=spec.raw("preemptionPolicy") != _PREEMPTION[1],
        generation=meta.generation,
        status=_read_condition(obj.status) if dialect == KUBERNETES else None,
        parent=parent,
        workload=workload,
    )


def read_workload(meta: Metadata) -> WorkloadTerms:
    """Return what the annotations of a Workload state. Its templates are not read, because its PodGroups are
    copies of them."""
    refused = dict.fromkeys(_OF_PODS, "none: it is for pods, and this is a Workload")
    refused |= dict.fromkeys(_OF_ONE_GROUP, "none: it is for a PodGroup, and a Workload may have several")
    keys, causes = _read_annotations(f"workload/{meta.namespace}/{meta.name}", meta, refused)
    return WorkloadTerms(keys.topology_request, tuple(causes[:MAX_CAUSES]))


def add_workload(group: PodGroup, terms: WorkloadTerms | None) -> PodGroup:
    """Return the facts of a gang with what its Workload adds; None without a Workload.

    Each constraint that the PodGroup states itself is stronger. A basic PodGroup stays no gang.
    """
    if terms is None or not group.makes_gang:
        return group
    topology_request = group.topology_request.completed_by(terms.topology_request)
    return replace(group, topology_request=topology_request, causes=(*group.causes, *terms.causes))


def refused_unread(key: PodGroupKey) -> PodGroup:
    """Return a group that pods or other groups name, and that can't be read at all, with the cause."""
    namespace, dialect, name = key
    version, gate = _NEEDS[dialect]
    expected = (
        f"an API that Muster may read. This needs Kubernetes 1.37 with --runtime-config={version}=true and "
        f"the feature gate {gate}, the right to read {dialect.lower()}s "
        "(scheduler-config/rbac-service.yaml), and Muster's setting pod_groups.enabled"
    )
    cause = BadValue(f"{dialect.lower()}/{namespace}/{name}", "apiVersion", version, expected)
    return PodGroup(namespace, dialect, name, causes=(cause,), api_version=version)


def check_scheduler(group: PodGroup, foreign: tuple[str, str] | None, settings: DialectSettings) -> PodGroup:
    """Return the gang, with a cause if it has a pod of another scheduler. `foreign`: the name and the
    scheduler of such a pod."""
    if foreign is None or not group.makes_gang:
        return group
    pod, scheduler = foreign
    ours = " or ".join(sorted(settings.scheduler_names))
    expected = f"{ours}, since {group.title} has pods of that scheduler too"
    cause = BadValue(f"pod/{group.namespace}/{pod}", "spec.schedulerName", scheduler, expected)
    return replace(group, causes=(*group.causes, cause))


def _read_union(spec: Fields, field: str, names: tuple[str, str]) -> str:
    """Return the one field that is given of a union; "" without the union. Add a cause for any other."""
    union_names = spec.part(field).names()
    if len(union_names) == 1 and union_names[0] in names:
        return union_names[0]
    if isinstance(spec.raw(field), dict):
        spec.bad(field, ", ".join(union_names)[:SHOWN], f"either {' or '.join(names)}")
    return ""


def _read_policy(spec: Fields, count: str) -> int | None:
    """Return the number of pods or groups that start together, which is in the field `count`; None for the
    policy basic, and without a policy."""
    policy = _read_union(spec, "schedulingPolicy", ("basic", "gang"))
    if spec.raw("schedulingPolicy") is None:
        spec.bad("schedulingPolicy", "", "either basic or gang")
    if not policy:
        return None
    fields = spec.part("schedulingPolicy").part(policy)
    if policy == "basic":
        if fields.names():
            spec.bad("schedulingPolicy.basic", ", ".join(fields.names())[:SHOWN], "no fields")
        return None
    fields.note_unknown(count)
    if fields.raw(count) is None:
        members = "groups" if count == MIN_GROUP_COUNT else "pods"
        fields.bad(count, "", f"how many {members} must fit at once: 1, 2, …")
    return fields.positive(count)


def _read_scope(spec: Fields, levels: tuple[FabricLevel, ...]) -> str | None:
    """Return the required scope of the topology constraint; None without a constraint."""
    constraints = spec.part("schedulingConstraints")
    constraints.note_unknown("topology")
    keys = constraints.objects_in("topology", _MAX_KEYS)
    if not keys:
        return None
    keys[0].note_unknown("key")
    label = keys[0].text_matching("key", LABEL_KEY, "a label key of nodes", required=True)
    return None if label is None else subgroups.scope_of_label(keys[0], "key", label, levels)


def _read_annotations(
    object_name: str, meta: Metadata, refused: Mapping[str, str]
) -> tuple[own.OwnKeys, list[BadValue]]:
    """Return what the annotations of a group or Workload add, and a cause for each ill-formed annotation.

    `refused`: annotation that this object can't have → what is expected in its place.
    """
    annotations = own.annotations_of(meta)
    corrected, slips = misspelt.correct_keys(object_name, Metadata(meta.name, annotations=annotations))
    keys = own.read(object_name, corrected)
    misplaced = [
        BadValue(object_name, f"annotation {key}", annotations[key], expected)
        for key, expected in refused.items()
        if key in annotations
    ]
    return keys, [*slips, *keys.gang_causes, *keys.causes, *misplaced]


def _merge_annotations(
    object_name: str, meta: Metadata, spec: Fields, min_count: int | None, scope: str | None
) -> tuple[TopologyRequest, int | None]:
    """Return the constraints of field and annotations together, and the expected number of pods.

    An annotation can't contradict a field.
    """
    refused = dict.fromkeys(_OF_PODS, "none: it is for pods, and this is a PodGroup")
    keys, causes = _read_annotations(object_name, meta, refused)
    spec.causes.extend(causes)
    if keys.min_member not in (None, min_count):
        expected = f"{min_count}, as {MIN_COUNT} is" if min_count else f"none: {MIN_COUNT} is not set"
        spec.bad_value(f"annotation {own.MIN_MEMBER}", str(keys.min_member), expected)
    if keys.size is not None and keys.size < (min_count or 1):
        spec.bad_value(
            f"annotation {own.SIZE}", str(keys.size), f"at least {MIN_COUNT}, which is {min_count}"
        )
    return _with_scope(spec, keys.topology_request, scope), keys.size or min_count


def _annotations_of_composite(
    object_name: str, meta: Metadata, spec: Fields, scope: str | None
) -> TopologyRequest:
    """Return the scopes of field and annotations together. All other annotations of ours are causes."""
    annotations = own.annotations_of(meta)
    for key in sorted(annotations.keys() - set(_OF_COMPOSITES)):
        expected = f"none: of these annotations a CompositePodGroup has {' and '.join(_OF_COMPOSITES)} alone"
        spec.bad_value(f"annotation {key[:SHOWN]}", annotations[key], expected)
    scopes = {key: annotations[key] for key in _OF_COMPOSITES if key in annotations}
    keys = own.read(object_name, Metadata(meta.name, annotations=scopes))
    spec.causes.extend(keys.causes)
    return _with_scope(spec, keys.topology_request, scope)


def _with_scope(spec: Fields, request: TopologyRequest, scope: str | None) -> TopologyRequest:
    """Return the request of the annotations with the scope of the field, if the field has one."""
    if scope is not None and request.required_scope not in (None, scope):
        expected = f"{scope}, as {_SCOPE_FIELD} is"
        spec.bad_value(f"annotation {own.SCOPE}", request.required_scope, expected)
    return replace(request, required_scope=scope or request.required_scope)


class _ShownCondition(ApiObject, frozen=True):
    type: str
    status: Literal["True", "False"]
    reason: str = ""
    message: str = ""
    last_transition_time: str = ""


def _read_condition(status: object) -> Condition | None:
    """Return the condition of type SCHEDULED that the object shows; None if it shows none."""
    conditions = status.get("conditions") if isinstance(status, dict) else None
    for entry in conditions if isinstance(conditions, list) else ():
        if isinstance(entry, dict) and entry.get("type") == SCHEDULED:
            try:
                shown = msgspec.convert(entry, _ShownCondition)
            except msgspec.ValidationError:
                return None
            return Condition(
                SCHEDULED,
                shown.status == "True",
                shown.reason,
                shown.message,
                since=shown.last_transition_time,
            )
    return None


def _read_priority(spec: Fields) -> int | None:
    value = spec.raw("priority")
    is_number = isinstance(value, int) and not isinstance(value, bool)
    return value if is_number and value <= MAX_PRIORITY else None


def _check_claim(fields: Fields) -> None:
    """Add a cause unless an item of resourceClaims has a name, and either a claim or a template."""
    fields.text_matching("name", OBJECT_NAME, AN_OBJECT_NAME, required=True)
    sources = [field for field in _CLAIM_SOURCES if fields.raw(field) is not None]
    if len(sources) != 1:
        fields.bad("resourceClaimTemplateName", ", ".join(sources), f"either {' or '.join(_CLAIM_SOURCES)}")
    for field in sources:
        fields.text_matching(field, OBJECT_NAME, AN_OBJECT_NAME)


def _shares_claims(spec: Fields) -> bool:
    """Return whether a claim is made for all pods of the PodGroup."""
    claims = spec.raw("resourceClaims")
    return isinstance(claims, list) and any(
        isinstance(claim, dict) and claim.get(_CLAIM_SOURCES[1]) is not None for claim in claims
    )


def _read_links(spec: Fields, namespace: str, dialect: str) -> tuple[str, str]:
    """Return the name of the group's parent, and that of its Workload; "" if there is none.

    The API server refuses a group of a tree that names no Workload.
    """
    expected = f"the name of a CompositePodGroup in namespace {namespace}: {AN_OBJECT_NAME}"
    parent = spec.text_matching(PARENT, OBJECT_NAME, expected)
    in_tree = parent is not None or dialect == COMPOSITE
    if in_tree and spec.raw("workloadRef") is None:
        expected = "workloadName and templateName: the API server refuses a group of a tree without them"
        spec.bad("workloadRef", "not given", expected)
        return parent or "", ""
    workload, names = spec.part("workloadRef"), list[str | None]()
    for field in ("workloadName", "templateName") if workload.names() or in_tree else ():
        if workload.raw(field) is None:
            expected = f"{AN_OBJECT_NAME}: the API server refuses a workloadRef without it"
            workload.bad(field, "not given", expected)
        names.append(workload.text_matching(field, OBJECT_NAME, AN_OBJECT_NAME))
    return parent or "", (names[0] or "") if names else ""


def _check_other_fields(spec: Fields, dialect: str) -> None:
    """Add a cause for each field that can't be followed, or that the API server would refuse."""
    for claim_fields in spec.objects_in("resourceClaims", _MAX_CLAIMS) if dialect == KUBERNETES else ():
        _check_claim(claim_fields)
    spec.text_matching("priorityClassName", OBJECT_NAME, f"the name of a PriorityClass: {AN_OBJECT_NAME}")
    if spec.raw("priority") is not None and _read_priority(spec) is None:
        spec.bad("priority", spec.raw("priority"), f"a whole number of at most {MAX_PRIORITY:,}")
    if (policy := spec.text("preemptionPolicy")) is not None and policy not in _PREEMPTION:
        spec.bad("preemptionPolicy", policy, f"either {' or '.join(_PREEMPTION)}")
