"""GPUs that are published whole and in partitions: no GPU is given while a partition of it is."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from e2e import dra, objects
from e2e.scene import Scene


@pytest.fixture(autouse=True)
def served(scene: Scene) -> Iterator[None]:
    with dra.device_class(scene, dra.is_a("gpu")):
        yield


@pytest.fixture
def mig(scene: Scene) -> Iterator[str]:
    with dra.other_class(scene, "mig", dra.is_a("mig")) as name:
        yield name


def given(scene: Scene) -> dict[str, set[str]]:
    """The devices of each pod's claims, without driver and pool."""
    devices_by_pod = dra.allocated(scene.client.get(dra.claims(scene))["items"])
    return {pod: {device.rpartition("/")[2] for device in devices} for pod, devices in devices_by_pod.items()}


def test_a_gpu_is_given_when_its_partition_is_free_again(scene: Scene, mig: str) -> None:
    dra.divided_node(scene, "a")
    on_gpu_1 = f"device.attributes['{dra.DRIVER}'].index == 1"
    dra.template(scene, "half", dra.request("r", mig, expression=on_gpu_1))
    (half,) = scene.create(*dra.naming([objects.pod("half")], "half"))
    scene.runs([half])
    names = scene.create(*dra.gang("g", 3))
    scene.runs(names)
    devices_by_pod = given(scene)
    assert devices_by_pod[half] < {"mig-1-0", "mig-1-1"}
    assert set().union(*(devices_by_pod[name] for name in names)) == {"gpu-0", "gpu-2", "gpu-3"}
    (late,) = scene.create(*dra.gang("late", 1))
    scene.says(late, "nvidia.com/gpu")
    scene.delete(half)
    scene.runs([late])
    assert given(scene)[late] == {"gpu-1"}
    assert dra.judge(scene) == 4


def test_members_with_a_gpu_and_a_partition_share_no_gpu(scene: Scene, mig: str) -> None:
    """Two of the four GPUs are planned. The partitions are those of a third one, or of the other two."""
    dra.divided_node(scene, "a")
    dra.template(scene, "both", dra.request("whole", scene.name), dra.request("part", mig))
    names = scene.create(*dra.claiming("g", 2, "both"))
    scene.runs(names)
    devices = [device for name in names for device in sorted(given(scene)[name])]
    whole = {device[-1] for device in devices if device.startswith("gpu-")}
    parts = {device.split("-")[1] for device in devices if device.startswith("mig-")}
    assert (len(whole), len(devices), whole & parts) == (2, 4, set())
    dra.template(scene, "parts", dra.request("r", mig, count=2))
    more = scene.create(*dra.claiming("p", 1, "parts"))
    scene.runs(more)
    parts |= {device.split("-")[1] for device in given(scene)[more[0]]}
    assert whole & parts == set()
