"""Fields whose meaning is known and not followed: each is named in a note."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.files.manifests import Object, controller, decisions, node, pod, spec, write

CLAIM = [{"name": "v", "persistentVolumeClaim": {"claimName": "c"}}]
PREFERRED = {
    "nodeAffinity": {
        "preferredDuringSchedulingIgnoredDuringExecution": [
            {"weight": 1, "preference": {"matchExpressions": [{"key": "x", "operator": "Exists"}]}}
        ]
    }
}
SPREAD = [
    {"maxSkew": 1, "topologyKey": "rack", "whenUnsatisfiable": "ScheduleAnyway", "labelSelector": {}},
]


def asking(limits: Object) -> Object:
    return {"name": "main", "resources": {"limits": limits}}


def with_meta(manifest: Object, field: str, **keys: str) -> Object:
    manifest["metadata"].setdefault(field, {}).update({key.replace("__", "/"): v for key, v in keys.items()})
    return manifest


@pytest.mark.parametrize(
    ("manifest", "field_name"),
    [
        (pod("p", volumes=CLAIM), "spec.volumes with claims"),
        (pod("p", affinity=PREFERRED), "preferred affinity"),
        (pod("p", topologySpreadConstraints=SPREAD), "ScheduleAnyway"),
        (
            with_meta(pod("p"), "labels", **{"kueue.x-k8s.io__queue-name": "q"}),
            "label kueue.x-k8s.io/queue-name",
        ),
        (
            with_meta(pod("p"), "annotations", **{"kueue.x-k8s.io__podset-required-topology": "rack"}),
            "annotation kueue.x-k8s.io/podset-required-topology",
        ),
        (
            with_meta(pod("p"), "annotations", **{"gke-gcsfuse__volumes": "true"}),
            "annotation gke-gcsfuse/volumes",
        ),
        (
            with_meta(pod("p"), "labels", **{"sidecar.istio.io__inject": "true"}),
            "label sidecar.istio.io/inject",
        ),
        (
            with_meta(pod("p"), "annotations", **{"linkerd.io__inject": "enabled"}),
            "annotation linkerd.io/inject",
        ),
        (controller("RayJob", "ray.io/v1", "r", clusterSelector={"a": "b"}), "spec.clusterSelector"),
        (
            controller(
                "Job",
                "batch/v1",
                "j",
                managedBy="kueue.x-k8s.io/multikueue",
                template={"spec": spec(1)},
            ),
            "spec.managedBy",
        ),
        (
            with_meta(
                controller("Deployment", "apps/v1", "d", template={"spec": spec(1)}),
                "annotations",
                **{"scheduling.volcano.sh__group-min-member": "2"},
            ),
            "annotation scheduling.volcano.sh/group-min-member",
        ),
    ],
)
def test_a_field_that_is_not_followed_is_named(tmp_path: Path, manifest: Object, field_name: str) -> None:
    notes = decisions(write(tmp_path, node("a"), pod("other"), manifest))["notes"]
    assert [f"{field_name} is not followed" in note for note in notes] == [True]


def test_usual_values_are_not_named(tmp_path: Path) -> None:
    job = controller(
        "Job", "batch/v1", "j", managedBy="kubernetes.io/job-controller", template={"spec": spec(1)}
    )
    assert decisions(write(tmp_path, node("a"), job))["notes"] == []


@pytest.mark.parametrize(
    ("manifest", "says"),
    [
        # Project-HAMi/HAMi, examples/nvidia
        (
            with_meta(pod("p"), "annotations", **{"nvidia.com__nouse-gputype": "1080,2080"}),
            "Pod default/p: annotation nvidia.com/nouse-gputype has no effect, since it is for HAMi's "
            "scheduler: select nodes by the label nvidia.com/gpu.product",
        ),
        (
            with_meta(pod("p"), "annotations", **{"nvidia.com__use-gpuuuid": "GPU-0"}),
            "Pod default/p: annotation nvidia.com/use-gpuuuid has no effect, since it is for HAMi's "
            "scheduler: GPUs are not chosen by their UUIDs, only nodes by their labels",
        ),
        (
            pod(
                "p",
                containers=[asking({"nvidia.com/gpu": 1, "nvidia.com/gpumem": 3, "nvidia.com/gpucores": 3})],
            ),
            "Pod default/p: nvidia.com/gpucores and nvidia.com/gpumem are for HAMi's scheduler: "
            "ask for aliyun.com/gpu-mem in place of GPUs",
        ),
        # kai-scheduler/KAI-Scheduler, docs/gpu-sharing
        (
            with_meta(pod("p", gpus=0), "annotations", **{"gpu-fraction": "0.5"}),
            "annotation gpu-fraction is not read: ask for memory of shared GPUs with aliyun.com/gpu-mem",
        ),
        (
            with_meta(pod("p"), "annotations", **{"gpu-memory": "2000"}),
            "Pod default/p: annotation gpu-memory is not read: "
            "ask for memory of shared GPUs with aliyun.com/gpu-mem",
        ),
        # Project-HAMi/HAMi, examples/ascend
        (
            pod("p", gpus=0, containers=[asking({"huawei.com/Ascend910A": 1, "openshift.io/nic": 1})]),
            "1 pending pod asks for no GPU and names no gang: not placed here. They ask for "
            "huawei.com/Ascend910A; what counts as a GPU is nvidia.com/gpu, aliyun.com/gpu, amd.com/gpu, "
            "aliyun.com/gpu-mem",
        ),
    ],
)
def test_words_of_other_systems_for_gpus_are_noted(tmp_path: Path, manifest: Object, says: str) -> None:
    assert says in decisions(write(tmp_path, node("a"), manifest))["notes"]


def test_no_resource_is_meant_that_the_pod_asks_for_already(tmp_path: Path) -> None:
    manifest = pod("p", containers=[asking({"nvidia.com/gpu": 1, "nvidia.com/gpumem": 3})])
    (gang,) = decisions(write(tmp_path, node("a"), manifest))["gangs"]
    assert gang["message"] == "No node offers nvidia.com/gpumem, which the gang needs"
