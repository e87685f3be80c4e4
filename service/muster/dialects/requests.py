"""What a pod asks for, summed over its containers as kube-scheduler sums it.

Containers run together and add up. An init container runs alone, so only the largest counts; one that
restarts always (a sidecar) stays and adds up with what follows it. What the pod as a whole asks for stands
for its sum. The pod's overhead comes on top.
(k8s.io/component-helpers/resource, PodRequests.)
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction

from muster.dialects import quantities
from muster.dialects.objects import Container, PodSpec
from muster.dialects.quantities import Quantity
from muster.dialects.settings import Settings
from muster.domain.node import Resources
from muster.domain.reasons import BadValue

Amounts = dict[str, Fraction]

MAX_GPUS_OF_A_POD = 1 << 20
"""More is no request but a slip; it bounds the work, far above any node."""


@dataclass(frozen=True, slots=True)
class Asked:
    """What one pod asks for. `foreign` are GPU resources that the planner does not model."""

    resources: Resources
    gpus: int
    gpu_resource: str
    container_gpus: tuple[tuple[str, int], ...]
    foreign: tuple[str, ...]
    causes: tuple[BadValue, ...]


def read(where: str, spec: PodSpec, settings: Settings) -> Asked:
    """Sum up one pod. `where` is the pod, as kind/namespace/name."""
    reader = _Reader(where, settings)
    containers = [(c.name, reader.requests(c)) for c in spec.containers or ()]
    inits = [(c.name, reader.requests(c), c.restart_policy == "Always") for c in spec.init_containers or ()]
    total = _total([amounts for _, amounts in containers], [(a, stays) for _, a, stays in inits])
    total |= reader.requests(Container("pod", spec.resources))  # of the whole pod: before its containers'
    _add(total, reader.amounts("overhead", spec.overhead or {}))
    gpu_resource = reader.gpu_resource(total)
    # In the order in which the kubelet starts them: sidecars first.
    parts = [(name, a) for name, a, stays in inits if stays] + containers
    cpu, memory = total.get("cpu", Fraction(0)), total.get("memory", Fraction(0))
    return Asked(
        resources=Resources(quantities.milli(cpu), quantities.whole(memory)),
        gpus=int(total.get(gpu_resource, 0)),
        gpu_resource=gpu_resource,
        container_gpus=tuple((name, count) for name, a in parts if (count := int(a.get(gpu_resource, 0)))),
        foreign=tuple(sorted(r for r, amount in total.items() if amount and settings.is_foreign(r))),
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
        """The amounts of the resources that matter here; `part` names them in causes."""
        amounts: Amounts = {}
        for resource, text in quantity_of.items():
            is_gpu = resource in self._settings.gpu_resources
            if not (is_gpu or resource in ("cpu", "memory") or self._settings.is_foreign(resource)):
                continue
            value = quantities.parse(text)
            if value is None or value < 0 or (is_gpu and not _is_gpu_count(value)):
                expected = "a whole number of GPUs" if is_gpu else "a quantity that is not negative"
                self.causes.append(BadValue(self._where, f"{part}: {resource}", str(text)[:80], expected))
            else:
                amounts[resource] = value
        return amounts

    def gpu_resource(self, total: Amounts) -> str:
        """The resource of which the pod asks GPUs, "" for none. Two are a cause, and the first counts."""
        names = [resource for resource in self._settings.gpu_resources if total.get(resource)]
        if len(names) > 1:
            said = ", ".join(f"{name}: {int(total[name])}" for name in names)
            self.causes.append(BadValue(self._where, "resources", said, "GPUs of one resource in a pod"))
        return names[0] if names else ""


def _is_gpu_count(value: Fraction) -> bool:
    return value.denominator == 1 and value <= MAX_GPUS_OF_A_POD


def _total(containers: list[Amounts], inits: list[tuple[Amounts, bool]]) -> Amounts:
    total: Amounts = {}
    for amounts in containers:
        _add(total, amounts)
    sidecars: Amounts = {}
    peak: Amounts = {}
    for amounts, stays in inits:
        step = dict(sidecars)
        _add(step, amounts)
        for resource, amount in step.items():
            peak[resource] = max(peak.get(resource, Fraction(0)), amount)
        if stays:
            sidecars = step
    _add(total, sidecars)
    for resource, amount in peak.items():
        total[resource] = max(total.get(resource, Fraction(0)), amount)
    return total


def _add(total: Amounts, more: Mapping[str, Fraction]) -> None:
    for resource, amount in more.items():
        total[resource] = total.get(resource, Fraction(0)) + amount
