"""`muster capture` with jobs: the gangs that no pod names are in the file, and no secret is."""

from __future__ import annotations

import copy
from collections.abc import Iterable
from pathlib import Path

import msgspec
import pytest

from muster.adapters.files.decide import Cluster
from muster.adapters.files.reading import sources, templates
from muster.adapters.files.reading.capture import CapturedCluster, capture, text_of
from muster.adapters.files.reading.cluster import cluster_of
from muster.adapters.files.reading.sources import Document
from muster.adapters.files.reading.templates import with_children
from muster.adapters.kube.client import KubeClient
from muster.dialects.kinds.table import KINDS, MAKERS
from tests.adapters.fake_api import FakeApi, kubeconfig
from tests.files.manifests import Object, node, write
from tests.files.test_kinds import CASES, ON, kai_job, kubeflow

SECRET: Object = {"env": [{"name": "TOKEN", "value": "s3cret"}], "image": "s3cret", "s3cret": "s3cret"}

TYPES = {"Worker", "Master", "Launcher", "PS", "Chief"}


def live(*objects: Object) -> FakeApi:
    """The API server after the controllers made what they make of these objects."""
    api = FakeApi()
    api.nodes = [node("a", 8), node("b", 8)]
    documents = [Document("t", str(i), copy.deepcopy(item)) for i, item in enumerate(objects)]
    for document in with_children(documents):
        new_pods = templates.pods_of_controller(document)
        for pod in new_pods.pods if new_pods is not None else ():
            item = {"apiVersion": "v1", "kind": "Pod", **msgspec.to_builtins(pod)}
            item["metadata"]["uid"] = f"uid-{len(api.pods)}"
            api.pods[f"{len(api.pods):03}"] = item
        if (path := _path(document)) is not None:
            item = document.value
            item["metadata"] |= {"namespace": "default", "uid": f"uid-{document.name}"}
            item["metadata"].setdefault("annotations", {})["kubectl.kubernetes.io/x"] = "s3cret"
            _poison(item["spec"])
            api.served.setdefault(path, []).append(item)
    return api


def _path(document: Document) -> str | None:
    if document.kind not in KINDS and document.kind not in MAKERS:
        return None
    plural = KINDS[document.kind].plural if document.kind in KINDS else f"{document.kind.lower()}s"
    return f"/apis/{document.value['apiVersion']}/{plural}"


def _poison(value: object) -> None:
    """Put fields that nothing reads into every object that is there."""
    if isinstance(value, list):
        for inner in value:
            _poison(inner)
    elif isinstance(value, dict):
        for key, inner in value.items():
            if key not in ("limits", "requests", "labels", "annotations"):
                _poison(inner)
        if not TYPES & set(value):
            value.update(copy.deepcopy(SECRET))


async def captured(api: FakeApi, folder: Path) -> CapturedCluster:
    async with api.running() as port, KubeClient(kubeconfig(folder, port)) as client:
        return await capture(client)


def read(folder: Path, capture_result: CapturedCluster) -> Cluster:
    text = text_of(capture_result.items, as_yaml=False)
    assert "s3cret" not in text
    file = folder / "captured.json"
    file.write_text(text)
    with file.open("rb") as unused:
        return cluster_of(sources.read([str(file)], unused), ON)


def gangs(cluster: Cluster) -> Iterable[object]:
    """The gangs without the UIDs, which the API server chose."""
    return sorted(
        (g.name, g.dialect, g.size, g.min_member, sorted(g.role_min.items()), g.queue, g.causes)
        for g in cluster.pod_groups
    )


def places(cluster: Cluster) -> Iterable[object]:
    return sorted(
        (p.name, p.claim.name, p.claim.topology_request.role, p.rank) for p in cluster.pods if p.claim
    )


@pytest.mark.parametrize("name", CASES)
async def test_a_captured_job_is_the_gang_that_it_is_in_the_cluster(name: str, tmp_path: Path) -> None:
    objects = CASES[name].objects
    before = cluster_of(sources.read([write(tmp_path, node("a", 8), *objects)], None), ON)  # type: ignore[arg-type]
    capture_result = await captured(live(*objects), tmp_path)
    assert capture_result.problems == ()
    after = read(tmp_path, capture_result)
    assert gangs(before)
    assert gangs(after) == gangs(before)
    assert places(after) == places(before)
    assert after.notes == before.notes


async def test_a_captured_template_keeps_its_claims(tmp_path: Path) -> None:
    job = kai_job(labels={"kai.scheduler/queue": "q"})
    claims = [
        {"name": "own", "resourceClaimTemplateName": "t"},
        {"name": "shared", "resourceClaimName": "c"},
    ]
    job["spec"]["template"]["spec"]["resourceClaims"] = claims
    capture_result = await captured(live(job), tmp_path)
    (captured_job,) = [item for item in capture_result.items if item["kind"] == "Job"]
    assert captured_job["spec"]["template"]["spec"]["resourceClaims"] == claims
    assert gangs(read(tmp_path, capture_result))


async def test_kais_keys_on_a_maker_are_captured(tmp_path: Path) -> None:
    job = copy.deepcopy(CASES["RayJob"].objects[0])
    job["metadata"]["labels"] = {"kai.scheduler/queue": "team-a", "password": "s3cret"}
    (group,) = read(tmp_path, await captured(live(job), tmp_path)).pod_groups
    assert group.queue == "team-a"


async def test_only_jobs_whose_pods_wait_are_captured(tmp_path: Path) -> None:
    api = live(kai_job(labels={"kai.scheduler/queue": "q"}), kubeflow("TFJob", "tfReplicaSpecs", Worker=2))
    for pod in api.pods.values():
        if pod["metadata"]["name"].startswith("train"):
            pod["spec"]["nodeName"] = "a"
    lone_job = copy.deepcopy(api.served["/apis/kubeflow.org/v1/tfjobs"][0])
    lone_job["metadata"]["name"] = "without-pods"
    api.served["/apis/kubeflow.org/v1/tfjobs"].append(lone_job)
    capture_result = await captured(api, tmp_path)
    kinds_and_names = [
        (i["kind"], i["metadata"]["name"]) for i in capture_result.items if i["kind"] not in ("Node", "Pod")
    ]
    assert kinds_and_names == [("TFJob", "x")]
    assert not [path for path, _ in api.asked if path.startswith("/apis/batch/")]


async def test_jobs_that_may_not_be_read_are_named_once(tmp_path: Path) -> None:
    api = live(kubeflow("MPIJob", "mpiReplicaSpecs", Worker=2))
    api.forbidden |= {f"/apis/kubeflow.org/{version}/mpijobs" for version in ("v1", "v2beta1")}
    capture_result = await captured(api, tmp_path)
    assert capture_result.problems == ("GET mpijobs.kubeflow.org: 403, refused by the test: left out",)
    assert capture_result.pods == 2
