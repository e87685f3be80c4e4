"""What the programs of a real node read, as text: containerd, the kubelet, and CNI (pure).

Paths are those inside the node. A comment gives the reason for each setting that is not the default.
"""

from __future__ import annotations

import json
from dataclasses import dataclass

from local_cluster.api import Object
from local_cluster.real.images import PAUSE

HOME = "/opt/node"
"""The folder in a node with its programs and its configuration; nothing else in it comes from the cluster."""

PROGRAMS, CNI, CONFIG = f"{HOME}/bin", f"{HOME}/cni", f"{HOME}/config"
SOCKET = "/run/containerd/containerd.sock"
KUBELET_PORT = 10250

REAL = "local-cluster/kubelet"
"""Label with the value `real`; kwok leaves these nodes alone."""

TAINT = {"key": REAL, "value": "real", "effect": "NoSchedule"}
"""Keeps pods away whose images can't be had: real nodes have one image."""

SYSCTLS = {
    "vm/overcommit_memory": "1",
    "vm/panic_on_oom": "0",
    "kernel/panic": "10",
    "kernel/panic_on_oops": "1",
    "kernel/keys/root_maxkeys": "1000000",
    "kernel/keys/root_maxbytes": "25000000",
}
"""What a kubelet wants of the whole machine. It sees files with these values; the machine keeps its own."""


@dataclass(frozen=True, slots=True)
class Address:
    """Addresses of one node: `number` is what makes them its own among all nodes of the machine.

    They come from 198.19.0.0/16, which is set aside for tests of networks (RFC 2544).
    """

    number: int

    @property
    def subnet(self) -> str:
        """Return the node's own network: its pods and itself."""
        return f"198.19.{self.number}.0/24"

    @property
    def node(self) -> str:
        """Return the address of the kubelet."""
        return f"198.19.{self.number}.254"

    @property
    def last_pod(self) -> str:
        """Return the last address that a pod may get."""
        return f"198.19.{self.number}.250"


MACHINE = "198.19.255.1"
"""This machine's address on its links to all nodes."""
NUMBERS = range(255)


def kubelet(address: Address, cgroup: str) -> Object:
    """Return the KubeletConfiguration."""
    return {
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "address": address.node,
        "port": KUBELET_PORT,
        "healthzPort": 0,
        "authentication": {
            "anonymous": {"enabled": False},
            "webhook": {"enabled": True},
            "x509": {"clientCAFile": f"{CONFIG}/ca.crt"},
        },
        "authorization": {"mode": "Webhook"},
        "tlsCertFile": f"{CONFIG}/serving.crt",
        "tlsPrivateKeyFile": f"{CONFIG}/serving.key",
        "registerWithTaints": [TAINT],
        "containerRuntimeEndpoint": f"unix://{SOCKET}",
        # without systemd, and on version 1 of cgroups as well, which 1.35 and later refuse by default
        "cgroupDriver": "cgroupfs",
        "failCgroupV1": False,
        "cgroupRoot": f"/{cgroup}",
        # the machine is not the node's alone: leave its settings and its firewall as they are
        "protectKernelDefaults": True,
        "makeIPTablesUtilChains": False,
        "failSwapOn": False,
        # a pod whose claim can't be prepared is tried again only with the next look at all pods: one minute
        "syncFrequency": "5s",
        # the node has no resolver of its own
        "resolvConf": "",
        # a machine with a full disk is no reason to evict pods that write nothing
        "evictionHard": {"memory.available": "50Mi"},
        "imageGCHighThresholdPercent": 100,
        "imageMinimumGCAge": "24h",
    }


def containerd() -> str:
    """Return containerd's configuration."""
    return f"""\
version = 3
root = '/var/lib/containerd'
state = '/run/containerd'
disabled_plugins = [
  'io.containerd.snapshotter.v1.blockfile', 'io.containerd.snapshotter.v1.btrfs',
  'io.containerd.snapshotter.v1.devmapper', 'io.containerd.snapshotter.v1.erofs',
  'io.containerd.snapshotter.v1.zfs', 'io.containerd.internal.v1.tracing',
]
[grpc]
address = '{SOCKET}'
[plugins.'io.containerd.cri.v1.images'.pinned_images]
sandbox = '{PAUSE}'
[plugins.'io.containerd.cri.v1.runtime']
restrict_oom_score_adj = true  # a container may lack CAP_SYS_RESOURCE
cdi_spec_dirs = ['{CONFIG}/cdi']
[plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc]
runtime_type = 'io.containerd.runc.v2'
runtime_path = '{PROGRAMS}/containerd-shim-runc-v2'
[plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc.options]
BinaryName = '{PROGRAMS}/runc'
SystemdCgroup = false
[plugins.'io.containerd.cri.v1.runtime'.cni]
bin_dirs = ['{CNI}']
conf_dir = '{CONFIG}/cni'
"""


def cdi(gpus: int) -> str:
    """Return the CDI specification of fake GPUs: each tells the container of itself by a variable."""
    devices = [
        {"name": f"GPU-{index}", "containerEdits": {"env": [f"CDI_GPU_{index}=GPU-{index}"]}}
        for index in range(gpus)
    ]
    return json.dumps({"cdiVersion": "0.6.0", "kind": "nvidia.com/gpu", "devices": devices})


def cni(address: Address) -> str:
    """Return the CNI configuration: a bridge for pods, and no firewall rules."""
    pods = {"subnet": address.subnet, "rangeEnd": address.last_pod}
    ipam = {
        "type": "host-local",
        "dataDir": "/run/cni",
        "ranges": [[pods]],
        "routes": [{"dst": "0.0.0.0/0"}],
    }
    bridge = {"type": "bridge", "bridge": "cni0", "isGateway": True, "ipMasq": False, "ipam": ipam}
    return json.dumps({"cniVersion": "1.0.0", "name": "pods", "plugins": [bridge]})
