"""Capture a live cluster as one file, on which `muster place` decides as the service would.

Objects are read as the service reads them, and only the parts that it reads are written. So the file has no
environment, no images, no secrets, and only ConfigMaps about GPUs or policies. It has the known labels and
annotations of pods, and the labels by which other pods select. It has only jobs whose pods wait.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import msgspec
import yaml
from msgspec.structs import replace

from muster.adapters.files.reading.admission import FOR_NEW_PODS
from muster.adapters.kube import decode, devices
from muster.adapters.kube.client import ApiError, KubeClient
from muster.adapters.kube.decode import Resource, T
from muster.dialects.devices import compute_domains
from muster.dialects.devices.objects import (
    DeviceClassObject,
    DeviceTaintRule,
    ResourceClaim,
    ResourceClaimSpec,
    ResourceClaimTemplate,
    ResourceSlice,
)
from muster.dialects.gangs import kai, misspelt, native, other_systems, own, ranks
from muster.dialects.jobs.pruned import prune, words
from muster.dialects.keys import ACK_NAME, ACK_NODE_MODE, ACK_NODE_NAME, ACK_REPLICAS, MATRIX, MIRROR
from muster.dialects.kinds.table import KINDS, MEMBER_KEYS, member
from muster.dialects.nodes import configmaps
from muster.dialects.objects import (
    ConfigMapObject,
    CustomObject,
    Metadata,
    NodeObject,
    OwnerReference,
    PodDisruptionBudget,
    PodObject,
)
from muster.dialects.pods import peers
from muster.dialects.pods.pods import TEMPLATE_HASH
from muster.dialects.settings import DEFAULTS, DialectSettings
from muster.domain.words import counted_noun

DeviceObject = ResourceSlice | DeviceClassObject | DeviceTaintRule | ResourceClaim | ResourceClaimTemplate
V = TypeVar("V")
Key = tuple[str, str, str]
"""Kind, namespace, name of a job."""

PAGE_SIZE = 500
ATTEMPTS = 3
"""Largest number of tries of a list, because the token of its next page may expire in between."""
HTTP_FORBIDDEN, HTTP_NOT_FOUND, HTTP_GONE = 403, 404, 410

KEPT_PREFIXES = (
    "gpu.topology/",
    "NODE_TYPE",
    "gpu-topology",
    "scheduling.run.ai/",
    "scheduling.x-k8s.io/",
    "aliyun.com/",
    "nvidia.com/",
    "ALIYUN_COM_GPU_",
    "scheduler.framework.gpushare.",
    *kai.GANG_KEYS,
    kai.SUBGROUP,
    kai.PREEMPTIBILITY,
    *other_systems.places(),
    *ranks.KEYS,
    *MEMBER_KEYS,
    TEMPLATE_HASH,
    MIRROR,
)
"""Labels and annotations of pods, and annotations of nodes, that dialects read.

Other keys may hold any text: kubectl's last-applied-configuration holds the whole manifest.
"""

APP_KEYS, APP_PREFIX = frozenset({"app", "k8s-app"}), "app.kubernetes.io/"
"""Labels of pods that most selectors use, including selectors of manifests that are given next to the
capture."""

KEPT_SPEC = frozenset(
    {
        "minMember",
        "minSubGroup",
        "queue",
        "topologyPolicy",
        "topologyConstraint",
        "subGroups",
        "levels",
        "minTaskMember",
        "networkTopology",
        "subGroupPolicy",
    }
)
"""The fields of the spec of a Topology, or of a PodGroup, that are read. Kubernetes' own: `native.FIELDS`.
"""


@dataclass(frozen=True, slots=True)
class CapturedCluster:
    """The objects of a List, the number of nodes and pods among them, and the problems of reading."""

    items: tuple[dict[str, Any], ...]
    nodes: int
    pods: int
    problems: tuple[str, ...]


async def capture(client: KubeClient, settings: DialectSettings = DEFAULTS) -> CapturedCluster:
    """Read nodes, pods and the objects that complete them, page by page. Completing objects without read
    access are left out.

    Raises:
        KubeError: The API server refuses or does not answer.
        Undecodable: Its answer is no list.
    """
    lister = _Lister(client)
    nodes = await lister.list(decode.NODES)
    pods = await lister.list(decode.pods())
    unprotected = ". So `muster place` may name victims that a budget protects"
    budgets = await lister.list_if_served(decode.DISRUPTION_BUDGETS, effect=unprotected)
    keys, namespace_keys = _selector_keys(pods)
    keys |= {key for budget in budgets for key in peers.keys_of_selector(budget.spec.selector)}
    parts = (
        _completing_objects(lister, settings, pods),
        _namespaces(lister, namespace_keys),
        _jobs(lister, pods),
        _devices(lister),
    )
    items = [
        *[item for part in parts async for item in part],
        *map(budget_item, budgets),
        *(node_item(node) for node in nodes),
        *(pod_item(pod, keys) for pod in pods),
    ]
    return CapturedCluster(tuple(items), len(nodes), len(pods), tuple(lister.problems))


def _selector_keys(pods: Iterable[PodObject]) -> tuple[frozenset[str], frozenset[str]]:
    """Return the label keys of pods, and of namespaces, by which any of these pods selects others."""
    selector_keys = [peers.selector_keys(pod.spec) for pod in pods]
    keys_of_pods, keys_of_namespaces = zip(*selector_keys, strict=True) if selector_keys else ((), ())
    return frozenset().union(*keys_of_pods), frozenset().union(*keys_of_namespaces)


async def _namespaces(lister: _Lister, keys: frozenset[str]) -> AsyncIterator[dict[str, Any]]:
    """Yield the namespaces, if any pod selects pods by their namespace's labels."""
    for namespace in await lister.list_if_served(decode.NAMESPACES) if keys else ():
        labels = {key: value for key, value in (namespace.metadata.labels or {}).items() if key in keys}
        yield _item("v1", "Namespace", namespace, Metadata(namespace.metadata.name, labels=labels))


async def _completing_objects(
    lister: _Lister, settings: DialectSettings, pods: Sequence[PodObject]
) -> AsyncIterator[dict[str, Any]]:
    places = {settings.policies_namespace: settings.policies_name, settings.system_namespace: ""}
    for place in places.items():
        for config_map in await lister.list_if_served(decode.config_maps(*place)):
            if configmaps.read(config_map, settings) is not None:
                yield config_map_item(config_map, settings)
    members = sum(pod.spec.scheduling_group is not None and not pod.spec.node_name for pod in pods)
    effect = f". So `muster place` does not find the PodGroups of {counted_noun('waiting pod', members)}"
    for resource in (decode.TOPOLOGIES, *decode.pod_groups(), decode.COMPOSITE_POD_GROUPS):
        effect_of_resource = effect if resource.by_right and members else ""
        for item in await lister.list_if_served(resource, effect=effect_of_resource):
            yield custom_item(resource.kind, item)
    annotated = await lister.list_if_served(
        decode.WORKLOADS, lambda item: bool(own.annotations_of(item.metadata))
    )
    for workload in annotated:
        meta = Metadata(
            workload.metadata.name,
            namespace=workload.metadata.namespace,
            uid=workload.metadata.uid,
            annotations=own.annotations_of(workload.metadata),
        )
        yield _item(native.APIS[1], "Workload", workload, meta)
    for admission_kind in FOR_NEW_PODS:
        for item in await lister.list_if_served(admission_kind):
            meta = Metadata(item.metadata.name, namespace=item.metadata.namespace)
            yield _item(admission_kind.api_version, admission_kind.kind, item, meta)


async def _jobs(lister: _Lister, pods: Iterable[PodObject]) -> AsyncIterator[dict[str, Any]]:
    """Yield the jobs whose pods wait, and the metadata of the objects that made these jobs.

    A kind is only listed if a pod that waits, or a job of such a pod, names an object of it.
    """
    jobs, makers = set[Key](), set[Key]()
    for pod in pods:
        waits = not pod.spec.node_name and pod.status.phase not in ("Succeeded", "Failed")
        if waits and (place := member(pod.metadata)) is not None:
            jobs.add((place.kind, pod.metadata.namespace, place.owner))
    for kind, job_kind in KINDS.items():
        for job in await lister.objects_named(decode.jobs(kind), jobs):
            pruned_job, owners = prune(job_kind, job), _controllers(job.metadata)
            makers |= {
                (owner.kind, job.metadata.namespace, owner.name)
                for owner in owners or ()
                if owner.kind in job_kind.made_by
            }
            meta = replace(pruned_job.metadata, owner_references=owners)
            yield _item(job.api_version, kind, pruned_job, meta)
    for kind in sorted({kind for kind, _, _ in makers}):
        for maker in await lister.objects_named(decode.makers(kind), makers):
            meta = Metadata(
                maker.metadata.name,
                namespace=maker.metadata.namespace,
                uid=maker.metadata.uid,
                labels=words(maker.metadata.labels),
                annotations=words(maker.metadata.annotations),
            )
            yield _item(maker.api_version, kind, CustomObject(), meta)


async def _devices(lister: _Lister) -> AsyncIterator[dict[str, Any]]:
    """Yield the objects that DRA drivers publish, and the claims to devices."""
    resources: tuple[Resource[Any], ...] = (
        decode.RESOURCE_SLICES,
        decode.DEVICE_CLASSES,
        decode.DEVICE_TAINT_RULES,
        decode.RESOURCE_CLAIMS,
        decode.RESOURCE_CLAIM_TEMPLATES,
    )
    for resource in resources:
        for item in await lister.list_if_served(resource):
            yield device_item(resource.kind, item)


class _Lister:
    """Lists objects of a cluster, and collects problems of reading."""

    def __init__(self, client: KubeClient) -> None:
        self._client = client
        self.problems: list[str] = []

    async def objects_named(self, resource: Resource[CustomObject], names: set[Key]) -> list[CustomObject]:
        """Return the named objects of this kind. If `names` is empty, no list is made."""
        if not any(kind == resource.kind for kind, _, _ in names):
            return []

        def is_named(item: CustomObject) -> bool:
            return (resource.kind, item.metadata.namespace, item.metadata.name) in names

        return await self.list_if_served(resource, is_named)

    async def list_if_served(
        self, resource: Resource[T], keep: Callable[[T], bool] = lambda _: True, effect: str = ""
    ) -> list[T]:
        """Return the objects of a kind; [] if the API server does not serve the kind or refuses to list it.

        A refusal is a problem. `effect`: what it does to the capture.
        """
        for path in resource.paths:
            try:
                return await self.list(resource, path, keep)
            except ApiError as refusal:
                if refusal.status == HTTP_FORBIDDEN:
                    problem = f"{refusal}: left out{effect}"
                    if problem not in self.problems:  # each version is refused
                        self.problems.append(problem)
                elif refusal.status != HTTP_NOT_FOUND:
                    raise
        return []

    async def list(
        self, resource: Resource[T], path: str = "", keep: Callable[[T], bool] = lambda _: True
    ) -> list[T]:
        """Return the items for which `keep` is true. Other items are dropped page by page, and take no
        memory."""
        for attempt in range(1, ATTEMPTS + 1):
            items, unreadable, token = list[T](), list[str](), ""
            try:
                while True:
                    query = {**resource.select, "limit": str(PAGE_SIZE)}
                    query |= {"continue": token} if token else {}
                    body = await self._client.get(resource.plural, path or resource.paths[0], query)
                    page = resource.page(body)
                    unreadable += map(str, page.unreadable)
                    items += filter(keep, page.items)
                    if not (token := page.token):
                        self.problems += unreadable
                        return items
            except ApiError as refusal:
                if refusal.status != HTTP_GONE or attempt == ATTEMPTS:
                    raise
        raise AssertionError("the last attempt returns or raises")


# --- what is written -------------------------------------------------------------------------------


def node_item(node: NodeObject) -> dict[str, Any]:
    """Return a node as an API object, with all its labels, because selectors and scopes may name any."""
    return _item("v1", "Node", node, _metadata(node.metadata, node.metadata.labels))


def pod_item(pod: PodObject, keys: frozenset[str] = frozenset()) -> dict[str, Any]:
    """Return a pod as an API object. `keys` are the label keys by which other pods select."""
    selected = {
        key: value
        for key, value in (pod.metadata.labels or {}).items()
        if key in keys or key in APP_KEYS or key.startswith(APP_PREFIX)
    }
    labels = (selected | (_keep_read(pod.metadata.labels) or {})) or None
    meta = _metadata(pod.metadata, labels)
    return _item("v1", "Pod", pod, replace(meta, owner_references=_controllers(meta)))


def config_map_item(config_map: ConfigMapObject, settings: DialectSettings = DEFAULTS) -> dict[str, Any]:
    """Return the part of a ConfigMap that is read, as an API object."""
    data_keys = {configmaps.DEVICES, configmaps.LINKS, configmaps.BANDWIDTH, configmaps.UNHEALTHY}
    data = _select_keys(config_map.data, data_keys | {settings.policies_key})
    labels = _select_keys(config_map.metadata.labels, {ACK_NODE_MODE, ACK_NODE_NAME})
    meta = _metadata(config_map.metadata, labels or None)
    return _item("v1", "ConfigMap", replace(config_map, data=data), meta)


def device_item(kind: str, item: DeviceObject) -> dict[str, Any]:
    """Return an object of resource.k8s.io as an API object."""
    if isinstance(item, ResourceClaim):
        item = replace(item, spec=_without_config(item.spec))
    elif isinstance(item, ResourceClaimTemplate):
        item = replace(item, spec=replace(item.spec, spec=_without_config(item.spec.spec)))
    meta = replace(
        item.metadata,
        resource_version="",
        labels=None,
        annotations=_select_keys(item.metadata.annotations, {devices.EXTENDED}) or None,
        owner_references=_controllers(item.metadata),
    )
    return _item("resource.k8s.io/v1", kind, item, meta)


def _without_config(spec: ResourceClaimSpec) -> ResourceClaimSpec:
    """Return the spec without parameters for drivers, except the ComputeDomain of a channel."""
    uid = compute_domains.domain_of(spec)
    config = compute_domains.channel(uid).devices.config if uid else None
    return replace(spec, devices=replace(spec.devices, config=config))


def custom_item(kind: str, item: CustomObject) -> dict[str, Any]:
    """Return a PodGroup, a CompositePodGroup or a Topology as an API object."""
    kept_fields = native.FIELDS if item.api_version in native.APIS else KEPT_SPEC
    spec = _select_keys(item.spec, kept_fields) if isinstance(item.spec, dict) else item.spec
    of_others = _select_keys(item.metadata.annotations, other_systems.MORE_OF_GROUPS)
    annotations = (of_others | own.annotations_of(item.metadata)) or None
    meta = replace(
        item.metadata, resource_version="", labels=None, annotations=annotations, owner_references=None
    )
    return _item(item.api_version, kind, replace(item, spec=spec, status=None), meta)


def budget_item(budget: PodDisruptionBudget) -> dict[str, Any]:
    """Return a disruption budget as an API object."""
    meta = budget.metadata
    kept_meta = Metadata(meta.name, namespace=meta.namespace, generation=meta.generation)
    return _item("policy/v1", "PodDisruptionBudget", budget, kept_meta)


def _metadata(meta: Metadata, labels: dict[str, str] | None) -> Metadata:
    return replace(meta, resource_version="", labels=labels, annotations=_keep_read(meta.annotations))


def _controllers(meta: Metadata) -> list[OwnerReference] | None:
    return [owner for owner in meta.owner_references or () if owner.controller] or None


def _select_keys(values: Mapping[str, V] | None, keys: Container[str]) -> dict[str, V]:
    return {key: value for key, value in (values or {}).items() if key in keys}


def _keep_read(values: Mapping[str, str] | None) -> dict[str, str] | None:
    keys_read = {MATRIX, ACK_NAME, ACK_REPLICAS, ACK_NODE_MODE}
    values_read = {
        key: value
        for key, value in (values or {}).items()
        if key in keys_read or key.startswith(KEPT_PREFIXES) or misspelt.meant_key(key)
    }
    return values_read or None


def _item(api: str, kind: str, item: Any, metadata: Metadata) -> dict[str, Any]:
    """Return an object with these metadata as it is written."""
    return {"apiVersion": api, "kind": kind, **msgspec.to_builtins(replace(item, metadata=metadata))}


def text_of(items: Iterable[dict[str, Any]], as_yaml: bool) -> str:
    """Return one `kind: List`: an object in each line of JSON, or ordinary YAML."""
    if as_yaml:
        item_list = {"apiVersion": "v1", "kind": "List", "items": list(items)}
        dumper = getattr(yaml, "CSafeDumper", yaml.SafeDumper)
        return str(yaml.dump(item_list, Dumper=dumper, sort_keys=False, width=1_000_000))
    lines = (json.dumps(item, separators=(",", ":"), ensure_ascii=False) for item in items)
    return '{"apiVersion":"v1","kind":"List","items":[\n' + ",\n".join(lines) + "\n]}\n"
