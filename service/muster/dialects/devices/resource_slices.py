"""ResourceSlices and DeviceClasses → the GPUs that a DRA driver serves on each node.

Devices of a DeviceClass are GPUs if its extended resource is one of the GPU resources of the settings. The
newest class of a resource counts, as for kube-scheduler. `PoolIndex` selects the slices that count.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from itertools import islice
from typing import TypeVar

from muster.dialects.devices import selectors
from muster.dialects.devices.objects import (
    DeviceClassObject,
    DeviceTaintRule,
    ResourceSlice,
    TaintedDevices,
)
from muster.dialects.devices.offers import NodeOffer
from muster.dialects.devices.published import (
    MAX_POOLS,
    MAX_ROUNDINGS,
    GpuClass,
    NodeSlices,
    PoolIndex,
    PublishedSlice,
    may_taint,
)
from muster.dialects.devices.selectors import UnreadableSelectorError
from muster.dialects.devices.shares import Rounding
from muster.dialects.settings import DialectSettings
from muster.domain.node import PoolKey

Key = TypeVar("Key")


class ResourceSlices:
    """The ResourceSlices, DeviceClasses and DeviceTaintRules of a cluster. `see_…` return the nodes whose
    offer may have changed."""

    def __init__(self, settings: DialectSettings) -> None:
        self._settings = settings
        self._slices: dict[str, PublishedSlice] = {}
        self._pools: dict[PoolKey, PoolIndex] = {}
        self._pools_on_node: dict[str, Counter[PoolKey]] = {}
        """Node → pool → number of its slices with devices of the node."""
        self._classes: dict[str, GpuClass] = {}
        self._rules: dict[str, TaintedDevices] = {}
        """DeviceTaintRule → the devices that it keeps pods away from."""
        self._roundings_on_node: dict[str, Counter[tuple[str, tuple[str, Rounding]]]] = {}
        """Node → driver and rounding → number of its slices."""
        self._nodes_by_rounding: dict[str, dict[tuple[str, Rounding], set[str]]] = {}
        """Driver → rounding → nodes. Nodes with too many roundings are left out."""
        self._published: dict[str, NodeSlices] = {}
        """Node → its slices since their last change. Kept because a kubelet writes its node's status all the
        time."""

    def see_slice(self, name: str, obj: ResourceSlice | None) -> set[str]:
        """Take in a slice, or None if it is gone."""
        old_slice = self._slices.get(name)
        new_slice = PublishedSlice.of(obj.spec) if obj is not None else None
        if old_slice == new_slice:
            return set()
        changed_nodes = self._nodes_depending_on(old_slice)
        if old_slice is not None:
            del self._slices[name]
            self._count(old_slice, -1)
            pool = self._pools[old_slice.key]
            pool.remove(name, old_slice.node)
            if not pool.slices:
                del self._pools[old_slice.key]
        if new_slice is not None:
            self._slices[name] = new_slice
            self._count(new_slice, 1)
            self._pools.setdefault(new_slice.key, PoolIndex()).add(name, new_slice)
        changed_nodes |= self._nodes_depending_on(new_slice)
        for node in changed_nodes:
            self._published.pop(node, None)
        drivers = {version.key[0] for version in (old_slice, new_slice) if version is not None}
        return changed_nodes if any(map(self.serves_gpus, drivers)) else set()

    def see_class(self, name: str, obj: DeviceClassObject | None) -> set[str]:
        """Take in a DeviceClass, or None if it is gone."""
        gpu_class = _read_class(obj) if obj is not None else None
        if gpu_class is not None and gpu_class.resource not in self._settings.gpu_resources:
            gpu_class = None
        if self._classes.get(name) == gpu_class:
            return set()
        if gpu_class is None:
            del self._classes[name]
        else:
            self._classes[name] = gpu_class
        self._published.clear()
        return set(self._pools_on_node)

    def see_rule(self, name: str, obj: DeviceTaintRule | None) -> set[str]:
        """Take in a DeviceTaintRule, or None if it is gone."""
        old_rule, new_rule = self._rules.pop(name, None), _keeps_away_from(obj)
        if new_rule is not None:
            self._rules[name] = new_rule
        if old_rule == new_rule:
            return set()
        rules = [rule for rule in (old_rule, new_rule) if rule is not None]
        changed_nodes = {
            node
            for key, pool in self._pools.items()
            if any(may_taint(rule, key) for rule in rules) and self.serves_gpus(key[0])
            for node in pool.slices
            if node in self._pools_on_node
        }
        for node in changed_nodes:
            self._published.pop(node, None)
        return changed_nodes

    def resource_of(self, name: str) -> str:
        """Return the GPU resource of a DeviceClass; "" if the class has none."""
        gpu_class = self._classes.get(name)
        return gpu_class.resource if gpu_class is not None else ""

    @property
    def roundings(self) -> Collection[tuple[str, Rounding]]:
        """Return (name of the capacity, rounding) of all GPUs whose memory claims share.

        If several nodes publish a rounding, roundings of the same capacity that only one node publishes do
        not count. Otherwise one node could change the requests of all pods.
        """
        served = [ways for driver, ways in self._nodes_by_rounding.items() if self.serves_gpus(driver)]
        several = {way for ways in served for way, nodes in ways.items() if len(nodes) > 1}
        names = {name for name, _ in several}
        return several | {way for ways in served for way in ways if way[0] not in names}

    @property
    def drivers(self) -> frozenset[str]:
        """Return the drivers that publish devices of nodes."""
        return frozenset(driver for pools in self._pools_on_node.values() for driver, _ in pools)

    def offer(self, node: str) -> NodeOffer:
        """Return the GPUs that the node's slices offer."""
        return self.on_node(node).offer

    def on_node(self, node: str) -> NodeSlices:
        """Return the node's slices: the same value until the slices change."""
        if node not in self._pools_on_node or not self._classes:
            return NodeSlices(node)
        if node not in self._published:
            pool_keys = [*islice(self._pools_on_node[node], 2 * MAX_POOLS)]  # further pools may be any number
            gpu_keys = [key for key in pool_keys if self.serves_gpus(key[0])]
            read_keys = sorted(gpu_keys)[:MAX_POOLS]
            pools = tuple(self._pools[key].select_for(key, node) for key in read_keys)
            classes = filter(None, map(self._class_for, self._settings.gpu_resources))
            other_pools = len(pool_keys) - len(gpu_keys)
            left_out = len(self._pools_on_node[node]) - other_pools - len(read_keys)
            rules = tuple(self._rules.values())
            self._published[node] = NodeSlices(node, pools, tuple(classes), rules, left_out)
        return self._published[node]

    def serves_gpus(self, driver: str) -> bool:
        """Return whether some class may have devices of this driver. Other drivers may serve network
        cards."""
        terms_by_class = (item.terms for item in self._classes.values())
        return any(
            all(term.value == driver for term in terms if term.attribute == ("", ""))
            for terms in terms_by_class
        )

    def _count(self, pool_slice: PublishedSlice, step: int) -> None:
        """Count a slice's node and roundings. `step` is 1 to add the slice, and −1 to remove it."""
        self._count_roundings(pool_slice, step)
        if pool_slice.counters:
            return
        pool_counts = self._pools_on_node.setdefault(pool_slice.node, Counter())
        pool_counts[pool_slice.key] += step
        if not pool_counts[pool_slice.key]:
            del pool_counts[pool_slice.key]
        if not pool_counts:
            del self._pools_on_node[pool_slice.node]

    def _count_roundings(self, pool_slice: PublishedSlice, step: int) -> None:
        """Count the roundings of a slice. A node with too many roundings counts as a node without."""
        if not pool_slice.roundings:
            return
        counts = self._roundings_on_node.setdefault(pool_slice.node, Counter())
        old_roundings = _unless_too_many(counts)
        counts.update({(pool_slice.key[0], rounding): step for rounding in pool_slice.roundings})
        for key in [(pool_slice.key[0], rounding) for rounding in pool_slice.roundings]:
            if not counts[key]:
                del counts[key]
        new_roundings = _unless_too_many(counts)
        if not counts:
            del self._roundings_on_node[pool_slice.node]
        for driver, rounding in new_roundings - old_roundings:
            self._nodes_by_rounding.setdefault(driver, {}).setdefault(rounding, set()).add(pool_slice.node)
        for driver, rounding in old_roundings - new_roundings:
            self._nodes_by_rounding[driver][rounding].discard(pool_slice.node)
            if not self._nodes_by_rounding[driver][rounding]:
                del self._nodes_by_rounding[driver][rounding]

    def _class_for(self, resource: str) -> GpuClass | None:
        """Return the newest class of an extended resource; the first by name if several are equally new."""
        names = sorted(item.name for item in self._classes.values() if item.resource == resource)
        return max((self._classes[name] for name in names), key=lambda item: item.created, default=None)

    def _nodes_depending_on(self, part: PublishedSlice | None) -> set[str]:
        """Return the nodes for which this slice may decide which slices of its pool are the newest."""
        pool = self._pools.get(part.key) if part is not None else None
        if part is None or pool is None:
            return set()
        return pool.nodes_depending_on(part) & self._pools_on_node.keys()


def _unless_too_many(counts: Collection[Key]) -> set[Key]:
    return set(counts) if len(counts) <= MAX_ROUNDINGS else set()


def _read_class(obj: DeviceClassObject) -> GpuClass:
    name, resource = obj.metadata.name, obj.spec.extended_resource_name or ""
    created = obj.metadata.creation_timestamp or ""
    expressions = [entry.cel.expression for entry in obj.spec.selectors or () if entry.cel is not None]
    try:
        return GpuClass(name, resource, created, selectors.read(expressions))
    except UnreadableSelectorError as error:
        problem = f"DeviceClass {name}: {error}; its devices are not planned"
        return GpuClass(name, resource, created, (), problem)


def _keeps_away_from(rule: DeviceTaintRule | None) -> TaintedDevices | None:
    """Return the devices that a rule keeps pods away from. A rule without a selector taints no device."""
    if rule is None or not selectors.keeps_away(rule.spec.taint):
        return None
    return rule.spec.device_selector
