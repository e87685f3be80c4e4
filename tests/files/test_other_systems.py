"""Jobs in the words of other systems never start in part.

The cases are made after volcano#3872, koordinator#1919, grove#511, and after the documents of Koordinator,
ACK, Kueue, YuniKorn, Volcano and Kubernetes 1.35.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.files.manifests import Object, controller, decisions, node, pod, spec, write

KOORDINATOR, ACK, KUEUE = (
    "gang.scheduling.koordinator.sh",
    "pod-group.scheduling.sigs.k8s.io",
    "kueue.x-k8s.io",
)


def two(
    labels: dict[str, str] | None = None, annotations: dict[str, str] | None = None, **more: Any
) -> list[Object]:
    """Two pods of 8 GPUs."""
    pods = [pod(f"x-{i}", gpus=8, **more) for i in range(2)]
    for manifest in pods:
        manifest["metadata"] |= {"labels": labels or {}, "annotations": annotations or {}}
    return pods


def group(api: str, **fields: Any) -> Object:
    return {"apiVersion": api, "kind": "PodGroup", "metadata": {"name": "g"}, "spec": fields}


VOLCANO = {"scheduling.k8s.io/group-name": "g"}
READ: dict[str, list[Object]] = {
    "Koordinator": two(annotations={f"{KOORDINATOR}/name": "g", f"{KOORDINATOR}/min-available": "2"}),
    "Koordinator's PodGroup": [
        group("scheduling.sigs.k8s.io/v1alpha1", minMember=2, scheduleTimeoutSeconds=60),
        *two(annotations={f"{KOORDINATOR}/name": "g"}),
    ],
    "ACK": two({f"{ACK}/name": "g", f"{ACK}/min-available": "2"}),
    "ACK's PodGroup": [group("scheduling.sigs.k8s.io/v1alpha1", minMember=2), *two({f"{ACK}/name": "g"})],
    "coscheduling, older": [group("scheduling.sigs.k8s.io/v1alpha1", minMember=2), *two({ACK: "g"})],
    "coscheduling": [
        group("scheduling.x-k8s.io/v1alpha1", minMember=2),
        *two({"scheduling.x-k8s.io/pod-group": "g"}),
    ],
    "Volcano": [
        group("scheduling.volcano.sh/v1beta1", minMember=2, queue="default"),
        *two(annotations=VOLCANO),
    ],
    "Volcano's tasks": [
        group("scheduling.volcano.sh/v1beta1", minMember=1, minTaskMember={"worker": 2}),
        *two(annotations={**VOLCANO, "volcano.sh/task-spec": "worker"}),
    ],
    "Kueue": two(
        {f"{KUEUE}/pod-group-name": "g", f"{KUEUE}/queue-name": "q"}, {f"{KUEUE}/pod-group-total-count": "2"}
    ),
}


@pytest.mark.parametrize("name", READ)
def test_one_of_two_never_starts_alone(name: str, tmp_path: Path) -> None:
    (gang,) = decisions(write(tmp_path, node("a", 8), *READ[name]))["gangs"]
    assert (gang["name"], gang["status"], gang["present"]) == ("g", "unplaceable", 2)
    (gang,) = decisions(write(tmp_path, node("a", 8), node("b", 8), *READ[name]))["gangs"]
    assert (gang["status"], sorted(member["node"] for member in gang["members"])) == ("placed", ["a", "b"])


WAY_OUT = "the annotations gpu.topology/group and gpu.topology/min-member"
OTHERS: dict[str, tuple[list[Object], str, str]] = {
    # name: the pods, the status, what is said
    "Volcano without its PodGroup": (
        two(annotations=VOLCANO),
        "waiting",
        "PodGroup default/g does not exist yet",
    ),
    "Volcano's topology": (
        [
            group("scheduling.volcano.sh/v1beta1", minMember=2, networkTopology={"mode": "hard"}),
            *two(annotations=VOLCANO),
        ],
        "invalid",
        'spec.networkTopology is "hard", expected none: it is not read. Use the annotations',
    ),
    "YuniKorn": (
        two(
            {"applicationId": "app-1", "queue": "root.sandbox"},
            {
                "yunikorn.apache.org/task-group-name": "w",
                "yunikorn.apache.org/task-groups": '[{"name": "w", "minMember": 2}]',
            },
        ),
        "invalid",
        f"{WAY_OUT} beside it: gangs of YuniKorn are not read",
    ),
    "Grove": (
        two({"grove.io/podgang": "pd-0", "grove.io/podclique": "pd-0-decode"}),
        "invalid",
        f"{WAY_OUT} beside it: gangs of Grove are not read",
    ),
    "Kubernetes 1.35": (two(workloadRef={"name": "wl", "podGroup": "workers"}), "invalid", WAY_OUT),
    "Kubernetes 1.37": (
        two(schedulingGroup={"podGroupName": "pg"}),
        "waiting",
        "PodGroup default/pg does not exist yet",
    ),
}


@pytest.mark.parametrize("name", OTHERS)
def test_words_that_are_not_read_start_nothing_and_say_why(name: str, tmp_path: Path) -> None:
    pods, status, says = OTHERS[name]
    for gang in decisions(write(tmp_path, node("a", 8), node("b", 8), *pods))["gangs"]:
        assert gang["status"] == status
        assert says in gang["message"]
        assert [member for member in gang["members"] if member["node"]] == []


def test_pods_of_one_refused_gang_have_one_sentence(tmp_path: Path) -> None:
    pods, _, _ = OTHERS["Grove"]
    (gang,) = decisions(write(tmp_path, node("a", 8), *pods))["gangs"]
    assert gang["message"].startswith("2 pods (pod/default/x-0 is the first): grove.io/podgang is")


def test_keys_of_an_unknown_system_are_noted(tmp_path: Path) -> None:
    notes = decisions(write(tmp_path, node("a", 8), *two({"example.com/gang-id": "g"})))["notes"]
    assert notes == [
        "Pods default/x-0, default/x-1: label example.com/gang-id is not read: if it is about a gang, use "
        f"{WAY_OUT}"
    ]


ON_TEMPLATES: dict[str, dict[str, dict[str, str]]] = {
    "Koordinator": {
        "annotations": {f"{KOORDINATOR}/name": "g", f"{KOORDINATOR}/min-available": "2"},
    },
    "ACK": {"labels": {f"{ACK}/name": "g", f"{ACK}/min-available": "2"}},
}


@pytest.mark.parametrize("name", ON_TEMPLATES)
def test_words_on_a_pod_template_are_those_of_the_pods(name: str, tmp_path: Path) -> None:
    """A job that names its gang needs no advice."""
    pod_spec = spec(8, restartPolicy="Never")
    template = {"metadata": ON_TEMPLATES[name], "spec": pod_spec}
    job = controller("Job", "batch/v1", "x", parallelism=2, completions=2, template=template)
    answer = decisions(write(tmp_path, node("a", 8), job))
    assert [(gang["name"], gang["status"]) for gang in answer["gangs"]] == [("g", "unplaceable")]
    assert answer["notes"] == []
