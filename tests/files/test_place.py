"""Manifests → decisions, through the command."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import yaml

from muster.domain.decision import Placed
from muster.domain.request import Request
from muster.domain.snapshot import Snapshot
from muster.placement import place as planner
from muster.placement.place import PlacementDefect
from muster.placement.verify import verify
from tests.files.manifests import (
    DEMO,
    EXAMPLES,
    Object,
    controller,
    decisions,
    gang,
    node,
    place,
    pod,
    spots,
    template,
    write,
)

OLD, NEW = "2026-01-01T00:00:00Z", "2026-02-01T00:00:00Z"


@dataclass(frozen=True)
class Case:
    """Objects in, `namespace/name: status` of each gang out, in order; where pods go, of all gangs."""

    objects: list[Object]
    gangs: list[str]
    at: dict[str, str] = field(default_factory=dict)
    says: str = ""
    code: int = 3


def created(manifest: Object, when: str) -> Object:
    manifest["metadata"]["creationTimestamp"] = when
    return manifest


def allocated(manifest: Object, *gpus: int) -> Object:
    text = f'{{"version":1,"gpus":{list(gpus)}}}'
    manifest["metadata"]["annotations"] = {"gpu.topology/allocation": text}
    return manifest


CASES = {
    "a gang takes one node": Case(
        [node("a", 2), node("b", 4), *gang("g", 3)],
        ["default/g: placed"],
        {"g-0": "b:0", "g-1": "b:1", "g-2": "b:2"},
        code=0,
    ),
    "a member is missing": Case(
        [node("a"), pod("g-0", "g", 2)], ["default/g: waiting"], says="Waiting for 1 more member: 1 of 2"
    ),
    "it does not fit": Case(
        [node("a", 2), *gang("g", 3)],
        ["default/g: unplaceable"],
        says="3 nvidia.com/gpu for 3 members, and the nodes that admit it have 2 nvidia.com/gpu in all",
    ),
    "labels contradict": Case(
        [node("a"), pod("g-0", "g", 2), pod("g-1", "g", 3)],
        ["default/g: invalid"],
        says="Pods of one gang disagree on number of replicas",
    ),
    "an amount that is none makes the gang ill-formed, not the file": Case(
        [node("a"), pod("x", gpus="two")],  # type: ignore[arg-type]
        ["default/x: invalid"],
        says='main: nvidia.com/gpu is "two"',
    ),
    "what a running pod has is taken": Case(
        [node("a"), allocated(pod("busy", gpus=2, nodeName="a"), 0, 2), pod("x", gpus=2)],
        ["default/x: placed"],
        {"x": "a:1,3"},
        code=0,
    ),
    "a finished pod takes nothing": Case(
        [node("a", 1), {**pod("done", nodeName="a"), "status": {"phase": "Succeeded"}}, pod("x")],
        ["default/x: placed"],
        {"x": "a:0"},
        code=0,
    ),
    "another scheduler's pods take GPUs nobody knows the numbers of": Case(
        [node("a", 2), pod("busy", gpus=1, nodeName="a", schedulerName="other"), pod("x", gpus=2)],
        ["default/x: unplaceable"],
    ),
    "the second gang finds what the first left": Case(
        [node("a", 4), *gang("first", 3), *gang("second", 2)],
        ["default/first: placed", "default/second: unplaceable"],
    ),
    "the older comes first": Case(
        [node("a", 1), created(pod("young"), NEW), created(pod("old"), OLD)],
        ["default/old: placed", "default/young: unplaceable"],
    ),
    "without a time of creation it comes after those that have one": Case(
        [node("a", 1), pod("new"), created(pod("old"), OLD)],
        ["default/old: placed", "default/new: unplaceable"],
    ),
    "priority comes before age": Case(
        [node("a", 1), created(pod("old"), OLD), created(pod("urgent", priority=5), NEW)],
        ["default/urgent: placed", "default/old: unplaceable"],
    ),
    "a priority class gives the priority": Case(
        [
            node("a", 1),
            pod("plain"),
            pod("urgent", priorityClassName="high"),
            {"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass"}
            | {"metadata": {"name": "high"}, "value": 100},
        ],
        ["default/urgent: placed", "default/plain: unplaceable"],
    ),
    "a cordoned node takes nobody": Case(
        [node("a", spec={"unschedulable": True}), pod("x")], ["default/x: unplaceable"], says="cordoned"
    ),
    "a selector is kept": Case(
        [node("a"), node("b"), pod("x", nodeSelector={"kubernetes.io/hostname": "b"})],
        ["default/x: placed"],
        {"x": "b:0"},
        code=0,
    ),
    "capacity stands for allocatable that is not given": Case(
        [{**node("a"), "status": {"capacity": {"pods": "5", "nvidia.com/gpu": "1"}}}, pod("x")],
        ["default/x: placed"],
        code=0,
    ),
    "members that are bound are not placed again": Case(
        [node("a"), allocated(pod("g-0", "g", 2, nodeName="a"), 0), pod("g-1", "g", 2)],
        ["default/g: placed"],
        {"g-1": "a:1"},
        code=0,
    ),
    "a null is a field that is not given": Case(
        [node("a", spec=None), {**pod("x", tolerations=None, nodeName=None), "status": None}],
        ["default/x: placed"],
        code=0,
    ),
    "nothing pending": Case([node("a")], [], code=4),
    "a PyTorchJob": Case(
        [
            node("a"),
            controller(
                "PyTorchJob",
                "kubeflow.org/v1",
                "train",
                pytorchReplicaSpecs={
                    "Master": {"template": template("t", 3)},
                    "Worker": {"replicas": 2, "template": template("t", 3)},
                },
            ),
        ],
        ["default/t: placed"],
        {"train-master-0": "a:0", "train-worker-0": "a:1", "train-worker-1": "a:2"},
        code=0,
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_manifests_are_decided(name: str, tmp_path: Path) -> None:
    case = CASES[name]
    file = write(tmp_path, *case.objects)
    answer = decisions(file)
    assert [f"{g['namespace']}/{g['name']}: {g['status']}" for g in answer["gangs"]] == case.gangs
    everywhere = {pod: at for g in answer["gangs"] for pod, at in spots(g).items()}
    if case.at:
        assert everywhere == case.at
    assert case.says in " ".join(g["message"] for g in answer["gangs"])
    assert place(file).exit_code == place(file, "-o", "svg").exit_code == case.code


EXPECTED = {
    "ack/pytorchjob": {"pytorch-dist-nccl": ({"v100-2": [1, 2]}, 50.0)},
    "ack/pytorchjob-pods": {"pytorch-dist-nccl": ({"v100-2": [1, 2]}, 50.0)},
    "features/gang-of-two": {"finetune": ({"h100-1": [0, 1, 2, 3]}, 450.0)},
    "gputopology/test-gpu": {"test-gpu-topology-bbbbb": ({"v100-2": [1, 2]}, 50.0)},
    "features/pair-on-a-busy-node": {"pair-on-the-rest": ({"v100-2": [1, 2]}, 50.0)},
    "features/four-on-a-busy-node": {"ring-of-four": ({"v100-3": [1, 2, 4, 7]}, 25.0)},
}


@pytest.mark.parametrize("example", EXPECTED)
def test_the_examples_on_the_demos_cluster(example: str) -> None:
    answer = decisions(str(DEMO), str(EXAMPLES / f"{example}.yaml"))
    placed_gangs = {}
    for gang_ in answer["gangs"]:
        gpus_by_node: dict[str, list[int]] = {}
        for member in gang_["members"]:
            gpus_by_node.setdefault(member["node"], []).extend(member["gpus"])
        placed_gangs[gang_["name"]] = (
            {n: sorted(g) for n, g in gpus_by_node.items()},
            gang_["bandwidth_gb_per_s"],
        )
        assert gang_["optimal"] is True
    assert placed_gangs == EXPECTED[example]


def test_the_example_of_typical_requests(tmp_path: Path) -> None:
    """The same pod without the ConfigMap is the comparison."""
    example = EXAMPLES / "features/typical-requests.yaml"
    _, alone = yaml.safe_load_all(example.read_text())
    racks = []
    for file in (str(example), write(tmp_path, alone)):
        (gang_shown,) = decisions(str(EXAMPLES / "clusters/two-racks.yaml"), file)["gangs"]
        racks += [member["node"][:2] for member in gang_shown["members"]]
    assert racks == ["r2", "r1"]


def test_the_example_that_does_not_fit_a_busy_cluster(tmp_path: Path) -> None:
    busy = [allocated(pod(f"busy-{i}", nodeName=f"v100-{i}"), *range(6)) for i in (1, 2, 3)]
    for manifest in busy:
        manifest["spec"]["containers"][0]["resources"]["limits"] = {"aliyun.com/gpu": 6}
    answer = decisions(
        str(DEMO), write(tmp_path, *busy[:1]), str(EXAMPLES / "demo/gang-that-does-not-fit.yaml")
    )
    assert [g["status"] for g in answer["gangs"]] == ["placed"]
    answer = decisions(
        "-f", str(DEMO), "-f", write(tmp_path, *busy, name="b.yaml"),
        "-f", str(EXAMPLES / "demo/filler.yaml"), str(EXAMPLES / "demo/gang-that-does-not-fit.yaml"),
    )  # fmt: skip
    assert {g["name"]: g["status"] for g in answer["gangs"]}["too-large"] == "unplaceable"


def test_scheduler_name(tmp_path: Path) -> None:
    file = write(tmp_path, node("a"), pod("x", schedulerName="kai"), pod("y"), pod("z", schedulerName=""))
    assert [g["name"] for g in decisions(file)["gangs"]] == ["y"]
    assert (
        "2 pending pods of other schedulers not placed (ours: muster; theirs: default-scheduler, kai)"
        in place(file).stderr
    )
    answer = decisions(file, "--scheduler-name", "kai", "--scheduler-name", "default-scheduler")
    assert [g["name"] for g in answer["gangs"]] == ["x", "z"]


TWINS = [node(name, 1, labels={"topology.kubernetes.io/zone": name}) for name in "ab"]


def test_racks_of_one_name_are_two_and_reported(tmp_path: Path) -> None:
    pods = gang("g", 2)
    for manifest in pods:
        manifest["metadata"]["annotations"] = {"gpu.topology/scope": "rack"}
    file = write(tmp_path, *TWINS, *pods)
    (note,) = decisions(file)["notes"]
    assert note.startswith("rack: several domains have one name; the wider ones tell them apart: ")
    assert "r1 of zone a, r1 of zone b. If each name is one rack, say uniqueNames: [rack]" in note
    (gang_shown,) = decisions(file)["gangs"]
    assert "even if nothing else ran: the best, r1 of zone a, holds 1" in gang_shown["message"]
    unique = decisions(file, "--unique-names", "rack")
    assert unique["notes"] == []
    assert unique["gangs"][0]["message"].startswith("2 of 2 members on 2 nodes in rack r1: ")


def test_a_rack_is_named_with_its_zone_where_two_have_its_name(tmp_path: Path) -> None:
    file = write(tmp_path, *TWINS, node("c", 1, labels={"topology.kubernetes.io/zone": "b"}), *gang("g", 2))
    assert "on 2 nodes in rack r1 of zone b: " in decisions(file)["gangs"][0]["message"]
    picture = place(file, "-o", "svg").stdout
    assert ">rack r1 of zone a<" in picture
    assert ">rack r1 of zone b<" in picture


def test_unique_names_of_a_scope_that_is_none(tmp_path: Path) -> None:
    result = place(write(tmp_path, *TWINS), "--unique-names", "rakc")
    assert result.exit_code == 2
    assert "--unique-names: expected one of nvlink-domain, zone, rack, or a label key" in result.stderr


def test_stdin_folders_and_lists(tmp_path: Path) -> None:
    write(tmp_path, pod("x"), name="b.yml")
    (tmp_path / "notes.txt").write_text("not: read")
    listed = '{"apiVersion":"v1","kind":"NodeList","items":[{"metadata":{"name":"a"},"status":'
    listed += '{"allocatable":{"pods":"9","nvidia.com/gpu":"1"}}}]}'
    (tmp_path / "a.json").write_text(listed)
    assert [g["status"] for g in decisions(str(tmp_path))["gangs"]] == ["placed"]
    piped = decisions("-f", "-", "-f", str(tmp_path / "b.yml"), stdin=listed + "\n")
    assert [g["status"] for g in piped["gangs"]] == ["placed"]


def test_what_is_not_read_is_counted(tmp_path: Path) -> None:
    services = [{"apiVersion": "v1", "kind": "Service", "metadata": {"name": f"s{i}"}} for i in range(2)]
    volcano = controller("Job", "batch.volcano.sh/v1alpha1", "v", tasks=[])
    result = place(write(tmp_path, node("a"), *services, volcano))
    assert result.exit_code == 4
    kinds = "Job.batch.volcano.sh 1, Service 2"
    assert f"note: skipped 3 objects of kinds not read here: {kinds}" in result.stderr
    assert "nothing to place" in result.stdout


@pytest.mark.parametrize("api", ["v1", "extensions/v1beta1"])
def test_a_kind_with_the_api_version_of_another_is_told_its_own(tmp_path: Path, api: str) -> None:
    result = place(write(tmp_path, node("a"), controller("Deployment", api, "d", template=template())))
    assert " 1 (read with apiVersion apps/…)" in result.stderr


def test_pods_that_are_no_gangs_are_left_out_and_counted(tmp_path: Path) -> None:
    result = place(write(tmp_path, node("a"), pod("plain", gpus=0)))
    assert "note: 1 pending pod asks for no GPU and names no gang: not placed here" in result.stderr


def test_notes_say_what_a_reader_would_miss(tmp_path: Path) -> None:
    broken = node("a")
    broken["metadata"]["annotations"] = {"GPU_TOPOLOGY": "{"}
    bare = {**node("b"), "status": {"allocatable": {"nvidia.com/gpu": "1"}}}
    errors = place(write(tmp_path, broken, bare, pod("x", priorityClassName="none"))).stderr
    assert "note: Node a: GPU_TOPOLOGY: it is no JSON" in errors
    assert "note: Node b: status.allocatable has no pods, so none can go there" in errors
    assert "note: PriorityClass none is not in the input: 1 pod of it is planned with priority 0" in errors


def test_a_time_limit_is_said_where_it_cut_short(tmp_path: Path) -> None:
    file = write(tmp_path, node("a"), *gang("g", 2))
    assert decisions(file, "--time-limit", "5")["gangs"][0]["status"] == "placed"
    assert place(file, "--time-limit", "0").exit_code == 2


def test_how_each_level_was_decided_is_told_when_asked(tmp_path: Path) -> None:
    file = write(tmp_path, node("a"), *gang("g", 2), *gang("late", 16))
    plain, explained = decisions(file)["gangs"], decisions(file, "--explain")["gangs"]
    assert all("decided" not in gang_shown for gang_shown in plain)
    decided_by_gang = {gang_shown["name"]: gang_shown["decided"] for gang_shown in explained}
    assert decided_by_gang["late"] is None
    assert decided_by_gang["g"][0] == {"level": "members", "method": "all-members", "declined": []}
    assert {step["method"] for step in decided_by_gang["g"][1:]} == {"single-node"}


def test_where_else_a_gang_could_go_is_told_when_asked(tmp_path: Path) -> None:
    file = write(tmp_path, node("a"), node("b"), *gang("g", 2), *gang("late", 32))
    plain, explained = decisions(file)["gangs"], decisions(file, "--explain")["gangs"]
    assert all("alternatives" not in gang_shown for gang_shown in plain)
    views_by_gang = {gang_shown["name"]: gang_shown["alternatives"] for gang_shown in explained}
    assert views_by_gang["late"] is None
    assert views_by_gang["g"]["note"] == "Computed against the cluster as the gang found it."
    assert [(alternative["domain"], alternative["says"]) for alternative in views_by_gang["g"]["tried"]] == [
        ("node b", "as good at each level")
    ]
    assert decisions(file, "--explain")["gangs"][0]["alternatives"] == explained[0]["alternatives"]


@pytest.mark.parametrize(
    ("defect", "error"),
    [
        (PlacementDefect(("GPU 4 of node a is not free",)), "PlacementDefect: GPU 4 of node a is not free"),
        (LookupError("no method decides rack"), "LookupError: no method decides rack"),
    ],
)
def test_a_defect_of_the_planner_is_a_cause_of_its_gang_alone(
    defect: Exception, error: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def judge(snapshot: Snapshot, request: Request, plan: Placed) -> tuple[str, ...]:
        if request.gang.name == "broken":
            raise defect
        return verify(snapshot, request, plan)

    monkeypatch.setattr(planner, "verify", judge)
    file = write(tmp_path, node("a"), *gang("broken", 2), *gang("g", 2))
    result = place(file, "-o", "json")
    assert result.exit_code == 5, result.output
    broken, sound = json.loads(result.stdout)["gangs"]
    assert broken["status"] == "unplaceable"
    assert broken["causes"] == [{"type": "planner-defect", "error": error}]
    assert "please report it" in broken["message"]
    assert spots(sound) == {"g-0": "a:0", "g-1": "a:1"}
