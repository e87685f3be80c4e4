"""What the API server adds to a new pod, and what it refuses."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.files.manifests import GPU, Object, controller, decisions, node, nodes_of, place, pod, write

# --- requests and limits ----------------------------------------------------------------------------

Quantities = Mapping[str, Any]


@pytest.mark.parametrize(
    ("requests", "limits", "refused"),
    [
        ({GPU: 1}, {GPU: 1}, ""),
        ({GPU: "1"}, {GPU: 1}, ""),
        ({}, {GPU: 1}, ""),
        ({GPU: 1}, {}, f"limits[{GPU}]"),
        ({GPU: 1}, {GPU: 2}, f"requests[{GPU}]"),
        ({GPU: 2}, {GPU: 1}, f"requests[{GPU}]"),
        ({"rdma/hca": 1, GPU: 1}, {GPU: 1}, "limits[rdma/hca]"),
        ({"aliyun.com/gpu-mem": 3}, {}, "limits[aliyun.com/gpu-mem]"),
        ({"hugepages-2Mi": "4Mi", "cpu": 1}, {"cpu": 1}, "limits[hugepages-2Mi]"),
        ({}, {"hugepages-2Mi": "4Mi", "cpu": 1}, ""),
        ({}, {"hugepages-2Mi": "3Mi", "cpu": 1}, "limits[hugepages-2Mi]"),
        ({}, {"hugepages-big": "4Mi", "cpu": 1}, "limits[hugepages-big]"),
        ({"cpu": 1, "memory": "1Gi"}, {"cpu": 2}, ""),
        ({"cpu": 2}, {"cpu": 1}, "requests[cpu]"),
        ({"memory": "1Gi"}, {"memory": "1024Mi"}, ""),
        ({"example.kubernetes.io/x": 1}, {}, ""),
        ({}, {"rdma/hca": "500m"}, "limits[rdma/hca]"),
        ({}, {GPU: "1500m"}, f"limits[{GPU}]"),
        ({}, {GPU: "1000m"}, ""),
    ],
)
@pytest.mark.parametrize("kind", ["containers", "initContainers"])
def test_what_the_api_server_refuses(
    tmp_path: Path, requests: Quantities, limits: Quantities, refused: str, kind: str
) -> None:
    plain = {"name": "main", "resources": {"limits": {GPU: 1}}}
    container = {"name": "x", "resources": {"requests": dict(requests), "limits": dict(limits)}}
    of_pod = {"schedulerName": "muster", "containers": [plain], **{kind: [container]}}
    job = controller("Job", "batch/v1", "j", template={"spec": of_pod})
    for object_, path in (({**pod("p"), "spec": of_pod}, "spec"), (job, "spec.template.spec")):
        result = place(write(tmp_path, node("a"), object_))
        assert (result.exit_code == 2) == bool(refused), result.output
        if refused:
            assert f"{path}.{kind}[0].resources.{refused}: expected" in result.output


@pytest.mark.parametrize(("resource", "meant"), [("cpus", "did you mean cpu?"), ("gpu", "nvidia.com/gpu")])
def test_a_resource_without_a_prefix_is_refused(tmp_path: Path, resource: str, meant: str) -> None:
    manifest = pod("p")
    manifest["spec"]["containers"][0]["resources"] = {"limits": {resource: 1}}
    result = place(write(tmp_path, node("a"), manifest))
    assert result.exit_code == 2
    assert f"spec.containers[0].resources.limits[{resource}]: no resource of containers" in result.output
    assert meant in result.output


@pytest.mark.parametrize(
    ("whole", "of_container", "cpus", "refused"),
    [
        ({"limits": {"cpu": 65}}, {"requests": {"cpu": 2}}, 2, ""),
        ({"limits": {"cpu": 65}}, {}, 65, ""),
        ({"limits": {"cpu": 65}, "requests": {"cpu": 3}}, {"requests": {"cpu": 2}}, 3, ""),
        ({"requests": {"memory": "1Gi"}}, {"requests": {"cpu": 65}}, 65, ""),
        ({"requests": {"cpu": 1}}, {"requests": {"cpu": 2}}, 0, "requests[cpu]"),
        ({"requests": {"cpu": 1}}, {"limits": {"cpu": 2}}, 0, "requests[cpu]"),
        ({"limits": {"cpu": 1}, "requests": {"cpu": 2}}, {}, 0, "requests[cpu]"),
        ({"limits": {"cpu": 1}}, {"limits": {"cpu": 2}, "requests": {"cpu": 1}}, 0, "limits[cpu]"),
    ],
)
def test_a_pod_as_a_whole_asks_as_the_api_server_stores_it(
    tmp_path: Path, whole: Object, of_container: Object, cpus: int, refused: str
) -> None:
    """The node has 64 CPUs."""
    manifest = pod("p", resources=whole)
    resources = manifest["spec"]["containers"][0]["resources"]
    for part, amounts in of_container.items():
        resources[part] = {**resources.get(part, {}), **amounts}
    path = write(tmp_path, node("a"), manifest)
    if refused:
        result = place(path)
        assert result.exit_code == 2
        assert f"spec.resources.{refused}: expected at" in result.output
    else:
        assert (decisions(path)["gangs"][0]["status"] == "placed") == (cpus <= 64)


# --- RuntimeClass, LimitRange, tolerations ----------------------------------------------------------

KATA: Object = {
    "apiVersion": "node.k8s.io/v1",
    "kind": "RuntimeClass",
    "metadata": {"name": "kata"},
    "handler": "kata",
    "overhead": {"podFixed": {"cpu": "2", "memory": "1Gi"}},
    "scheduling": {
        "nodeSelector": {"runtime": "kata"},
        "tolerations": [{"key": "kata", "operator": "Exists", "effect": "NoSchedule"}],
    },
}
TAINTED: Object = {
    "spec": {"taints": [{"key": "kata", "effect": "NoSchedule"}]},
    "labels": {"runtime": "kata"},
}


def test_a_runtime_class_gives_selector_and_tolerations(tmp_path: Path) -> None:
    objects = (node("a"), node("k", **TAINTED), pod("p", runtimeClassName="kata"))
    answer = decisions(write(tmp_path, *objects, KATA))
    assert nodes_of(answer) == {"p": "k"}
    answer = decisions(write(tmp_path, *objects))
    assert "RuntimeClass kata is not in the input: 1 pod of it" in answer["notes"][0]


@pytest.mark.parametrize(("cpus", "status"), [("62", "placed"), ("63", "unplaceable")])
def test_the_overhead_of_a_runtime_class_counts(tmp_path: Path, cpus: str, status: str) -> None:
    manifest = pod("p", runtimeClassName="kata")
    manifest["spec"]["containers"][0]["resources"]["requests"] = {"cpu": cpus}
    answer = decisions(write(tmp_path, node("k", **TAINTED), manifest, KATA))
    assert answer["gangs"][0]["status"] == status


def test_a_selector_against_the_runtime_class_is_refused(tmp_path: Path) -> None:
    manifest = pod("p", runtimeClassName="kata", nodeSelector={"runtime": "runc"})
    result = place(write(tmp_path, node("k", **TAINTED), manifest, KATA))
    assert result.exit_code == 2
    assert 'spec.nodeSelector[runtime]: expected "kata", as RuntimeClass kata has it' in result.output


@pytest.mark.parametrize(
    ("fields", "refused"),
    [
        ({"runtimeClassName": "kata", "overhead": {"cpu": "2000m", "memory": "1Gi"}}, ""),
        ({"runtimeClassName": "kata", "overhead": {"cpu": "1"}}, "expected what RuntimeClass kata says"),
        ({"overhead": {"cpu": "1"}}, "expected spec.runtimeClassName"),
    ],
)
def test_an_overhead_is_that_of_the_runtime_class(tmp_path: Path, fields: Object, refused: str) -> None:
    result = place(write(tmp_path, node("k", **TAINTED), pod("p", **fields), KATA))
    assert (result.exit_code == 2) == bool(refused), result.output
    assert not refused or f"spec.overhead: {refused}" in result.output


def limit_range(**limits: Quantities) -> Object:
    manifest = controller("LimitRange", "v1", "lr", limits=[{"type": "Container", **limits}])
    return {**manifest, "metadata": {"name": "lr", "namespace": "default"}}


@pytest.mark.parametrize(
    ("limits", "of_container", "cpus"),
    [
        ({"defaultRequest": {"cpu": "65"}}, {}, 65),
        ({"default": {"cpu": "65"}}, {}, 65),
        ({"default": {"cpu": "66"}, "defaultRequest": {"cpu": "2"}}, {}, 2),
        ({"max": {"cpu": "65"}}, {}, 65),
        ({"min": {"cpu": "65"}}, {}, 65),
        ({"defaultRequest": {"cpu": "65"}}, {"requests": {"cpu": "1"}}, 1),
        ({"defaultRequest": {"cpu": "65"}}, {"limits": {"cpu": "1"}}, 1),
    ],
)
def test_the_defaults_of_a_limit_range_count(
    tmp_path: Path, limits: dict[str, Quantities], of_container: dict[str, Quantities], cpus: int
) -> None:
    """The node has 64 CPUs."""
    manifest = pod("p")
    resources = manifest["spec"]["containers"][0]["resources"]
    for part, amounts in of_container.items():
        resources[part] = {**resources.get(part, {}), **amounts}
    answer = decisions(write(tmp_path, node("a"), manifest, limit_range(**limits)))
    assert (answer["gangs"][0]["status"] == "placed") == (cpus <= 64)
    assert any("not checked here" in note for note in answer["notes"]) == bool({"min", "max"} & limits.keys())


def test_a_request_above_the_limit_of_a_limit_range_is_refused(tmp_path: Path) -> None:
    manifest = pod("p")
    manifest["spec"]["containers"][0]["resources"]["requests"] = {"cpu": "4"}
    result = place(write(tmp_path, node("a"), manifest, limit_range(default={"cpu": "1"})))
    assert result.exit_code == 2
    assert 'requests[cpu]: expected at most its limit, "1", got "4". The limit is that of' in result.output


def test_a_pod_that_is_stored_is_not_changed(tmp_path: Path) -> None:
    manifest = pod("p", runtimeClassName="kata")
    manifest["metadata"]["creationTimestamp"] = "2026-01-01T00:00:00Z"
    answer = decisions(write(tmp_path, node("a"), manifest, KATA, limit_range(default={"cpu": "65"})))
    assert nodes_of(answer) == {"p": "a"}


@pytest.mark.parametrize(
    ("taint", "status"),
    [
        ("node.kubernetes.io/not-ready:NoExecute", "placed"),
        ("node.kubernetes.io/unreachable:NoExecute", "placed"),
        ("node.kubernetes.io/not-ready:NoSchedule", "unplaceable"),
        ("nvidia.com/gpu:NoSchedule", "unplaceable"),  # ExtendedResourceToleration is off by default
    ],
)
def test_only_the_default_tolerations_are_added(tmp_path: Path, taint: str, status: str) -> None:
    key, _, effect = taint.partition(":")
    tainted = node("a", spec={"taints": [{"key": key, "effect": effect}]})
    assert decisions(write(tmp_path, tainted, pod("p")))["gangs"][0]["status"] == status


@pytest.mark.parametrize("field", ["limits", "requests"])
def test_a_whole_pod_asks_for_no_gpus(tmp_path: Path, field: str) -> None:
    manifest = pod("p", resources={field: {"cpu": 1, GPU: 1}})
    result = place(write(tmp_path, node("a"), manifest))
    assert result.exit_code == 2
    assert f"spec.resources.{field}[{GPU}]: expected cpu, memory or huge pages" in result.output
