"""What happens while the ordinary gangs are placed: the table of cases, and those of pods."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass

from benchmarks.headofline import hostile, pods
from benchmarks.headofline.changing import changing
from benchmarks.headofline.neighbour import Loop, Neighbour
from benchmarks.headofline.stats import Changes
from benchmarks.throughput import prometheus
from benchmarks.throughput.site import NODES, RACK_LABEL, nodes
from e2e.fuzz import largest
from local_cluster.api import Object
from local_cluster.stack import Stack

CLASS = "headofline-nobody"
CLASSES = "/apis/storage.k8s.io/v1/storageclasses"
MUSTER = "muster"
REFUSED = "unplaceable"
SETTLED_WITHIN_S = 900.0
POLL_EVERY_S = 0.5
HANGS_AFTER_S = 3.0
"""By then a gang that was created is planned and in PreBind."""
SLOW_PER_S = 1.0
BURNS = "import os, sys; os.nice(10)\nwhile os.getppid() == int(sys.argv[1]): pass"
"""A program that uses a processor while its parent lives, at the priority of the background planner."""
IMPOSSIBLE = 3
BIG_PER_S = 1.0
FLAPS_PER_S = 10.0
LOSES_PER_S = 1.0
PODS_AT_ONCE = 4
"""How many of the last slow gangs, and of the last large and flooding pods, exist at a time."""


@dataclass(frozen=True, slots=True)
class Sizes:
    """How many gangs never fit, how many have unlike needs, and how many pods a second flood."""

    never: int
    unlike: int
    flood_per_s: float


class NeverRefused(RuntimeError):
    """Gangs that cannot fit were not all refused in time."""


Case = Callable[[], AbstractContextManager[Changes | None]]


def cases(stack: Stack, beside: Neighbour, sizes: Sizes) -> Mapping[str, Case]:
    """Each case by name: entered, it goes on; left, nothing of it is there any more. Some say how
    many changes the API server took."""
    return {
        "hangs": lambda: _hangs(beside),
        "slow": lambda: _slow(beside, MUSTER),
        "slow-others": lambda: _slow_others(beside),
        "never": lambda: _refused(stack, beside, sizes.never, lambda i: pods.never(f"never-{i:05}")),
        "unlike": lambda: _refused(stack, beside, sizes.unlike, lambda i: pods.unlike(f"unlike-{i:05}", i)),
        "huge": lambda: _refused(stack, beside, 1, lambda _: pods.huge("huge", sizes.never)),
        "impossible": lambda: _refused(
            stack, beside, IMPOSSIBLE, lambda i: pods.impossible(f"impossible-{i}")
        ),
        "big": lambda: _big(beside),
        "big-nodes": lambda: hostile.big_node(stack.cluster, beside.client),
        "big-podgroups": lambda: hostile.big_groups(beside),
        "big-others": lambda: hostile.big_others(beside),
        "slices": lambda: hostile.slices(stack.cluster, beside.client),
        "matrix": lambda: hostile.matrix(stack.cluster, beside.client),
        "flap": lambda: _flap(beside),
        "loses": lambda: _loses(beside),
        "flood": lambda: _flood(beside, sizes.flood_per_s, MUSTER),
        "flood-others": lambda: _flood(beside, sizes.flood_per_s, pods.NO_SCHEDULER),
    }


@contextlib.contextmanager
def _hangs(beside: Neighbour) -> Iterator[None]:
    """Have one gang wait in PreBind for a volume that is never made."""
    beside.client.create(CLASSES, pods.nobodys_class(CLASS))
    try:
        beside.client.post(f"{beside.path}/persistentvolumeclaims", pods.claim("hangs", CLASS))
        beside.create(pods.hanging("hangs"))
        time.sleep(HANGS_AFTER_S)
        yield
    finally:
        beside.clear()
        beside.client.delete(f"{CLASSES}/{CLASS}")


@contextlib.contextmanager
def _slow(beside: Neighbour, scheduler: str) -> Iterator[None]:
    """Create a gang of many roles each second, and delete the fourth before it."""

    def step(index: int) -> None:
        beside.create(pods.of(scheduler, body) for body in pods.slow(f"slow-{index:04}"))
        if index >= PODS_AT_ONCE:
            beside.delete([p["metadata"]["name"] for p in pods.slow(f"slow-{index - PODS_AT_ONCE:04}")])

    try:
        with Loop(step, SLOW_PER_S):
            yield
    finally:
        beside.clear()


@contextlib.contextmanager
def _burning() -> Iterator[None]:
    """Have a process use a processor, at the priority of the background planner."""
    burner = subprocess.Popen([sys.executable, "-c", BURNS, str(os.getpid())])
    try:
        yield
    finally:
        burner.kill()
        burner.wait()


@contextlib.contextmanager
def _slow_others(beside: Neighbour) -> Iterator[None]:
    """Create the pods of slow gangs for a scheduler that does not run, while a process burns."""
    with _burning(), _slow(beside, pods.NO_SCHEDULER):
        yield


@contextlib.contextmanager
def _refused(
    stack: Stack, beside: Neighbour, count: int, gang: Callable[[int], list[Object]]
) -> Iterator[None]:
    """Have `count` gangs of one pod refused."""
    try:
        beside.create(pod for index in range(count) for pod in gang(index))
        until = time.monotonic() + SETTLED_WITHIN_S
        while (refused := _phase(stack, REFUSED)) < count:
            if time.monotonic() > until:
                raise NeverRefused(f"{refused:g} of {count} gangs refused in {SETTLED_WITHIN_S:g} s")
            time.sleep(POLL_EVERY_S)
        yield
    finally:
        beside.clear()


@contextlib.contextmanager
def _big(beside: Neighbour) -> Iterator[Changes]:
    """Create one of the largest pods that the API server takes each second, each large in another field, and
    change it. It may be refused."""
    fields = list(largest.OF_PODS)

    def change(index: int) -> tuple[str, Object]:
        name, field = f"big-{index:04}", fields[index % len(fields)]
        beside.client.send("POST", f"{beside.path}/pods", largest.pod(field, largest.OF_ETCD // 2, name))
        if index >= PODS_AT_ONCE:
            beside.delete([f"big-{index - PODS_AT_ONCE:04}"])
        return f"{beside.path}/pods/{name}", {"metadata": {"labels": {"tick": str(index)}}}

    try:
        with changing(beside.client, change, BIG_PER_S) as changes:
            yield changes
    finally:
        beside.clear()


@contextlib.contextmanager
def _flap(beside: Neighbour) -> Iterator[Changes]:
    """Move one node of the ordinary gangs from rack to rack, and back."""
    path = f"{NODES}/{nodes(1)[0]['metadata']['name']}"
    home = beside.client.get(path)["metadata"]["labels"][RACK_LABEL]

    def move(rack: str) -> tuple[str, Object]:
        return path, {"metadata": {"labels": {RACK_LABEL: rack}}}

    try:
        with changing(beside.client, lambda index: move(f"flap-{index % 2}"), FLAPS_PER_S) as changes:
            yield changes
    finally:
        beside.client.patch(*move(home))


@contextlib.contextmanager
def _loses(beside: Neighbour) -> Iterator[None]:
    """Have one running gang lose a member each second, and make it again."""
    members = pods.ordinary("loses")

    def step(index: int) -> None:
        member = members[index % len(members)]
        beside.delete([member["metadata"]["name"]])
        beside.client.send("POST", f"{beside.path}/pods", member)

    try:
        beside.create(members)
        with Loop(step, LOSES_PER_S):
            yield
    finally:
        beside.clear()


@contextlib.contextmanager
def _flood(beside: Neighbour, per_s: float, scheduler: str) -> Iterator[None]:
    """Create a pod that cannot fit, and delete an earlier one, again and again. With the name of a
    scheduler that does not run, this is what the flood costs the API server alone."""

    def step(index: int) -> None:
        (body,) = pods.never(f"flood-{index:06}")
        beside.client.post(f"{beside.path}/pods", pods.of(scheduler, body))
        if index >= PODS_AT_ONCE:
            beside.delete([f"flood-{index - PODS_AT_ONCE:06}"])

    try:
        with Loop(step, per_s):
            yield
    finally:
        beside.clear()


def _phase(stack: Stack, phase: str) -> float:
    return prometheus.by_label(stack.service_get("/metrics"), "muster_gangs", "phase").get(phase, 0.0)
