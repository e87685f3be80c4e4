"""What a pod asks for, summed over its containers as kube-scheduler sums it.

Containers run together and add up. An init container runs alone, so only the largest counts; one that
restarts always (a sidecar) stays and adds up with what follows it. What the pod as a whole asks for stands
for its sum. The pod's overhead comes on top.
(k8s.io/component-helpers/resource, PodRequests.)

CPU and memory of a bound pod can be resized in place. It counts with the largest of what its spec asks for,
what the kubelet has allocated and what runs (`resize`). Other resources can't be resized.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from functools import lru_cache

import msgspec

from muster.dialects import quantities, resize
from muster.dialects.objects import Container, PodSpec, PodStatus
from muster.dialects.quantities import Quantity
from muster.dialects.settings import Settings
from muster.domain.causes.ill_formed import BadValue
from muster.domain.node import Resources

Amounts = dict[str, Fraction]

_encoder = msgspec.json.Encoder()

MAX_OF_A_POD = 1 << 20
"""GPUs, or GiB of their memory. More is no request but a slip (bytes for GiB); far above any node."""


MAX_REMEMBERED = 16 * 1024
"""Bytes of what a pod's containers ask for, as JSON: what is larger is summed up anew each time. The sums of
a thousand pods are remembered, also of those that are gone."""


@dataclass(frozen=True, slots=True)
class Asked:
    """What one pod asks for. `gpu_memory` is GiB of shared GPUs in all; `container_memory` is what its
    containers ask of it, by their place in the pod, those that ask for none too, then the sidecars that do.
    `shared_gpus` is a resource of nodes: to ask for it is a slip."""

    resources: Resources
    gpus: int
    gpu_resource: str
    container_gpus: tuple[tuple[str, int], ...]
    gpu_memory: int
    container_memory: tuple[tuple[str, int], ...]
    shared_gpus: int
    causes: tuple[BadValue, ...]


@dataclass(frozen=True, slots=True)
class _Parts:
    """What is summed up of a pod. Pods of one template are alike in it: `encoded` says so."""

    encoded: bytes
    spec: PodSpec = field(compare=False)
    status: PodStatus = field(compare=False)


def read(where: str, spec: PodSpec, settings: Settings, status: PodStatus | None = None) -> Asked:
    """Sum up one pod. `where` is the pod, as kind/namespace/name.

    `status` is given for a bound pod alone: what its containers hold differs from the spec after a resize.
    """
    status = status or PodStatus()
    parts = (spec.containers, spec.init_containers, spec.overhead, spec.resources)
    encoded = _encoder.encode((*parts, resize.facts(status)))
    if len(encoded) > MAX_REMEMBERED:
        return _sum(where, spec, status, settings)
    alone = PodSpec(containers=parts[0], init_containers=parts[1], overhead=parts[2], resources=parts[3])
    asked = _asked(_Parts(encoded, alone, status), settings)
    return _sum(where, spec, status, settings) if asked.causes else asked


@lru_cache(maxsize=1024)
def _asked(parts: _Parts, settings: Settings) -> Asked:
    return _sum("", parts.spec, parts.status, settings)


def _sum(where: str, spec: PodSpec, status: PodStatus, settings: Settings) -> Asked:
    reader = _Reader(where, settings)
    containers = [(c.name, reader.requests(c)) for c in spec.containers or ()]
    inits = [(c.name, reader.requests(c), c.restart_policy == "Always") for c in spec.init_containers or ()]
    total = sum_of([amounts for _, amounts in containers], [(a, stays) for _, a, stays in inits])
    whole_pod = reader.requests(Container("pod", spec.resources))
    if resize.concerns(status):
        resized = resize.Resized(spec, status, sum_of, reader.amounts)
        total = resized.total(total)
        whole_pod = resized.whole_pod(whole_pod)
    total |= whole_pod  # before its containers'
    add(total, reader.amounts("overhead", spec.overhead or {}))
    gpu_resource = reader.gpu_resource(total)
    # In the order in which the kubelet starts them: sidecars first.
    parts = [(name, a) for name, a, stays in inits if stays] + containers
    memory = settings.gpu_memory
    shares = [(name, int(a.get(memory, 0))) for name, a in containers]
    shares += [(name, int(a[memory])) for name, a, stays in inits if stays and a.get(memory)]
    cpu, memory_bytes = total.get("cpu", Fraction(0)), total.get("memory", Fraction(0))
    return Asked(
        resources=Resources(
            quantities.milli(cpu), quantities.whole(memory_bytes), others=_others(total, settings)
        ),
        gpus=int(total.get(gpu_resource, 0)),
        gpu_resource=gpu_resource,
        container_gpus=tuple((name, count) for name, a in parts if (count := int(a.get(gpu_resource, 0)))),
        gpu_memory=int(total.get(memory, 0)),
        container_memory=tuple(shares) if total.get(memory) else (),
        shared_gpus=int(total.get(settings.shared_gpus, 0)),
        causes=tuple(reader.causes),
    )


class _Reader:
    """Reads the quantities of one pod; what is none gathers in `causes`."""

    def __init__(self, where: str, settings: Settings) -> None:
        self.causes: list[BadValue] = []
        self._where = where
        self._settings = settings

    def requests(self, container: Container) -> Amounts:
        """One container's requests; a limit stands for a request not given, as in the API server."""
        wanted = container.resources
        if wanted is None:
            return {}
        return self.amounts(container.name, {**(wanted.limits or {}), **(wanted.requests or {})})

    def amounts(self, part: str, quantity_of: Mapping[str, Quantity]) -> Amounts:
        """Return the amounts of the resources that matter here; `part` names them in causes."""
        amounts: Amounts = {}
        for resource, text in quantity_of.items():
            whole = self._whole(resource)
            value = quantities.parse(text)
            if value is None or value < 0 or (whole and not _is_count(value)):
                expected = whole or "a quantity that is not negative"
                self.causes.append(BadValue(self._where, f"{part}: {resource}", str(text)[:80], expected))
            if value is not None and value > 0 and not (whole and value.denominator > 1):
                # Also what is refused: of a pod that is bound all the same, too much is counted rather than
                # too little.
                amounts[resource] = min(value, Fraction(MAX_OF_A_POD)) if whole else value
        return amounts

    def _whole(self, resource: str) -> str:
        """Return what is expected of a resource that comes in whole numbers, "" for others."""
        settings = self._settings
        if resource == settings.gpu_memory:
            return 'a whole number of GiB without a unit, as in "3"'
        gpus = resource in settings.gpu_resources or resource == settings.shared_gpus
        return "a whole number of GPUs" if gpus else ""

    def gpu_resource(self, total: Amounts) -> str:
        """Return the GPU resource that the pod requests, or "". Two are a cause, and the first counts."""
        names = [resource for resource in self._settings.gpu_resources if total.get(resource)]
        if len(names) > 1:
            said = ", ".join(f"{name}: {int(total[name])}" for name in names)
            self.causes.append(BadValue(self._where, "resources", said, "GPUs of one resource in a pod"))
        return names[0] if names else ""


def _others(total: Amounts, settings: Settings) -> tuple[tuple[str, int], ...]:
    """Return what is asked of resources that are neither cpu, memory nor GPUs, as `Resources.others`."""
    return tuple(
        sorted(
            (resource, quantities.whole(amount))
            for resource, amount in total.items()
            if amount and settings.is_other(resource)
        )
    )


def _is_count(value: Fraction) -> bool:
    return value.denominator == 1 and value <= MAX_OF_A_POD


def sum_of(containers: list[Amounts], inits: list[tuple[Amounts, bool]]) -> Amounts:
    """Return what containers ask for together; each init container comes with whether it stays."""
    total: Amounts = {}
    for amounts in containers:
        add(total, amounts)
    sidecars: Amounts = {}
    peak: Amounts = {}
    for amounts, stays in inits:
        step = dict(sidecars)
        add(step, amounts)
        for resource, amount in step.items():
            peak[resource] = max(peak.get(resource, Fraction(0)), amount)
        if stays:
            sidecars = step
    add(total, sidecars)
    for resource, amount in peak.items():
        total[resource] = max(total.get(resource, Fraction(0)), amount)
    return total


def add(total: Amounts, more: Mapping[str, Fraction]) -> None:
    """Add amounts to a total, in place."""
    for resource, amount in more.items():
        total[resource] = total.get(resource, Fraction(0)) + amount
