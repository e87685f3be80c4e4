"""Pods of this node that ask for its devices, as the API server has them."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import msgspec

from muster.adapters.agent.api import ApiServer
from muster.devices.booking import Ask, Booking, Waiter, in_order
from muster.devices.inventory import MEMORY
from muster.dialects import quantities
from muster.dialects.objects import Container, PodObject
from muster.dialects.pods import pods
from muster.domain.allocation import ALLOCATION
from muster.domain.pod import Pod


class _List(msgspec.Struct):
    items: list[msgspec.Raw] | None = None


log = logging.getLogger(__name__)
_list = msgspec.json.Decoder(_List)
_pod = msgspec.json.Decoder(PodObject)


async def waiters(api: ApiServer, node: str, resource: str) -> list[Waiter]:
    """Return the pods of the node that ask for the resource and have not ended.

    Raises:
        ApiError: the API server did not tell.
    """
    query = {"fieldSelector": f"spec.nodeName={node},status.phase!=Succeeded,status.phase!=Failed"}
    body = await api.get(f"pods of node {node}", "/api/v1/pods", query)
    gpu_pods = (_waiter(text, resource) for text in _list.decode(body).items or ())
    return [waiter for waiter in gpu_pods if waiter is not None]


def _waiter(text: msgspec.Raw, resource: str) -> Waiter | None:
    try:
        obj = _pod.decode(text)
        asks = tuple(_asks(obj, resource))
    except (msgspec.DecodeError, RecursionError, ValueError):
        return None  # its devices are refused, since it has no plan that can be read
    if not asks:
        return None
    name = f"{obj.metadata.namespace}/{obj.metadata.name}"
    admitted = obj.status.start_time is not None
    has_plan = ALLOCATION in (obj.metadata.annotations or {})
    return Waiter(name, obj.metadata.uid, asks, _bookings(obj, name, asks, resource), admitted, has_plan)


def _bookings(obj: PodObject, name: str, asks: tuple[Ask, ...], resource: str) -> tuple[Booking, ...]:
    """Return the pod's bookings; none if its facts can't be read, so that other pods get theirs."""
    try:
        pod = pods.read(obj)
        return in_order(pod, obj.metadata.annotations or {}, asks) if _is_of(pod, resource) else ()
    except Exception:
        log.exception("pod %s is read without its plan", name)
        return ()


def _is_of(pod: Pod, resource: str) -> bool:
    return pod.slice is not None if resource == MEMORY else pod.gpu_resource == resource


def _asks(obj: PodObject, resource: str) -> Iterator[Ask]:
    for container in obj.spec.init_containers or ():
        yield from _ask(container, resource, lends=container.restart_policy != "Always")
    for container in obj.spec.containers or ():
        yield from _ask(container, resource, lends=False)


def _ask(container: Container, resource: str, *, lends: bool) -> Iterator[Ask]:
    limits = (container.resources.limits if container.resources else None) or {}
    count = quantities.parse(limits.get(resource, 0))
    if count:
        yield Ask(container.name, int(count), lends)
