"""From ResourceSlices, DeviceClasses and ResourceClaims to nodes and events."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest

from local_cluster.patience import HANG_S
from muster.adapters.kube import decode
from muster.adapters.kube.devices import (
    EXTENDED,
    DeviceIntake,
    ServedResources,
)
from muster.adapters.kube.intake import READ_AT_ONCE, Intake
from muster.dialects.devices.objects import ResourceClaim
from muster.dialects.objects import PodStatus
from muster.dialects.settings import DEFAULTS
from muster.gangs.messages.inputs import DeviceClaimSeen, Input, NodeSeen, PodSeen
from tests.adapters.changes import seen
from tests.dialects.objects import node_object, pod_object
from tests.dialects.test_dra import device_class, gpu, piece
from tests.dialects.test_shares import shared_gpu

GANG = {"gpu-topology": "g", "gpu-topology-replica": "1"}


class Heard:
    """Events and nodes, as the gangs would get them."""

    def __init__(self) -> None:
        self.events: list[Input] = []
        self.read: list[str] = []
        self.claims: list[str | None] = []
        self.served = ServedResources(DEFAULTS, self.put)

    async def put(self, message: Input) -> None:
        self.events.append(message)

    async def read_again(self, node: str) -> None:
        self.read.append(node)

    async def read_pods_again(self, claim: str | None) -> None:
        self.claims.append(claim)


@pytest.fixture
def heard() -> Heard:
    return Heard()


async def test_a_node_is_read_again_when_its_slices_or_the_class_change(heard: Heard) -> None:
    intake = Intake(DEFAULTS, heard.put, lambda event: None)
    await intake.nodes.on_node(*seen(node_object({"cpu": "8"})))
    await intake.devices.on_slice(*seen(piece([gpu(0), gpu(1)])))
    await intake.devices.on_class(*seen(device_class()))
    await intake.devices.on_slice(*seen(piece([gpu(0)], generation=2)))
    await intake.devices.on_slice("s", None)
    nodes = [event.node for event in heard.events if isinstance(event, NodeSeen)]
    assert [len(node.devices) for node in nodes] == [0, 2, 1, 0]


async def test_slices_of_drivers_that_no_class_names_have_no_node_read(heard: Heard) -> None:
    intake = DeviceIntake(DEFAULTS, heard.put, heard.read_again, heard.read_pods_again, heard.served)
    await intake.on_slice(*seen(piece([gpu(0)])))
    assert heard.read == []  # no class names GPUs yet
    await intake.on_class(*seen(device_class()))
    await intake.on_slice(*seen(piece([{"name": "nic"}], "t", driver="nic.example.com")))
    await intake.on_slice("t", None)
    assert heard.read == ["n"]
    await intake.on_slice("s", None)
    assert heard.read == ["n", "n"]


async def test_slices_may_come_before_their_node(heard: Heard) -> None:
    intake = Intake(DEFAULTS, heard.put, lambda event: None)
    await intake.devices.on_class(*seen(device_class()))
    await intake.devices.on_slice(*seen(piece([gpu(0)])))
    await intake.nodes.on_node(*seen(node_object({"cpu": "8"})))
    (event,) = heard.events
    assert isinstance(event, NodeSeen)
    assert len(event.node.devices) == 1


def claim(results: list[dict[str, Any]] | None, **more: Any) -> tuple[str, ResourceClaim]:
    """A claim with these devices; None if it is not allocated."""
    allocation = {"devices": {"results": results}} if results is not None else None
    metadata = {"name": "c", "uid": "uid-c", **more.pop("metadata", {})}
    return seen(
        msgspec.convert({"metadata": metadata, "status": {"allocation": allocation, **more}}, ResourceClaim)
    )


RESULT = {"driver": "d", "pool": "n", "device": "gpu-0"}
POD = {"resource": "pods", "name": "p", "uid": "uid-p"}


async def test_a_claim_is_told_once_for_each_change_of_what_it_holds(heard: Heard) -> None:
    intake = DeviceIntake(DEFAULTS, heard.put, heard.read_again, heard.read_pods_again, heard.served)
    owner = {"ownerReferences": [{"kind": "Pod", "uid": "uid-o", "controller": True}]}
    admin = RESULT | {"adminAccess": True}
    for change in (
        claim(None),
        claim([RESULT]),
        claim([RESULT], metadata={"resourceVersion": "2"}),
        claim([RESULT], reservedFor=[POD]),
        claim([RESULT, admin], metadata=owner),
        claim([RESULT], reservedFor=[POD], metadata=owner),
        claim([admin], reservedFor=[POD]),
        ("uid-c", None),
        claim([RESULT], reservedFor=[POD | {"resource": "podgroups"}], metadata=owner),
        ("uid-c", None),
    ):
        await intake.on_claim(*change)
    claim_events = [event for event in heard.events if isinstance(event, DeviceClaimSeen)]
    assert [(len(event.claim.devices), event.claim.consumers) for event in claim_events] == [
        (1, ()),
        (1, ("uid-p",)),
        (1, ("uid-o",)),
        (1, ("uid-p",)),
        (0, ()),
        (1, ()),
        (0, ()),
    ]


async def test_a_claim_is_told_again_when_it_takes_more_of_its_device(heard: Heard) -> None:
    intake = DeviceIntake(DEFAULTS, heard.put, heard.read_again, heard.read_pods_again, heard.served)
    share = RESULT | {"shareID": "s", "consumedCapacity": {"memory": "2Ki"}}
    more = share | {"consumedCapacity": {"memory": "3Ki"}}
    results_in_turn: list[list[dict[str, Any]]] = [[share], [more], [share, RESULT], [RESULT]]
    for results in results_in_turn:
        await intake.on_claim(*claim(results))
    claim_events = [event for event in heard.events if isinstance(event, DeviceClaimSeen)]
    assert [event.claim.shares for event in claim_events] == [(2048,), (3072,), (2048, 0), ()]


async def test_pods_are_read_again_when_devices_round_up_as_none_did_before(heard: Heard) -> None:
    intake = DeviceIntake(DEFAULTS, heard.put, heard.read_again, heard.read_pods_again, heard.served)
    await intake.on_class(*seen(device_class()))
    heard.claims.clear()
    policy = {"default": "80Gi", "validValues": ["5Gi", "80Gi"]}
    for slice_, claims in (
        (piece([shared_gpu(0)]), [None]),
        (piece([shared_gpu(0), shared_gpu(1)], "t"), [None]),
        (piece([gpu(2)], "u"), [None]),
        (piece([shared_gpu(3, policy=policy)], "v"), [None, None]),
    ):
        await intake.on_slice(*seen(slice_))
        assert heard.claims == claims
    await intake.on_slice("v", None)
    assert heard.claims == [None] * 3


def asking(
    name: str, uid: str, count: int = 2, annotations: dict[str, str] | None = None
) -> tuple[str, ResourceClaim]:
    """A claim for GPUs."""
    request = {"name": "r", "exactly": {"deviceClassName": "gpu.nvidia.com", "count": count}}
    fields = {
        "metadata": {"namespace": "ns", "name": name, "uid": uid, "annotations": annotations or {}},
        "spec": {"devices": {"requests": [request]}},
    }
    return seen(msgspec.convert(fields, ResourceClaim))


async def test_a_pod_is_read_again_when_its_claim_is_made_or_its_class_changes(heard: Heard) -> None:
    intake = Intake(DEFAULTS, heard.put, lambda event: None)
    spec = {"resourceClaims": [{"name": "c", "resourceClaimTemplateName": "t"}]}
    obj = pod_object(labels=GANG, spec=spec)
    status = msgspec.convert(
        {"resourceClaimStatuses": [{"name": "c", "resourceClaimName": "p-c"}]}, PodStatus
    )
    await intake.on_pod(*seen(obj))
    await intake.devices.on_claim(*asking("p-c", "u"))
    await intake.on_pod(*seen(msgspec.structs.replace(obj, status=status)))
    await intake.devices.on_class(*seen(device_class()))
    await intake.devices.on_claim(*asking("another", "v", 5))
    await intake.on_pod("u", None)
    await intake.devices.on_claim("u", None)
    pods = [event.pod for event in heard.events if isinstance(event, PodSeen)]
    assert [(pod.gated, pod.gpus) for pod in pods] == [(True, 0), (False, 0), (False, 2)]


async def test_most_pods_of_a_claim_are_read_later(heard: Heard) -> None:
    pods, all_read = 3 * READ_AT_ONCE, asyncio.Event()

    async def put(message: Input) -> None:
        await heard.put(message)
        if len(heard.events) == pods:
            all_read.set()

    intake = Intake(DEFAULTS, put, lambda event: None)
    spec = {"resourceClaims": [{"name": "c", "resourceClaimName": "shared"}]}
    for number in range(pods):
        await intake.on_pod(*seen(pod_object(labels=GANG, spec=spec, name=f"p{number}", uid=f"{number:03}")))
    await intake.finish_start()
    heard.events.clear()
    all_read.clear()
    await intake.devices.on_claim(*asking("shared", "v"))
    assert len(heard.events) == READ_AT_ONCE
    await intake.on_pod(f"{pods - 1:03}", None)  # it is not read again, as if it were there
    await asyncio.wait_for(all_read.wait(), HANG_S)
    read_pods = [event.pod for event in heard.events if isinstance(event, PodSeen)]
    assert [pod.uid for pod in read_pods] == [f"{number:03}" for number in range(pods - 1)]
    assert not any(pod.gated for pod in read_pods)


async def test_while_the_service_starts_no_pod_is_read_later(heard: Heard) -> None:
    """Its gangs would be planned after less important ones."""
    intake, count = Intake(DEFAULTS, heard.put, lambda event: None), 3 * READ_AT_ONCE
    for number in range(count):
        spec = {"resourceClaims": [{"name": "c", "resourceClaimName": f"c{number}"}]}
        await intake.on_pod(*seen(pod_object(labels=GANG, spec=spec, name=f"p{number}", uid=f"u{number}")))
    heard.events.clear()
    for number in range(count):
        await intake.devices.on_claim(*asking(f"c{number}", "v"))
    pods = [event.pod for event in heard.events if isinstance(event, PodSeen)]
    assert [pod.uid for pod in pods] == [f"u{number}" for number in range(count)]


async def test_pods_are_read_later_in_the_pause_after_such_a_reading(heard: Heard) -> None:
    """A kubelet may have all pods with claims read again by each change of a slice."""
    intake = Intake(DEFAULTS, heard.put, lambda event: None)
    spec = {"resourceClaims": [{"name": "c", "resourceClaimName": "shared"}]}
    await intake.devices.on_class(*seen(device_class()))
    await intake.on_pod(*seen(pod_object(labels=GANG, spec=spec)))
    await intake.finish_start()
    heard.events.clear()
    for count in range(2, 100):
        await intake.devices.on_claim(*asking("shared", "v", count))
    assert len(heard.events) == 1
    assert intake._pod_rereads.reader is not None
    await asyncio.wait_for(intake._pod_rereads.reader, HANG_S)
    gpu_counts = [event.pod.gpus for event in heard.events if isinstance(event, PodSeen)]
    assert gpu_counts == [2, 99]


async def test_a_class_that_counts_the_same_has_no_pods_read_again(heard: Heard) -> None:
    intake = DeviceIntake(DEFAULTS, heard.put, heard.read_again, heard.read_pods_again, heard.served)
    for change in (
        seen(device_class()),
        seen(device_class()),
        ("gpu.nvidia.com", None),
        ("gpu.nvidia.com", None),
    ):
        await intake.on_class(*change)
    assert heard.claims == [None, None]


async def test_memory_of_other_drivers_has_no_pods_read_again(heard: Heard) -> None:
    """Each of many slices may round up in another way. They count once a class takes the driver's GPUs."""
    intake = DeviceIntake(DEFAULTS, heard.put, heard.read_again, heard.read_pods_again, heard.served)
    await intake.on_class(*seen(device_class()))
    for number in range(3):
        policy = {"default": "80Gi", "validValues": [f"{number}Gi"]}
        memory = [shared_gpu(number, policy=policy)]
        await intake.on_slice(*seen(piece(memory, f"s{number}", driver="cxl.example.com")))
    assert heard.claims == [None]
    await intake.on_class(*seen(device_class("device.driver == 'cxl.example.com'")))
    assert heard.claims == [None, None]


async def test_which_claims_have_pods_read_again(heard: Heard) -> None:
    intake = DeviceIntake(DEFAULTS, heard.put, heard.read_again, heard.read_pods_again, heard.served)
    for change in (
        asking("a", "1"),
        asking("a", "1"),
        asking("b", "2", annotations={EXTENDED: "true"}),
        ("2", None),
        asking("a", "3"),  # made again under its name, before the first one is seen to be gone
        ("1", None),
        ("3", None),
        ("3", None),
    ):
        await intake.on_claim(*change)
    assert heard.claims == ["ns/a", "ns/a"]


def test_objects_are_read_as_the_api_has_them() -> None:
    text = (
        b'{"metadata":{"name":"s","uid":"u"},"spec":{"driver":"d","nodeName":"n","pool":{"name":"n",'
        b'"generation":2,"resourceSliceCount":1},"devices":[{"name":"gpu-0","attributes":{"index":{"int":3},'
        b'"model":{"string":"A"},"v":{"version":"1.2.3"},"ecc":{"bool":true}},"capacity":{"memory":{"value":"80Gi"}},'
        b'"taints":[{"key":"k","effect":"NoSchedule","timeAdded":"2026-01-01T00:00:00Z"}]}]}}'
    )
    resource_slice = decode.RESOURCE_SLICES.item(text)
    assert resource_slice.spec.devices is not None
    assert resource_slice.spec.devices[0].attributes is not None
    assert resource_slice.spec.devices[0].attributes["index"].int_ == 3
    device_class = decode.DEVICE_CLASSES.item(
        b'{"metadata":{"name":"c"},"spec":{"extendedResourceName":"nvidia.com/gpu"}}'
    )
    assert device_class.spec.extended_resource_name == "nvidia.com/gpu"
    claim = decode.RESOURCE_CLAIMS.item(b'{"metadata":{"name":"c","uid":"u"},"status":{"allocation":null}}')
    assert claim.status.allocation is None


# --- claims of PodGroups ----------------------------------------------------------------------------


class Sharing:
    """An intake with a claim of the PodGroup g, and the newest facts that it passed on."""

    def __init__(self, heard: Heard) -> None:
        self.heard = heard
        self.intake = Intake(DEFAULTS, heard.put, lambda event: None)

    async def sees_pod(self, name: str, node: str = "", phase: str = "Pending", **more: Any) -> None:
        spec = {
            "resourceClaims": [{"name": "c", "resourceClaimTemplateName": "t"}],
            "schedulingGroup": {"podGroupName": "g"},
        }
        obj = pod_object(spec=spec, name=name, uid=name, node=node, **more)
        statuses = [{"name": "c", "resourceClaimName": "g-c"}]
        status = msgspec.convert({"phase": phase, "resourceClaimStatuses": statuses}, PodStatus)
        await self.intake.on_pod(*seen(msgspec.structs.replace(obj, status=status)))

    async def sees_claim(self, *devices: str) -> None:
        owner = {
            "apiVersion": "scheduling.k8s.io/v1beta1",
            "kind": "PodGroup",
            "name": "g",
            "uid": "uid-g",
            "controller": True,
        }
        meta = {"namespace": "ns", "name": "g-c", "uid": "uid-c", "ownerReferences": [owner]}
        _, gpu_claim = asking("g-c", "uid-c")
        results = [RESULT | {"device": device} for device in devices]
        consumers = [{"resource": "podgroups", "name": "g", "uid": "uid-g"}] if devices else []
        status = {
            "allocation": {"devices": {"results": results}} if devices else None,
            "reservedFor": consumers,
        }
        body = {"metadata": meta, "spec": msgspec.to_builtins(gpu_claim.spec), "status": status}
        await self.intake.devices.on_claim(*seen(msgspec.convert(body, ResourceClaim)))

    def gpus(self) -> dict[str, int]:
        """The GPUs that each pod requests."""
        return {event.pod.name: event.pod.gpus for event in self.heard.events if isinstance(event, PodSeen)}

    def consumers(self) -> list[tuple[str, ...]]:
        """The pods that the claim's devices were for, one after another."""
        return [event.claim.consumers for event in self.heard.events if isinstance(event, DeviceClaimSeen)]


async def test_the_devices_of_a_podgroups_claim_count_for_one_pod_after_another(heard: Heard) -> None:
    sharing = Sharing(heard)
    await sharing.intake.devices.on_class(*seen(device_class()))
    for name in ("a", "b", "d"):
        await sharing.sees_pod(name)
    await sharing.sees_claim()
    assert sharing.gpus() == {"a": 2, "b": 0, "d": 0}
    await sharing.sees_claim("gpu-0", "gpu-1")
    named: dict[str, Any] = {"annotations": {"gpu.topology/allocation": '{"version":1,"gpus":[0,1]}'}}
    await sharing.sees_pod("b", "n")  # the watch may show the Bindings of a gang in any order
    assert sharing.gpus() == {"a": 0, "b": 2, "d": 0}
    await sharing.sees_pod("a", "n", **named)
    assert sharing.gpus() == {"a": 2, "b": 0, "d": 0}
    await sharing.sees_pod("a", "n", "Failed", **named)
    assert sharing.gpus() == {"a": 0, "b": 2, "d": 0}
    await sharing.intake.on_pod("b", None)
    assert sharing.gpus() == {"a": 0, "b": 2, "d": 2}
    await sharing.intake.on_pod("d", None)
    assert sharing.consumers() == [("a",), ("b",), ("a",), ("b",), ("d",), ()]


async def test_the_claim_of_a_podgroup_may_come_with_its_devices(heard: Heard) -> None:
    """As after a restart of the service."""
    sharing = Sharing(heard)
    await sharing.intake.devices.on_class(*seen(device_class()))
    await sharing.sees_claim("gpu-0", "gpu-1")
    named: dict[str, Any] = {"annotations": {"gpu.topology/allocation": '{"version":1,"gpus":[0,1]}'}}
    await sharing.sees_pod("a", "n")
    await sharing.sees_pod("b", "n", **named)
    assert sharing.gpus() == {"a": 0, "b": 2}
    assert sharing.consumers() == [(), ("a",), ("b",)]
