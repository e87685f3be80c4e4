"""Manifests of what DRA drivers publish, of claims, and of gangs with claims."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from tests.files.manifests import GPU, Object

GPU_DRIVER, CHANNELS, NICS = "gpu.nvidia.com", "compute-domain.nvidia.com", "dra.net"
CHANNEL_CLASS = "compute-domain-default-channel.nvidia.com"
V1 = "resource.k8s.io/v1"


def tray(name: str, clique: str = "", gpus: int = 4) -> Object:
    """A node, as a compute tray of an NVL72 has four GPUs."""
    allocatable = {"cpu": "144", "memory": "960Gi", "pods": "110", **({GPU: str(gpus)} if gpus else {})}
    labels = {
        "nvidia.com/gpu.product": "NVIDIA-GB200",
        **({"nvidia.com/gpu.clique": clique} if clique else {}),
    }
    meta = {"name": name, "labels": labels}
    return {"apiVersion": "v1", "kind": "Node", "metadata": meta, "status": {"allocatable": allocatable}}


def domain(name: str = "nccl", **metadata: str) -> Object:
    spec = {"numNodes": 0, "channel": {"resourceClaimTemplate": {"name": f"{name}-channel"}}}
    meta = {"name": name, **metadata}
    return {
        "apiVersion": "resource.nvidia.com/v1beta1",
        "kind": "ComputeDomain",
        "metadata": meta,
        "spec": spec,
    }


def job(
    count: int, gpus: int, *claims: str, name: str = "train", by_name: bool = False, **keys: str
) -> Object:
    """A gang of equal pods with GPUs, and a claim for each template, or a claim of this name."""
    key = "resourceClaimName" if by_name else "resourceClaimTemplateName"
    annotations = {"gpu.topology/group": name, "gpu.topology/min-member": str(count)}
    annotations |= {f"gpu.topology/{key.replace('_', '-')}": value for key, value in keys.items()}
    spec = {
        "schedulerName": "muster",
        "resourceClaims": [{"name": f"c{at}", key: claim} for at, claim in enumerate(claims)],
        "containers": [{"name": "main", "resources": {"limits": {GPU: gpus}} if gpus else {}}],
    }
    pods = {"metadata": {"annotations": annotations}, "spec": spec}
    job_spec = {"parallelism": count, "completions": count, "completionMode": "Indexed", "template": pods}
    return {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": name}, "spec": job_spec}


def devices(kind: str, name: str, spec: Any, **more: Any) -> Object:
    return {"apiVersion": V1, "kind": kind, "metadata": {"name": name}, "spec": spec, **more}


def published(node: str, driver: str, *published_devices: Object, generation: int = 1) -> Object:
    pool = {"name": node, "generation": generation, "resourceSliceCount": 1}
    spec = {"driver": driver, "nodeName": node, "pool": pool, "devices": list(published_devices)}
    return devices("ResourceSlice", f"{node}-{driver}-{generation}", spec)


def device(name: str, **attributes: str | int) -> Object:
    values = {
        key: {"int" if isinstance(value, int) else "string": value} for key, value in attributes.items()
    }
    return {"name": name, "attributes": values}


def gpus(node: str, model: str = "H100", count: int = 4) -> Object:
    gpu_devices = (
        device(f"gpu-{at}", type="gpu", productName=model, pciBusID=f"0000:{at:02x}") for at in range(count)
    )
    return published(node, GPU_DRIVER, *gpu_devices)


def channel(node: str) -> Object:
    return published(
        node, CHANNELS, device("channel-0", type="channel", id=0), device("daemon-0", type="daemon")
    )


def request(of: str = GPU_DRIVER, **exactly: Any) -> Object:
    return {"name": "r", "exactly": {"deviceClassName": of, **exactly}}


def model(name: str) -> list[Object]:
    return [{"cel": {"expression": f"device.attributes['{GPU_DRIVER}'].productName == '{name}'"}}]


def template(name: str, *requests: Object, **more: Any) -> Object:
    return devices("ResourceClaimTemplate", name, {"spec": {"devices": {"requests": list(requests), **more}}})


def of_class(name: str, driver: str, **spec: str) -> Object:
    return devices(
        "DeviceClass", name, {"selectors": [{"cel": {"expression": f"device.driver == '{driver}'"}}], **spec}
    )


def allocated(name: str, node: str, driver: str, *names: str, consumer: str = "") -> Object:
    results = [
        {"request": "r", "driver": driver, "pool": node, "device": device_name} for device_name in names
    ]
    status: Object = {"allocation": {"devices": {"results": results}}}
    if consumer:
        status["reservedFor"] = [{"resource": "pods", "name": consumer, "uid": consumer}]
    of = GPU_DRIVER if driver == GPU_DRIVER else CHANNEL_CLASS
    return devices("ResourceClaim", name, {"devices": {"requests": [request(of)]}}, status=status)


def running(name: str, node: str, *templates: str, **status: Any) -> Object:
    """A pod of another scheduler with claims from these templates."""
    claims = [
        {"name": f"c{at}", "resourceClaimTemplateName": template_name}
        for at, template_name in enumerate(templates)
    ]
    spec = {"nodeName": node, "resourceClaims": claims, "containers": [{"name": "main"}]}
    meta = {"name": name, "uid": name}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": meta,
        "spec": spec,
        "status": {"phase": "Running", **status},
    }


@dataclass(frozen=True)
class Case:
    """Objects → the nodes of all members, or the status; and what the answer or a note says."""

    objects: list[Object]
    at: str = ""
    status: str = "placed"
    says: str = ""
    note: str = ""
    quiet: tuple[str, ...] = field(default=())

    def check(self, answer: Object) -> None:
        """Compare the answer of `muster place` with what is right."""
        assert {gang["status"] for gang in answer["gangs"]} == {self.status}, answer
        if self.at:
            members = [member for gang in answer["gangs"] for member in gang["members"]]
            assert sorted(member["node"] for member in members) == self.at.split(), answer
        assert self.says in " ".join(gang["message"] for gang in answer["gangs"])
        notes = "\n".join(answer["notes"])
        assert self.note in notes
        assert not any(word in notes for word in self.quiet), notes
        assert not answer["skipped"]
