"""Sum a pod's requests over its containers, as kube-scheduler does.

Containers run together and add up. An init container runs alone, so only the largest counts. A sidecar (an
init container that restarts always) stays and adds up with the containers after it. Requests of the pod as a
whole replace the sum. The pod's overhead is added. (k8s.io/component-helpers/resource, PodRequests.)

Memory of shared GPUs (cGPU) is the resource aliyun.com/gpu-mem, in GiB. With the label aliyun.com/gpu-count
it is spread evenly over this number of GPUs of one node.

CPU and memory of a bound pod can be resized in place, other resources can't. The largest of three amounts
counts: the spec's request, the amount that the kubelet has allocated, and the amount that runs. If the
kubelet reports that the resize is infeasible, the spec does not count. Source:
k8s.io/component-helpers/resource, AggregateContainerRequests with UseStatusResources, and
effectivePodLevelResources (InPlacePodVerticalScaling is GA; InPlacePodLevelResourcesVerticalScaling is on by
default in 1.37).
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache

import msgspec

from muster.dialects import quantities
from muster.dialects.devices.claims import DeviceDemand
from muster.dialects.keys import SHARED_GPUS
from muster.dialects.objects import Container, ContainerStatus, PodCondition, PodObject, PodSpec, PodStatus
from muster.dialects.quantities import BILLION, Quantity
from muster.dialects.reading import Fields, positive
from muster.dialects.settings import DEFAULTS, DialectSettings
from muster.domain.allocation import MAX_GPUS
from muster.domain.causes.ill_formed import BadValue
from muster.domain.node import GPU_MEM, Resources
from muster.domain.request import Slice

Amounts = dict[str, int]
"""Resource → amount in billionths."""

_encoder = msgspec.json.Encoder()

MAX_OF_A_POD = 1 << 20
"""Largest number of GPUs, or of GiB of their memory. A larger number is a mistake (bytes for GiB), far above
any node."""

MAX_CONTAINERS = 256
"""Largest number of containers, and of init containers, of a pod. If there are more, all are summed up, but
which of them request GPUs is not recorded."""
MAX_RESOURCES = 64
"""Largest number of resources of one pod, other than CPU, memory and GPUs. Of more, the first by name are
kept."""


RESIZE_PENDING = "PodResizePending"
"""The pod condition by which a kubelet reports that a resize is pending."""
_RESIZED = ("cpu", "memory")
_Raw = Mapping[str, Quantity]


@dataclass(frozen=True, slots=True)
class PodRequests:
    """The requests of one pod."""

    resources: Resources
    gpus: int
    gpu_resource: str
    container_gpus: tuple[tuple[str, int], ...]
    """(container, GPUs) of the containers that request GPUs."""
    gpu_memory: int
    """GiB of shared GPUs in all."""
    container_memory: tuple[tuple[str, int], ...]
    """(container, GiB of shared GPUs) of all containers, then of the sidecars that request some."""
    shared_gpus: int
    """Requests for a resource that only nodes have, which is a mistake."""
    resource_names: int
    """Number of its resources, without CPU, memory and GPUs."""
    causes: tuple[BadValue, ...]
    slice: Slice | None = None
    """The memory of shared GPUs that it requests. Then `container_gpus` are GiB on each of these GPUs."""
    share_causes: tuple[BadValue, ...] = ()
    """A cause for each ill-formed part of this request."""


@dataclass(frozen=True, slots=True)
class _Parts:
    """The parts of a pod that are summed up. Pods of one template have equal parts, and equal `digest`s.

    The sums of a thousand pods are cached, also of pods that are gone. `pod` is emptied when it is summed up,
    so that only the sum is cached.
    """

    digest: bytes
    pod: list[tuple[PodSpec, PodStatus]] = field(compare=False)


def of_pod(object_name: str, obj: PodObject, settings: DialectSettings) -> PodRequests:
    """Return a pod's requests. For a bound pod, the amounts that its containers hold count too."""
    amounts = read(object_name, obj.spec, settings, obj.status if obj.spec.node_name else None)
    labels = obj.metadata.labels or {}
    if amounts.gpu_memory or amounts.shared_gpus or SHARED_GPUS in labels:
        return _with_share(object_name, labels, amounts)
    return amounts


def with_claims(
    object_name: str, spec: PodSpec, amounts: PodRequests, devices: DeviceDemand
) -> tuple[PodRequests, tuple[BadValue, ...]]:
    """Return a pod's requests with the GPUs of its claims, and causes for claims that can't be planned."""
    if not (devices.gpus or devices.slice):
        return amounts, devices.causes
    if amounts.gpus or amounts.slice:
        names = ", ".join(claim.name for claim in (spec.resource_claims or ())[:4])
        expected = "GPUs by resources or by claims, not by both"
        return amounts, (*devices.causes, BadValue(object_name, "resourceClaims", names, expected))
    if devices.slice:
        return replace(amounts, slice=devices.slice, container_gpus=()), devices.causes
    gpus = min(devices.gpus, MAX_OF_A_POD)
    return replace(amounts, gpus=gpus, gpu_resource=devices.gpu_resource, container_gpus=()), devices.causes


def read(
    object_name: str, spec: PodSpec, settings: DialectSettings, status: PodStatus | None = None
) -> PodRequests:
    """Return the sum of one pod's requests. `object_name` is the pod, as kind/namespace/name.

    `status` is given for a bound pod only. After a resize, its containers may hold other amounts than the
    spec states.
    """
    status = status or PodStatus()
    parts = (spec.containers, spec.init_containers, spec.overhead, spec.resources)
    encoded = _encoder.encode((*parts, _resize_facts(status)))
    digest = hashlib.blake2b(encoded, digest_size=16, usedforsecurity=False).digest()
    amounts = _cached_sum(_Parts(digest, [(spec, status)]), settings)
    if not amounts.causes:
        return amounts
    return replace(amounts, causes=tuple(replace(cause, where=object_name) for cause in amounts.causes))


def of_containers(spec: PodSpec, settings: DialectSettings = DEFAULTS) -> Amounts:
    """Return the sum of the containers' requests, without the pod's overhead and requests as a whole."""
    reader = _RequestReader(settings)
    inits = [(reader.requests(c), c.restart_policy == "Always") for c in spec.init_containers or ()]
    return sum_of([reader.requests(c) for c in spec.containers or ()], inits)


@lru_cache(maxsize=1024)
def _cached_sum(parts: _Parts, settings: DialectSettings) -> PodRequests:
    return _sum(*parts.pod.pop(), settings)


def _sum(spec: PodSpec, status: PodStatus, settings: DialectSettings) -> PodRequests:
    reader = _RequestReader(settings)
    containers = [(c.name, reader.requests(c)) for c in spec.containers or ()]
    inits = [(c.name, reader.requests(c), c.restart_policy == "Always") for c in spec.init_containers or ()]
    total = sum_of([amounts for _, amounts in containers], [(a, stays) for _, a, stays in inits])
    whole_pod = reader.requests(Container("pod", spec.resources))
    if any(_resize_facts(status)):
        resized = _Resized(spec, status, reader)
        total = resized.total(total)
        whole_pod = resized.whole_pod(whole_pod)
    total |= whole_pod  # it replaces the containers' sum
    add(total, reader.amounts("overhead", spec.overhead or {}))
    gpu_resource = reader.gpu_resource(total)
    # In the order in which the kubelet starts them: sidecars first.
    parts = [(name, a) for name, a, stays in inits if stays] + containers
    memory = GPU_MEM
    shares = [(name, a.get(memory, 0) // BILLION) for name, a in containers]
    shares += [(name, a[memory] // BILLION) for name, a, stays in inits if stays and a.get(memory)]
    other_resources = _other_resources(total, settings)
    has_few_containers = max(len(containers), len(inits)) <= MAX_CONTAINERS
    return PodRequests(
        resources=Resources(
            min(quantities.MAX_THOUSANDTHS, _round_up(total.get("cpu", 0), BILLION // 1000)),
            _round_up(total.get("memory", 0), BILLION),
            others=other_resources[:MAX_RESOURCES],
        ),
        gpus=total.get(gpu_resource, 0) // BILLION,
        gpu_resource=gpu_resource,
        container_gpus=tuple((name, a[gpu_resource] // BILLION) for name, a in parts if gpu_resource in a)
        if has_few_containers
        else (),
        gpu_memory=total.get(memory, 0) // BILLION,
        container_memory=tuple(shares) if has_few_containers and total.get(memory) else (),
        shared_gpus=total.get(SHARED_GPUS, 0) // BILLION,
        resource_names=sum(map(settings.is_other, reader.names)),
        causes=tuple(reader.slips.causes),
    )


class _RequestReader:
    """Reads the quantities of one pod. `slips` gets causes for invalid ones, without the pod's name."""

    def __init__(self, settings: DialectSettings) -> None:
        self.slips = Fields.of_keys("", {})
        self.names: set[str] = set()
        """Names of all resources in its maps, also with amount 0."""
        self._settings = settings
        gpus = dict.fromkeys((*settings.gpu_resources, SHARED_GPUS), "a whole number of GPUs")
        self._whole_numbers = {**gpus, GPU_MEM: 'a whole number of GiB without a unit, as in "3"'}
        """Resource that comes in whole numbers → the expected value, for sentences."""

    def requests(self, container: Container) -> Amounts:
        """Return one container's requests. A limit stands for a missing request, as in the API server."""
        resources = container.resources
        if resources is None:
            return {}
        return self.amounts(container.name, (resources.limits or {}) | (resources.requests or {}))

    def amounts(self, part: str, quantity_of: Mapping[str, Quantity]) -> Amounts:
        """Return the amounts of the resources that are read. `part` names them in causes."""
        amounts: Amounts = {}
        self.names.update(quantity_of)
        for resource, text in quantity_of.items():
            value, expected_number = quantities.billionths(text), self._whole_numbers.get(resource)
            if value is None or value < 0 or (expected_number and not _is_count(value)):
                expected = expected_number or "a quantity that is not negative"
                self.slips.bad(f"{part}: {resource}", str(text), expected)
            if value is not None and value > 0 and not (expected_number and value % BILLION):
                # Refused amounts count too: if such a pod is bound, usage is overestimated rather than
                # underestimated.
                amounts[resource] = min(value, MAX_OF_A_POD * BILLION) if expected_number else value
        return amounts

    def gpu_resource(self, total: Amounts) -> str:
        """Return the GPU resource that the pod requests, "" if none. If there are two, add a cause."""
        names = [resource for resource in self._settings.gpu_resources if total.get(resource)]
        if len(names) > 1:
            amounts = ", ".join(f"{name}: {total[name] // BILLION}" for name in names)
            self.slips.bad("resources", amounts, "GPUs of one resource in a pod")
        return names[0] if names else ""


def _other_resources(total: Amounts, settings: DialectSettings) -> tuple[tuple[str, int], ...]:
    """Return the requests for resources that are neither cpu, memory nor GPUs, as `Resources.others`."""
    return tuple(
        sorted(
            (resource, _round_up(amount, BILLION))
            for resource, amount in total.items()
            if amount and settings.is_other(resource)
        )
    )


def _round_up(amount: int, unit: int) -> int:
    """Return the amount in units, each of `unit` billionths, rounded up."""
    return min(quantities.MAX_AMOUNT, -(-amount // unit))


def _is_count(value: int) -> bool:
    return value % BILLION == 0 and value <= MAX_OF_A_POD * BILLION


def sum_of(containers: list[Amounts], inits: list[tuple[Amounts, bool]]) -> Amounts:
    """Return the sum of the containers' requests. Each init container comes with whether it is a sidecar."""
    total: Amounts = {}
    for amounts in containers:
        add(total, amounts)
    sidecars: Amounts = {}
    peak: Amounts = {}
    for amounts, stays in inits:
        for resource, amount in amounts.items():  # the sidecars' other resources were counted with them
            step = sidecars.get(resource, 0) + amount
            peak[resource] = max(peak.get(resource, 0), step)
            if stays:
                sidecars[resource] = step
    add(total, sidecars)
    for resource, amount in peak.items():
        total[resource] = max(total.get(resource, 0), amount)
    return total


def add(total: Amounts, amounts: Mapping[str, int]) -> None:
    """Add amounts to a total, in place."""
    for resource, amount in amounts.items():
        total[resource] = total.get(resource, 0) + amount


def resize_conditions(status: PodStatus) -> list[PodCondition]:
    """Return the conditions about a resize."""
    return [condition for condition in status.conditions or () if condition.type == RESIZE_PENDING]


def _is_infeasible(status: PodStatus) -> bool:
    pending = resize_conditions(status)
    return bool(pending) and pending[0].reason == "Infeasible"


def _resize_facts(status: PodStatus) -> tuple[object, ...]:
    """Return all parts of the status that `_Resized` reads."""
    return (
        _is_infeasible(status),
        status.container_statuses,
        status.init_container_statuses,
        status.allocated_resources,
        status.resources,
    )


class _Resized:
    """The amounts of one bound pod. For resources that can be resized, the largest of three sums counts."""

    def __init__(self, spec: PodSpec, status: PodStatus, reader: _RequestReader) -> None:
        self._spec = spec
        self._status = status
        self._reader = reader
        self._infeasible = _is_infeasible(status)
        # As in findContainerStatus, the first status of a name counts, and init containers come last.
        statuses = (*(status.container_statuses or ()), *(status.init_container_statuses or ()))
        self._status_of = {container_status.name: container_status for container_status in reversed(statuses)}

    def total(self, by_spec: Amounts) -> Amounts:
        """Return the amounts of all containers together. `by_spec` is the sum of their requests."""
        status = self._status
        running = status.resources.requests if status.resources is not None else None
        if status.allocated_resources is not None and running is not None:
            sums = [self._of_pod(status.allocated_resources), self._of_pod(running)]
        else:
            sums = [self._sum(_allocated_resources), self._sum(_running_resources)]
        return self._largest(by_spec, sums)

    def whole_pod(self, by_spec: Amounts) -> Amounts:
        """Return the amounts in place of the containers' sum. `by_spec` are the requests of the whole pod."""
        status = self._status
        if status.resources is None or not by_spec:
            return by_spec
        sums = [self._of_pod(raw or {}) for raw in (status.resources.requests, status.allocated_resources)]
        return self._largest(by_spec, sums)

    def _of_pod(self, raw: _Raw) -> Amounts:
        return self._reader.amounts("pod", raw)

    def _sum(self, raw_of: Callable[[ContainerStatus | None], _Raw | None]) -> Amounts:
        def amounts(container: Container) -> Amounts:
            raw = raw_of(self._status_of.get(container.name))
            if raw is None and not self._infeasible:
                return self._reader.requests(container)
            return self._reader.amounts(container.name, raw or {})

        return sum_of(
            [amounts(container) for container in self._spec.containers or ()],
            [
                (amounts(container), container.restart_policy == "Always")
                for container in self._spec.init_containers or ()
            ],
        )

    def _largest(self, by_spec: Amounts, sums: Iterable[Amounts]) -> Amounts:
        """Return the amounts of the spec, with the largest amount of each resource that can be resized."""
        largest = {resource: amount for resource, amount in by_spec.items() if resource not in _RESIZED}
        for amounts in sums if self._infeasible else (by_spec, *sums):
            for resource in _RESIZED:
                if resource in amounts:
                    largest[resource] = max(amounts[resource], largest.get(resource, amounts[resource]))
        return largest


def _allocated_resources(status: ContainerStatus | None) -> _Raw | None:
    return status.allocated_resources if status is not None else None


def _running_resources(status: ContainerStatus | None) -> _Raw | None:
    if status is not None and status.resources is not None and status.resources.requests is not None:
        return status.resources.requests
    return _allocated_resources(status)


def _with_share(object_name: str, labels: Mapping[str, str], total: PodRequests) -> PodRequests:
    """Return a pod's requests with its memory of shared GPUs.

    Memory that can't be spread evenly is rounded up: such a pod is never planned, but counts if it is bound
    already. A pod with whole GPUs has no share, whatever else it requests.
    """
    values, memory, label = Fields.of_keys(object_name, labels), GPU_MEM, SHARED_GPUS
    if total.shared_gpus:
        expected = f"none: it is a label of pods, beside {memory}"
        values.bad(f"resource {label}", str(total.shared_gpus), expected)
    if not total.gpu_memory:
        if label in labels and not any(cause.field.endswith(memory) for cause in total.causes):
            values.bad(f"label {label}", labels[label], f"none: no container asks for {memory}")
        return replace(total, share_causes=tuple(values.causes))
    if total.gpus:
        amounts = f"{total.gpu_resource}: {total.gpus}, {memory}: {total.gpu_memory}"
        values.bad("resources", amounts, "whole GPUs or memory of shared ones, not both in a pod")
        return replace(total, share_causes=tuple(values.causes))
    gpus = positive(labels.get(label, "1")) or 0
    if not 0 < gpus <= MAX_GPUS:
        values.bad(f"label {label}", labels[label], f"GPUs of one node: 1 to {MAX_GPUS}")
        gpus = 1
    expected = f"GiB that {gpus} GPUs (label {label}) share evenly"
    if total.gpu_memory % gpus:
        values.bad(memory, str(total.gpu_memory), expected)
    else:
        for name, amount in total.container_memory:
            if amount % gpus:
                values.bad(f"{name}: {memory}", str(amount), f"{expected}, in each container")
    return replace(
        total,
        slice=Slice(-(-total.gpu_memory // gpus), gpus, memory),
        container_gpus=tuple((name, -(-amount // gpus)) for name, amount in total.container_memory),
        share_causes=tuple(values.causes),
    )
