"""The policy of scheduler-config/dra-guard: kube-scheduler allocates no device that Muster plans."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from e2e import dra
from e2e.arena import Arena
from e2e.chaos.strangers import SCHEDULER, StockScheduler
from e2e.scene import Scene
from local_cluster.api import ApiError, Object
from local_cluster.policies import POLICIES, POLICY, await_policy
from local_cluster.stack_config import MANIFESTS, manifests_of

NAME = "muster-dra-guard"
SENTENCE = f"only Muster allocates devices of {dra.DRIVER} (policy {NAME}), here"


def test_kube_scheduler_is_refused_and_muster_is_not(arena: Arena, scene: Scene, tmp_path: Path) -> None:
    if arena.cluster is None:
        pytest.skip("starts a kube-scheduler, which needs the local cluster")
    full = dra.node(scene, "a", gpus=4)
    with dra.device_class(scene), _guard(scene, full):
        with StockScheduler(arena.cluster, tmp_path):
            (stranger,) = dra.gang("stranger", 1)
            stranger["metadata"]["labels"], stranger["spec"]["schedulerName"] = {}, SCHEDULER
            (waiting,) = scene.create(stranger)
            scene.until(
                lambda: any(
                    SENTENCE in event.message for event in scene.all_events() if event.pod == waiting
                ),
                "kube-scheduler says why it may not have the device",
            )
            members = scene.create(*dra.gang("g", 2, gpus=2))
            scene.runs(members)
        assert scene.bound() == {*members}
        assert dra.judge(scene) == 2
        sentence = f"{SENTENCE} gpu-2 of pool {full}: give the pod schedulerName muster"
        assert sentence in _refusal(scene, full, "gpu-2")


@contextmanager
def _guard(scene: Scene, node: str) -> Iterator[None]:
    """Within, the policy is in force, for the driver of these tests."""
    written = list[str]()
    try:
        for manifest in manifests_of(MANIFESTS / "dra-guard" / "admission.yaml"):
            path = POLICIES[manifest["kind"]]
            if manifest["kind"] == POLICY:
                manifest["spec"]["variables"][0]["expression"] = f"['{dra.DRIVER}']"
            scene.client.post(path, manifest)
            written.append(f"{path}/{NAME}")
        _claim(scene)
        await_policy(lambda: SENTENCE in _refusal(scene, node, "gpu-0"), "comes into force")
        yield
    finally:
        for path in reversed(written):
            scene.client.delete(path)


def _claim(scene: Scene) -> None:
    request = dra.request("r", scene.name)
    body = {"metadata": {"name": "held"}, "spec": {"devices": {"requests": [request]}}}
    scene.client.post(dra.claims(scene), body)


def _refusal(scene: Scene, pool: str, device: str) -> str:
    """Say why another account than Muster's may not allocate the device; "" if it may."""
    path = f"{dra.claims(scene)}/held"
    result = {"request": "r", "driver": dra.DRIVER, "pool": pool, "device": device}
    claim: Object = scene.client.get(path) | {"status": {"allocation": {"devices": {"results": [result]}}}}
    try:
        scene.client.call("PUT", f"{path}/status?dryRun=All", claim)
    except ApiError as problem:
        return str(problem)
    return ""
