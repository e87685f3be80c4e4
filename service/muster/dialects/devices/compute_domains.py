"""NVIDIA's ComputeDomains: pods with claims for channels of one ComputeDomain share GPU memory over NVLink.

The driver's controller makes a ResourceClaimTemplate for each ComputeDomain. Its claims request one channel,
and their config names the ComputeDomain by its UID. A node has one channel, so each pod with a channel is on
a node of its own. The driver starts one IMEX domain in each NVLink clique, so memory is shared only inside a
clique. (kubernetes-sigs/dra-driver-nvidia-gpu, templates/compute-domain-workload-claim-template.tmpl.yaml.)
"""

from __future__ import annotations

from collections.abc import Mapping

from muster.dialects.devices.objects import (
    ClaimDevices,
    ClaimRequest,
    DeviceConfig,
    ExactRequest,
    OpaqueConfig,
    ResourceClaimSpec,
)
from muster.domain.levels import FABRIC

DRIVER = "compute-domain.nvidia.com"
CHANNEL_CLASS = "compute-domain-default-channel.nvidia.com"
"""The DeviceClass of channels. Its one device on each node of the driver is channel 0."""
CHANNEL_KIND = "ComputeDomainChannelConfig"
API_GROUP = "resource.nvidia.com"
MAX_UID = 64
"""Largest number of characters of a UID. A longer text is no UID."""


def domain_of(spec: ResourceClaimSpec) -> str:
    """Return the UID of the claim's ComputeDomain; "" if the claim is not for a channel."""
    for config in spec.devices.config or ():
        opaque = config.opaque
        if opaque is None or opaque.driver != DRIVER or not isinstance(opaque.parameters, dict):
            continue
        uid = opaque.parameters.get("domainID")
        if opaque.parameters.get("kind") == CHANNEL_KIND and isinstance(uid, str) and len(uid) <= MAX_UID:
            return uid
    return ""


def channel(uid: str) -> ResourceClaimSpec:
    """Return the claim spec in a ComputeDomain's template, as the driver's controller makes it."""
    parameters = {"kind": CHANNEL_KIND, "domainID": uid}
    return ResourceClaimSpec(
        ClaimDevices(
            [ClaimRequest("channel", ExactRequest(CHANNEL_CLASS))],
            config=[DeviceConfig(OpaqueConfig(DRIVER, parameters))],
        )
    )


def with_fabric(labels: Mapping[str, str], clique: str) -> dict[str, str]:
    """Return the labels of a node, and one more that names the NVLink fabric around its clique.

    `clique` is the key of the clique's label, whose value is `<UUID of the fabric>.<number>`. A rack of an
    NVL72 is one fabric.
    """
    fabric, _, _ = labels.get(clique, "").rpartition(".")
    return {**({FABRIC: fabric} if fabric else {}), **labels}
