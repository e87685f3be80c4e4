"""PodGroup objects of six APIs → facts. There are no exceptions: an ill-formed field becomes a cause of the
group.

    scheduling.run.ai/v2             minMember, queue, topologyPolicy {scope, affinity.required[]}
    scheduling.run.ai/v2alpha2       KAI's: minMember, queue, topologyConstraint, subGroups[] (`subgroups`)
    scheduling.x-k8s.io/v1alpha1     coscheduling's: minMember
    scheduling.sigs.k8s.io/v1alpha1  the same before it was renamed, as Koordinator and ACK have it
    scheduling.volcano.sh/v1beta1    Volcano's: minMember, minTaskMember, queue
    scheduling.k8s.io                Kubernetes' own (`native`), and its CompositePodGroup

The first two are versions of one CRD, and neither prunes the other's fields. An object may have the fields of
both, so both are read, and misspelt fields are seen. Three fields are not read: priorityClassName (the pods'
own priority counts), minResources (the pods' requests are planned) and scheduleTimeoutSeconds (a gang that
waits holds no capacity).
"""

from __future__ import annotations

import re
from dataclasses import replace

import msgspec

from muster.dialects.gangs import kai, native, other_systems, own, subgroups
from muster.dialects.gangs.subgroups import KaiTopology, Topologies
from muster.dialects.objects import CustomObject
from muster.dialects.reading import A_NAME, A_SCOPE, LABEL_KEY, NAME_PATTERN, Fields
from muster.domain.levels import DEFAULT_LEVELS, FabricLevel
from muster.domain.pod import TopologyRequest
from muster.domain.podgroup import OURS, PodGroup, PodGroupStatus
from muster.domain.request import SelectorTerm

KAI_API = "scheduling.run.ai/v2alpha2"
COSCHEDULING_API = "scheduling.x-k8s.io/v1alpha1"
OLD_COSCHEDULING_API = "scheduling.sigs.k8s.io/v1alpha1"
VOLCANO_API = "scheduling.volcano.sh/v1beta1"
APIS = ((OURS, KAI_API), (COSCHEDULING_API,), (OLD_COSCHEDULING_API,), (VOLCANO_API,), native.APIS)
"""The APIs of PodGroups that are read, each with the other versions of the same CRD."""
TOPOLOGY_APIS = ("kai.scheduler/v1alpha1",)

MAX_TERMS = 32
MAX_TREES = 32
"""Largest number of Topologies whose levels tell domains of one name apart."""
MAX_VALUES = 64
MAX_QUEUE = 253
MAX_TASKS = 64
_NOT_READ = f"none: it is not read. Use the annotations {own.SCOPE}, {own.ROLE} and {own.ROLE_SCOPE} on pods"
_SOFT = f"spec.networkTopology is not read: use the annotation {own.PREFERRED_SCOPES} on pods"
_QUEUE = re.compile(rf".{{0,{MAX_QUEUE}}}", re.DOTALL)
_LABEL_VALUE = re.compile(r"([A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?)?")
_INTEGER = re.compile(r"-?[0-9]{1,18}")
_VALUES_OF = {
    "In": "one value or more",
    "NotIn": "one value or more",
    "Exists": "no values",
    "DoesNotExist": "no values",
    "Gt": "one whole number, as text",
    "Lt": "one whole number, as text",
}
"""Operators of node selector requirements, and the values that go with each."""


def read(
    obj: CustomObject, levels: tuple[FabricLevel, ...] = DEFAULT_LEVELS, topologies: Topologies | None = None
) -> PodGroup:
    """Return the facts of one PodGroup, of any of the APIs.

    `levels` have the words for the labels of topology levels. `topologies` are KAI's Topology objects;
    None if KAI is not installed.
    """
    if obj.api_version in (COSCHEDULING_API, OLD_COSCHEDULING_API):
        return _read_coscheduling(obj)
    if obj.api_version == VOLCANO_API:
        return _read_volcano(obj)
    if obj.api_version in native.APIS:
        return native.read(obj, levels)
    return _read_kai(obj, levels, topologies)


def read_topology(obj: CustomObject) -> KaiTopology:
    """Return the levels of a Topology, widest first. Levels without a valid label are left out.

    If two levels have the same alias, the first level gets it. An alias that equals a node label of the
    Topology is ignored.
    """
    levels = Fields.of(f"topology/{obj.metadata.name}", "spec", obj.spec).objects_in("levels", MAX_TERMS)
    labels = [level.text_matching("nodeLabel", LABEL_KEY, "a label key of nodes") for level in levels]
    aliases: dict[str, str] = {}
    for level, label in zip(levels, labels, strict=True):
        alias = level.text_matching("alias", LABEL_KEY, "another name of the level")
        if label is not None and alias is not None and alias not in labels:
            aliases.setdefault(alias, label)
    return KaiTopology(tuple(label for label in labels if label is not None), aliases)


def trees(topologies: Topologies) -> tuple[tuple[str, ...], ...]:
    """Return the labels above the node of each Topology, each sequence once, for `Naming.trees`."""
    node = subgroups.HOSTNAME
    sequences = {tuple(key for key in topology.labels if key != node) for topology in topologies.values()}
    return tuple(sorted(labels for labels in sequences if len(labels) > 1)[:MAX_TREES])


def _read_kai(obj: CustomObject, levels: tuple[FabricLevel, ...], topologies: Topologies | None) -> PodGroup:
    spec = _spec(obj)
    spec.note_misspelt(
        "minMember", "queue", "topologyPolicy", "topologyConstraint", "subGroups", "minSubGroup"
    )
    scope, required = _read_policy(spec)
    tree = subgroups.read(spec, levels, topologies)
    scopes = {required_scope for required_scope in (scope, tree.required) if required_scope}
    if len(scopes) > 1:
        spec.bad("topologyConstraint", ", ".join(sorted(scopes)), "one required scope for the whole gang")
    min_member = spec.positive("minMember")
    if tree.quorum is not None:
        if (min_member or 0) > tree.min_member:
            limit = f"at most {tree.min_member}, with which the subgroups start that minSubGroup asks for"
            spec.bad("minMember", min_member, limit)
        min_member = max(1, tree.min_member)
    elif tree.min_member:
        min_member = max(min_member or 0, tree.min_member)
    elif min_member is None and not spec.causes:
        if obj.api_version == OURS and not tree.role_topology_requests:
            spec.bad("minMember", "", "how many members must fit at once: 1, 2, …")
        else:
            min_member = 1  # as KAI takes it (pkg/scheduler/api/podgroup_info)
    return replace(
        _facts(obj, kai.NAME, min_member, spec),
        topology_request=TopologyRequest(
            required_scope=next(iter(sorted(scopes)), None), preferred_scopes=tree.preferred
        ),
        role_topology_requests=tree.role_topology_requests,
        role_min=tree.role_min,
        quorum=tree.quorum,
        size=sum(leaf.min_members for leaf in tree.quorum.leaves()) if tree.quorum is not None else None,
        subgroups=tree.shared_scopes,
        role_preferences=tree.preferences,
        required=required,
        status=_read_status(obj.status) if obj.api_version == OURS else None,
    )


def _spec(obj: CustomObject) -> Fields:
    return Fields.of(f"podgroup/{obj.metadata.namespace}/{obj.metadata.name}", "spec", obj.spec)


def _facts(
    obj: CustomObject, dialect: str, min_member: int | None, spec: Fields, queue: bool = True
) -> PodGroup:
    """Return a PodGroup with the facts that all APIs have. `queue`: the API has a queue."""
    name = spec.text_matching("queue", _QUEUE, f"at most {MAX_QUEUE} characters") if queue else None
    meta = obj.metadata
    return PodGroup(
        meta.namespace,
        dialect,
        meta.name,
        uid=meta.uid,
        min_member=min_member,
        queue=name or "",
        causes=tuple(spec.causes),
        api_version=obj.api_version,
    )


def _read_coscheduling(obj: CustomObject) -> PodGroup:
    spec = _spec(obj)
    min_member = spec.positive("minMember")
    if min_member is None and not spec.causes:
        spec.bad("minMember", "", "how many members must fit at once: 1, 2, …")
    for key in other_systems.MORE_OF_GROUPS:
        if value := (obj.metadata.annotations or {}).get(key):
            spec.bad_value(f"annotation {key}", value, _NOT_READ)
    return _facts(obj, other_systems.COSCHEDULING, min_member, spec, queue=False)


def _read_volcano(obj: CustomObject) -> PodGroup:
    """Read Volcano's PodGroup. Its tasks are roles. Its topology and subgroups are refused, not dropped."""
    spec = _spec(obj)
    tasks = spec.part("minTaskMember")
    if len(tasks.names()) > MAX_TASKS:
        spec.bad("minTaskMember", f"{len(tasks.names())} tasks", f"at most {MAX_TASKS}")
    task_names = [name for name in tasks.names()[:MAX_TASKS] if NAME_PATTERN.fullmatch(name)]
    if len(task_names) < min(MAX_TASKS, len(tasks.names())):
        spec.bad("minTaskMember", tasks.names(), f"names of tasks: {A_NAME}")
    least = {name: tasks.natural(name) or 0 for name in task_names}
    topology = spec.part("networkTopology")
    if topology.names() and topology.raw("mode") != "soft":
        spec.bad("networkTopology", topology.raw("mode") or "hard", _NOT_READ)
    if spec.raw("subGroupPolicy") is not None:
        spec.bad("subGroupPolicy", spec.raw("subGroupPolicy"), _NOT_READ)
    min_member = max(1, spec.natural("minMember") or 0, sum(least.values()))
    problems = (_SOFT,) if topology.raw("mode") == "soft" else ()
    return replace(_facts(obj, other_systems.VOLCANO, min_member, spec), role_min=least, problems=problems)


def _read_policy(spec: Fields) -> tuple[str | None, tuple[SelectorTerm, ...]]:
    """Return the required scope and the node terms of `topologyPolicy`. Only our API has this field, so an
    unknown field in it is a cause: it would have no effect."""
    policy = spec.part("topologyPolicy")
    policy.note_unknown("scope", "affinity")
    scope = policy.text_matching("scope", LABEL_KEY, A_SCOPE)
    affinity = policy.part("affinity")
    affinity.note_unknown("required")
    items = affinity.objects_in("required", MAX_TERMS)
    terms = (_read_term(item) for item in items)
    return scope, tuple(term for term in terms if term is not None)


def _read_term(item: Fields) -> SelectorTerm | None:
    item.note_unknown("key", "operator", "values")
    key = item.text_matching("key", LABEL_KEY, "a label key of nodes", required=True)
    operator = item.text("operator", required=True)
    if operator is not None and operator not in _VALUES_OF:
        item.bad("operator", operator, f"one of {', '.join(_VALUES_OF)}")
        return None
    values = item.texts("values", MAX_VALUES)
    if key is None or operator is None or values is None:
        return None
    if not _values_suit(operator, values):
        item.bad("values", ", ".join(values), f"{_VALUES_OF[operator]}, as {operator} wants")
        return None
    return SelectorTerm(key, operator, values)


def _values_suit(operator: str, values: tuple[str, ...]) -> bool:
    match operator:
        case "In" | "NotIn":
            return bool(values) and all(map(_LABEL_VALUE.fullmatch, values))
        case "Exists" | "DoesNotExist":
            return not values
        case _:
            return len(values) == 1 and _INTEGER.fullmatch(values[0]) is not None


def _read_status(value: object) -> PodGroupStatus | None:
    """Return the status that we wrote before; None if another writer wrote it."""
    try:
        return msgspec.convert(value, PodGroupStatus)
    except msgspec.ValidationError:
        return None
