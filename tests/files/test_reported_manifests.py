"""Small inputs after public reports and manifests. The first line of each names its report."""

from __future__ import annotations

from pathlib import Path

from tests.files.manifests import Object, decisions, nodes_of, place

REPORTS = Path(__file__).parent / "reports"
ON = ("--infer-gangs", "on")


def report(name: str, *options: str) -> Object:
    return decisions("-f", str(REPORTS / f"{name}.yaml"), *options)


def test_each_group_has_a_domain_of_its_own() -> None:
    answer = report("lws-exclusive", *ON)
    assert [gang["status"] for gang in answer["gangs"]] == ["placed", "unplaceable"]
    assert "exclusive-topology: one example.com/block for each group alone" in answer["notes"][0]


def test_the_patch_of_a_train_job_is_followed() -> None:
    assert set(nodes_of(report("trainjob-runtime-patches")).values()) == {"h1", "h2"}


def test_the_autoscaler_of_the_head_counts() -> None:
    (gang_shown,) = report("ray-autoscaler-sidecar")["gangs"]
    assert gang_shown["status"] == "unplaceable"
    assert "asks for 4.5 cpu" in gang_shown["message"]


def test_generated_names_are_made_up() -> None:
    path = str(REPORTS / "generate-name.yaml")
    answer = decisions("-f", path)
    assert [(gang["name"], gang["status"]) for gang in answer["gangs"]] == [
        ("pod-bbbbb", "placed"),
        ("sweep-bbbbb", "placed"),
    ]
    names = "Pod default/pod-bbbbb, Job default/sweep-bbbbb"
    assert answer["notes"] == [f"{names}: the name is made up, since it has metadata.generateName"]
    assert f"made-up names, for generateName: {names}" in place("-f", path).stdout


def test_a_request_without_its_limit_is_refused() -> None:
    result = place("-f", str(REPORTS / "requests-without-limits.yaml"))
    assert result.exit_code == 2
    assert 'spec.containers[0].resources.limits[nvidia.com/gpu]: expected "2" as in requests' in result.output


def test_it_is_said_why_a_ray_cluster_needs_all_workers() -> None:
    answer = report("ray-zero")
    assert answer["gangs"][0]["status"] == "unplaceable"
    (note,) = [note for note in answer["notes"] if "minReplicas" in note]
    assert "spec.workerGroupSpecs[1].minReplicas is 0" in note
    assert "all 4 pods of burst must start with the head" in note


def test_a_skipped_object_has_its_api_group() -> None:
    answer = report("unknown-kinds")
    skipped = "CronJob.batch 1, Job.batch.volcano.sh 1, PodCliqueSet.grove.io 1, RayService.ray.io 1"
    assert f"skipped 4 objects of kinds not read here: {skipped}" in answer["notes"]
    assert answer["skipped"] == {"CronJob": 1, "Job": 1, "PodCliqueSet": 1, "RayService": 1}
    assert any("version v2 of kubeflow.org is not known" in note for note in answer["notes"])
