"""Which PersistentVolumeClaims are of volumes that attach to one node alone.

Pods that share such a claim can run on one node only. kube-scheduler does not check this: the second pod
would wait for its volume for ever. The access mode alone does not say it, since a volume of a network file
system is mounted without being attached, whatever its claim says.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from muster.dialects.objects import PersistentVolume, PersistentVolumeClaim

ONE_NODE = frozenset({"ReadWriteOnce", "ReadWriteOncePod"})
"""Access modes of one node. A claim with any other mode can be used on several."""

ClaimKey = tuple[str, str]
"""Namespace and name."""


@dataclass(frozen=True, slots=True)
class Claim:
    """What counts of a claim that one node alone may use."""

    volume: str
    storage_class: str


@dataclass(slots=True)
class Volumes:
    """Claims of one node, volumes, storage classes and CSI drivers, by name, as they are now."""

    claims: dict[ClaimKey, Claim] = field(default_factory=dict)
    attached: dict[str, str | None] = field(default_factory=dict)
    """Volume → its CSI driver, "" for another kind that is attached; None for one that never is."""
    provisioners: dict[str, str] = field(default_factory=dict)
    """Storage class → provisioner."""
    drivers: dict[str, bool] = field(default_factory=dict)
    """CSI driver → whether its volumes are attached to nodes."""

    def attaches_once(self, key: ClaimKey) -> bool:
        """Return whether the claim's volume attaches to one node alone.

        A claim without a volume yet gets one from its storage class's provisioner. A provisioner that is no
        CSI driver makes volumes of file systems or of a node's own disk.
        """
        claim = self.claims.get(key)
        if claim is None:
            return False
        if claim.volume:
            driver = self.attached.get(claim.volume)
            # Without a CSIDriver object volumes are attached (pkg/volume/csi/csi_plugin.go, skipAttach).
            return driver is not None and self.drivers.get(driver, True)
        return self.drivers.get(self.provisioners.get(claim.storage_class, ""), False)


def read_claim(claim: PersistentVolumeClaim) -> Claim | None:
    """Return what counts of a claim; None if several nodes may use it at once."""
    modes = claim.spec.access_modes or ()
    if not modes or not ONE_NODE.issuperset(modes):
        return None
    return Claim(claim.spec.volume_name, claim.spec.storage_class_name or "")


def read_volume(volume: PersistentVolume) -> str | None:
    """Return a volume's CSI driver, "" for another kind that is attached, None for one that never is."""
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
