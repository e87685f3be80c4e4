"""Ask a cluster for the facts. A part that may not be read is named, and the other parts are read."""

from __future__ import annotations

import asyncio
import json
import re
from collections import Counter
from collections.abc import AsyncIterator, Callable
from datetime import UTC, datetime
from typing import Any

from muster.adapters.kube import decode
from muster.adapters.kube.client import ApiError, KubeClient
from muster.adapters.kube.decode import Resource, T
from muster.adapters.kube.nodes import is_ready_agent
from muster.adapters.preflight.checks import (
    EXEMPT,
    GATED,
    LABEL_GUARD,
    NEEDED_RESOURCES,
    OTHER_SCHEDULERS,
    POD_GROUPS,
    ROLE_BINDINGS,
)
from muster.adapters.preflight.facts import (
    INSTALLER,
    SCHEDULER,
    SERVICE,
    Clock,
    Facts,
    NamespaceFacts,
    NodeFacts,
    Right,
    rights,
)
from muster.dialects.devices.offers import NodeOffer
from muster.dialects.devices.resource_slices import ResourceSlices
from muster.dialects.nodes import nodes as node_dialect
from muster.dialects.objects import NodeObject, PodObject
from muster.dialects.settings import DEFAULTS, DialectSettings
from muster.domain import exactness
from muster.domain.node import GPU_MEM

ACCOUNT = "system:serviceaccount:muster-system:muster"
GROUPS = ("system:serviceaccounts", "system:serviceaccounts:muster-system", "system:authenticated")
NAMESPACE = "/api/v1/namespaces/muster-system"
ADMISSION = "/apis/admissionregistration.k8s.io/v1"
REVIEWS_AT_ONCE = 8
PAGE_SIZE = 500
GPU_RESOURCES = frozenset({*DEFAULTS.gpu_resources, GPU_MEM})
AGENTS = "muster-nodes"
POLICIES = f"{ADMISSION}/validatingadmissionpolicies"
BINDINGS = f"{ADMISSION}/validatingadmissionpolicybindings"
ALLOCATIONS, DRA_GUARD = "muster-allocations", "muster-dra-guard"
QUOTED = re.compile(r"'([^']+)'|\"([^\"]+)\"")
GPU_DRIVER = re.compile(r"gpu|nvidia|amd\.com")
ENDED = {"Succeeded", "Failed"}


class Reader:
    """Reads one cluster, and notes the parts that it may not read."""

    def __init__(self, client: KubeClient) -> None:
        self._client = client
        self._unread: list[str] = []

    async def facts(self) -> Facts:
        """Return all facts.

        Raises:
            KubeError: the API server does not answer, or not even its version may be asked.
        """
        version = json.loads(await self._client.get("version", "/version"))["gitVersion"]
        served = await self._read_groups()
        installed = await self._exists("serviceaccounts", f"{NAMESPACE}/serviceaccounts/muster")
        clock = await self._clock()
        published = await self._devices(served)
        nodes = await self._list_all(decode.NODES)
        believed = await self._exists("validatingadmissionpolicies", f"{POLICIES}/muster-node-agent")
        settings = DialectSettings(node_agents=AGENTS if believed else "")
        pods = await self._list_all(
            decode.pods(), lambda pod: _has_gpus(pod) or is_ready_agent(pod, settings)
        )
        agents = {pod.spec.node_name for pod in pods if is_ready_agent(pod, settings)}
        return Facts(
            version=version,
            served=served,
            installed=installed,
            missing_rights=await self._missing_rights(installed),
            policy=await self._exists("validatingadmissionpolicies", f"{POLICIES}/{ALLOCATIONS}"),
            policy_bound=await self._exists("validatingadmissionpolicybindings", f"{BINDINGS}/{ALLOCATIONS}"),
            guarded_drivers=await self._guarded_drivers(),
            nodes=tuple(
                _node(node, published.offer(node.metadata.name), node.metadata.name in agents)
                for node in nodes
            ),
            gpu_drivers=frozenset(driver for driver in published.drivers if GPU_DRIVER.search(driver)),
            gpu_pods=Counter(
                pod.spec.scheduler_name or "default-scheduler" for pod in pods if _has_gpus(pod)
            ),
            clock=clock,
            leases_ahead=await self._leases_ahead(clock),
            namespaces={name: namespace async for name, namespace in self._namespaces()},
            exempt=await self._exempt(),
            labels_guarded=await self._exists(
                "validatingadmissionpolicybindings", f"{BINDINGS}/{LABEL_GUARD}"
            ),
            unread=tuple(dict.fromkeys(self._unread)),
        )

    async def _read_groups(self) -> dict[str, frozenset[str]]:
        listed = json.loads(await self._client.get("the API groups", "/apis"))["groups"]
        served_groups = {"v1"} | {
            version["groupVersion"] for group in listed for version in group["versions"]
        }
        relevant_groups = {*NEEDED_RESOURCES, *POD_GROUPS, *OTHER_SCHEDULERS, *(group for group, _ in GATED)}
        resources_by_group = {}
        for group in sorted(relevant_groups & served_groups):
            path = "/api/v1" if group == "v1" else f"/apis/{group}"
            resources = json.loads(await self._client.get(group, path))["resources"]
            resources_by_group[group] = frozenset(resource["name"] for resource in resources)
        return resources_by_group

    async def _guarded_drivers(self) -> frozenset[str]:
        """Return the drivers that the policy dra-guard names; none if it has no binding."""
        policy = await self._read("validatingadmissionpolicies", f"{POLICIES}/{DRA_GUARD}")
        bound = await self._exists("validatingadmissionpolicybindings", f"{BINDINGS}/{DRA_GUARD}")
        if policy is None or not bound:
            return frozenset()
        variables = {
            variable["name"]: variable["expression"] for variable in policy["spec"].get("variables") or ()
        }
        quoted = QUOTED.findall(variables.get("drivers", ""))
        return frozenset(single or double for single, double in quoted)

    async def _namespaces(self) -> AsyncIterator[tuple[str, NamespaceFacts]]:
        """Yield the namespaces of Muster that exist."""
        for name, muster_bindings in ROLE_BINDINGS.items():
            if (namespace := await self._read("namespaces", f"/api/v1/namespaces/{name}")) is None:
                continue
            path = f"/apis/rbac.authorization.k8s.io/v1/namespaces/{name}/rolebindings"
            bindings = await self._read("rolebindings", path) or {"items": []}
            foreign_bindings = {
                binding["metadata"]["name"] for binding in bindings["items"]
            } - muster_bindings
            level = (namespace["metadata"].get("labels") or {}).get("pod-security.kubernetes.io/enforce")
            yield name, NamespaceFacts(level == "restricted", tuple(sorted(foreign_bindings)))

    async def _exempt(self) -> tuple[str, ...]:
        """Return the namespaces whose pods may name GPUs."""
        labelled = await self._read("namespaces", "/api/v1/namespaces", {"labelSelector": EXEMPT})
        return tuple(item["metadata"]["name"] for item in (labelled or {"items": []})["items"])

    async def _exists(self, resource: str, path: str) -> bool:
        return await self._read(resource, path) is not None

    async def _read(self, resource: str, path: str, query: dict[str, str] | None = None) -> Any:
        """Return an object; None if it does not exist or may not be read."""
        try:
            return json.loads(await self._client.get(resource, path, query))
        except ApiError as refusal:
            if refusal.status != 404:
                self._unread.append(resource)
            return None

    async def _list_all(self, resource: Resource[T], keep: Callable[[T], bool] = lambda _: True) -> list[T]:
        items: list[T] = []
        token = ""
        while True:
            query = {"limit": str(PAGE_SIZE)} | ({"continue": token} if token else {})
            try:
                page = resource.page(await self._client.get(resource.plural, resource.paths[0], query))
            except ApiError:
                self._unread.append(resource.plural)
                return items
            items += filter(keep, page.items)
            if not (token := page.token):
                return items

    async def _missing_rights(self, installed: bool) -> frozenset[Right] | None:
        needed_rights = rights(SERVICE) | rights(SCHEDULER) if installed else rights(INSTALLER)
        gate = asyncio.Semaphore(REVIEWS_AT_ONCE)

        async def ask_right(right: Right) -> bool:
            async with gate:
                return await self._is_allowed(right, installed)

        try:
            answers = await asyncio.gather(*map(ask_right, sorted(needed_rights)))
        except ApiError:
            return None
        return frozenset(right for right, yes in zip(sorted(needed_rights), answers, strict=True) if not yes)

    async def _is_allowed(self, right: Right, installed: bool) -> bool:
        group, resource, verb = right
        plain, _, subresource = resource.partition("/")
        attributes = {"group": group, "resource": plain, "subresource": subresource, "verb": verb}
        spec: dict[str, Any] = {"resourceAttributes": attributes}
        kind = "SubjectAccessReview" if installed else "SelfSubjectAccessReview"
        if installed:
            spec |= {"user": ACCOUNT, "groups": list(GROUPS)}
        body = {"apiVersion": "authorization.k8s.io/v1", "kind": kind, "spec": spec}
        path = f"/apis/authorization.k8s.io/v1/{kind.lower()}s"
        answer = json.loads(await self._client.post(kind, path, body))
        return bool(answer["status"].get("allowed"))

    async def _devices(self, served: dict[str, frozenset[str]]) -> ResourceSlices:
        """Return the objects that DRA drivers publish."""
        slices = ResourceSlices(DEFAULTS)
        if "resourceslices" in served.get("resource.k8s.io/v1", frozenset()):
            for resource_slice in await self._list_all(decode.RESOURCE_SLICES):
                slices.see_slice(resource_slice.metadata.name, resource_slice)
            for device_class in await self._list_all(decode.DEVICE_CLASSES):
                slices.see_class(device_class.metadata.name, device_class)
        return slices

    async def _clock(self) -> Clock | None:
        """Ask the API server for its clock, by a dry run that creates an object with a time."""
        body = {"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview"}
        sent_at = datetime.now(UTC)
        try:
            path = f"/apis/{body['apiVersion']}/selfsubjectreviews"
            answer = json.loads(await self._client.post(body["kind"], path, body))
        except ApiError:
            return None
        answered_at, timestamp = datetime.now(UTC), answer["metadata"].get("creationTimestamp")
        if not timestamp:
            return None
        theirs = _time(timestamp)  # whole seconds, rounded down
        return Clock((theirs - answered_at).total_seconds(), (theirs - sent_at).total_seconds() + 1)

    async def _leases_ahead(self, clock: Clock | None) -> dict[str, float]:
        """Return node → seconds by which it renews its lease in the API server's future.

        A node clock that is behind looks like a late renewal, so it is not found here.
        """
        path = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases"
        leases = await self._read("leases of nodes", path, {"limit": str(PAGE_SIZE)})
        if clock is None or leases is None:
            return {}
        now = datetime.now(UTC)
        ahead = {}
        for lease in leases["items"]:
            renewed = (lease.get("spec") or {}).get("renewTime")
            if renewed:
                ahead[lease["metadata"]["name"]] = (_time(renewed) - now).total_seconds() - clock.at_most_s
        return {name: seconds for name, seconds in ahead.items() if seconds > 0}


def _time(text: str) -> datetime:
    return datetime.fromisoformat(text.replace("Z", "+00:00"))


def _node(obj: NodeObject, offer: NodeOffer, agent: bool) -> NodeFacts:
    node = node_dialect.read(obj, offer=offer, agent=agent)
    offered = obj.status.allocatable or {}
    gpus = {
        name: int(str(offered[name]))
        for name in sorted(GPU_RESOURCES & {*offered})
        if str(offered[name]).isdigit()
    }
    if node.devices:
        gpus |= dict.fromkeys(sorted(offer.resources), len(offer.devices))
    return NodeFacts(
        name=obj.metadata.name,
        gpus={name: count for name, count in gpus.items() if count},
        labels=dict(node.labels),
        links_known=node.topology.is_known,
        drivers=frozenset(device.driver for device in node.devices if device is not None),
        not_exact=exactness.why_not(node),
    )


def _has_gpus(pod: PodObject) -> bool:
    containers = [*(pod.spec.containers or ()), *(pod.spec.init_containers or ())]
    resources = {
        name for container in containers if container.resources for name in (container.resources.limits or {})
    }
    return bool(resources & GPU_RESOURCES) and pod.status.phase not in ENDED
