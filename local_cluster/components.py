"""The four processes of a cluster: their command lines, their ports, and how each says that it is well."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from local_cluster.api import Api
from local_cluster.certificates import ClusterKeys, write_private
from local_cluster.places import KWOK_STAGES, Layout
from local_cluster.real.configuration import REAL
from local_cluster.recipes import COMPONENTS, IS_NEXT

HOST = "127.0.0.1"
SERVICE_CIDR = "10.255.0.0/16"
POD_CIDR = "10.64.0.0/10"
NODE_IP = "10.0.0.1"
SPANS_EVERY_MS = "200"
ISSUER = "https://kubernetes.default.svc"

PORTS = {
    "etcd": ("etcd", "etcd-peer"),
    "kube-apiserver": ("kube-apiserver",),
    "kube-controller-manager": ("kube-controller-manager",),
    "kwok": ("kwok",),
}
"""Component → the names of the ports it listens on, all on the loopback."""

NATIVE_GATES = (
    "GenericWorkload=true",
    "TopologyAwareWorkloadScheduling=true",
    "CompositePodGroup=true",
    # 1.38 has no such gate: what it did is always on there
    *(() if IS_NEXT else ("PodGroupPreemptionPolicy=true",)),
    "DRAWorkloadResourceClaims=true",
    "WorkloadWithJob=true",
)
"""The feature gates of Kubernetes' own gangs: PodGroup, CompositePodGroup, Workload, Jobs that make these."""
NATIVE_API_FLAGS = ("--runtime-config=scheduling.k8s.io/v1beta1=true,scheduling.k8s.io/v1alpha3=true",)
"""What the API server needs besides these gates: it serves no beta or alpha version by default."""

KWOK_PACE = {
    "nodeLeaseDurationSeconds": 40,
    "enableDebuggingHandlers": False,
    "enableProfilingHandler": False,
    "podPlayStageParallelism": 16,
    "nodePlayStageParallelism": 8,
    "nodeLeaseParallelism": 8,
    "podsOnNodeSyncParallelism": 4,
    "enablePodsOnNodeSyncListPager": True,
    "enablePodsOnNodeSyncStreamWatch": False,
}
"""Options of kwok that fit any cluster. All are given: kwok fills in no defaults once it has options."""

AUDIT_POLICY = """\
# Who wrote what: requests and answers of every change to pods, bindings, nodes, events and our CRDs;
# for everything else that one line. Reads, leases and the components' own health are left out.
apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived]
rules:
- level: None
  verbs: [get, list, watch]
- level: None
  resources: [{group: coordination.k8s.io, resources: [leases]}]
- level: RequestResponse
  resources:
  - group: ""
    resources: [pods, pods/binding, pods/status, pods/eviction, bindings, nodes, events, configmaps]
  - {group: scheduling.run.ai}
- level: Metadata
"""


@dataclass(frozen=True, slots=True)
class Context:
    """What the command lines are made of. `ports`: name of a port → number; `audit`: the API server's audit
    policy as YAML, "" for none; `api_flags`: further flags of the API server; `feature_gates`: "Name=true" or
    "Name=false", of all components of Kubernetes; `collector`: where etcd and the API server send spans, ""
    for nowhere."""

    layout: Layout
    keys: ClusterKeys
    ports: dict[str, int]
    audit: str
    api_flags: tuple[str, ...] = ()
    feature_gates: tuple[str, ...] = ()
    collector: str = ""

    def url(self, port: str) -> str:
        """Return the HTTPS address of a port, by the port's name."""
        return f"https://{HOST}:{self.ports[port]}"

    @property
    def gate_flags(self) -> list[str]:
        """Return the flag of each component of Kubernetes that sets the feature gates; [] without gates."""
        return [f"--feature-gates={','.join(self.feature_gates)}"] if self.feature_gates else []


def argv(component: str, program: Path, context: Context) -> list[str]:
    """The command line of a component; writes the files that it reads."""
    builders = {
        "etcd": _etcd,
        "kube-apiserver": _api_server,
        "kube-controller-manager": _controller_manager,
        "kwok": _kwok,
    }
    return [str(program), *builders[component](context)]


def _etcd(context: Context) -> list[str]:
    # spans only below those of the API server: that is the default
    tracing = ["--enable-distributed-tracing=true", f"--distributed-tracing-address={context.collector}"]
    pair, ca = context.keys.etcd, context.keys.etcd_ca.pair.certificate
    client, peer = context.url("etcd"), context.url("etcd-peer")
    return [
        "--name=local",
        f"--data-dir={context.layout.etcd_data}",
        f"--listen-client-urls={client}",
        f"--advertise-client-urls={client}",
        f"--listen-peer-urls={peer}",
        f"--initial-advertise-peer-urls={peer}",
        f"--initial-cluster=local={peer}",
        f"--cert-file={pair.certificate}",
        f"--key-file={pair.key}",
        f"--trusted-ca-file={ca}",
        "--client-cert-auth=true",
        f"--peer-cert-file={pair.certificate}",
        f"--peer-key-file={pair.key}",
        f"--peer-trusted-ca-file={ca}",
        "--peer-client-cert-auth=true",
        # survives the end of any process, not that of the machine, which is not needed here
        "--unsafe-no-fsync=true",
        "--quota-backend-bytes=2147483648",
        "--auto-compaction-mode=periodic",
        "--auto-compaction-retention=10m",
        *(tracing if context.collector else ()),
    ]


def _api_server(context: Context) -> list[str]:
    keys, layout = context.keys, context.layout
    flags = [
        f"--bind-address={HOST}",
        f"--secure-port={context.ports['kube-apiserver']}",
        f"--tls-cert-file={keys.api_server.certificate}",
        f"--tls-private-key-file={keys.api_server.key}",
        f"--client-ca-file={keys.ca.pair.certificate}",
        f"--etcd-servers={context.url('etcd')}",
        f"--etcd-cafile={keys.etcd_ca.pair.certificate}",
        f"--etcd-certfile={keys.etcd.certificate}",
        f"--etcd-keyfile={keys.etcd.key}",
        "--authorization-mode=Node,RBAC",
        # a kubelet may write its own node and its own pods, and nothing else
        "--enable-admission-plugins=NodeRestriction",
        # logs of pods come from real kubelets, whose names are in no DNS
        "--kubelet-preferred-address-types=InternalIP",
        f"--kubelet-certificate-authority={keys.ca.pair.certificate}",
        f"--kubelet-client-certificate={keys.admin.certificate}",
        f"--kubelet-client-key={keys.admin.key}",
        f"--service-account-issuer={ISSUER}",
        f"--service-account-key-file={keys.service_account_public}",
        f"--service-account-signing-key-file={keys.service_account_key}",
        f"--service-cluster-ip-range={SERVICE_CIDR}",
        # given, because its own choice needs a network interface besides the loopback
        f"--advertise-address={HOST}",
        # the loopback can be no endpoint of the service `kubernetes`, and none is needed here
        "--endpoint-reconciler-type=none",
        "--allow-privileged=true",
        "--profiling=false",
        *context.gate_flags,
        *context.api_flags,
    ]
    if context.audit:
        policy = layout.config / "audit-policy.yaml"
        write_private(policy, context.audit.encode())
        flags += [f"--audit-policy-file={policy}", f"--audit-log-path={layout.audit_log}"]
    if context.collector:
        # rate 0: spans only below those of clients that may ask for them, which are in system:monitoring
        tracing = {
            "apiVersion": "apiserver.config.k8s.io/v1",
            "kind": "TracingConfiguration",
            "endpoint": context.collector,
            "samplingRatePerMillion": 0,
        }
        file = layout.config / "tracing.json"
        write_private(file, json.dumps(tracing).encode())
        flags.append(f"--tracing-config-file={file}")
    return flags


def _controller_manager(context: Context) -> list[str]:
    keys = context.keys
    return [
        f"--kubeconfig={context.layout.kubeconfig('kube-controller-manager')}",
        f"--bind-address={HOST}",
        f"--secure-port={context.ports['kube-controller-manager']}",
        f"--tls-cert-file={keys.controller_manager.certificate}",
        f"--tls-private-key-file={keys.controller_manager.key}",
        f"--service-account-private-key-file={keys.service_account_key}",
        f"--root-ca-file={keys.ca.pair.certificate}",
        f"--cluster-signing-cert-file={keys.ca.pair.certificate}",
        f"--cluster-signing-key-file={keys.ca.pair.key}",
        "--use-service-account-credentials=true",
        # there is one; an election would only delay its start and each restart
        "--leader-elect=false",
        # its default, 20 requests a second, made 500 new nodes wait 113 s for their taints to go
        "--kube-api-qps=1000",
        "--kube-api-burst=2000",
        "--profiling=false",
        *context.gate_flags,
    ]


def _kwok(context: Context) -> list[str]:
    configuration = {
        "apiVersion": "config.kwok.x-k8s.io/v1alpha1",
        "kind": "KwokConfiguration",
        "options": {
            # all but those with a real kubelet
            "manageAllNodes": False,
            "manageNodesWithLabelSelector": f"!{REAL}",
            "cidr": POD_CIDR,
            "nodeIP": NODE_IP,
            "serverAddress": f"{HOST}:{context.ports['kwok']}",
            # with a certificate of this cluster, so that no other cluster's kwok is mistaken for it
            "tlsCertFile": str(context.keys.kwok.certificate),
            "tlsPrivateKeyFile": str(context.keys.kwok.key),
        }
        | KWOK_PACE,
    }
    file = context.layout.config / "kwok.yaml"
    write_private(file, json.dumps(configuration).encode() + b"\n---\n" + KWOK_STAGES.read_bytes())
    return [f"--kubeconfig={context.layout.kubeconfig('kwok')}", f"--config={file}"]


def environment(component: str, context: Context) -> dict[str, str]:
    """Return what a component gets besides ours. kwok reads ~/.kwok unless it is told of another folder."""
    if component == "kwok":
        return {"KWOK_WORKDIR": str(context.layout.config / "kwok")}
    return {"OTEL_BSP_SCHEDULE_DELAY": SPANS_EVERY_MS} if context.collector else {}


def health(component: str, context: Context) -> Callable[[], bool]:
    """Asks the component itself; true when it says that it is well. OSError while it can't be reached."""
    keys, url = context.keys, context.url(PORTS[component][0])
    if component == "etcd":
        api = Api(url, str(keys.etcd_ca.pair.certificate), keys.etcd)
    else:
        api = Api(url, str(keys.ca.pair.certificate), keys.admin)
    path = {"etcd": "/health", "kube-apiserver": "/readyz"}.get(component, "/healthz")
    return lambda: api.send("GET", path).status == 200


assert set(PORTS) == set(COMPONENTS)
