"""Bad input over all dialects, and the reason that each gets: on pods a typed cause, on nodes and policies a
sentence that names the key. The dialects' own tests have more of each; here none may be missing."""

from __future__ import annotations

from itertools import combinations
from typing import Any

import pytest

from muster.dialects import policies
from muster.dialects.gangs import podgroups
from muster.dialects.nodes import configmaps, nodes
from muster.dialects.nodes.configmaps import NodeFact, PolicyText
from muster.dialects.pods import pods
from muster.domain.causes.ill_formed import BadValue, DialectsDisagree, ForgedAllocation
from muster.domain.reasons import Cause
from muster.domain.sentences import MAX_CHARACTERS, sentence
from tests.dialects.objects import as_json, config_map, custom_object, full_matrix, node_object, pod_object

GPU = {"aliyun.com/gpu": 1}
MEM = {"aliyun.com/gpu-mem": 8}
PREFIX = "gpu.topology/"
GROUP = {f"{PREFIX}group": "g", f"{PREFIX}min-member": "2"}


def ack(name: str | None, count: str | None, **more: Any) -> dict[str, Any]:
    labels = {"gpu-topology": name, "gpu-topology-replica": count}
    return {"labels": {key: text for key, text in labels.items() if text is not None}, "limits": GPU, **more}


def own_keys(**keys: str) -> dict[str, Any]:
    return {
        "annotations": {f"{PREFIX}{key.replace('_', '-')}": text for key, text in keys.items()},
        "limits": GPU,
    }


def forged_annotation(key: str, limits: dict[str, int]) -> dict[str, Any]:
    return {"annotations": {key: "0"}, "limits": limits}


PODS: dict[str, tuple[dict[str, Any], str]] = {
    # ACK
    "ack: replicas in words": (ack("g", "two"), "BadValue gpu-topology-replica"),
    "ack: no replica": (ack("g", "0"), "BadValue gpu-topology-replica"),
    "ack: no count": (ack("g", None), "BadValue gpu-topology-replica"),
    "ack: a count of thirty digits": (ack("g", "9" * 30), "BadValue gpu-topology-replica"),
    "ack: no name": (ack(None, "2"), "BadValue gpu-topology"),
    "ack: an empty name": (ack("", "2"), "BadValue gpu-topology"),
    "ack: its labels as annotations": (
        {"annotations": {"gpu-topology": "g"}, "limits": GPU},
        "BadValue annotation gpu-topology",
    ),
    # gputopology: plain GPU pods
    "gputopology: half a GPU": ({"limits": {"aliyun.com/gpu": "500m"}}, "BadValue main: aliyun.com/gpu"),
    "gputopology: a negative number": ({"limits": {"nvidia.com/gpu": -1}}, "BadValue main: nvidia.com/gpu"),
    "gputopology: a word": ({"limits": {"amd.com/gpu": "all"}}, "BadValue main: amd.com/gpu"),
    "gputopology: two kinds": ({"limits": {"nvidia.com/gpu": 1, **GPU}}, "BadValue resources"),
    "gputopology: a forged group": (
        forged_annotation("ALIYUN_COM_GPU_GROUP", GPU),
        "ForgedAllocation ALIYUN_COM_GPU_GROUP",
    ),
    "gputopology: forged as assigned": (
        forged_annotation("ALIYUN_COM_GPU_ASSIGNED", GPU),
        "ForgedAllocation ALIYUN_COM_GPU_ASSIGNED",
    ),
    "Kubernetes: a group without a name": (
        {"limits": GPU, "spec": {"schedulingGroup": {"podGroupName": ""}}},
        "BadValue spec.schedulingGroup.podGroupName",
    ),
    # cGPU
    "cgpu: bytes": ({"limits": {"aliyun.com/gpu-mem": "3Gi"}}, "BadValue main: aliyun.com/gpu-mem"),
    "cgpu: part of a GiB": ({"limits": {"aliyun.com/gpu-mem": "1.5"}}, "BadValue main: aliyun.com/gpu-mem"),
    "cgpu: beside whole GPUs": ({"limits": {**MEM, **GPU}}, "BadValue resources"),
    "cgpu: not evenly": (
        {"limits": MEM, "labels": {"aliyun.com/gpu-count": "3"}},
        "BadValue aliyun.com/gpu-mem",
    ),
    "cgpu: over no GPU": (
        {"limits": MEM, "labels": {"aliyun.com/gpu-count": "0"}},
        "BadValue label aliyun.com/gpu-count",
    ),
    "cgpu: the label without memory": (
        {"limits": GPU, "labels": {"aliyun.com/gpu-count": "2"}},
        "BadValue label aliyun.com/gpu-count",
    ),
    "cgpu: the label as a resource": (
        {"limits": {**MEM, "aliyun.com/gpu-count": 2}},
        "BadValue resource aliyun.com/gpu-count",
    ),
    "cgpu: the label as an annotation": (
        {"limits": MEM, "annotations": {"aliyun.com/gpu-count": "2"}},
        "BadValue annotation aliyun.com/gpu-count",
    ),
    "cgpu: a forged index": (
        forged_annotation("ALIYUN_COM_GPU_MEM_IDX", MEM),
        "ForgedAllocation ALIYUN_COM_GPU_MEM_IDX",
    ),
    "cgpu: forged shares": (
        forged_annotation("scheduler.framework.gpushare.allocation", MEM),
        "ForgedAllocation scheduler.framework.gpushare.allocation",
    ),
    # the recipe, KAI and coscheduling
    "kai: a group that is no name": (
        {"annotations": {"scheduling.run.ai/pod-group": "My Group"}},
        "BadValue scheduling.run.ai/pod-group",
    ),
    "kai: no name": ({"annotations": {"pod-group-name": ""}}, "BadValue pod-group-name"),
    "kai: a role of two words": (
        {"limits": GPU, "annotations": {"scheduling.run.ai/topology-role": "pre fill"}},
        "BadValue scheduling.run.ai/topology-role",
    ),
    "kai: a policy twice": (
        {"limits": GPU, "annotations": {"scheduling.run.ai/topology-policy": "a,a"}},
        "BadValue scheduling.run.ai/topology-policy",
    ),
    "kai: its annotation as a label": (
        {"limits": GPU, "labels": {"scheduling.run.ai/pod-group": "g"}},
        "BadValue label scheduling.run.ai/pod-group",
    ),
    "coscheduling: a group that is no name": (
        {"labels": {"scheduling.x-k8s.io/pod-group": "G_1"}},
        "BadValue scheduling.x-k8s.io/pod-group",
    ),
    "coscheduling: its label as an annotation": (
        {"limits": GPU, "annotations": {"scheduling.x-k8s.io/pod-group": "g"}},
        "BadValue annotation scheduling.x-k8s.io/pod-group",
    ),
    # annotations of our own
    "own: a group that is no name": (own_keys(group="a b", min_member="2"), f"BadValue {PREFIX}group"),
    "own: a count without a group": (own_keys(min_member="2"), f"BadValue {PREFIX}min-member"),
    "own: no member": (own_keys(group="g", min_member="0"), f"BadValue {PREFIX}min-member"),
    "own: a scope that is no label": (own_keys(scope="my rack"), f"BadValue {PREFIX}scope"),
    "own: a scope twice": (own_keys(preferred_scopes="rack,rack"), f"BadValue {PREFIX}preferred-scopes"),
    "own: segments that do not nest": (
        own_keys(segment_size="6,4", segment_scope="rack,node"),
        f"BadValue {PREFIX}segment-size",
    ),
    "own: a size without a scope": (own_keys(segment_size="4"), f"BadValue {PREFIX}segment-scope"),
    "own: at most no member": (own_keys(max_per="rack=0"), f"BadValue {PREFIX}max-per"),
    "own: a rank in words": (own_keys(rank="first"), f"BadValue {PREFIX}rank"),
    "own: a slip of the pen": (own_keys(scoop="rack"), f"BadValue {PREFIX}scoop"),
    "own: a label": ({"labels": {f"{PREFIX}scope": "rack"}, "limits": GPU}, f"BadValue label {PREFIX}scope"),
    "own: very long": (own_keys(scope="r" * 2_000), f"BadValue {PREFIX}scope"),
    "own: a forged allocation": (
        forged_annotation(f"{PREFIX}allocation", GPU),
        f"ForgedAllocation {PREFIX}allocation",
    ),
    "own: a forged decision": (
        forged_annotation(f"{PREFIX}decision", GPU),
        f"ForgedAllocation {PREFIX}decision",
    ),
}


def reason(cause: Cause) -> str:
    match cause:
        case BadValue(_, field):
            return f"BadValue {field}"
        case ForgedAllocation(_, key):
            return f"ForgedAllocation {key}"
    return type(cause).__name__


@pytest.mark.parametrize(("fields", "expected"), PODS.values(), ids=PODS.keys())
def test_a_bad_pod_gets_a_typed_cause(fields: dict[str, Any], expected: str) -> None:
    pod = pods.read(pod_object(**fields))
    assert pod.claim is not None  # it is held, so somebody must answer it
    assert expected in [reason(cause) for cause in pod.causes]
    for cause in pod.causes:
        assert len(str(cause)) <= MAX_CHARACTERS
    assert expected.rsplit(maxsplit=1)[-1] in sentence(pod.causes)


# --- nodes -----------------------------------------------------------------------------------------

TOPOLOGY = {"ack.node.gpu.schedule": "topology", "nodename": "n"}


def fact(name: str, **data: str) -> NodeFact:
    read = configmaps.read(config_map(name, data, {} if name.startswith("unhealthy-gpu-") else TOPOLOGY))
    assert read is not None
    assert not isinstance(read, PolicyText)
    return read


def two(**more: Any) -> dict[str, Any]:
    """A node of two GPUs."""
    return {"allocatable": {"aliyun.com/gpu": 2}, **more}


def shares(memory: object = 32, **more: Any) -> dict[str, Any]:
    """A node of two GPUs that share their memory."""
    return {"allocatable": {"aliyun.com/gpu-count": 2, "aliyun.com/gpu-mem": memory}, **more}


NODES: dict[str, tuple[dict[str, Any], list[NodeFact], str]] = {
    # what: the node, what ConfigMaps say of it, the sentence
    "a quantity that is none": (
        {"allocatable": {"aliyun.com/gpu": "two"}},
        [],
        "allocatable aliyun.com/gpu is",
    ),
    "GPUs counted differently": (
        {"allocatable": {"aliyun.com/gpu": 2, "nvidia.com/gpu": 4}},
        [],
        "counts its GPUs differently",
    ),
    "more GPUs than a node has": ({"allocatable": {"aliyun.com/gpu": 999}}, [], "62 of them are used"),
    "another count by label": (two(labels={"nvidia.com/gpu.count": "8"}), [], "nvidia.com/gpu.count is '8'"),
    "ack: an unknown mode": (two(labels={"ack.node.gpu.schedule": "shared"}), [], "ack.node.gpu.schedule is"),
    "ack: an unknown placement": (
        shares(labels={"ack.node.gpu.placement": "pack"}),
        [],
        "ack.node.gpu.placement is 'pack'",
    ),
    "ack: links that are no JSON": (two(), [fact("t", linkType="NV2")], "ConfigMap kube-system/t: linkType"),
    "ack: links not the same both ways": (
        two(),
        [fact("t", linkType='[["X","NV1"],["NV2","X"]]')],
        "GPUs 0 and 1 are joined in two ways",
    ),
    "ack: links of another size": (two(), [fact("t", linkType='[["X"]]')], "1 pairs are missing"),
    "ack: bandwidth that is none": (
        two(),
        [fact("t", linkType='[["X","NV1"],["NV1","X"]]', bandwidth="[[0,0],[0,0]]")],
        "bandwidth: GPUs 0 and 1 have no positive number",
    ),
    "ack: devices that are none": (two(), [fact("t", devices='{"GPU":"Healthy"}')], "devices: 'GPU'"),
    "ack: a device the node has not": (
        two(),
        [fact("t", devices='{"7":"Bad"}')],
        "names GPU 7, and the node",
    ),
    "gputopology: no JSON": (two(matrix="{"), [], "GPU_TOPOLOGY: it is no JSON"),
    "gputopology: a pair is missing": (
        {"allocatable": {"aliyun.com/gpu": 3}, "matrix": as_json(full_matrix(2))},
        [],
        "2 pairs are missing",
    ),
    "gputopology: a pair twice": (
        two(matrix='{"GPU_NV1_0_1":"","GPU_NV2_0_1":""}'),
        [],
        "GPUs 0 and 1 are joined in two ways: the weaker counts",
    ),
    "gputopology: a GPU the node has not": (two(matrix=as_json(full_matrix(3))), [], "and the node has 2"),
    "gputopology: an unknown link": (
        two(matrix='{"GPU_NV99_0_1":"?"}'),
        [],
        "the link 'NV99', '?', of GPUs 0 and 1 is unknown",
    ),
    "labels: islands that do not divide": (
        two(labels={f"{PREFIX}nvlink-domain-size": "3"}, allocatable={"nvidia.com/gpu": 4}),
        [],
        "does not divide",
    ),
    "labels: an unknown NVLink": (
        two(labels={"nvidia.com/nvlink.version": "9", "nvidia.com/nvswitch.present": "true"}),
        [],
        "nvidia.com/nvlink.version is '9'",
    ),
    "cgpu: memory that does not divide": (shares(33), [], "33 GiB on 2 GPUs are not the same on each"),
    "cgpu: memory of no GPU": (
        {"allocatable": {"aliyun.com/gpu-mem": 32}},
        [],
        "nothing of it is served",
    ),
    "cgpu: memory by GPU, another sum": (
        shares(annotations={f"{PREFIX}gpu-mem": "16,17"}),
        [],
        "gpu.topology/gpu-mem is '16,17'",
    ),
    "cgpu: an unhealthy GPU in words": (
        shares(),
        [fact("unhealthy-gpu-n", gpus="first")],
        "has 'first' in it",
    ),
    "cgpu: an unhealthy GPU the node has not": (
        shares(),
        [fact("unhealthy-gpu-n", gpus="2")],
        "kube-system/unhealthy-gpu-n names GPU 2",
    ),
}


@pytest.mark.parametrize(("fields", "facts", "says"), NODES.values(), ids=NODES.keys())
def test_a_bad_node_is_used_without_what_is_bad(
    fields: dict[str, Any], facts: list[NodeFact], says: str
) -> None:
    node = nodes.read(node_object(**fields), facts=facts)
    assert node.ready
    assert says in "\n".join(node.problems)


# --- policies --------------------------------------------------------------------------------------


def section(text: str) -> str:
    return f"topologyAwareScheduling: {{{text}}}"


POLICIES: dict[str, tuple[str, str]] = {
    "no YAML": ("{", "config.yaml: no YAML"),
    "an alias bomb": ("a: &a [1]\nb: [*a, *a]", "aliases"),
    "another file": ("queues: []", "expected topologyAwareScheduling"),
    "an unknown field": (section("polices: []"), "topologyAwareScheduling.polices: unknown"),
    "an unknown strategy": (
        section("policies: [{name: p, weight: 1, topology: numa, strategy: binpack}]"),
        "policies[0].strategy",
    ),
    "a weight that is none": (
        section("policies: [{name: p, weight: much, topology: numa, strategy: pack}]"),
        "policies[0].weight",
    ),
    "a level without a label": (section("levels: [{name: rack}]"), "levels[0].label: missing"),
    "levels the wrong way": (
        section("levels: [{name: zone, label: z}, {name: rack, label: r}]"),
        "zone comes before rack",
    ),
}


@pytest.mark.parametrize(("text", "says"), POLICIES.values(), ids=POLICIES.keys())
def test_bad_policies_are_refused(text: str, says: str) -> None:
    read = configmaps.read(
        config_map("kai-scheduler-config", {"config.yaml": text}, namespace="muster-system")
    )
    assert isinstance(read, PolicyText)
    refused, problems = policies.read(read.text)
    assert refused is None
    assert says in "\n".join(problems)


# --- PodGroups -------------------------------------------------------------------------------------

POLICY, CONSTRAINT, REQUIRED = "topologyPolicy", "topologyConstraint", "requiredTopologyLevel"


def terms(**term: Any) -> dict[str, Any]:
    return {"minMember": 1, POLICY: {"affinity": {"required": [{"key": "k", **term}]}}}


def roles(*subgroups: dict[str, Any]) -> dict[str, Any]:
    return {"minMember": 2, "subGroups": list(subgroups)}


POD_GROUPS: dict[str, tuple[str, Any, str]] = {
    # what: the API, the spec, the field of the cause
    "no spec": ("scheduling.run.ai/v2", None, "spec.minMember"),
    "a spec that is a list": ("scheduling.run.ai/v2", [1], "spec"),
    "no member": ("scheduling.run.ai/v2", {"minMember": 0}, "spec.minMember"),
    "a count in words": ("scheduling.run.ai/v2", {"minMember": "four"}, "spec.minMember"),
    "a scope that is no label": (
        "scheduling.run.ai/v2",
        {"minMember": 1, POLICY: {"scope": "my rack"}},
        f"spec.{POLICY}.scope",
    ),
    "a slip of the pen": (
        "scheduling.run.ai/v2",
        {"minMember": 1, POLICY: {"scop": "rack"}},
        f"spec.{POLICY}.scop",
    ),
    "an operator that is none": (
        "scheduling.run.ai/v2",
        terms(operator="is", values=["x"]),
        f"spec.{POLICY}.affinity.required[0].operator",
    ),
    "In without values": (
        "scheduling.run.ai/v2",
        terms(operator="In"),
        f"spec.{POLICY}.affinity.required[0].values",
    ),
    "a boolean for text": (
        "scheduling.run.ai/v2",
        terms(operator="In", values=[True]),
        f"spec.{POLICY}.affinity.required[0].values",
    ),
    "two scopes for one gang": (
        "scheduling.run.ai/v2",
        {"minMember": 1, POLICY: {"scope": "node"}, CONSTRAINT: {REQUIRED: "example.com/row"}},
        f"spec.{CONSTRAINT}",
    ),
    "kai: a level that is no label": (
        "scheduling.run.ai/v2alpha2",
        {CONSTRAINT: {REQUIRED: "a b"}},
        f"spec.{CONSTRAINT}.{REQUIRED}",
    ),
    "kai: a subgroup twice": (
        "scheduling.run.ai/v2alpha2",
        roles({"name": "a"}, {"name": "a"}),
        "spec.subGroups[1].name",
    ),
    "kai: a parent that is not there": (
        "scheduling.run.ai/v2alpha2",
        roles({"name": "a", "parent": "b"}),
        "spec.subGroups[0].parent",
    ),
    "kai: a circle": (
        "scheduling.run.ai/v2alpha2",
        roles({"name": "a", "parent": "b"}, {"name": "b", "parent": "a"}),
        "spec.subGroups[0].parent",
    ),
    "kai: some of the subgroups": (
        "scheduling.run.ai/v2alpha2",
        {**roles({"name": "a"}, {"name": "b"}), "minSubGroup": 1},
        "spec.minMember",
    ),
    "coscheduling: no count": ("scheduling.x-k8s.io/v1alpha1", {}, "spec.minMember"),
    "coscheduling: half a member": ("scheduling.x-k8s.io/v1alpha1", {"minMember": 1.5}, "spec.minMember"),
}


@pytest.mark.parametrize(("api", "spec", "field"), POD_GROUPS.values(), ids=POD_GROUPS.keys())
def test_a_bad_pod_group_gets_a_typed_cause(api: str, spec: Any, field: str) -> None:
    group = podgroups.read(custom_object(api, "PodGroup", "g", spec))
    assert field in [cause.field for cause in group.causes if isinstance(cause, BadValue)]
    assert f"podgroup/ns/g: {field}" in sentence(group.causes)


# --- dialects that disagree ------------------------------------------------------------------------

SPEAKING: dict[str, dict[str, dict[str, str]]] = {
    "ack": {"labels": {"gpu-topology": "ack-gang", "gpu-topology-replica": "2"}},
    "kai": {"annotations": {"scheduling.run.ai/pod-group": "kai-gang"}},
    "coscheduling": {"labels": {"scheduling.x-k8s.io/pod-group": "coscheduling-gang"}},
    "annotations": {"annotations": {f"{PREFIX}group": "annotations-gang", f"{PREFIX}min-member": "2"}},
}


@pytest.mark.parametrize(("first", "second"), list(combinations(SPEAKING, 2)))
@pytest.mark.parametrize("limits", [GPU, MEM, {}], ids=["whole", "slice", "cpu"])
def test_two_dialects_that_disagree_are_both_named(first: str, second: str, limits: dict[str, int]) -> None:
    fields: dict[str, Any] = {
        key: {**SPEAKING[first].get(key, {}), **SPEAKING[second].get(key, {})}
        for key in ("labels", "annotations")
    }
    pod = pods.read(pod_object(limits=limits, **fields))
    (cause,) = pod.causes
    assert isinstance(cause, DialectsDisagree)
    gangs = {words.split(": gang ")[0]: words.split()[2] for words in (cause.first, cause.second)}
    assert gangs == {first: f"{first}-gang", second: f"{second}-gang"}
    assert all(f"{dialect}: gang {dialect}-gang" in sentence(pod.causes) for dialect in (first, second))


def test_counts_that_disagree_are_both_named() -> None:
    labels = ack("g", "2")
    pod = pods.read(pod_object(**labels, annotations={f"{PREFIX}group": "g", f"{PREFIX}min-member": "3"}))
    assert pod.causes == (DialectsDisagree("p", "ack: gang g of 2", "annotations: gang g of 3"),)
