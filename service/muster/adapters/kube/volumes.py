"""Turn claims, volumes, storage classes and CSI drivers from the watches into inputs about claims.

An input says whether a claim's volume attaches to one node only. It is sent once for each change of this
fact. A claim is checked again when its volume, class or driver changes.

Pods that share such a claim can run on one node only. kube-scheduler does not check this: the second pod
would wait for its volume for ever. The access mode is not enough: a volume of a network file system is
mounted without being attached, whatever mode its claim has.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass

from muster.adapters.kube.key_groups import KeyGroups
from muster.dialects.objects import CsiDriver, PersistentVolume, PersistentVolumeClaim, StorageClass
from muster.gangs.messages.inputs import Input, VolumeClaimSeen

ONE_NODE = frozenset({"ReadWriteOnce", "ReadWriteOncePod"})
"""Access modes of one node. A claim with any other mode can be used on several nodes."""


@dataclass(frozen=True, slots=True)
class Claim:
    """The facts that are kept of a claim that only one node may use."""

    volume: str
    storage_class: str


class VolumeIntake:
    """`on_…` are the watches' sinks; `put` takes the inputs, in order."""

    def __init__(self, put: Callable[[Input], Awaitable[None]]) -> None:
        self._put = put
        self._claims: dict[str, Claim] = {}
        """Namespace and name → claims of one node, as they are now."""
        self._driver_by_volume: dict[str, str | None] = {}
        """Volume → its CSI driver; "" for another kind of volume that is attached; None for a volume that
        never is."""
        self._provisioners: dict[str, str] = {}
        """Storage class → provisioner."""
        self._drivers: dict[str, bool] = {}
        """CSI driver → whether its volumes are attached to nodes."""
        self._claims_of = KeyGroups[str, str]()
        """Claims by the volume that they name."""
        self._reported_claims: set[str] = set()
        """The claims whose volumes attach once by the last inputs."""

    async def on_claim(self, key: str, obj: PersistentVolumeClaim | None) -> None:
        """Take in a claim's change, and report whether its volume attaches to one node only."""
        claim = _one_node_claim(obj) if obj is not None else None
        self._claims.pop(key, None)
        self._claims_of.put(key, claim.volume or None if claim is not None else None)
        if claim is not None:
            self._claims[key] = claim
        await self._report_changes([key])

    async def on_volume(self, name: str, obj: PersistentVolume | None) -> None:
        """Take in a volume's change, for the claims that are bound to it."""
        if obj is None:
            self._driver_by_volume.pop(name, None)
        else:
            self._driver_by_volume[name] = _driver_of(obj)
        await self._report_changes(sorted(self._claims_of.keys_of(name)))

    async def on_storage_class(self, name: str, obj: StorageClass | None) -> None:
        """Take in a storage class's change; any claim may use it."""
        if obj is None:
            self._provisioners.pop(name, None)
        else:
            self._provisioners[name] = obj.provisioner
        await self._report_changes(sorted(self._claims))

    async def on_driver(self, name: str, obj: CsiDriver | None) -> None:
        """Take in a CSI driver's change; any claim may use it."""
        if obj is None:
            self._drivers.pop(name, None)
        else:
            self._drivers[name] = obj.spec.attach_required is not False
        await self._report_changes(sorted(self._claims))

    async def _report_changes(self, keys: Iterable[str]) -> None:
        for key in keys:
            once = self._attaches_once(key)
            if once != (key in self._reported_claims):
                (self._reported_claims.add if once else self._reported_claims.discard)(key)
                namespace, _, name = key.partition("/")
                await self._put(VolumeClaimSeen(time.monotonic(), namespace, name, once))

    def _attaches_once(self, key: str) -> bool:
        """Return whether the claim's volume attaches to one node only.

        A claim without a volume gets its volume from its storage class's provisioner. A provisioner that is
        no CSI driver makes volumes of file systems or of a node's own disk.
        """
        claim = self._claims.get(key)
        if claim is None:
            return False
        if claim.volume:
            driver = self._driver_by_volume.get(claim.volume)
            # Without a CSIDriver object volumes are attached (pkg/volume/csi/csi_plugin.go, skipAttach).
            return driver is not None and self._drivers.get(driver, True)
        return self._drivers.get(self._provisioners.get(claim.storage_class, ""), False)


def _one_node_claim(claim: PersistentVolumeClaim) -> Claim | None:
    """Return the facts of a claim; None if several nodes may use it at once."""
    modes = claim.spec.access_modes or ()
    if not modes or not ONE_NODE.issuperset(modes):
        return None
    return Claim(claim.spec.volume_name, claim.spec.storage_class_name or "")


def _driver_of(volume: PersistentVolume) -> str | None:
    """Return a volume's CSI driver; "" for another kind of volume that is attached; None for a volume that
    never is."""
    spec = volume.spec
    if spec.csi is not None:
        return spec.csi.driver
    disks = (
        spec.aws_elastic_block_store,
        spec.azure_disk,
        spec.cinder,
        spec.fc,
        spec.gce_persistent_disk,
        spec.iscsi,
        spec.vsphere_volume,
    )
    return "" if any(disk is not None for disk in disks) else None
