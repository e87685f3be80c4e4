"""The few fields of Kubernetes objects that are read, for msgspec to decode. Names are the API's."""

from __future__ import annotations

from typing import Any

import msgspec

from muster.dialects.keys import MIRROR


class ApiObject(msgspec.Struct, rename="camel", frozen=True, omit_defaults=True, gc=False):
    """The base of API objects, whose fields are camelCase. Fields that are not named here are skipped.

    The garbage collector does not look at these objects, because JSON has no cycles. Otherwise decoding a
    large object would take five times as long.
    """


class Presence(ApiObject, frozen=True):
    """An object whose existence is the only fact that is read."""


class OwnerReference(ApiObject, frozen=True):
    """An entry of `metadata.ownerReferences`."""

    api_version: str = ""
    uid: str = ""
    kind: str = ""
    name: str = ""
    controller: bool | None = None


class Identity(ApiObject, frozen=True):
    """The first fields of `Metadata`, which identify the object. The other fields may be large."""

    name: str = ""
    generate_name: str = ""
    namespace: str = ""
    uid: str = ""
    resource_version: str = ""


class Metadata(Identity, frozen=True):
    """`metadata` of any object."""

    creation_timestamp: str | None = None
    deletion_timestamp: str | None = None
    labels: dict[str, str] | None = None
    annotations: dict[str, str] | None = None
    owner_references: list[OwnerReference] | None = None
    generation: int = 0
    finalizers: list[str] | None = None


class ResourceRequirements(ApiObject, frozen=True):
    """`resources` of a container, or of a whole pod."""

    limits: dict[str, str | int | float] | None = None
    requests: dict[str, str | int | float] | None = None


class ContainerPort(ApiObject, frozen=True):
    """An entry of a container's `ports`."""

    container_port: int = 0
    host_port: int = 0
    host_ip: str = msgspec.field(name="hostIP", default="")
    protocol: str = ""


class Container(ApiObject, frozen=True):
    """A container or init container of a pod."""

    name: str = ""
    resources: ResourceRequirements | None = None
    restart_policy: str | None = None
    ports: list[ContainerPort] | None = None


class SchedulingGate(ApiObject, frozen=True):
    """An entry of `spec.schedulingGates`."""

    name: str = ""


class NodeSelectorRequirement(ApiObject, frozen=True):
    """One expression over labels or fields of a node."""

    key: str = ""
    operator: str = ""
    values: list[str] | None = None


class NodeSelectorTerm(ApiObject, frozen=True):
    """Expressions that a node must all satisfy."""

    match_expressions: list[NodeSelectorRequirement] | None = None
    match_fields: list[NodeSelectorRequirement] | None = None


class NodeSelector(ApiObject, frozen=True):
    """Terms; a node must satisfy one of them."""

    node_selector_terms: list[NodeSelectorTerm] | None = None


class NodeAffinity(ApiObject, frozen=True):
    """Rules for the node's own labels and fields."""

    required: NodeSelector | None = msgspec.field(
        name="requiredDuringSchedulingIgnoredDuringExecution", default=None
    )
    preferred: list[Presence] | None = msgspec.field(
        name="preferredDuringSchedulingIgnoredDuringExecution", default=None
    )


class LabelSelector(ApiObject, frozen=True):
    """A label selector of the API. A missing selector matches no object, and an empty one matches every
    object."""

    match_labels: dict[str, str] | None = None
    match_expressions: list[NodeSelectorRequirement] | None = None


class PodAffinityTerm(ApiObject, frozen=True):
    """Pods that must share, or must not share, a topology domain with this pod."""

    topology_key: str = ""
    label_selector: LabelSelector | None = None
    namespaces: list[str] | None = None
    namespace_selector: LabelSelector | None = None
    match_label_keys: list[str] | None = None
    mismatch_label_keys: list[str] | None = None


class PodAffinity(ApiObject, frozen=True):
    """Pod affinity or anti-affinity."""

    required: list[PodAffinityTerm] | None = msgspec.field(
        name="requiredDuringSchedulingIgnoredDuringExecution", default=None
    )
    preferred: list[Presence] | None = msgspec.field(
        name="preferredDuringSchedulingIgnoredDuringExecution", default=None
    )


class Affinity(ApiObject, frozen=True):
    """`spec.affinity` of a pod."""

    node_affinity: NodeAffinity | None = None
    pod_affinity: PodAffinity | None = None
    pod_anti_affinity: PodAffinity | None = None


class TopologySpreadConstraint(ApiObject, frozen=True):
    """An entry of `spec.topologySpreadConstraints`."""

    topology_key: str = ""
    max_skew: int = 1
    min_domains: int | None = None
    when_unsatisfiable: str = ""
    label_selector: LabelSelector | None = None
    match_label_keys: list[str] | None = None
    node_affinity_policy: str | None = None
    node_taints_policy: str | None = None


class PodToleration(ApiObject, frozen=True):
    """An entry of `spec.tolerations`."""

    key: str = ""
    operator: str = ""
    value: str = ""
    effect: str = ""


class PodResourceClaim(ApiObject, frozen=True):
    """An entry of `spec.resourceClaims`. Without `resource_claim_name` a claim is made from a template.

    Before Kubernetes 1.31 these two fields were in `source`.
    """

    name: str = ""
    resource_claim_name: str | None = None
    resource_claim_template_name: str | None = None
    source: Any = None


class PodResourceClaimStatus(ApiObject, frozen=True):
    """The claim that was made for an entry of `spec.resourceClaims`; None if the pod needs none."""

    name: str = ""
    resource_claim_name: str | None = None


class VolumeClaim(ApiObject, frozen=True):
    """The PersistentVolumeClaim that a volume names."""

    claim_name: str = ""


class Volume(ApiObject, frozen=True):
    """An entry of `spec.volumes`, as far as it concerns claims."""

    name: str = ""
    persistent_volume_claim: VolumeClaim | None = None
    ephemeral: Presence | None = None


class SchedulingGroup(ApiObject, frozen=True):
    """`spec.schedulingGroup`: the PodGroup of the pod; or `spec.workloadRef`, as in Kubernetes 1.35."""

    pod_group_name: str | None = None
    name: str | None = None
    pod_group: str | None = None


class PodSpec(ApiObject, frozen=True):
    """`spec` of a pod, as far as it concerns scheduling."""

    node_name: str = ""
    scheduler_name: str = ""
    priority: int | None = None
    preemption_policy: str | None = None
    containers: list[Container] | None = None
    init_containers: list[Container] | None = None
    overhead: dict[str, str | int | float] | None = None
    resources: ResourceRequirements | None = None
    node_selector: dict[str, str] | None = None
    affinity: Affinity | None = None
    tolerations: list[PodToleration] | None = None
    scheduling_gates: list[SchedulingGate] | None = None
    resource_claims: list[PodResourceClaim] | None = None
    topology_spread_constraints: list[TopologySpreadConstraint] | None = None
    volumes: list[Volume] | None = None
    host_network: bool = False
    scheduling_group: SchedulingGroup | None = None
    workload_ref: SchedulingGroup | None = None


class ContainerStatus(ApiObject, frozen=True):
    """The resources that a container was given, which an in-place resize may change."""

    name: str = ""
    allocated_resources: dict[str, str | int | float] | None = None
    resources: ResourceRequirements | None = None


class PodCondition(ApiObject, frozen=True):
    """An entry of a pod's `status.conditions`."""

    type: str = ""
    status: str = ""
    reason: str = ""
    message: str = ""


class PodStatus(ApiObject, frozen=True):
    """`status` of a pod. Only the parts of conditions and container statuses that in-place resize needs are
    read."""

    phase: str = ""
    start_time: str | None = None
    conditions: list[PodCondition] | None = None
    container_statuses: list[ContainerStatus] | None = None
    init_container_statuses: list[ContainerStatus] | None = None
    allocated_resources: dict[str, str | int | float] | None = None
    resources: ResourceRequirements | None = None
    resource_claim_statuses: list[PodResourceClaimStatus] | None = None


class PodObject(ApiObject, frozen=True):
    """A pod."""

    metadata: Metadata = Metadata()
    spec: PodSpec = PodSpec()
    status: PodStatus = PodStatus()

    @property
    def is_static(self) -> bool:
        """Return whether a kubelet made the pod for a static pod, so that no scheduler places it.

        Such a pod may be in any namespace and name any gang. The API server demands its owner and its
        annotation.
        """
        owners = self.metadata.owner_references or ()
        has_node_as_owner = any(owner.controller and owner.kind == "Node" for owner in owners)
        return bool(self.spec.node_name) and has_node_as_owner and MIRROR in (self.metadata.annotations or {})


class BudgetSpec(ApiObject, frozen=True):
    """`spec` of a PodDisruptionBudget."""

    selector: LabelSelector | None = None


class BudgetStatus(ApiObject, frozen=True):
    """`status` of a PodDisruptionBudget. It is about the spec of this generation."""

    observed_generation: int = 0
    disruptions_allowed: int = 0


class PodDisruptionBudget(ApiObject, frozen=True):
    """How many of the selected pods may be evicted at once."""

    metadata: Metadata = Metadata()
    spec: BudgetSpec = BudgetSpec()
    status: BudgetStatus = BudgetStatus()


class ClaimSpec(ApiObject, frozen=True):
    """`spec` of a PersistentVolumeClaim."""

    access_modes: list[str] | None = None
    volume_name: str = ""
    storage_class_name: str | None = None


class PersistentVolumeClaim(ApiObject, frozen=True):
    """A claim to a volume."""

    metadata: Metadata = Metadata()
    spec: ClaimSpec = ClaimSpec()


class CsiVolume(ApiObject, frozen=True):
    """The CSI driver of a volume."""

    driver: str = ""


class VolumeSpec(ApiObject, frozen=True):
    """The kinds of volumes that are attached to nodes. Other volumes are only mounted."""

    csi: CsiVolume | None = None
    aws_elastic_block_store: Presence | None = None
    azure_disk: Presence | None = None
    cinder: Presence | None = None
    fc: Presence | None = None
    gce_persistent_disk: Presence | None = None
    iscsi: Presence | None = None
    vsphere_volume: Presence | None = None


class PersistentVolume(ApiObject, frozen=True):
    """A volume that claims can be bound to."""

    metadata: Metadata = Metadata()
    spec: VolumeSpec = VolumeSpec()


class StorageClass(ApiObject, frozen=True):
    """A storage class, with the driver that provisions its volumes."""

    metadata: Metadata = Metadata()
    provisioner: str = ""


class CsiDriverSpec(ApiObject, frozen=True):
    """`spec` of a CSIDriver."""

    attach_required: bool | None = None


class CsiDriver(ApiObject, frozen=True):
    """A CSI driver; it says whether its volumes are attached to nodes."""

    metadata: Metadata = Metadata()
    spec: CsiDriverSpec = CsiDriverSpec()


class NodeTaint(ApiObject, frozen=True):
    """An entry of a node's `spec.taints`."""

    key: str = ""
    value: str = ""
    effect: str = ""


class NodeSpec(ApiObject, frozen=True):
    """`spec` of a node."""

    unschedulable: bool = False
    taints: list[NodeTaint] | None = None


class NodeCondition(ApiObject, frozen=True):
    """An entry of a node's `status.conditions`."""

    type: str = ""
    status: str = ""


class NodeInfo(ApiObject, frozen=True):
    """The facts that a kubelet reports about itself."""

    kubelet_version: str = ""


class NodeStatus(ApiObject, frozen=True):
    """`status` of a node."""

    node_info: NodeInfo = NodeInfo()
    capacity: dict[str, str | int | float] | None = None
    allocatable: dict[str, str | int | float] | None = None
    conditions: list[NodeCondition] | None = None


class NodeObject(ApiObject, frozen=True):
    """A node."""

    metadata: Metadata = Metadata()
    spec: NodeSpec = NodeSpec()
    status: NodeStatus = NodeStatus()


class NamespaceObject(ApiObject, frozen=True):
    """A namespace, whose labels pod affinity may select."""

    metadata: Metadata = Metadata()


class ConfigMapObject(ApiObject, frozen=True):
    """A ConfigMap."""

    metadata: Metadata = Metadata()
    data: dict[str, str] | None = None


class WorkloadObject(ApiObject, frozen=True):
    """A Workload of Kubernetes. The service does not read its templates, because its PodGroups are copies."""

    metadata: Metadata = Metadata()


class CustomObject(ApiObject, frozen=True):
    """An object of a CRD: a PodGroup, a Topology.

    `spec` may be any value, because the schema that it was checked against is not known. `api_version` is the
    version in which the object was requested.
    """

    api_version: str = ""
    metadata: Metadata = Metadata()
    spec: Any = None
    status: Any = None
    kind: str = ""
