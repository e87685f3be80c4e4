"""What a refusal says, and what a plan does not know: inputs after public reports, and their siblings."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.files.manifests import GPU, Object, decisions, gang, node, pod, write

DATA = Path(__file__).parent / "data" / "refusals"


def decided(name: str, *more: str) -> list[Object]:
    """Return the gangs of one input."""
    return list(decisions("-f", str(DATA / f"{name}.yaml"), *more)["gangs"])


def test_each_node_that_is_out_is_counted_and_none_is_to_be_used_in_a_bad_state() -> None:
    (eight,) = decided("node-states")
    assert eight["relaxations"] == ["to uncordon node cordoned"]
    for says in (
        "1 node does not admit the gang: cordoned",
        "2 nodes do not admit the gang: not ready",
        "1 node does not admit the gang: taint node.kubernetes.io/disk-pressure:NoSchedule",
        "2 nodes offer 6 of their 16 nvidia.com/gpu: plugin-gone, two-lost",
    ):
        assert says in eight["message"]


@pytest.mark.parametrize(
    "taint",
    [
        "node.kubernetes.io/memory-pressure",
        "node.kubernetes.io/pid-pressure",
        "node.kubernetes.io/network-unavailable",
        "node.kubernetes.io/not-ready",
        "node.kubernetes.io/unreachable",
        "node.kubernetes.io/out-of-service",
        "node.cloudprovider.kubernetes.io/uninitialized",
        "node.cloudprovider.kubernetes.io/shutdown",
        "node.cilium.io/agent-not-ready",
        "node.cluster.x-k8s.io/uninitialized",
        "nvidia.com/gpu-driver-upgrade",
        "readiness.k8s.io/gpu",
        "startup-taint.cluster-autoscaler.kubernetes.io/gpu",
        "cloud.google.com/impending-node-termination",
        "ToBeDeletedByClusterAutoscaler",
    ],
)
def test_to_tolerate_the_state_of_a_node_is_no_advice(tmp_path: Path, taint: str) -> None:
    manifest = node("a", spec={"taints": [{"key": taint, "effect": "NoSchedule"}]})
    (alone,) = decisions("-f", write(tmp_path, manifest, *gang("g", 1)))["gangs"]
    assert alone["relaxations"] == []
    assert f"taint {taint}:NoSchedule" in alone["message"]


def test_a_taint_of_a_pool_may_be_tolerated(tmp_path: Path) -> None:
    manifest = node("a", spec={"taints": [{"key": "pool", "value": "a100", "effect": "NoSchedule"}]})
    (alone,) = decisions("-f", write(tmp_path, manifest, *gang("g", 1)))["gangs"]
    assert alone["relaxations"] == ["a toleration of taint pool=a100:NoSchedule (1 more node)"]


def test_a_scope_that_a_cloud_has_labels_for_names_the_preset() -> None:
    (two,) = decided("cloud-labels")
    (cause,) = two["causes"]
    assert (cause["preset"], cause["preset_label"]) == ("gke", "cloud.google.com/gce-topology-subblock")
    assert "set `preset: gke` in the policies" in two["message"]


def test_a_resource_that_no_node_offers_is_named_with_the_one_that_was_meant() -> None:
    answer = decisions("-f", str(DATA / "resource-typo.yaml"))
    (typo,) = answer["gangs"]
    none = "No node offers nvidia.com/gpus, which the gang needs; did you mean nvidia.com/gpu?"
    assert typo["message"] == none
    assert any(note.endswith("; did you mean nvidia.com/gpu?") for note in answer["notes"])


def test_no_advice_leads_onto_mig_devices() -> None:
    mig, ddp = decided("mig-mixed")
    assert mig["relaxations"] == ["to start with 2 members instead of 3"]
    assert ddp["status"] == "unplaceable"
    assert ddp["relaxations"] == []


@pytest.mark.parametrize("product", ["NVIDIA-H100-80GB-HBM3-MIG-1g.10gb", "NVIDIA-H100-80GB-HBM3-SHARED"])
def test_no_advice_for_members_with_several_gpus_leads_onto_parts_of_gpus(
    tmp_path: Path, product: str
) -> None:
    parts = node("parts", 16, labels={"nvidia.com/gpu.product": product}, spec={"unschedulable": True})
    manifests = [node("whole", 4), parts]
    (several,) = decisions("-f", write(tmp_path, *manifests, *gang("g", 2, 4)))["gangs"]
    assert several["relaxations"] == []
    (single,) = decisions("-f", write(tmp_path, *manifests, *gang("g", 6, 1)))["gangs"]
    assert single["relaxations"] == ["to uncordon node parts"]


def test_a_preference_that_a_cloud_has_labels_for_names_the_preset(tmp_path: Path) -> None:
    labels = {"topology.kubernetes.io/rack": "", "topology.k8s.aws/network-node-layer-3": "nn-1"}
    manifest = node("a", labels=labels)
    pods = gang("g", 1)
    pods[0]["metadata"]["annotations"] = {"gpu.topology/preferred-scopes": "rack"}
    (note,) = [note for note in decisions("-f", write(tmp_path, manifest, *pods))["notes"] if "rack" in note]
    assert note.endswith("set `preset: eks` in the policies (docs/policies.md)")


@pytest.mark.parametrize(
    ("resource", "meant"),
    [
        ("nvidia.com/mig-1g.5gb", "nvidia.com/mig-1g.10gb"),
        ("rdma/hca-shared", "rdma/hca_shared"),
        ("example.com/unlike", ""),
    ],
)
def test_any_resource_that_no_node_offers_is_named(tmp_path: Path, resource: str, meant: str) -> None:
    node_manifest = node("a")
    node_manifest["status"]["allocatable"] |= {"nvidia.com/mig-1g.10gb": "7", "rdma/hca_shared": "8"}
    pods = gang("g", 2)
    for manifest in pods:
        manifest["spec"]["containers"][0]["resources"]["limits"][resource] = 1
    (refused,) = decisions("-f", write(tmp_path, node_manifest, *pods))["gangs"]
    hint = f"; did you mean {meant}?" if meant else ""
    assert refused["message"] == f"No node offers {resource}, which the gang needs{hint}"


def test_gpus_of_another_resource_are_named(tmp_path: Path) -> None:
    pods = gang("g", 2)
    for manifest in pods:
        manifest["spec"]["containers"][0]["resources"]["limits"] = {"amd.com/gpu": 1}
    (refused,) = decisions("-f", write(tmp_path, node("a"), *pods))["gangs"]
    assert "No node offers amd.com/gpu" in refused["message"]
    assert refused["message"].endswith("did you mean nvidia.com/gpu?")


def test_a_node_that_lost_gpus_is_named_by_its_capacity_alone(tmp_path: Path) -> None:
    broken = node("lost", 0)
    broken["status"]["capacity"] = {**broken["status"]["allocatable"], GPU: "8"}
    answer = decisions("-f", write(tmp_path, broken, node("small", 4), *gang("g", 1, 8)))
    assert "1 node offers 0 of its 8 nvidia.com/gpu: lost" in answer["gangs"][0]["message"]
    assert "Node lost: its capacity is 8 GPUs, but allocatable has 0" in answer["notes"]


def test_gpus_that_other_pods_may_have_are_told_in_sentence_and_data() -> None:
    gangs = decided("taken-by-number", "-f", str(DATA / "pc.txt"))
    assert [gang_shown["status"] for gang_shown in gangs] == ["placed", "placed"]
    for gang_shown in gangs:
        assert gang_shown["unknown_indices"] == ["pc"]
        assert "proven optimal as far as taken GPUs are known" in gang_shown["message"]
        doubt = "on node pc it is not known which GPUs other pods have: the chosen ones may be among them"
        assert doubt in gang_shown["message"]


def test_a_plan_on_other_nodes_has_no_such_doubt(tmp_path: Path) -> None:
    running = pod("other", gpus=1, nodeName="a", schedulerName="default-scheduler")
    (alone,) = decisions("-f", write(tmp_path, node("a", 4), node("b", 4), running, *gang("g", 1, 4)))[
        "gangs"
    ]
    assert alone["members"][0]["node"] == "b"
    assert alone["unknown_indices"] == []
    assert alone["message"].endswith("proven optimal")


def test_only_as_many_nodes_are_to_be_uncordoned_as_are_needed(tmp_path: Path) -> None:
    off = [node(name, 4, spec={"unschedulable": True}) for name in "abc"]
    (two,) = decisions("-f", write(tmp_path, *off, *gang("g", 2, 4)))["gangs"]
    assert two["relaxations"][0] == "to uncordon nodes a and b"


def test_a_pod_that_lacks_cpu_hears_where_it_is_free(tmp_path: Path) -> None:
    with_gpus, without = node("gpu", 8), [node(name, 0) for name in ("cpu-1", "cpu-2")]
    with_gpus["status"]["allocatable"]["cpu"] = "36"
    for manifest in without:
        manifest["status"]["allocatable"]["cpu"] = "96"
    busy = pod("busy", gpus=0, nodeName="gpu")
    busy["spec"]["containers"][0]["resources"] = {"requests": {"cpu": "32"}}
    asks = pod("asks", gpus=8)
    asks["spec"]["containers"][0]["resources"] = {"limits": {GPU: 8, "cpu": "32"}}
    (alone,) = decisions("-f", write(tmp_path, with_gpus, *without, busy, asks))["gangs"]
    free = "The pod needs 32 cpu, and 4 cpu are free on nodes that admit it (192 on others)"
    assert alone["message"].startswith(free)


def test_who_has_the_room_is_told_by_priority(tmp_path: Path) -> None:
    low = [pod(f"low-{i}", "low", 2, gpus=4, nodeName="a", priority=1) for i in range(2)]
    even = [pod("even-0", "even", 1, gpus=4, nodeName="b", priority=10)]
    high = [pod(f"high-{i}", "high", 2, gpus=8, priority=10) for i in range(2)]
    foreign_pod = pod("other", gpus=2, nodeName="b", schedulerName="default-scheduler")
    answer = decisions("-f", write(tmp_path, node("a", 8), node("b", 8), *low, *even, *high, foreign_pod))
    refused = next(gang_shown for gang_shown in answer["gangs"] if gang_shown["name"] == "high")
    has = "1 gang of lower priority has 8, 1 other gang has 4 and pods in no gang have 2"
    assert f"of the GPUs on nodes that admit it, {has}" in refused["message"]
    cause = next(gang_cause for gang_cause in refused["causes"] if gang_cause["type"] == "room-taken")
    assert (cause["lower_gangs"], cause["lower_gpus"]) == (1, 8)


def test_no_advice_frees_what_members_that_run_have(tmp_path: Path) -> None:
    def member(name: str, role: str, **more: Any) -> Object:
        manifest = pod(name, gpus=4, **more)
        keys = {"group": "g", "min-member": "3", "role": role}
        manifest["metadata"]["annotations"] = {f"gpu.topology/{key}": value for key, value in keys.items()}
        return manifest

    nodes = [node("a", 4), node("b", 4), node("c", 4)]
    gang = [member("m", "master", nodeName="a"), member("w0", "worker"), member("w1", "worker")]
    (gang_shown,) = decisions(write(tmp_path, *nodes, *gang, pod("x", gpus=4, nodeName="b")))["gangs"]
    assert gang_shown["relaxations"] == ["4 more free GPUs on b"]
    (gang_shown,) = decisions(write(tmp_path, *nodes[:2], *gang))["gangs"]
    assert gang_shown["message"] == (
        "Roles master, worker need 12 nvidia.com/gpu for 3 members, and the nodes that admit them have "
        "8 nvidia.com/gpu in all: 2 of 3 fit, even if nothing else ran"
    )


@pytest.mark.parametrize(
    ("labels", "hint"),
    [
        ({"backend.coreweave.cloud/leafgroup": "1"}, "set `preset: coreweave` in the policies"),
        ({"alibabacloud.com/asw-id": "1"}, "set `preset: lingjun` in the policies"),
        ({"network.topology.nvidia.com/leaf": "s1"}, "set `preset: topograph` in the policies"),
        ({"node.coreweave.cloud/rack": "7"}, "did you mean node.coreweave.cloud/rack?"),
        ({"cloud.provider.com/topology-rack": "7"}, "did you mean cloud.provider.com/topology-rack?"),
        ({"topology.kubernetes.io/zone": "eastus-1"}, "the policies can name another label"),
        ({"rack": "7"}, "the policies can name another label"),
        ({"example.com/rack-power-kw": "40"}, "the policies can name another label"),
    ],
)
def test_a_scope_without_a_label_has_a_way_out(tmp_path: Path, labels: dict[str, str], hint: str) -> None:
    manifest = node("a", rack="", labels=labels)
    alone = pod("p")
    alone["metadata"]["annotations"] = {"gpu.topology/scope": "rack"}
    (refused,) = decisions("-f", write(tmp_path, manifest, alone))["gangs"]
    assert refused["message"].removesuffix(" (docs/policies.md)").endswith(hint)


def test_a_node_whose_device_plugin_never_ran_is_named(tmp_path: Path) -> None:
    manifest = node("a", labels={"nvidia.com/gpu.count": "8"})
    del manifest["status"]["allocatable"][GPU]
    (alone,) = decisions("-f", write(tmp_path, manifest, pod("p")))["gangs"]
    assert "1 node offers 0 of its 8 nvidia.com/gpu: a" in alone["message"]


def test_who_has_gpus_of_a_node_that_does_not_admit_the_pod_is_not_told(tmp_path: Path) -> None:
    manifest = node("a", 1, spec={"unschedulable": True})
    running, alone = pod("x", nodeName="a"), pod("p")
    (refused,) = decisions("-f", write(tmp_path, manifest, running, alone))["gangs"]
    assert "on nodes that admit it" not in refused["message"]


def test_a_taint_that_is_only_preferred_is_noted(tmp_path: Path) -> None:
    manifest = node("a", spec={"taints": [{"key": "spot", "value": "yes", "effect": "PreferNoSchedule"}]})
    (note,) = decisions("-f", write(tmp_path, manifest, pod("p")))["notes"]
    assert note == "Node a: taint spot=yes:PreferNoSchedule is not followed: it keeps no pod away here"


@pytest.mark.parametrize("resource", ["huawei.com/npu", "intel.com/gpu", "enflame.com/gcu", "baidu.com/xpu"])
def test_no_resource_of_another_vendor_is_meant(tmp_path: Path, resource: str) -> None:
    manifest = pod("p", containers=[{"name": "c", "resources": {"limits": {resource: 1}}}])
    notes = decisions("-f", write(tmp_path, node("a"), manifest))["notes"]
    assert any(resource in note for note in notes)
    assert not any("did you mean" in note for note in notes)


def test_a_node_with_a_broken_gpu_is_named(tmp_path: Path) -> None:
    meta = {"name": "unhealthy-gpu-a", "namespace": "kube-system"}
    broken = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": meta, "data": {"gpus": "0"}}
    (alone,) = decisions("-f", write(tmp_path, node("a"), broken, pod("p", gpus=4)))["gangs"]
    assert alone["message"].endswith("1 node offers 3 of its 4 nvidia.com/gpu: a")
