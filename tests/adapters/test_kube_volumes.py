"""Which claims attach to one node alone, as claims, volumes, classes and drivers come, change and go."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import msgspec
import pytest

from muster.adapters.kube.volumes import VolumeIntake
from muster.dialects.objects import CsiDriver, PersistentVolume, PersistentVolumeClaim, StorageClass
from muster.gangs.messages.inputs import Input, VolumeClaimSeen
from tests.adapters.changes import seen

Object = dict[str, Any]
KINDS: dict[str, Any] = {
    "claim": PersistentVolumeClaim,
    "volume": PersistentVolume,
    "storage_class": StorageClass,
    "driver": CsiDriver,
}


def claim(*modes: str, volume: str = "", of: str | None = None) -> Object:
    meta = {"namespace": "ns", "name": "data"}
    return {"metadata": meta, "spec": {"accessModes": [*modes], "volumeName": volume, "storageClassName": of}}


def volume(**kind: Any) -> Object:
    return {"metadata": {"name": "pv"}, "spec": {"capacity": {"storage": "1Gi"}, **kind}}


def driver(attach: bool | None) -> Object:
    return {"metadata": {"name": "disk.csi"}, "spec": {} if attach is None else {"attachRequired": attach}}


def storage_class(provisioner: str) -> Object:
    return {"metadata": {"name": "fast"}, "provisioner": provisioner}


class Bench:
    def __init__(self) -> None:
        self.events: list[VolumeClaimSeen] = []
        self.intake = VolumeIntake(self._put)

    async def _put(self, message: Input) -> None:
        assert isinstance(message, VolumeClaimSeen)
        self.events.append(message)

    async def sees(self, kind: str, item: Object | str) -> None:
        """The object, or a key that is gone."""
        change = (item, None) if isinstance(item, str) else seen(msgspec.convert(item, KINDS[kind]))
        await getattr(self.intake, f"on_{kind}")(*change)

    def told(self) -> list[bool]:
        assert {(event.namespace, event.name) for event in self.events} <= {("ns", "data")}
        return [event.attaches_once for event in self.events]


RWO = "ReadWriteOnce"
CSI = {"csi": {"driver": "disk.csi", "volumeHandle": "h"}}
CASES: dict[str, tuple[list[tuple[str, Object]], bool]] = {
    "a volume of a driver": ([("claim", claim(RWO, volume="pv")), ("volume", volume(**CSI))], True),
    "of one pod alone": (
        [("claim", claim("ReadWriteOncePod", volume="pv")), ("volume", volume(**CSI))],
        True,
    ),
    "also of many nodes": (
        [("claim", claim(RWO, "ReadWriteMany", volume="pv")), ("volume", volume(**CSI))],
        False,
    ),
    "read by many nodes": ([("claim", claim("ReadOnlyMany", volume="pv")), ("volume", volume(**CSI))], False),
    "no mode": ([("claim", claim(volume="pv")), ("volume", volume(**CSI))], False),
    "a driver that says nothing": (
        [("driver", driver(None)), ("claim", claim(RWO, volume="pv")), ("volume", volume(**CSI))],
        True,
    ),
    "a driver that attaches nothing": (
        [("claim", claim(RWO, volume="pv")), ("volume", volume(**CSI)), ("driver", driver(False))],
        False,
    ),
    "a disk of the cloud": (
        [("claim", claim(RWO, volume="pv")), ("volume", volume(gcePersistentDisk={"pdName": "d"}))],
        True,
    ),
    "a file system": (
        [("claim", claim(RWO, volume="pv")), ("volume", volume(nfs={"server": "s", "path": "/"}))],
        False,
    ),
    "a node's own disk": (
        [("claim", claim(RWO, volume="pv")), ("volume", volume(local={"path": "/d"}))],
        False,
    ),
    "a volume that is not there": ([("claim", claim(RWO, volume="pv"))], False),
    "to be made by a driver": (
        [
            ("claim", claim(RWO, of="fast")),
            ("storage_class", storage_class("disk.csi")),
            ("driver", driver(True)),
        ],
        True,
    ),
    "to be made by no driver": (
        [("claim", claim(RWO, of="fast")), ("storage_class", storage_class("example.com/nfs"))],
        False,
    ),
    "of no class": ([("claim", claim(RWO)), ("driver", driver(True))], False),
}


@pytest.mark.parametrize("backwards", [False, True])
@pytest.mark.parametrize(("objects", "once"), CASES.values(), ids=CASES)
async def test_which_claims_attach_once(
    objects: list[tuple[str, Object]], once: bool, backwards: bool
) -> None:
    """In whatever order the objects are seen."""
    bench = Bench()
    for kind, item in objects[::-1] if backwards else objects:
        await bench.sees(kind, item)
    answers = bench.told()
    assert (answers[-1] if answers else False) is once
    assert all(earlier != later for earlier, later in pairwise(answers))


async def test_what_changes_is_told_once_and_what_is_gone_attaches_nowhere() -> None:
    bench = Bench()
    await bench.sees("volume", volume(**CSI))
    for _ in range(2):
        await bench.sees("claim", claim(RWO, volume="pv"))
    await bench.sees("driver", driver(False))
    await bench.sees("driver", "disk.csi")
    await bench.sees("volume", "pv")
    await bench.sees("volume", volume(**CSI))
    await bench.sees("claim", "ns/data")
    await bench.sees("volume", "pv")
    assert bench.told() == [True, False, True, False, True, False]


async def test_a_claim_that_waits_for_its_class() -> None:
    bench = Bench()
    await bench.sees("claim", claim(RWO, of="fast"))
    await bench.sees("driver", driver(True))
    await bench.sees("storage_class", storage_class("disk.csi"))
    await bench.sees("storage_class", "fast")
    assert bench.told() == [True, False]
