"""`muster capture` on clusters with DRA drivers: slices, classes and claims are in the file."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from muster.adapters.files.reading.capture import capture, text_of
from muster.adapters.kube.client import KubeClient
from tests.adapters.fake_api import FakeApi, kubeconfig
from tests.files.device_manifests import (
    CHANNEL_CLASS,
    CHANNELS,
    GPU_DRIVER,
    allocated,
    channel,
    gpus,
    job,
    of_class,
    request,
    template,
    tray,
)
from tests.files.manifests import Object, decisions, write

PATH = "/apis/resource.k8s.io/v1"
SECRET = {"opaque": {"driver": "example.com", "parameters": {"token": "s3cret"}}}
CHANNEL = {"kind": "ComputeDomainChannelConfig", "domainID": "uid-of-domain", "allocationMode": "Single"}


@pytest.fixture
def api() -> FakeApi:
    """Three trays with GPUs and channels; two GPUs and one channel are taken."""
    fake = FakeApi()
    names = ("t0", "t1", "t2")
    fake.nodes = [tray(name, "a.1", gpus=0) for name in names]
    config = [SECRET, {"requests": ["r"], "opaque": {"driver": CHANNELS, "parameters": CHANNEL}}]
    objects: dict[str, list[Object]] = {
        "resourceslices": [
            resource_slice for name in names for resource_slice in (gpus(name), channel(name))
        ],
        "deviceclasses": [of_class(GPU_DRIVER, GPU_DRIVER, extendedResourceName="nvidia.com/gpu")],
        "resourceclaims": [
            allocated("held", "t0", GPU_DRIVER, "gpu-0", "gpu-1"),
            allocated("one", "t1", CHANNELS, "channel-0"),
        ],
        "resourceclaimtemplates": [
            template("nccl-channel", request(CHANNEL_CLASS), config=config),
            template("two", request(count=2), config=[SECRET]),
        ],
    }
    for plural, items in objects.items():
        for item in items:
            item["metadata"] |= {"namespace": "default", "uid": f"uid-{item['metadata']['name']}"}
            item["metadata"]["annotations"] = {"kubectl.kubernetes.io/last-applied-configuration": "s3cret"}
        fake.served[f"{PATH}/{plural}"] = items
    return fake


@pytest.fixture
async def client(api: FakeApi, tmp_path: Path) -> AsyncIterator[KubeClient]:
    async with api.running() as port, KubeClient(kubeconfig(tmp_path, port)) as connected:
        yield connected


async def test_devices_and_claims_are_captured(client: KubeClient, tmp_path: Path) -> None:
    captured = await capture(client)
    assert captured.problems == ()
    text = text_of(captured.items, as_yaml=False)
    assert "s3cret" not in text
    (tmp_path / "cluster.json").write_text(text)
    jobs = [job(2, 2, "nccl-channel"), job(1, 0, "two", name="claims"), job(1, 4, name="plain")]
    answer = decisions(str(tmp_path / "cluster.json"), write(tmp_path, *jobs))
    nodes = {gang["name"]: sorted(m["node"] or "" for m in gang["members"]) for gang in answer["gangs"]}
    assert nodes == {"train": ["t0", "t2"], "claims": ["t2"], "plain": ["t1"]}, answer
    assert "uid-of-domain" in json.dumps(captured.items)
    assert not any("not in the input" in note for note in answer["notes"])


async def test_what_may_not_be_listed_is_named(api: FakeApi, client: KubeClient) -> None:
    api.forbidden = {f"{PATH}/resourceclaimtemplates", f"{PATH}/resourceslices"}
    captured = await capture(client)
    assert [item["kind"] for item in captured.items].count("ResourceClaim") == 2
    assert len(captured.problems) == 2
    assert all(problem.endswith("left out") for problem in captured.problems)
