"""CPU and memory of a pod that is resized in place, counted as kube-scheduler counts them.

Three sums are made: of what the spec asks for, of what the kubelet has allocated, and of what runs. The
largest of each resource counts. Where the kubelet says that the resize is infeasible, the spec does not
count. Source: k8s.io/component-helpers/resource, AggregateContainerRequests with UseStatusResources, and
effectivePodLevelResources (InPlacePodVerticalScaling is GA; InPlacePodLevelResourcesVerticalScaling is on by
default in 1.37).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from muster.dialects.objects import Container, ContainerStatus, PodCondition, PodSpec, PodStatus
from muster.dialects.quantities import Quantity

PENDING = "PodResizePending"
"""The pod condition by which a kubelet says that it has not done a resize."""
INFEASIBLE = "Infeasible"

_Amounts = dict[str, int]
_Raw = Mapping[str, Quantity]
_Sum = Callable[[list[_Amounts], list[tuple[_Amounts, bool]]], _Amounts]
_RESIZED = ("cpu", "memory")


def facts(status: PodStatus) -> tuple[object, ...]:
    """Return all of the status that `Resized` reads."""
    return (
        is_infeasible(status),
        status.container_statuses,
        status.init_container_statuses,
        status.allocated_resources,
        status.resources,
    )


def concerns(status: PodStatus) -> bool:
    """Return whether anything of the status bears on what the pod counts as."""
    return any(facts(status))


def is_infeasible(status: PodStatus) -> bool:
    """Return whether the first condition PodResizePending gives the reason Infeasible."""
    pending = conditions(status)
    return bool(pending) and pending[0].reason == INFEASIBLE


def conditions(status: PodStatus) -> list[PodCondition]:
    """Return the conditions that say something of a resize."""
    return [condition for condition in status.conditions or () if condition.type == PENDING]


class Resized:
    """The amounts of one bound pod. `sum_of` sums up containers and init containers; `amounts` reads the
    quantities of one part of the pod."""

    def __init__(
        self, spec: PodSpec, status: PodStatus, sum_of: _Sum, amounts: Callable[[str, _Raw], _Amounts]
    ) -> None:
        self._spec = spec
        self._status = status
        self._sum_of = sum_of
        self._amounts = amounts
        self._infeasible = is_infeasible(status)
        # As findContainerStatus: the first of a name counts, and init containers come last.
        listed = (*(status.container_statuses or ()), *(status.init_container_statuses or ()))
        self._status_of = {container_status.name: container_status for container_status in reversed(listed)}

    def total(self, by_spec: _Amounts) -> _Amounts:
        """Return what the containers count as together. `asked` is the sum by the spec."""
        status = self._status
        sums = [] if self._infeasible else [by_spec]
        running = status.resources.requests if status.resources is not None else None
        if status.allocated_resources is not None and running is not None:
            sums += [self._amounts("pod", status.allocated_resources), self._amounts("pod", running)]
        else:
            sums += [self._sum(_allocated), self._sum(_running)]
        return _fixed(by_spec) | _largest(sums)

    def whole_pod(self, by_spec: _Amounts) -> _Amounts:
        """Return what stands for the sum of the containers. `asked` is what the spec asks for as a whole."""
        status = self._status
        if status.resources is None or not by_spec:
            return by_spec
        sums = [] if self._infeasible else [by_spec]
        for quantities in (status.resources.requests, status.allocated_resources):
            sums.append(self._amounts("pod", quantities or {}))
        return _fixed(by_spec) | _largest(sums)

    def _sum(self, of: Callable[[ContainerStatus | None], _Raw | None]) -> _Amounts:
        def amounts(container: Container) -> _Amounts:
            raw = of(self._status_of.get(container.name))
            if raw is None and not self._infeasible and container.resources is not None:
                raw = {**(container.resources.limits or {}), **(container.resources.requests or {})}
            return self._amounts(container.name, raw or {})

        return self._sum_of(
            [amounts(container) for container in self._spec.containers or ()],
            [
                (amounts(container), container.restart_policy == "Always")
                for container in self._spec.init_containers or ()
            ],
        )


def _allocated(status: ContainerStatus | None) -> _Raw | None:
    return status.allocated_resources if status is not None else None


def _running(status: ContainerStatus | None) -> _Raw | None:
    if status is not None and status.resources is not None and status.resources.requests is not None:
        return status.resources.requests
    return _allocated(status)


def _fixed(amounts: _Amounts) -> _Amounts:
    """Return the amounts that can't be resized."""
    return {resource: amount for resource, amount in amounts.items() if resource not in _RESIZED}


def _largest(sums: Iterable[_Amounts]) -> _Amounts:
    """Return the largest amount of each resource that can be resized, where any sum has it."""
    largest: _Amounts = {}
    for amounts in sums:
        for resource in _RESIZED:
            if resource in amounts:
                largest[resource] = max(amounts[resource], largest.get(resource, amounts[resource]))
    return largest
