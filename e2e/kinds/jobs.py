"""What a test of kinds does: submit a job, look at its pods as Muster reads them, and at the gangs."""

from __future__ import annotations

import json
from collections.abc import Mapping
from copy import deepcopy

import msgspec

from e2e import objects
from e2e.kinds.operators import made_of
from e2e.record import PODS
from e2e.scene import Scene
from local_cluster.api import Object
from local_cluster.examples.objects import collection
from local_cluster.stack import Stack
from muster.dialects.gangs import ranks
from muster.dialects.kinds.table import member
from muster.dialects.objects import Metadata
from tests.local_cluster.cluster_waiting import eventually

RANDOM = 5


class Jobs:
    """The jobs of one scene."""

    def __init__(self, scene: Scene, stack: Stack) -> None:
        self._scene = scene
        self._stack = stack
        self._submitted: list[str] = []

    def submit(self, body: Object) -> Object:
        """Create an object in the scene's namespace, and return it as it is now."""
        body = deepcopy(body)
        body["metadata"]["namespace"] = self._scene.name
        created: Object = self._scene.client.post(collection(body), body)
        self._submitted.append(f"{collection(body)}/{body['metadata']['name']}")
        return {**created, "apiVersion": body["apiVersion"], "kind": body["kind"]}

    def remove(self, body: Object) -> None:
        """Delete an object, and wait until its pods are gone."""
        path = (
            f"{collection(body | {'metadata': {'namespace': self._scene.name}})}/{body['metadata']['name']}"
        )
        self._scene.client.delete(f"{path}?propagationPolicy=Background")
        self._scene.until(lambda: not any(map(_is_owned, self._own())), f"the pods of {path} are gone")

    def clear(self) -> None:
        """Delete all that was submitted, newest first, and wait until its pods are gone."""
        for path in reversed(self._submitted):
            if self._scene.client.find(path) is not None:
                self._scene.client.delete(f"{path}?propagationPolicy=Background")
        self._scene.until(lambda: not any(map(_is_owned, self._own())), "the pods of all jobs are gone")

    def operate(self, owner: Object) -> None:
        """Make what the object's operator would make, and has not made yet."""
        for body in made_of(owner):
            path = collection(body | {"metadata": {"namespace": self._scene.name}})
            if self._scene.client.find(f"{path}/{body['metadata']['name']}") is not None:
                continue
            child = self.submit(body)
            if child["kind"] == "RayCluster":
                self.operate(child)

    def change(self, owner: Object, spec: Object) -> Object:
        """Change fields of an object's spec, and return the object."""
        meta = owner["metadata"]
        path = f"{collection(owner)}/{meta['name']}"
        changed: Object = self._scene.client.patch(path, {"spec": spec})
        return {**changed, "apiVersion": owner["apiVersion"], "kind": owner["kind"]}

    def read(self) -> dict[str, list[str]]:
        """Return gang → "role name" of each of its pods in the order of their ranks, as Muster reads them."""
        pods_by_gang: dict[str, list[tuple[int, str]]] = {}
        for body in self.pods():
            meta = msgspec.convert(body["metadata"], Metadata, strict=False)
            place = member(meta)
            gang, role = (place.gang, place.role) if place is not None else ("", "")
            rank = ranks.rank_of(meta)
            order = 10**12 if rank is None else rank
            pods_by_gang.setdefault(gang, []).append((order, f"{role} {self._short(meta)}".strip()))
        return {gang: [name for _, name in sorted(pods)] for gang, pods in pods_by_gang.items()}

    def pods(self) -> list[Object]:
        """Return the live pods of the scene that have not ended."""
        return [
            body
            for body in self._own()
            if "deletionTimestamp" not in body["metadata"]
            and body["status"].get("phase") not in ("Succeeded", "Failed")
        ]

    def _own(self) -> list[Object]:
        every = self._scene.record.live(PODS)
        return [body for body in every if body["metadata"]["namespace"] == self._scene.name]

    def gangs(self) -> dict[str, tuple[str, int, int, int]]:
        """Return gang → its kind, and how many members are there, must start and are bound.

        The service sees each binding at another moment than the test: this waits until it knows all of them.
        """

        def known() -> dict[str, tuple[str, int, int, int]] | None:
            gangs = {
                gang["name"]: (gang["dialect"], gang["present"], gang["needed"], gang["bound"])
                for gang in json.loads(self._stack.service_get("/gangs"))["gangs"]
                if gang["namespace"] == self._scene.name
            }
            return gangs if sum(bound for *_, bound in gangs.values()) >= len(self._scene.bound()) else None

        return eventually(known, "the service knows all bindings")

    def run(self, expected: Mapping[str, list[str]]) -> None:
        """Wait until these gangs are there, by the pods' labels, and all of their pods run."""
        expected_pods = {gang: sorted(pods) for gang, pods in expected.items()}

        def all_there() -> bool:
            pods = self.pods()
            read = {gang: sorted(names) for gang, names in self.read().items()}
            return read == expected_pods and all(body["status"].get("phase") == "Running" for body in pods)

        self._scene.until(all_there, f"the gangs {expected_pods} run; now {self.read()}")
        assert self.read() == dict(expected), "the order of the ranks"

    def _short(self, meta: Metadata) -> str:
        """Return the pod's name without the five random characters that the API server added."""
        suffix = meta.name.removeprefix(meta.generate_name)
        return meta.generate_name.rstrip("-") if len(suffix) == RANDOM else meta.name


def _is_owned(body: Object) -> bool:
    return bool(body["metadata"].get("ownerReferences"))


def template(gpus: int = 1, **meta: object) -> Object:
    """Return a pod template as users write it."""
    spec = objects.pod("template", gpus=gpus)["spec"]
    return {"metadata": dict(meta), "spec": {key: spec[key] for key in ("schedulerName", "containers")}}
