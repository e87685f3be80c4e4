"""Hostile requests to a cluster, ordinary gangs meanwhile, and restarts of the service among them."""

from __future__ import annotations

import json
import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, fields

import urllib3

from e2e import objects
from e2e.fuzz import attacks, native, texts
from e2e.fuzz.attacks import Attack
from local_cluster.api import AS_TABLE, Api, ApiUnreachable, Object
from local_cluster.cluster import LocalCluster
from local_cluster.patience import Guard
from local_cluster.stack import Stack

ORDINARY = "ordinary"
PODS = f"/api/v1/namespaces/{ORDINARY}/pods"
ALLOCATION = "gpu.topology/allocation"
TAINT = {"key": "fuzz", "value": ORDINARY, "effect": "NoSchedule"}
"""On the nodes of ordinary gangs: hostile pods of users take no GPU there, which is their right elsewhere."""
NODES, GPUS = 2, 4
BATCH = 10
"""Hostile requests between two ordinary gangs."""
OBJECTS_AT_ONCE = 150
"""Hostile objects at a time, of those that are created: the oldest goes."""
PROBE_EVERY_S = 0.1


class Failed(Exception):
    """The service did not do what it should. The text says what, and what was sent last."""


@dataclass(slots=True)
class Report:
    """What happened. Times are in seconds."""

    seed: int
    accepted: Counter[str] = field(default_factory=Counter)
    refused: Counter[str] = field(default_factory=Counter)
    gangs: int = 0
    restarts: int = 0
    slowest_gang_s: float = 0.0
    slowest_answer_s: dict[str, float] = field(default_factory=dict)
    """Of the API server, by kind of request."""
    slowest_ready_s: float = 0.0
    unready: int = 0
    left_out: dict[str, float] = field(default_factory=dict)

    def json(self) -> str:
        return json.dumps(
            {report_field.name: getattr(self, report_field.name) for report_field in fields(self)}, indent=2
        )


class Fuzz:
    """One run on a cluster of its own, which serves Kubernetes' own PodGroups."""

    def __init__(self, cluster: LocalCluster, stack: Stack, seed: int) -> None:
        self.report = Report(seed)
        self._api = cluster.api
        self._raw = Raw(cluster.api)
        self._stack = stack
        self._dice = random.Random(seed)
        self._sent = 0
        self._created: list[str] = []
        self._last = ""
        self._held: frozenset[tuple[str, int]] = frozenset()

    def prepare(self, depth: int = texts.DEPTHS[-1]) -> None:
        """Namespaces, nodes, objects to patch, and a bound pod whose GPUs must stay its own. That pod and its
        node are as deep as `depth`."""
        for name in (ORDINARY, attacks.NAMESPACE):
            self._api.create("/api/v1/namespaces", {"metadata": {"name": name}})
        for name in (ORDINARY, attacks.NAMESPACE):
            account = f"/api/v1/namespaces/{name}/serviceaccounts"
            _until(lambda path=f"{account}/default": self._api.find(path), "a service account")  # type: ignore[misc]
        for number in range(NODES):
            node = objects.node(f"n{number}", gpus=GPUS)
            node["spec"]["taints"] = [TAINT]
            self._api.post("/api/v1/nodes", node)
        policies = {"metadata": {"name": "kai-scheduler-config"}, "data": {}}
        self._api.create(attacks.POLICIES, policies)
        for path, body in (*attacks.first(), *native.first()):
            self._api.post(path, body)
        (holder,) = self._place("holder", 1, 3)
        self._held = _gpus(holder)
        for path in (f"{PODS}/holder-0", "/api/v1/nodes/n0"):
            self._send(attacks.owned_fields(path, texts.nested(depth)))
        if self.report.refused["managedFields"]:
            raise Failed("the API server refuses deep managedFields, which this is about")

    def go(self, more: Callable[[], bool], restarts: int = 1) -> None:
        """Attack while `more`; then restart the service `restarts` times.

        Raises:
            Failed: the service ended, was not ready, or placed no gang in time.
        """
        with self._probing():
            for attack in (*attacks.sure(), *native.sure()):
                self._send(attack)
            self._ordinary()
            while more():
                for _ in range(BATCH):
                    self._send(self._draw())
                self._ordinary()
        for _ in range(restarts):
            self._stack.service.kill()
            self._stack.start_service()
            self.report.restarts += 1
            with self._probing():
                self._send(self._draw())
                self._ordinary()
        self._left_out_by_name()
        self.report.left_out = self._metric("muster_objects_unreadable_total")

    # --- ordinary users ---------------------------------------------------------------------------------

    def _ordinary(self) -> None:
        """Place a gang that takes all GPUs that are not held."""
        name, began = f"g{self.report.gangs}", time.monotonic()
        pods = self._place(name, NODES * GPUS - len(self._held), 1)
        gpus_taken = [gpu for pod in pods for gpu in _gpus(pod)]
        if self._held & set(gpus_taken) or len(set(gpus_taken)) < len(gpus_taken):
            raise Failed(
                f"GPUs are given twice: {sorted(gpus_taken)} beside {sorted(self._held)}; {self._last}"
            )
        self.report.gangs += 1
        self.report.slowest_gang_s = max(self.report.slowest_gang_s, time.monotonic() - began)
        for pod in pods:
            self._api.delete(f"{PODS}/{pod['metadata']['name']}", grace_s=0)

    def _place(self, gang: str, size: int, gpus: int) -> list[Object]:
        for rank in range(size):
            tolerated = {"tolerations": [{**TAINT, "operator": "Equal"}]}
            pod = objects.pod(f"{gang}-{rank}", gpus=gpus, gang=objects.ack(gang, size), spec=tolerated)
            self._api.post(PODS, pod)
        names = [f"{gang}-{rank}" for rank in range(size)]

        def bound() -> list[Object] | None:
            if not self._stack.service.alive:
                raise Failed(f"the service ended; {self._last}\n{self._stack.service.log_tail(30)}")
            pods = [self._api.get(f"{PODS}/{name}") for name in names]
            return pods if all(pod["spec"].get("nodeName") for pod in pods) else None

        try:
            return _until(bound, f"the gang {gang} is bound")
        except TimeoutError as late:
            raise Failed(f"{late}; {self._last}\n{self._stack.logs(30)}") from late

    def _left_out_by_name(self) -> None:
        """A PodGroup that is too large says so in an event, for `kubectl describe`."""
        large = json.dumps("x" * texts.LARGE)
        self._send(attacks.group("too-large", f'"any":{large}'))
        path = f"/api/v1/namespaces/{attacks.NAMESPACE}/events?fieldSelector=involvedObject.name=too-large"

        def said() -> list[Object] | None:
            return [event for event in self._api.get(path)["items"] if "left out" in event["message"]] or None

        try:
            _until(said, "an event on the PodGroup that is left out")
        except TimeoutError as late:
            raise Failed(f"{late}\n{self._stack.service.log_tail(30)}") from late

    # --- hostile users ----------------------------------------------------------------------------------

    def _draw(self) -> Attack:
        draw = self._dice.choice((attacks.draw, attacks.draw, native.draw))
        return draw(self._dice, self._sent)

    def _send(self, attack: Attack) -> None:
        self._sent += 1
        began = time.monotonic()
        status = self._raw.send(attack)
        took = time.monotonic() - began
        self.report.slowest_answer_s[attack.name] = max(
            took, self.report.slowest_answer_s.get(attack.name, 0.0)
        )
        counts = self.report.accepted if status < 400 else self.report.refused
        counts[attack.name] += 1
        if status < 400:
            self._last = f"last accepted: {attack.verb} {attack.path} {attack.body[:300]}"
        if status == 201:
            self._created.append(f"{attack.path}/{_name(attack.body)}")
        while len(self._created) > OBJECTS_AT_ONCE:
            self._api.send("DELETE", f"{self._created.pop(0)}?gracePeriodSeconds=0")

    # --- the service ------------------------------------------------------------------------------------

    @contextmanager
    def _probing(self) -> Iterator[None]:
        """Ask /readyz all the time.

        Raises:
            Failed: it was not ready once.
        """
        stop = threading.Event()

        def probe() -> None:
            while not stop.wait(PROBE_EVERY_S):
                began = time.monotonic()
                try:
                    self._stack.service_get("/readyz")
                except OSError:
                    self.report.unready += 1
                self.report.slowest_ready_s = max(self.report.slowest_ready_s, time.monotonic() - began)

        thread = threading.Thread(target=probe, daemon=True)
        thread.start()
        try:
            yield
        finally:
            stop.set()
            thread.join()
        if self.report.unready:
            raise Failed(f"the service was not ready {self.report.unready} times; {self._last}")

    def _metric(self, name: str) -> dict[str, float]:
        lines = self._stack.service_get("/metrics").splitlines()
        return {
            line.split('"')[1]: float(line.rpartition(" ")[2])
            for line in lines
            if line.startswith(f"{name}{{")
        }


class Raw:
    """Requests with bodies that Python's encoder could not write, and answers that are not decoded."""

    def __init__(self, api: Api) -> None:
        self._api = api

    def send(self, attack: Attack) -> int:
        """The HTTP status of the answer."""
        headers = self._api._headers | {"Accept": AS_TABLE, "Content-Type": attack.content_type}
        url = f"{self._api.url}{attack.path}?fieldValidation=Ignore"  # else a header for each unknown field
        try:
            answer = self._api._pool.request(attack.verb, url, body=attack.body.encode(), headers=headers)
        except urllib3.exceptions.HTTPError as problem:
            raise ApiUnreachable(f"{attack.verb} {attack.path}: {problem}") from problem
        return int(answer.status)


def _name(body: str) -> str:
    """The object's name, from text that may be too deep to decode."""
    return body.partition('"name": "' if '"name": "' in body[:400] else '"name":"')[2].partition('"')[0]


def _gpus(pod: Object) -> frozenset[tuple[str, int]]:
    """The node and index of each GPU that a bound pod has."""
    indices = json.loads(pod["metadata"]["annotations"][ALLOCATION])["gpus"]
    return frozenset((pod["spec"]["nodeName"], gpu) for gpu in indices)


def _until(question: Callable[[], list[Object] | Object | None], event: str) -> list[Object]:
    guard = Guard()
    while not guard.over:
        if (answer := question()) is not None:
            return answer if isinstance(answer, list) else [answer]
        time.sleep(0.05)
    raise TimeoutError(f"not within {guard.whole_s:.0f} s: {event}")
