"""GPUs that a DRA driver serves, as a test makes them by hand, and what their claims must say.

kwok's nodes have no kubelet and no driver. The scheduler needs none: it reads ResourceSlices, and writes
claims.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any

from e2e import objects
from e2e.facts import ALLOCATION, DRA_GPUS
from e2e.record import Record
from e2e.scene import Scene
from local_cluster.api import Object

GROUP = "/apis/resource.k8s.io/v1"
DRIVER = "gpu.e2e.example.com"
NIC_DRIVER = "nic.e2e.example.com"
GPU = "nvidia.com/gpu"
PCIE_ROOT = "resource.kubernetes.io/pcieRoot"


def root_of(number: int) -> int:
    """The PCIe root of a device, by its number: two devices have one."""
    return number // 2


@contextmanager
def device_class(scene: Scene, expression: str = f"device.driver == '{DRIVER}'") -> Iterator[str]:
    """A DeviceClass by which pods get the driver's devices when they ask for nvidia.com/gpu."""
    spec = {"extendedResourceName": GPU, "selectors": [{"cel": {"expression": expression}}]}
    scene.client.post(f"{GROUP}/deviceclasses", {"metadata": {"name": scene.name}, "spec": spec})
    try:
        yield scene.name
    finally:
        scene.client.delete(f"{GROUP}/deviceclasses/{scene.name}")


def is_a(kind: str) -> str:
    """A selector of the driver's devices whose attribute `type` says this."""
    return f"device.driver == '{DRIVER}' && device.attributes['{DRIVER}'].type == '{kind}'"


def nic_class(scene: Scene) -> AbstractContextManager[str]:
    """A DeviceClass of another driver's network cards."""
    return other_class(scene, "nic", f"device.driver == '{NIC_DRIVER}'")


@contextmanager
def other_class(scene: Scene, kind: str, expression: str) -> Iterator[str]:
    """A DeviceClass of devices that are no GPUs."""
    spec = {"selectors": [{"cel": {"expression": expression}}]}
    name = f"{kind}-{scene.name}"
    scene.client.post(f"{GROUP}/deviceclasses", {"metadata": {"name": name}, "spec": spec})
    try:
        yield name
    finally:
        scene.client.delete(f"{GROUP}/deviceclasses/{name}")


def node(
    scene: Scene,
    name: str,
    gpus: int = 8,
    uuids: Sequence[int] = (),
    topology: str = "",
    big: Sequence[int] = (),
    nics: int = 0,
    worn: Sequence[int] = (),
    **device_fields: Any,
) -> str:
    """A node with `gpus` GPUs in a ResourceSlice, and none in its allocatable. `uuids`: the numbers of its
    devices, in the order in which the node's annotation names them. `big`: those of another model. `nics`:
    how many cards another driver has there, each at the PCIe root of its number. `worn`: devices with a taint
    of this name. `device_fields`: what each device has in addition."""
    annotations = {"gpu.topology/gpu-uuids": ",".join(f"GPU-{number}" for number in uuids)} if uuids else {}
    body = objects.node(
        name, gpus=0, topology=topology, annotations=annotations | {DRA_GPUS: f"{GPU}={gpus}"}
    )
    full = scene.node(body)
    uid = scene.client.get(f"/api/v1/nodes/{full}")["metadata"]["uid"]
    owner = {"apiVersion": "v1", "kind": "Node", "name": full, "uid": uid}
    devices = [
        {
            "name": f"gpu-{number}",
            "attributes": {
                "uuid": {"string": f"GPU-{number}"},
                "model": {"string": "big" if number in big else "small"},
                "resource.kubernetes.io/pciBusID": {"string": f"0000:{gpus - number:02x}:00.0"},
                PCIE_ROOT: {"string": f"pci0000:{root_of(number):02x}"},
            },
            "taints": [{"key": "worn", "effect": "NoSchedule"}] if number in worn else [],
            **device_fields,
        }
        for number in range(gpus)
    ]
    cards: list[Object] = [
        {"name": f"nic-{number}", "attributes": {PCIE_ROOT: {"string": f"pci0000:{number:02x}"}}}
        for number in range(nics)
    ]
    for driver, published in ((DRIVER, devices), (NIC_DRIVER, cards)):
        spec = {
            "driver": driver,
            "nodeName": full,
            "pool": {"name": full, "generation": 1, "resourceSliceCount": 1},
            "devices": published,
        }
        meta = {"name": f"{full}-{driver}", "ownerReferences": [owner]}
        if published:
            scene.client.post(f"{GROUP}/resourceslices", {"metadata": meta, "spec": spec})
    return full


def shared(memory: str) -> Object:
    """What a device has if several claims may share this memory of it."""
    return {"allowMultipleAllocations": True, "capacity": {"memory": {"value": memory}}}


def divided_node(scene: Scene, name: str, gpus: int = 4) -> str:
    """A node whose GPUs are published whole and as two partitions each. The counters have a slice of their
    own, before that of the devices."""
    full = scene.node(objects.node(name, gpus=0, annotations={DRA_GPUS: f"{GPU}={gpus}"}))
    uid = scene.client.get(f"/api/v1/nodes/{full}")["metadata"]["uid"]
    owner = {"apiVersion": "v1", "kind": "Node", "name": full, "uid": uid}
    sets = [{"name": f"gpu-{at}", "counters": {"memory": {"value": "80Gi"}}} for at in range(gpus)]
    kinds = [("gpu", f"gpu-{at}", at, "80Gi") for at in range(gpus)]
    kinds += [("mig", f"mig-{at}-{half}", at, "40Gi") for at in range(gpus) for half in range(2)]
    devices = [
        {
            "name": device,
            "attributes": {"type": {"string": kind}, "index": {"int": at}},
            "consumesCounters": [{"counterSet": f"gpu-{at}", "counters": {"memory": {"value": memory}}}],
        }
        for kind, device, at, memory in kinds
    ]
    pool = {"name": full, "generation": 1, "resourceSliceCount": 2}
    for part, more in (("counters", {"sharedCounters": sets}), ("devices", {"devices": devices})):
        meta = {"name": f"{full}-{part}", "ownerReferences": [owner]}
        spec = {"driver": DRIVER, "nodeName": full, "pool": pool, **more}
        scene.client.post(f"{GROUP}/resourceslices", {"metadata": meta, "spec": spec})
    return full


def gang(name: str, size: int, gpus: int = 1) -> list[Object]:
    """Pods of one gang that ask for nvidia.com/gpu."""
    pods = [objects.pod(f"{name}-{rank}", gang=objects.ack(name, size)) for rank in range(size)]
    for pod in pods:
        resources = pod["spec"]["containers"][0]["resources"]
        resources["requests"] = {"cpu": "100m", GPU: str(gpus)}
        resources["limits"] = {GPU: str(gpus)}
    return pods


def template(scene: Scene, name: str, *requests: Object, match: str = "") -> None:
    """A template of claims with these requests, whose devices agree on the attribute `match`."""
    path = f"{GROUP}/namespaces/{scene.name}/resourceclaimtemplates"
    constraints = [{"matchAttribute": match}] if match else []
    spec = {"spec": {"devices": {"requests": list(requests), "constraints": constraints}}}
    scene.client.post(path, {"metadata": {"name": name}, "spec": spec})


def request(name: str, device_class: str, count: int = 1, expression: str = "", **more: Any) -> Object:
    """A request for devices of a class, and which satisfy the expression."""
    selectors = [{"cel": {"expression": expression}}] if expression else []
    return {
        "name": name,
        "exactly": {"deviceClassName": device_class, "count": count, "selectors": selectors, **more},
    }


def first_available(
    name: str, device_class: str, *expressions: str, count: int = 1, counts: Sequence[int] = ()
) -> Object:
    """A request with a subrequest for each expression, the first one preferred: for `count` devices each, or
    for those of `counts`."""
    pairs = zip(expressions, counts or [count] * len(expressions), strict=True)
    subrequests = [
        request(f"s{at}", device_class, number, expression) for at, (expression, number) in enumerate(pairs)
    ]
    return {
        "name": name,
        "firstAvailable": [
            {"name": subrequest["name"], **subrequest["exactly"]} for subrequest in subrequests
        ],
    }


def claiming(name: str, size: int, *templates: str) -> list[Object]:
    """Pods of one gang, each with a claim from each of these templates."""
    pods = [objects.pod(f"{name}-{rank}", gang=objects.ack(name, size)) for rank in range(size)]
    return naming(pods, *templates)


def naming(pods: list[Object], *templates: str) -> list[Object]:
    """Let each pod have a claim from each of these templates."""
    for pod in pods:
        container = pod["spec"]["containers"][0]
        container["resources"] = {
            "requests": {"cpu": "100m"},
            "claims": [{"name": template_name} for template_name in templates],
        }
        pod["spec"]["resourceClaims"] = [
            {"name": template_name, "resourceClaimTemplateName": template_name} for template_name in templates
        ]
    return pods


def claims(scene: Scene) -> str:
    """The path of the scene's claims."""
    return f"{GROUP}/namespaces/{scene.name}/resourceclaims"


def roots(scene: Scene) -> dict[str, list[int]]:
    """The PCIe roots of what each pod's claims have: those of its cards, then those of its GPUs."""
    roots_by_pod: dict[str, list[tuple[bool, int]]] = {}
    for claim in scene.client.get(claims(scene))["items"]:
        results = ((claim.get("status") or {}).get("allocation") or {}).get("devices", {}).get("results", ())
        for result in results:
            number, is_gpu = int(result["device"].rpartition("-")[2]), result["driver"] != NIC_DRIVER
            root = root_of(number) if is_gpu else number
            roots_by_pod.setdefault(claim["metadata"]["ownerReferences"][0]["name"], []).append(
                (is_gpu, root)
            )
    return {name: [root for _, root in sorted(of)] for name, of in roots_by_pod.items()}


def allocated(live: Sequence[Object]) -> dict[str, list[str]]:
    """The GPUs of each pod that has a claim, as driver/pool/device in the order of its claims' names
    and of each claim."""
    devices_by_pod: dict[str, list[str]] = {}
    for claim in sorted(live, key=lambda claim_body: str(claim_body["metadata"]["name"])):
        allocation = (claim.get("status") or {}).get("allocation") or {}
        for owner in claim["metadata"].get("ownerReferences") or ():
            results = (allocation.get("devices") or {}).get("results") or ()
            devices = [
                f"{result['driver']}/{result['pool']}/{result['device']}"
                for result in results
                if result["driver"] != NIC_DRIVER
            ]
            if devices:
                devices_by_pod.setdefault(owner["name"], []).extend(devices)
    return devices_by_pod


def shares(scene: Scene) -> dict[str, Counter[str]]:
    """What claims take of each device, as driver/pool/device: how many take how much memory of it."""
    shares_by_device: dict[str, Counter[str]] = {}
    for claim in scene.client.get(claims(scene))["items"]:
        allocation = (claim.get("status") or {}).get("allocation") or {}
        for result in (allocation.get("devices") or {}).get("results") or ():
            device = f"{result['driver']}/{result['pool']}/{result['device']}"
            memory = (result.get("consumedCapacity") or {}).get("memory", "")
            shares_by_device.setdefault(device, Counter())[memory] += 1
    return shares_by_device


def planned(scene: Scene) -> dict[str, list[str]]:
    """The devices that the annotation of each bound pod names."""
    pods = scene.client.get(f"/api/v1/namespaces/{scene.name}/pods")["items"]
    bound = [pod for pod in pods if pod["spec"].get("nodeName")]
    annotations_of = {pod["metadata"]["name"]: pod["metadata"].get("annotations") or {} for pod in bound}
    return {
        name: list(json.loads(of[ALLOCATION])["devices"])
        for name, of in annotations_of.items()
        if ALLOCATION in of
    }


def judge(scene: Scene, shared: bool = False) -> int:
    """Check the scene's claims against its pods; the number of members checked.

    Every bound pod has exactly its planned devices, in the plan's order. No device is in two claims, unless
    claims share them. In the end no device is allocated without a bound pod.
    """
    with Record(scene.client, (claims(scene),)) as record:

        def is_settled() -> bool:
            return allocated(record.live(claims(scene))).keys() == planned(scene).keys()

        record.until(is_settled, "only bound pods have devices")
        devices_by_pod = allocated(record.live(claims(scene)))
    assert devices_by_pod == planned(scene)
    times = Counter(device for devices in devices_by_pod.values() for device in devices)
    assert shared or [device for device, number in times.items() if number > 1] == []
    return len(devices_by_pod)
