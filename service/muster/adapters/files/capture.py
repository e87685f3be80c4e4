"""Capture a live cluster as one file, on which `muster place` decides as the service would.

Objects are read as the service reads them, and only what it reads is written. So the file has no environment,
no images, no secrets, and only ConfigMaps about GPUs or policies. Of the labels and annotations of pods, it
has the known ones and the labels by which other pods select. Of the jobs, it has those whose pods wait.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import msgspec
import yaml

from muster.adapters.files import shapes
from muster.adapters.kube import decode, devices
from muster.adapters.kube.client import ApiError, KubeClient
from muster.adapters.kube.decode import Resource, T
from muster.dialects.devices import compute_domains
from muster.dialects.devices.objects import (
    ClaimSpec,
    DeviceClassObject,
    DeviceTaintRule,
    ResourceClaim,
    ResourceClaimTemplate,
    ResourceSlice,
)
from muster.dialects.gangs import kai, misspelt, other_systems, ranks
from muster.dialects.jobs.pruned import pruned, words
from muster.dialects.kinds.table import KINDS, MEMBER_KEYS, member
from muster.dialects.nodes import configmaps
from muster.dialects.objects import (
    ConfigMapObject,
    CustomObject,
    Metadata,
    NamespaceObject,
    NodeObject,
    PodObject,
)
from muster.dialects.pods import bounds, peers
from muster.dialects.pods.pods import TEMPLATE_HASH
from muster.dialects.settings import DEFAULTS, Settings

DeviceObject = ResourceSlice | DeviceClassObject | DeviceTaintRule | ResourceClaim | ResourceClaimTemplate
Key = tuple[str, str, str]
"""Kind, namespace, name of a job."""

PAGE_SIZE = 500
ATTEMPTS = 3
"""How often a list is begun. The token of its next page may expire in between."""
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
    *other_systems.places(),
    *ranks.KEYS,
    *MEMBER_KEYS,
    TEMPLATE_HASH,
    bounds.MIRROR,
)
"""Labels and annotations of pods, and annotations of nodes, that dialects read.

Others may hold anything: kubectl's last-applied-configuration holds the whole manifest.
"""

APP_KEYS, APP_PREFIX = frozenset({"app", "k8s-app"}), "app.kubernetes.io/"
"""Labels of pods that most selectors use, also the selectors of manifests that are given next to the
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
"""The fields of the spec of a PodGroup or Topology that are read."""


def _for_new_pods(api: str, kind: str, plural: str, shape: type[T]) -> tuple[str, Resource[T]]:
    path = f"/{'apis' if '/' in api else 'api'}/{api}/{plural}"
    return api, Resource(kind, plural, (path,), shape, lambda metadata: metadata.name)


FOR_NEW_PODS: tuple[tuple[str, Resource[Any]], ...] = (
    _for_new_pods("scheduling.k8s.io/v1", "PriorityClass", "priorityclasses", shapes.PriorityClass),
    _for_new_pods("node.k8s.io/v1", "RuntimeClass", "runtimeclasses", shapes.RuntimeClass),
    _for_new_pods("v1", "LimitRange", "limitranges", shapes.LimitRange),
)
"""Objects that the API server applies to new pods, each with its API version. A job that is given next to the
capture makes such pods.
"""


@dataclass(frozen=True, slots=True)
class Captured:
    """The objects of a List, how many nodes and pods are among them, and what could not be read."""

    items: tuple[dict[str, Any], ...]
    nodes: int
    pods: int
    problems: tuple[str, ...]


async def capture(client: KubeClient, settings: Settings = DEFAULTS) -> Captured:
    """Read nodes, pods and what completes them, page by page. What must not be read of the latter is left
    out.

    Raises:
        KubeError: The API server refuses or does not answer.
        Undecodable: Its answer is no list.
    """
    problems: list[str] = []
    nodes = await _list(client, decode.nodes(), problems)
    pods = await _list(client, decode.pods(), problems)
    keys, namespace_keys = _selector_keys(pods)
    items = [
        *[item async for item in _around(client, settings, problems)],
        *[item async for item in _namespaces(client, namespace_keys, problems)],
        *[item async for item in _jobs(client, pods, problems)],
        *[item async for item in _devices(client, problems)],
        *(node_item(node, settings) for node in nodes),
        *(pod_item(pod, settings, keys) for pod in pods),
    ]
    return Captured(tuple(items), len(nodes), len(pods), tuple(problems))


def _selector_keys(pods: Iterable[PodObject]) -> tuple[frozenset[str], frozenset[str]]:
    """Return the label keys of pods, and of namespaces, by which any of these pods selects others."""
    selector_keys = [peers.selector_keys(pod.spec) for pod in pods]
    return frozenset().union(*(keys for keys, _ in selector_keys)), frozenset().union(
        *(keys for _, keys in selector_keys)
    )


async def _namespaces(
    client: KubeClient, keys: frozenset[str], problems: list[str]
) -> AsyncIterator[dict[str, Any]]:
    """Yield the namespaces, if any pod selects pods by their namespace's labels."""
    for namespace in await _listed_if_there(client, decode.namespaces(), problems) if keys else ():
        labels = {key: value for key, value in (namespace.metadata.labels or {}).items() if key in keys}
        yield _item("Namespace", NamespaceObject(Metadata(name=namespace.metadata.name, labels=labels)))


async def _around(
    client: KubeClient, settings: Settings, problems: list[str]
) -> AsyncIterator[dict[str, Any]]:
    places = {settings.policies_namespace: settings.policies_name, settings.system_namespace: ""}
    for place in places.items():
        for config_map in await _listed_if_there(client, decode.config_maps(*place), problems):
            if configmaps.read(config_map, settings) is not None:
                yield config_map_item(config_map, settings)
    for resource in (decode.topologies(), *decode.pod_groups()):
        for item in await _listed_if_there(client, resource, problems):
            yield custom_item(resource.kind, item)
    for api, of_admission in FOR_NEW_PODS:
        for item in await _listed_if_there(client, of_admission, problems):
            meta = Metadata(item.metadata.name, namespace=item.metadata.namespace)
            fields = msgspec.to_builtins(msgspec.structs.replace(item, metadata=meta))
            yield {"apiVersion": api, "kind": of_admission.kind, **fields}


async def _jobs(
    client: KubeClient, pods: Iterable[PodObject], problems: list[str]
) -> AsyncIterator[dict[str, Any]]:
    """Yield the jobs whose pods wait, and the metadata of what made these jobs.

    A kind is only listed if a pod that waits, or a job of such a pod, names an object of it.
    """
    jobs, makers = set[Key](), set[Key]()
    for pod in pods:
        waits = not pod.spec.node_name and pod.status.phase not in ("Succeeded", "Failed")
        if waits and (place := member(pod.metadata)) is not None:
            jobs.add((place.kind, pod.metadata.namespace, place.owner))
    for kind, of_kind in KINDS.items():
        for job in await _list_named(client, decode.jobs(kind), jobs, problems):
            pruned_job = pruned(of_kind, job)
            owners = [owner for owner in job.metadata.owner_references or () if owner.controller]
            makers |= {
                (owner.kind, job.metadata.namespace, owner.name)
                for owner in owners
                if owner.kind in of_kind.made_by
            }
            meta = msgspec.structs.replace(pruned_job.metadata, owner_references=owners or None)
            yield _custom(kind, msgspec.structs.replace(pruned_job, metadata=meta))
    for kind in sorted({kind for kind, _, _ in makers}):
        for maker in await _list_named(client, decode.makers(kind), makers, problems):
            meta = Metadata(
                maker.metadata.name,
                namespace=maker.metadata.namespace,
                uid=maker.metadata.uid,
                labels=words(maker.metadata.labels),
                annotations=words(maker.metadata.annotations),
            )
            yield _custom(kind, CustomObject(maker.api_version, meta))


async def _devices(client: KubeClient, problems: list[str]) -> AsyncIterator[dict[str, Any]]:
    """Yield what DRA drivers publish, and the claims to devices."""
    for published in await _listed_if_there(client, devices.resource_slices(), problems):
        yield device_item("ResourceSlice", published)
    for of_class in await _listed_if_there(client, devices.device_classes(), problems):
        yield device_item("DeviceClass", of_class)
    for rule in await _listed_if_there(client, devices.device_taint_rules(), problems):
        yield device_item("DeviceTaintRule", rule)
    for claim in await _listed_if_there(client, devices.resource_claims(), problems):
        yield device_item("ResourceClaim", msgspec.structs.replace(claim, spec=_without_config(claim.spec)))
    for template in await _listed_if_there(client, devices.resource_claim_templates(), problems):
        spec = msgspec.structs.replace(template.spec, spec=_without_config(template.spec.spec))
        yield device_item("ResourceClaimTemplate", msgspec.structs.replace(template, spec=spec))


async def _list_named(
    client: KubeClient, resource: Resource[CustomObject], names: set[Key], problems: list[str]
) -> list[CustomObject]:
    """Return the objects of this kind that are named; if none is named, nothing is listed."""
    if not any(kind == resource.kind for kind, _, _ in names):
        return []

    def is_named(item: CustomObject) -> bool:
        return (resource.kind, item.metadata.namespace, item.metadata.name) in names

    return await _listed_if_there(client, resource, problems, is_named)


async def _listed_if_there(
    client: KubeClient,
    resource: Resource[T],
    problems: list[str],
    keep: Callable[[T], bool] = lambda _: True,
) -> list[T]:
    for path in resource.paths:
        try:
            return await _list(client, resource, problems, path, keep)
        except ApiError as refusal:
            if refusal.status == HTTP_FORBIDDEN:
                problem = f"{refusal}: left out"
                problems.extend([problem] if problem not in problems else [])  # each version is refused
            elif refusal.status != HTTP_NOT_FOUND:
                raise
    return []


async def _list(
    client: KubeClient,
    resource: Resource[T],
    problems: list[str],
    path: str = "",
    keep: Callable[[T], bool] = lambda _: True,
) -> list[T]:
    """Return the items that `keep` holds for. The others are dropped page by page, and take no memory."""
    for attempt in range(1, ATTEMPTS + 1):
        unreadable: list[str] = []
        try:
            pages = _items(client, resource, path or resource.paths[0], unreadable)
            items = [item async for item in pages if keep(item)]
        except ApiError as refusal:
            if refusal.status != HTTP_GONE or attempt == ATTEMPTS:
                raise
        else:
            problems.extend(unreadable)
            return items
    raise AssertionError("the last attempt returns or raises")


async def _items(
    client: KubeClient, resource: Resource[T], path: str, problems: list[str]
) -> AsyncIterator[T]:
    token = ""
    while True:
        query = {**resource.select, "limit": str(PAGE_SIZE)} | ({"continue": token} if token else {})
        page = resource.page(await client.get(resource.plural, path, query))
        problems.extend(str(problem) for problem in page.unreadable)
        for item in page.items:
            yield item
        token = page.token
        if not token:
            return


# --- what is written -------------------------------------------------------------------------------


def node_item(node: NodeObject, settings: Settings = DEFAULTS) -> dict[str, Any]:
    """Return a node as an API object, with all its labels, because selectors and scopes may name any."""
    meta = _metadata(node.metadata, node.metadata.labels, settings)
    return _item("Node", msgspec.structs.replace(node, metadata=meta))


def pod_item(
    pod: PodObject, settings: Settings = DEFAULTS, keys: frozenset[str] = frozenset()
) -> dict[str, Any]:
    """Return a pod as an API object. `keys` are the label keys by which other pods select."""
    selected = {
        key: value
        for key, value in (pod.metadata.labels or {}).items()
        if key in keys or key in APP_KEYS or key.startswith(APP_PREFIX)
    }
    labels = (selected | (_keep_read(pod.metadata.labels, settings) or {})) or None
    owners = [owner for owner in pod.metadata.owner_references or () if owner.controller]
    meta = _metadata(pod.metadata, labels, settings)
    meta = msgspec.structs.replace(meta, owner_references=owners or None)
    return _item("Pod", msgspec.structs.replace(pod, metadata=meta))


def config_map_item(config_map: ConfigMapObject, settings: Settings = DEFAULTS) -> dict[str, Any]:
    """Return the part of a ConfigMap that is read, as an API object."""
    label_keys = {settings.ack_node_mode, settings.ack_node_name}
    labels = {key: value for key, value in (config_map.metadata.labels or {}).items() if key in label_keys}
    data_keys = {configmaps.DEVICES, configmaps.LINKS, configmaps.BANDWIDTH, configmaps.UNHEALTHY}
    data = {
        key: value
        for key, value in (config_map.data or {}).items()
        if key in data_keys | {settings.policies_key}
    }
    meta = _metadata(config_map.metadata, labels or None, settings)
    return _item("ConfigMap", msgspec.structs.replace(config_map, metadata=meta, data=data))


def device_item(kind: str, item: DeviceObject) -> dict[str, Any]:
    """Return an object of resource.k8s.io as an API object."""
    owners = [owner for owner in item.metadata.owner_references or () if owner.controller] or None
    annotations = {
        key: value for key, value in (item.metadata.annotations or {}).items() if key == devices.EXTENDED
    }
    meta = msgspec.structs.replace(
        item.metadata,
        resource_version="",
        labels=None,
        annotations=annotations or None,
        owner_references=owners,
    )
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": kind,
        **msgspec.to_builtins(msgspec.structs.replace(item, metadata=meta)),
    }


def _without_config(spec: ClaimSpec) -> ClaimSpec:
    """Return the spec without what drivers are told, except the ComputeDomain of a channel."""
    uid = compute_domains.domain_of(spec)
    config = compute_domains.channel(uid).devices.config if uid else None
    return msgspec.structs.replace(spec, devices=msgspec.structs.replace(spec.devices, config=config))


def custom_item(kind: str, item: CustomObject) -> dict[str, Any]:
    """Return a PodGroup or a Topology as an API object."""
    spec = item.spec
    if isinstance(spec, dict):
        spec = {field: value for field, value in spec.items() if field in KEPT_SPEC}
    annotations = item.metadata.annotations or {}
    more = {key: annotations[key] for key in other_systems.MORE_OF_GROUPS if key in annotations}
    meta = msgspec.structs.replace(
        item.metadata, resource_version="", labels=None, annotations=more or None, owner_references=None
    )
    return _custom(kind, msgspec.structs.replace(item, metadata=meta, spec=spec, status=None))


def _metadata(meta: Metadata, labels: dict[str, str] | None, settings: Settings) -> Metadata:
    return msgspec.structs.replace(
        meta, resource_version="", labels=labels, annotations=_keep_read(meta.annotations, settings)
    )


def _keep_read(values: Mapping[str, str] | None, settings: Settings) -> dict[str, str] | None:
    keys_read = {settings.matrix, settings.ack_name, settings.ack_replicas, settings.ack_node_mode}
    values_read = {
        key: value
        for key, value in (values or {}).items()
        if key in keys_read or key.startswith(KEPT_PREFIXES) or misspelt.meant(key, settings)
    }
    return values_read or None


def _custom(kind: str, item: CustomObject) -> dict[str, Any]:
    return {"apiVersion": item.api_version, "kind": kind, **msgspec.to_builtins(item)}


def _item(kind: str, value: NodeObject | PodObject | ConfigMapObject | NamespaceObject) -> dict[str, Any]:
    return {"apiVersion": "v1", "kind": kind, **msgspec.to_builtins(value)}


def text_of(items: Iterable[dict[str, Any]], as_yaml: bool) -> str:
    """Return one `kind: List`: an object in each line of JSON, or ordinary YAML."""
    if as_yaml:
        whole = {"apiVersion": "v1", "kind": "List", "items": list(items)}
        dumper = getattr(yaml, "CSafeDumper", yaml.SafeDumper)
        return str(yaml.dump(whole, Dumper=dumper, sort_keys=False, width=1_000_000))
    return '{"apiVersion":"v1","kind":"List","items":[\n' + ",\n".join(_lines(items)) + "\n]}\n"


def _lines(items: Iterable[dict[str, Any]]) -> Iterator[str]:
    return (json.dumps(item, separators=(",", ":"), ensure_ascii=False) for item in items)
