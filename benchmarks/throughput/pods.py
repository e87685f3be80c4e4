"""The pods that are placed. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from e2e.objects import ack, pod
from local_cluster.api import Object


def gangs(name: str, count: int, size: int, scheduler: str) -> list[Object]:
    """Gangs of one-GPU pods under ACK's labels, one gang after the other."""
    return [
        pod(f"{name}-{gang:04}-{member:04}", gang=ack(f"{name}-{gang:04}", size), scheduler=scheduler)
        for gang in range(count)
        for member in range(size)
    ]


def singles(name: str, count: int, size: int, scheduler: str) -> list[Object]:
    """The same pods, of the same names, without a gang."""
    return [
        pod(f"{name}-{gang:04}-{member:04}", scheduler=scheduler)
        for gang in range(count)
        for member in range(size)
    ]


def others(name: str, count: int, scheduler: str) -> list[Object]:
    """Pods that ask for no GPU."""
    return [pod(f"{name}-{index:04}", gpus=0, scheduler=scheduler) for index in range(count)]


def mixed(first: Sequence[Object], second: Sequence[Object]) -> list[Object]:
    """Both, spread evenly among each other, each in its order."""
    places = [((at + 0.5) / len(first), body) for at, body in enumerate(first)]
    places += [((at + 0.5) / len(second), body) for at, body in enumerate(second)]
    return [body for _, body in sorted(places, key=lambda place: place[0])]
