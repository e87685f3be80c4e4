"""Tell accelerators from other extended resources by their names: TPUs, NPUs, MIG devices and their like.

New accelerators come every year, so the rule lists resources that are no accelerators. The rule is used for
warnings only: the settings say which resources are planned as GPUs.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from muster.dialects.settings import DialectSettings
from muster.domain.pod import Pod

_OTHER_DEVICES = re.compile(
    r"(?<![a-z0-9])("
    r"rdma|erdma|hca|ib|roce|infiniband|nics?|eni|efa|sriov|netdev|netdevice|hostdev|vf|mlx|mlnx[a-z]*|networks?"
    r"|networking|macvtap|dpdk|bandwidth|ips?|openshift|kvm|tun|vhost[a-z]*|fuse|usb|tty|video|snd|epc|sgx"
    r"|enclave|provision|qat|dsa|iax|dlb|tpm|cpu|memory|disk|storage|licen[cs]es?"
    r")(?![a-z])"
)
"""Words in the names of network cards, of devices for virtual machines and cryptography, and of amounts."""


CLAIMS = "resourceClaims"
"""The field of pods whose claims are mostly for accelerators."""


def is_accelerator(resource: str) -> bool:
    """Return whether a resource is probably an accelerator: an extended resource, and no other device."""
    domain, slash, name = resource.lower().partition("/")
    if not slash or domain.endswith("kubernetes.io") or _OTHER_DEVICES.search(domain):
        return False
    return "gpu" in name or _OTHER_DEVICES.search(name) is None


def accelerators(resources: Iterable[str]) -> list[str]:
    """Return the accelerators among some resources, in order."""
    return sorted(filter(is_accelerator, resources))


def asked_by(pod: Pod, settings: DialectSettings) -> list[str]:
    """Return the accelerators, other than GPUs, that a pod of ours requests. All its claims are one entry."""
    ours = pod.scheduler_name in settings.scheduler_names
    by_claims = [CLAIMS] if pod.device_claims else []
    return [*accelerators(name for name, _ in pod.resources.others), *by_claims] if ours else []
