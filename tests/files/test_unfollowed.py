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


def with_meta(made: Object, field: str, **keys: str) -> Object:
    made["metadata"].setdefault(field, {}).update({key.replace("__", "/"): v for key, v in keys.items()})
    return made


@pytest.mark.parametrize(
    ("made", "named"),
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
            controller(
                "Job",
                "batch/v1",
                "j",
                managedBy="kueue.x-k8s.io/multikueue",
                template={"spec": spec(1)},
            ),
            "spec.managedBy",
        ),
    ],
)
def test_a_field_that_is_not_followed_is_named(tmp_path: Path, made: Object, named: str) -> None:
    notes = decisions(write(tmp_path, node("a"), made))["notes"]
    assert [f"{named} is not followed" in note for note in notes] == [True]


def test_usual_values_are_not_named(tmp_path: Path) -> None:
    job = controller(
        "Job", "batch/v1", "j", managedBy="kubernetes.io/job-controller", template={"spec": spec(1)}
    )
    assert decisions(write(tmp_path, node("a"), job))["notes"] == []
