"""`muster place` names the running pods that would have to end so that a refused gang fits."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path

import pytest
import yaml

from muster.adapters.files.victims import MAX_GANGS
from tests.files.manifests import EXAMPLES, Object, decisions, gang, node, place, pod, write

NOON = 12 * 60
FULL_CLUSTER = EXAMPLES / "clusters" / "full.yaml"


def at(minute: int) -> str:
    """A minute of the day as a time."""
    hour, minute = divmod(minute, 60)
    return f"2026-01-01T{hour:02}:{minute:02}:00Z"


def running(on: str, minutes: int, manifests: Sequence[Object], gpus: str = "0123") -> list[Object]:
    """The pods run on the node since `minutes` before noon, and have equal parts of these GPUs."""
    gpus_of_pod = len(gpus) // len(manifests)
    for i, manifest in enumerate(manifests):
        indices = ",".join(gpus[i * gpus_of_pod : (i + 1) * gpus_of_pod])
        manifest["spec"]["nodeName"] = on
        manifest["status"] = {"phase": "Running", "startTime": at(NOON - minutes)}
        manifest["metadata"]["creationTimestamp"] = at(NOON - minutes)
        annotations = manifest["metadata"].setdefault("annotations", {})
        annotations["gpu.topology/allocation"] = f'{{"version":1,"gpus":[{indices}]}}'
    return list(manifests)


def waiting(name: str, pods: int, gpus: int, priority: int = 100) -> list[Object]:
    manifests = gang(name, pods, gpus=gpus, priority=priority)
    for manifest in manifests:
        manifest["metadata"]["creationTimestamp"] = at(NOON)
    return manifests


def of_four(name: str, priority: int = 0) -> list[Object]:
    """A gang that takes the four GPUs of a node."""
    return gang(name, 2, gpus=2, priority=priority)


def elastic(name: str, pods: int, least: int) -> list[Object]:
    manifests = [pod(f"{name}-{i}") for i in range(pods)]
    for manifest in manifests:
        texts = {"gpu.topology/group": name, "gpu.topology/min-member": str(least)}
        manifest["metadata"]["annotations"] = texts
    return manifests


def foreign(manifest: Object) -> Object:
    manifest["spec"]["schedulerName"] = "default-scheduler"
    return manifest


def budget(name: str, allowed: int | None, **labels: str) -> Object:
    status = {} if allowed is None else {"status": {"observedGeneration": 1, "disruptionsAllowed": allowed}}
    return {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": {"name": name, "generation": 1},
        "spec": {"selector": {"matchLabels": labels}},
        **status,
    }


BIG = waiting("big", 2, 2)
PAIR = waiting("pair", 1, 2)
HIGHER = running("b", 40, of_four("higher", 100))

ANSWERS: dict[str, tuple[list[Object], str]] = {
    "the gang that has run for the shorter time": (
        [*BIG, *running("a", 300, of_four("old")), *running("b", 40, of_four("young"))],
        "The gang would fit if default/young ended (priority 0, 4 GPUs, running 40 min)",
    ),
    "the gang of the lower priority": (
        [*BIG, *running("a", 300, of_four("old")), *running("b", 40, of_four("young", 1))],
        "The gang would fit if default/old ended (priority 0, 4 GPUs, running 5 h)",
    ),
    "members that the gang can spare": (
        [*PAIR, *running("a", 300, elastic("elastic", 4, least=2)), *HIGHER],
        "The gang would fit if 2 of the 4 members of default/elastic ended (priority 0, 2 GPUs)",
    ),
    "all members, since the gang can spare too few": (
        [*PAIR, *running("a", 300, elastic("elastic", 4, least=3)), *HIGHER],
        "The gang would fit if default/elastic ended (priority 0, 4 GPUs, running 5 h)",
    ),
    "two gangs": (
        [*BIG, *running("a", 60, gang("x", 1, 2), "01"), *running("a", 60, gang("y", 1, 2), "23"), *HIGHER],
        "The gang would fit if 2 gangs of priority 0 ended (4 GPUs, 4.7 GPU-hours lost): "
        "default/x, default/y",
    ),
    "a pod of another scheduler": (
        [*BIG, *running("a", 90, [foreign(pod("f", gpus=4))]), *HIGHER],
        "The gang would fit if pod default/f ended (priority 0, 4 GPUs, running 90 min)",
    ),
    "no gang, since the lower priorities hold too little": (
        [
            *BIG,
            *running("a", 300, gang("x", 1), "0"),
            *running("a", 60, gang("z", 1, 3, priority=200), "123"),
            *HIGHER,
        ],
        "The end of gangs of lower priority would not make enough room: "
        "default/z has priority 200 and 3 GPUs",
    ),
    "a gang whose budget allows it": (
        [*BIG, *running("a", 60, of_four("x")), budget("b", 2, **{"gpu-topology": "x"}), *HIGHER],
        "The gang would fit if default/x ended (priority 0, 4 GPUs, running 60 min)",
    ),
    "no gang, since a budget allows too little": (
        [*BIG, *running("a", 60, of_four("x")), budget("b", 1, **{"gpu-topology": "x"}), *HIGHER],
        "The end of gangs of lower priority would not make enough room: "
        "PodDisruptionBudget default/b allows 1 of 2 evictions",
    ),
    "no gang, since two budgets cover a pod": (
        [
            *BIG,
            *running("a", 60, of_four("x")),
            *(budget(name, 9, **{"gpu-topology": "x"}) for name in "bc"),
            *HIGHER,
        ],
        "default/x with 4 GPUs is protected: pod x-",
    ),
}


PINNED = [foreign(pod("agent", gpus=4))]
PINNED[0]["metadata"]["ownerReferences"] = [
    {"apiVersion": "apps/v1", "kind": "DaemonSet", "name": "agents", "uid": "d", "controller": True}
]
NEVER = of_four("x")
for manifest in NEVER:
    manifest["metadata"]["annotations"] = {"gpu.topology/preemptible": "false"}
YOUNG = of_four("x")
for manifest in YOUNG:
    manifest["metadata"]["annotations"] = {"gpu.topology/min-runtime": "2h"}
SAVED = of_four("saved")
SAVED[1]["metadata"]["annotations"] = {"gpu.topology/last-checkpoint": at(NOON - 1)}
ENDING = of_four("ending", 200)
UNKNOWN = of_four("x")
for manifest in UNKNOWN:
    del manifest["spec"]["priority"]
    manifest["spec"]["priorityClassName"] = "gone"

ANSWERS |= {
    "a gang that has saved its work": (
        [*BIG, *running("a", 600, SAVED), *running("b", 40, of_four("young"))],
        "The gang would fit if default/saved ended (priority 0, 4 GPUs, running 10 h)",
    ),
    "no pod of a DaemonSet": (
        [*BIG, *running("a", 60, PINNED), *HIGHER],
        "pod default/agent with 4 GPUs is protected: its pod agent is of a DaemonSet",
    ),
    "no gang that is not preemptible": (
        [*BIG, *running("a", 60, NEVER), *HIGHER],
        "default/x with 4 GPUs is protected: its pod x-0 is not preemptible by its gpu.topology/preemptible",
    ),
    "no gang before its minimum run time": (
        [*BIG, *running("a", 60, YOUNG), *HIGHER],
        "default/x with 4 GPUs is protected: its minimum run time ends in 60 min",
    ),
    "no pod whose priority class is not known": (
        [*BIG, *running("a", 60, UNKNOWN), *HIGHER],
        "protected: its pod x-0 has PriorityClass gone, which is not in the input",
    ),
}


def refused(folder: Path, *objects: Object) -> Object:
    answer = decisions(write(folder, node("a"), node("b"), *objects))
    (shown,) = answer["gangs"]
    assert shown["status"] == "unplaceable"
    assert isinstance(shown, dict)
    return shown


@pytest.mark.parametrize(("objects", "sentence"), ANSWERS.values(), ids=ANSWERS)
def test_a_refusal_says_whose_end_would_help(objects: list[Object], sentence: str, tmp_path: Path) -> None:
    shown = refused(tmp_path, *objects)
    assert sentence in shown["message"]
    assert shown["clearing"]["fits"] == ("would fit" in sentence)


def test_the_lowest_priority_of_the_members_that_must_start_counts(tmp_path: Path) -> None:
    higher, lower = waiting("big", 2, 2)[0], waiting("big", 2, 2, priority=1)[1]
    others = [*running("a", 60, of_four("x", 1)), *running("b", 60, of_four("y", 0))]
    shown = refused(tmp_path, higher, lower, *others)
    assert [victim["name"] for victim in shown["clearing"]["victims"]] == ["default/y"]


NO_QUESTION: dict[str, list[Object]] = {
    "all gangs have the same priority": [*BIG, *running("a", 300, of_four("x", 100)), *HIGHER],
    "only pods without GPUs have a lower priority": [
        *BIG,
        *running("a", 300, of_four("x", 100)),
        *HIGHER,
        *running("a", 300, [foreign(pod("web", gpus=0))], ""),
    ],
    "the gang does not fit on empty nodes": [
        *waiting("wide", 1, 5),
        *running("a", 300, of_four("x")),
        *HIGHER,
    ],
    "the gang's own members hold the room": [
        *running("a", 60, of_four("wide")),
        *HIGHER,
        *waiting("wide", 3, 2)[2:],
    ],
}


@pytest.mark.parametrize("objects", NO_QUESTION.values(), ids=NO_QUESTION)
def test_no_victims_are_sought_if_there_can_be_none(objects: list[Object], tmp_path: Path) -> None:
    answer = decisions(write(tmp_path, node("a"), node("b"), *objects))
    assert [shown["clearing"] for shown in answer["gangs"]] == [None]


def test_pods_that_are_being_deleted_end_anyway(tmp_path: Path) -> None:
    ending = running("a", 60, ENDING)
    for manifest in ending:
        manifest["metadata"]["deletionTimestamp"] = at(NOON)
    shown = refused(tmp_path, *BIG, *ending, *HIGHER)
    assert "would fit" not in shown["message"]
    assert (
        "The gang will fit when 2 pods that are being deleted are gone: default/ending-0, default/ending-1"
    ) in shown["message"]
    assert shown["clearing"]["going"] == ["default/ending-0", "default/ending-1"]


def test_programs_read_all_victims() -> None:
    (shown,) = decisions(str(FULL_CLUSTER))["gangs"]
    names = ("default/tune-a", "default/tune-b")
    assert shown["clearing"] == {
        "fits": True,
        "says": "the gang would fit if 2 gangs of priority 0 ended (8 GPUs, 8.7 GPU-hours lost): "
        "default/tune-a, default/tune-b",
        "victims": [
            {
                "name": name,
                "priority": 0,
                "pods": [f"{name}-0", f"{name}-1"],
                "pod_count": 2,
                "members": 2,
                "ends": True,
                "gpus": 4,
                "running_s": minutes * 60,
                "lost_gpu_minutes": 4 * (minutes + 10),
            }
            for name, minutes in zip(names, (60, 50), strict=True)
        ],
        "victim_count": 2,
        "going": [],
        "domain": "rack r1",
        "lost_gpu_minutes": 520,
        "proven": True,
        "gap": None,
        "blockers": [],
        "blocker_count": 0,
    }


def test_programs_read_what_is_in_the_way(tmp_path: Path) -> None:
    shown = refused(tmp_path, *ANSWERS["no gang, since a budget allows too little"][0])
    (blocker,) = shown["clearing"]["blockers"]
    assert (blocker["kind"], blocker["name"], blocker["pods"], blocker["allowed"]) == (
        "budget",
        "default/b",
        2,
        1,
    )


def test_the_pictures_mark_the_victims() -> None:
    table = place(str(FULL_CLUSTER)).stdout
    assert "│ 0 ! │  │ 1 ! │  │ 2 ! │  │ 3 ! │" in table
    assert "r1-a" in table
    assert "r2-a" not in table
    assert "!: would have to end" in table
    drawn = place(str(FULL_CLUSTER), "-o", "svg").stdout
    assert drawn.count(" would have to end</title>") == 8
    assert "r1-a GPU 0: default/tune-a-0 would have to end" in drawn


def test_the_order_of_the_input_changes_nothing(tmp_path: Path) -> None:
    items = yaml.safe_load(FULL_CLUSTER.read_text())["items"]
    answers = []
    for seed in range(3):
        random.Random(seed).shuffle(items)
        (shown,) = decisions(write(tmp_path, *items))["gangs"]
        answers.append(shown["clearing"])
    assert answers == [answers[0]] * 3


def test_victims_are_sought_for_the_first_gangs_alone(tmp_path: Path) -> None:
    gangs = [manifest for i in range(MAX_GANGS + 2) for manifest in waiting(f"g{i:02}", 1, 4)]
    answer = decisions(write(tmp_path, node("a"), *running("a", 60, of_four("x")), *gangs))
    sought = [shown["clearing"] is not None for shown in answer["gangs"]]
    assert sought == [True] * MAX_GANGS + [False, False]


def test_a_budget_without_a_status_lets_no_pod_go(tmp_path: Path) -> None:
    objects = [*BIG, *running("a", 60, of_four("x")), budget("b", None, **{"gpu-topology": "x"}), *HIGHER]
    answer = decisions(write(tmp_path, node("a"), node("b"), *objects))
    assert "PodDisruptionBudget default/b allows 0 of 2 evictions" in answer["gangs"][0]["message"]
    assert "PodDisruptionBudget default/b has no status.disruptionsAllowed: it counts as 0" in answer["notes"]
