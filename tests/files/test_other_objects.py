"""Tests of PodGroups, Topologies and ConfigMaps in the input: they change decisions and pictures."""

from __future__ import annotations

import io
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import yaml

from muster.adapters.files.decide import Outcomes, decide
from muster.adapters.files.reading.cluster import cluster_of
from muster.adapters.files.reading.sources import read
from muster.adapters.files.showing import pictures, report, svg
from muster.dialects.settings import DEFAULTS
from muster.domain.decision import MemberPlacement, Objective, Placed
from muster.domain.request import Request
from muster.domain.snapshot import Snapshot
from muster.placement.limits import Timings
from tests.files.manifests import Object, decisions, node, place, pod, spots, write

OURS, KAIS = "scheduling.run.ai/v2", "scheduling.run.ai/v2alpha2"


def group(name: str, api: str = OURS, /, **spec: Any) -> Object:
    return {"apiVersion": api, "kind": "PodGroup", "metadata": {"name": name}, "spec": spec}


def topology(*labels: str, **aliases: str) -> Object:
    """Make a Topology with levels of these labels, and of those that have an alias."""
    spec = {
        "levels": [
            *({"nodeLabel": label} for label in labels),
            *({"nodeLabel": label, "alias": alias} for alias, label in aliases.items()),
        ]
    }
    return {
        "apiVersion": "kai.scheduler/v1alpha1",
        "kind": "Topology",
        "metadata": {"name": "dc"},
        "spec": spec,
    }


def config_map(namespace: str, name: str, data: dict[str, str]) -> Object:
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": name, "namespace": namespace},
        "data": data,
    }


def policies(text: str) -> Object:
    return config_map("muster-system", "kai-scheduler-config", {"config.yaml": text})


def named(name: str, of: str, gpus: int = 1, role: str = "", label: str = "") -> Object:
    """A pod that names a PodGroup, by the recipe's annotation or by this label."""
    manifest = pod(name, gpus=gpus)
    role_key = {"scheduling.run.ai/topology-role": role} if role else {}
    if label:
        manifest["metadata"]["labels"] = {label: of}
    else:
        manifest["metadata"]["annotations"] = {"scheduling.run.ai/pod-group": of, **role_key}
    return manifest


def workers(count: int, of: str, gpus: int = 1, **more: str) -> list[Object]:
    return [named(f"{of}-{i}", of, gpus, **more) for i in range(count)]


SHELF = {"topology": "dc", "requiredTopologyLevel": "example.com/shelf"}


@dataclass(frozen=True)
class Case:
    """Objects in; the status of each gang; where pods go; what is said of it."""

    objects: list[Object]
    gangs: list[str]
    at: dict[str, str] = field(default_factory=dict)
    says: str = ""


CASES = {
    "the recipe's serving pipeline on one node": Case(
        [
            node("a"),
            node("b", 8),
            group("llm", minMember=2, topologyPolicy={"scope": "node"}),
            named("prefill", "llm", 4, "prefill"),
            named("decode", "llm", 4, "decode"),
        ],
        ["default/llm: placed"],
        {"prefill": "b:4,5,6,7", "decode": "b:0,1,2,3"},
    ),
    "a member is missing": Case(
        [node("a"), group("llm", minMember=3), *workers(2, "llm")],
        ["default/llm: waiting"],
        says="Waiting for 1 more member: 2 of 3 are here",
    ),
    "the PodGroup is missing": Case(
        [node("a"), *workers(2, "llm")],
        ["default/llm: waiting"],
        says="PodGroup default/llm does not exist yet; its pods wait for it",
    ),
    "an ill-formed PodGroup": Case(
        [node("a"), group("llm", minMember=0), *workers(2, "llm")],
        ["default/llm: invalid"],
        says='spec.minMember is "0"',
    ),
    "affinity keeps to its nodes": Case(
        [
            node("a"),
            node("b", labels={"gpu.topology/interconnect": "nvswitch"}),
            group(
                "train",
                minMember=1,
                topologyPolicy={
                    "affinity": {
                        "required": [
                            {"key": "gpu.topology/interconnect", "operator": "In", "values": ["nvswitch"]}
                        ]
                    }
                },
            ),
            *workers(1, "train"),
        ],
        ["default/train: placed"],
        {"train-0": "b:0"},
    ),
    "KAI's level is a label of nodes": Case(
        [
            node("a", 2, "r1"),
            node("b", 2, "r2"),
            topology("topology.kubernetes.io/rack", "kubernetes.io/hostname"),
            group(
                "train",
                KAIS,
                minMember=4,
                topologyConstraint={
                    "topology": "dc",
                    "requiredTopologyLevel": "topology.kubernetes.io/rack",
                },
            ),
            *workers(4, "train"),
        ],
        ["default/train: unplaceable"],
        says="rack",
    ),
    "an alias of KAI's level, as in its pull request 1788": Case(
        [
            node("a", labels={"example.com/row": "r1"}),
            node("b", labels={"example.com/row": "r1"}),
            node("c", labels={"example.com/row": "r2"}),
            topology(row="example.com/row", host="kubernetes.io/hostname"),
            group(
                "train",
                KAIS,
                minMember=8,
                topologyConstraint={"topology": "dc", "requiredTopologyLevel": "row"},
            ),
            *workers(8, "train"),
        ],
        ["default/train: placed"],
        {f"train-{i}": f"{'ab'[i // 4]}:{i % 4}" for i in range(8)},
    ),
    "coscheduling": Case(
        [
            node("a"),
            group("train", "scheduling.x-k8s.io/v1alpha1", minMember=2),
            *workers(2, "train", label="scheduling.x-k8s.io/pod-group"),
        ],
        ["default/train: placed"],
        {"train-0": "a:0", "train-1": "a:1"},
    ),
    "an unhealthy GPU is left out": Case(
        [node("a", 2), config_map("kube-system", "unhealthy-gpu-a", {"gpus": "0"}), pod("x")],
        ["default/x: placed"],
        {"x": "a:1"},
    ),
    "levels of the policies are scopes": Case(
        [
            node("a", 2, labels={"example.com/pod": "p1"}),
            node("b", 2, labels={"example.com/pod": "p2"}),
            policies("topologyAwareScheduling: {levels: [{name: pod, label: example.com/pod}]}"),
            group("train", minMember=4, topologyPolicy={"scope": "pod"}),
            *workers(4, "train"),
        ],
        ["default/train: unplaceable"],
        says="one pod",
    ),
    "a level of KAI's Topology lies in the wider ones": Case(
        [
            node("a", labels={"example.com/row": "1", "example.com/shelf": "s"}),
            node("b", labels={"example.com/row": "2", "example.com/shelf": "s"}),
            topology("example.com/row", "example.com/shelf", "kubernetes.io/hostname"),
            group("train", KAIS, minMember=8, topologyConstraint=SHELF),
            *workers(8, "train"),
        ],
        ["default/train: unplaceable"],
        says="No one example.com/shelf holds all 8 members, even if nothing else ran: the best, s of "
        "example.com/row 1, holds 4",
    ),
    "what typical requests can use is left to them": Case(
        [
            node("a", 2, labels={"example.com/pool": "gold"}),
            node("b"),
            policies(
                "topologyAwareScheduling:\n"
                "  typicalRequests: [{share: 1, nodeLabels: {example.com/pool: gold}}]"
            ),
            pod("x"),
        ],
        ["default/x: placed"],
        {"x": "b:0"},
    ),
    "a policy that is none": Case(
        [
            node("a"),
            pod("x")
            | {
                "metadata": {
                    "name": "x",
                    "annotations": {"scheduling.run.ai/topology-policy": "nvlink-locality"},
                }
            },
        ],
        ["default/x: invalid"],
        says="nvlink-locality",
    ),
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_what_is_decided(case: Case, tmp_path: Path) -> None:
    answer = decisions("-f", write(tmp_path, *case.objects))
    assert [f"{g['namespace']}/{g['name']}: {g['status']}" for g in answer["gangs"]] == case.gangs
    spots_by_pod = {name: spot for g in answer["gangs"] for name, spot in spots(g).items()}
    assert case.says in answer["gangs"][0]["message"]
    if case.at:
        assert spots_by_pod == case.at
    assert answer["skipped"] == {}


def with_topology(name: str, **keys: str) -> Object:
    """A lone pod with annotations of our own."""
    manifest = pod(name)
    topology_request = {f"gpu.topology/{key.replace('_', '-')}": value for key, value in keys.items()}
    manifest["metadata"]["annotations"] = topology_request
    return manifest


def annotated(name: str, annotations: Object) -> Object:
    manifest = pod(name)
    manifest["metadata"]["annotations"] = annotations
    return manifest


def limited(limits: Object) -> Object:
    return {"name": "main", "image": "x", "resources": {"limits": limits}}


NOTES = {
    "a PodGroup that nobody names": (
        [group("lost", minMember=1)],
        "PodGroup default/lost: no pod of ours names it",
    ),
    "policies that can't be read": (
        [policies("topologyAwareScheduling: {policies: [{name: p}]}")],
        "ConfigMap muster-system/kai-scheduler-config: ",
    ),
    "policies in another namespace": (
        [config_map("kai-scheduler", "kai-scheduler-config", {})],
        "ConfigMap kai-scheduler/kai-scheduler-config is not read: the policies are in the ConfigMap "
        "muster-system/kai-scheduler-config",
    ),
    "a preferred scope in which no node lies": (
        [with_topology("x", preferred_scopes="nvlink-dmain,rack")],
        "default/x: no node lies in any nvlink-dmain: that preference is passed over; did you mean "
        "nvlink-domain?",
    ),
    "a preferred level that no node has": (
        [with_topology("x", preferred_scopes="node,zone")],
        "default/x: no node lies in any zone: that preference is passed over",
    ),
    "a limit in a scope in which no node lies": (
        [with_topology("x", max_per="example.com/row=1")],
        "default/x: no node lies in any example.com/row: max-per counts each node as one",
    ),
    "a preferred level of a PodGroup": (
        [
            group("g", KAIS, topologyConstraint={"preferredTopologyLevel": "example.com/rak"}),
            pod("x"),
        ],
        "PodGroup default/g: no node lies in any example.com/rak: that preference is passed over",
    ),
    "a PodGroup whose name is misspelt": (
        [group("trian", KAIS, minMember=1), annotated("x", {"pod-group-name": "train"})],
        "PodGroup default/trian: no pod of ours names it; did you mean train?",
    ),
    "a resource that looks like a GPU": (
        [pod("x", gpus=0, containers=[limited({"nvidia.com/mig-1g.10gb": 1})])],
        "1 pending pod asks for no GPU and names no gang: not placed here. They ask for "
        "nvidia.com/mig-1g.10gb; what counts as a GPU is nvidia.com/gpu, aliyun.com/gpu, amd.com/gpu, "
        "aliyun.com/gpu-mem; pods that ask for MIG devices are planned in a gang",
    ),
    "a pod with gates": (
        [pod("x", schedulingGates=[{"name": "later"}])],
        "1 pending pod with spec.schedulingGates not placed",
    ),
    "a pod on a node of another cluster": (
        [pod("x", nodeName="b")],
        "1 pod on nodes that are not in the input: b",
    ),
}


@pytest.mark.parametrize(("objects", "says"), NOTES.values(), ids=NOTES)
def test_what_is_noted(objects: list[Object], says: str, tmp_path: Path) -> None:
    answer = decisions("-f", write(tmp_path, node("a"), *objects))
    assert any(note.startswith(says) for note in answer["notes"]), answer["notes"]


def test_nothing_is_noted_of_scopes_that_are_there(tmp_path: Path) -> None:
    topology_request = with_topology(
        "x", preferred_scopes="gpu,nvlink-domain,node,rack", max_per="node=1,rack=2"
    )
    assert decisions("-f", write(tmp_path, node("a"), topology_request))["notes"] == []


def test_two_versions_of_one_pod_group_are_one_object(tmp_path: Path) -> None:
    file = write(tmp_path, node("a"), group("g", minMember=1), group("g", KAIS, minMember=1))
    result = place("-f", file)
    assert result.exit_code == 2
    assert f"document 3, PodGroup default/g: is given twice, first in {file}: document 2" in result.output


def test_a_capture_and_a_manifest_may_both_have_what_changes_new_pods(tmp_path: Path) -> None:
    kinds = (
        ("scheduling.k8s.io/v1", "PriorityClass"),
        ("node.k8s.io/v1", "RuntimeClass"),
        ("v1", "LimitRange"),
    )
    objects = [
        {"apiVersion": api, "kind": kind, "metadata": {"name": "c"}, "value": 7, "handler": "c"}
        for api, kind in kinds
    ]
    high = {**pod("p"), "spec": {**pod("p")["spec"], "priorityClassName": "c"}}
    (gang,) = decisions("-f", write(tmp_path, node("a"), *objects, *objects, high))["gangs"]
    assert (gang["status"], gang["priority"]) == ("placed", 7)


def test_another_version_or_group_is_skipped(tmp_path: Path) -> None:
    groups = [group("g", "scheduling.run.ai/v1"), group("g", "scheduling.volcano.sh/v1alpha1")]
    assert decisions("-f", write(tmp_path, node("a"), *groups))["skipped"] == {"PodGroup": 2}


# --- slices ----------------------------------------------------------------------------------------


def shared_node(name: str) -> Object:
    manifest = node(name)
    manifest["status"]["allocatable"] = {
        "cpu": "8",
        "memory": "64Gi",
        "pods": "110",
        "aliyun.com/gpu-count": "2",
        "aliyun.com/gpu-mem": "32",
    }
    return manifest


def sharing(name: str, memory: int, **more: Any) -> Object:
    manifest = pod(name, **more)
    manifest["spec"]["containers"][0]["resources"] = {"limits": {"aliyun.com/gpu-mem": memory}}
    return manifest


@pytest.fixture
def decided() -> Outcomes:
    """Two gangs of one share GPU 0, and GPU 1 has a pod on it already."""
    running = sharing("old", 4, nodeName="a")
    running["metadata"]["annotations"] = {"ALIYUN_COM_GPU_MEM_IDX": "1"}
    objects = [shared_node("a"), running, sharing("x", 3), sharing("y", 5)]
    text = yaml.safe_dump_all(objects).encode()
    cluster = cluster_of(read(["-"], io.BytesIO(text)), DEFAULTS)

    def on_gpu_0(snapshot: Snapshot, request: Request, timings: Timings) -> Placed:
        (role,) = request.roles
        assert role.slice is not None
        (member,) = role.members
        spot = MemberPlacement(member.uid, member.name, role.name, "a", (0,), role.slice.units)
        objective = Objective(None, (), (), None, (), None, 0.0, 0, 0)
        return Placed(request.gang, (spot,), objective, "gpu", "gpu a/0", True)

    return decide(cluster, on_gpu_0, lambda: 0.0)


def test_the_json_says_what_a_slice_takes_of_which_gpu(decided: Outcomes) -> None:
    members = [gang["members"] for gang in report.report(decided, {}, ())["gangs"]]
    assert members == [
        [{"pod": "x", "role": None, "node": "a", "gpus": [0], "gpu_mem": {"0": 3}}],
        [{"pod": "y", "role": None, "node": "a", "gpus": [0], "gpu_mem": {"0": 5}}],
    ]


def test_a_gpu_that_is_shared_is_drawn_so(decided: Outcomes) -> None:
    holdings = pictures.holdings(decided)
    picture = pictures.picture(decided.after.nodes["a"], holdings)
    assert {gpu: mark.letter for gpu, mark in picture.marks.items()} == {
        0: pictures.SHARED,
        1: pictures.PARTLY,
    }
    assert "its memory in part" in svg.draw(decided)


def test_what_runs_on_unhealthy_gpus_is_noted(tmp_path: Path) -> None:
    runs = pod("runs", gpus=1)
    runs["spec"]["nodeName"] = "n1"
    runs["metadata"]["annotations"] = {"gpu.topology/allocation": '{"version":1,"gpus":[2]}'}
    broken = config_map("kube-system", "unhealthy-gpu-n1", {"gpus": "2"})
    answer = decisions("-f", write(tmp_path, node("n1"), broken, runs, pod("new")))
    assert answer["notes"] == ["Node n1: GPU 2 is unhealthy, and on it runs default/runs"]


def test_a_job_may_name_a_level_by_its_alias(tmp_path: Path) -> None:
    """As in KAI's example of topology aliases (its pull request 1788)."""
    template = {"metadata": {}, "spec": {**pod("x")["spec"], "restartPolicy": "Never"}}
    job = {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {
            "name": "train",
            "annotations": {
                "kai.scheduler/topology": "dc",
                "kai.scheduler/topology-required-placement": "row",
                "kai.scheduler/batch-min-member": "8",
            },
        },
        "spec": {"parallelism": 8, "completions": 8, "completionMode": "Indexed", "template": template},
    }
    nodes = [
        node(name, labels={"example.com/row": row}) for name, row in (("a", "1"), ("b", "2"), ("c", "2"))
    ]
    (gang_shown,) = decisions(write(tmp_path, *nodes, topology(row="example.com/row"), job))["gangs"]
    assert (gang_shown["status"], {member["node"] for member in gang_shown["members"]}) == (
        "placed",
        {"b", "c"},
    )
