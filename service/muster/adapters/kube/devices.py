"""Turn ResourceSlices, DeviceClasses and ResourceClaims from the watches into facts of nodes and into inputs.

Slices and classes are facts of nodes: when a node's offer changes, the node is read again. A claim becomes an
input for the gangs whenever its devices or its pods have changed.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import replace

from muster.adapters.kube.decode import full_name
from muster.adapters.kube.key_groups import KeyGroups
from muster.dialects.devices import shares
from muster.dialects.devices.claims import Claims
from muster.dialects.devices.objects import (
    DeviceClassObject,
    DeviceTaintRule,
    ResourceClaim,
    ResourceClaimSpec,
    ResourceSlice,
)
from muster.dialects.devices.resource_slices import ResourceSlices
from muster.dialects.devices.sharers import NewHolder, group_of
from muster.dialects.quantities import MAX_AMOUNT
from muster.dialects.settings import DialectSettings
from muster.domain.node import Device, DeviceClaim, Node
from muster.domain.pod import Pod
from muster.gangs.messages.inputs import DeviceClaimSeen, Input, NodeGone, NodeSeen, PodGone, PodSeen

OF_CLASS = "deviceclass.resource.kubernetes.io/"
"""Prefix of the extended resource that Kubernetes gives each DeviceClass. The name of the class follows."""
EXTENDED = "resource.kubernetes.io/extended-resource-claim"
"""An annotation of claims that Kubernetes makes for extended resources. No pod names such claims."""


class ServedResources:
    """Pass inputs on, with the extended resources that DeviceClasses add to nodes and pods.

    A DeviceClass may name such a resource, like `example.com/nic` for network cards, and each class has a
    resource by its own name. If a node's device plugin does not offer the resource, kube-scheduler allocates
    devices for it, and in-tree answers tell which nodes have enough. So each node gets plenty of the resource
    here, and the shim is asked about pods that request it. Classes of GPUs are left out, because their
    devices are planned.
    """

    def __init__(self, settings: DialectSettings, put: Callable[[Input], Awaitable[None]]) -> None:
        self._settings = settings
        self._pass_on = put
        self._served: dict[str, frozenset[str]] = {}
        """DeviceClass → its extended resources."""
        self._requested_resources: set[str] = set()
        """Resources that a waiting pod has requested. Nodes get no others, because most classes are only for
        claims."""
        self._nodes: dict[str, Node] = {}
        self._pods: dict[str, Pod] = {}
        """UID → waiting pod of a gang that requests other resources than GPUs, cpu and memory."""

    async def put(self, message: Input) -> None:
        """Pass an input on."""
        match message:
            case NodeSeen(now, node):
                self._nodes[node.name] = node
                message = NodeSeen(now, self._with_offers(node))
            case NodeGone(_, name):
                self._nodes.pop(name, None)
            case PodSeen(now, pod):
                self._pods.pop(pod.uid, None)
                if pod.claim is not None and pod.resources.others and not pod.node:
                    self._pods[pod.uid] = pod
                    message = PodSeen(now, self._with_device_claims(pod))
                    if new := (_others(pod) & self._resources) - self._requested_resources:
                        self._requested_resources |= new
                        await self._read_nodes()
            case PodGone(_, uid):
                self._pods.pop(uid, None)
        await self._pass_on(message)

    async def see_class(self, name: str, obj: DeviceClassObject | None) -> None:
        """Take in a DeviceClass, or None if it is gone."""
        old_resources = self._resources
        self._served[name] = self._resources_of(name, obj)
        if not self._served[name]:
            del self._served[name]
        changed = old_resources ^ self._resources
        if not changed:
            return
        asking_pods = {uid: pod for uid, pod in self._pods.items() if _others(pod) & changed}
        for uid, pod in asking_pods.items():
            if self._pods.get(uid) is pod:
                await self._pass_on(PodSeen(time.monotonic(), self._with_device_claims(pod)))
        old_requested, self._requested_resources = (
            self._requested_resources,
            self._requested_resources & self._resources,
        )
        for pod in asking_pods.values():
            self._requested_resources |= _others(pod) & self._resources
        if self._requested_resources != old_requested:
            await self._read_nodes()

    def _resources_of(self, name: str, obj: DeviceClassObject | None) -> frozenset[str]:
        extended = obj.spec.extended_resource_name or "" if obj is not None else ""
        if obj is None or (extended and not self._settings.is_other(extended)):
            return frozenset()
        return frozenset(filter(None, (extended, OF_CLASS + name)))

    @property
    def _resources(self) -> frozenset[str]:
        return frozenset[str]().union(*self._served.values())

    async def _read_nodes(self) -> None:
        for name in list(self._nodes):
            if (node := self._nodes.get(name)) is not None:
                await self._pass_on(NodeSeen(time.monotonic(), self._with_offers(node)))
                await asyncio.sleep(0)  # there may be thousands, and the shim's calls wait meanwhile

    def _with_offers(self, node: Node) -> Node:
        """Return the node with plenty of the resources that its device plugins do not offer."""
        plugin_amounts = dict(node.allocatable.others)
        added_resources = dict.fromkeys(
            self._requested_resources - {name for name, count in plugin_amounts.items() if count}, MAX_AMOUNT
        )
        if not added_resources:
            return node
        return replace(
            node,
            allocatable=replace(
                node.allocatable, others=tuple(sorted({**plugin_amounts, **added_resources}.items()))
            ),
        )

    def _with_device_claims(self, pod: Pod) -> Pod:
        """Return the pod, marked if drivers may have to serve its requests."""
        return replace(pod, device_claims=True) if _others(pod) & self._resources else pod


def _others(pod: Pod) -> set[str]:
    return {name for name, _ in pod.resources.others}


class DeviceIntake:
    """Takes in objects: `on_…` are the watches' sinks, and `put` takes the inputs. `read_again` is called
    with each node whose offer may have changed, and `read_pods_again` with each claim whose requests changed
    (None: any claim's may have)."""

    def __init__(
        self,
        settings: DialectSettings,
        put: Callable[[Input], Awaitable[None]],
        read_again: Callable[[str], Awaitable[None]],
        read_pods_again: Callable[[str | None], Awaitable[None]],
        served: ServedResources,
    ) -> None:
        self.slices = ResourceSlices(settings)
        self.claims = Claims(self.slices.resource_of, lambda: self.slices.roundings)
        self._put = put
        self._read_again = read_again
        self._read_pods_again = read_pods_again
        self._served = served
        self._uids = KeyGroups[str, str]()
        """UIDs of claims by their namespace and name. A claim may be deleted and made again under its name.
        """
        self._holding_claims: dict[str, DeviceClaim] = {}
        """UID of a claim → the devices that it holds."""

    async def on_slice(self, name: str, obj: ResourceSlice | None) -> None:
        """Take in a slice's change. Requests of pods grow if its devices have a new rounding."""
        old_roundings = self.slices.roundings
        await self._read_all(self.slices.see_slice(name, obj))
        if old_roundings != self.slices.roundings:
            await self._read_pods_again(None)

    async def on_class(self, name: str, obj: DeviceClassObject | None) -> None:
        """Take in a DeviceClass's change. Any node may offer its devices, and any claim may name it."""
        old_facts = self.slices.resource_of(name), self.slices.roundings
        await self._read_all(self.slices.see_class(name, obj))
        if (self.slices.resource_of(name), self.slices.roundings) != old_facts:
            await self._read_pods_again(None)
        await self._served.see_class(name, obj)

    async def on_rule(self, name: str, obj: DeviceTaintRule | None) -> None:
        """Take in a DeviceTaintRule's change, which decides whether the devices that it names are healthy."""
        await self._read_all(self.slices.see_rule(name, obj))

    async def _read_all(self, nodes: set[str]) -> None:
        for node in sorted(nodes):
            await self._read_again(node)
            await asyncio.sleep(0)  # there may be thousands, and the shim's calls wait meanwhile

    async def _see_requests(
        self,
        uid: str,
        name: str,
        spec: ResourceClaimSpec | None,
        *,
        unallocated: bool | None = None,
        group: str = "",
    ) -> None:
        """Take in a claim's requests, which count for the pods that name the claim."""
        if spec is not None:
            self._uids.put(uid, name)
        elif not name or name in self._uids.groups:
            return  # no pod names it, or a new claim has its name
        if self.claims.see(name, spec, unallocated=unallocated, group=group):
            await self._read_pods_again(name)

    async def on_claim(self, uid: str, obj: ResourceClaim | None) -> None:
        """Take in a claim's change, and pass it on if its devices or its pods changed."""
        if obj is None:
            await self._see_requests(uid, self._uids.put(uid, None) or "", None)
        elif (obj.metadata.annotations or {}).get(EXTENDED) != "true":
            await self._see_requests(
                uid,
                full_name(obj.metadata),
                obj.spec,
                unallocated=is_unallocated(obj),
                group=group_of(obj),
            )
        if obj is None:
            await self._pass_on(DeviceClaim(uid))
        else:
            await self._pass_on(devices_held_by(obj, self.claims.holder_of(full_name(obj.metadata))))

    async def see_new_holder(self, change: NewHolder) -> None:
        """Pass on the claim of a PodGroup whose devices count for another pod now."""
        before, now = (tuple(filter(None, (pod,))) for pod in (change.before, change.now))
        for uid in list(self._uids.keys_of(change.claim)):
            claim = self._holding_claims.get(uid)
            if claim is not None and claim.consumers == before:
                await self._pass_on(replace(claim, consumers=now))

    async def _pass_on(self, device_claim: DeviceClaim) -> None:
        """Pass on what a claim holds, if that changed."""
        uid = device_claim.uid
        claim_before = self._holding_claims.pop(uid, DeviceClaim(uid))
        if device_claim.devices:
            self._holding_claims[uid] = device_claim
        if device_claim != claim_before:
            await self._put(DeviceClaimSeen(time.monotonic(), device_claim))


def is_unallocated(claim: ResourceClaim) -> bool | None:
    """Return whether a claim that pods may share by its name has no devices yet; None if the claim was made
    for a pod or for a PodGroup."""
    was_made = any(owner.controller for owner in claim.metadata.owner_references or ())
    return None if was_made else claim.status.allocation is None


def devices_held_by(claim: ResourceClaim, holder: str) -> DeviceClaim:
    """Return the devices that the claim holds. A claim that only watches devices (adminAccess) holds none.

    Users can write the owner of a claim, but only schedulers write `reservedFor`. So the owner counts only
    while `reservedFor` is empty. `holder`: the pod for which the devices of a PodGroup's claim count.
    """
    uid, allocation = claim.metadata.uid, claim.status.allocation
    all_results = allocation.devices.results or () if allocation is not None else ()
    results = [result for result in all_results if not result.admin_access]
    if not results:
        return DeviceClaim(uid)
    devices = tuple(Device(result.driver, result.pool, result.device) for result in results)
    reserved = claim.status.reserved_for
    owners = claim.metadata.owner_references or () if not reserved else ()
    consumers = {consumer.uid for consumer in reserved or () if consumer.resource == "pods"}
    consumers |= {owner.uid for owner in owners if owner.controller and owner.kind == "Pod"}
    consumers = consumers or {*filter(None, (holder,))}
    shares_of_devices = tuple(map(shares.taken_bytes, results))
    shares_taken = shares_of_devices if any(shares_of_devices) else ()
    return DeviceClaim(uid, devices, tuple(sorted(consumers)), shares_taken)
