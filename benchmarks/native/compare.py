"""python -m benchmarks.native.compare: the same manifests under kube-scheduler's gang scheduling and Muster.

Both run on one control plane, one after the other, and both are called "muster", so that no manifest changes.
Ends with 1 if kube-scheduler starts more pods of a case than Muster, or as many in fewer domains.
"""

from __future__ import annotations

import contextlib
import csv
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Annotated

from benchmarks import options
from benchmarks.native import sides
from benchmarks.native.cases import (
    CLASSES,
    Case,
    Change,
    Create,
    Delete,
    Finish,
    Look,
    Step,
    all_cases,
    nodes,
)
from benchmarks.throughput.binds import Binds, NotBoundInTime
from e2e.client import Client
from e2e.objects import MUSTER
from e2e.scene import COMPLETE
from local_cluster.api import Object
from local_cluster.cluster import LocalCluster
from local_cluster.examples.objects import collection
from local_cluster.nodes import apply_nodes
from local_cluster.stack import Stack
from muster.command_line import Option, run_command

SIDES = ("kube-scheduler", "muster")
LOOK_S = 1.0
"""How long nothing should start."""
NOTHING_S = 4.0
"""How long to look at a case in which nothing should start."""
CLEARED_S = 30.0
POLL_S = 0.05
WAITING = "gpu.topology/WaitingForMembers"
SHOWN = 200
"""Characters of a reason."""
KINDS = {
    "PodGroup": "scheduling.k8s.io/v1beta1",
    "CompositePodGroup": "scheduling.k8s.io/v1alpha3",
    "Pod": "v1",
}


@dataclass(frozen=True)
class Result:
    """What one scheduler made of a case. `seconds`: from the last step to the last Binding, or ""."""

    case: str
    side: str
    pods: int
    started: int
    seconds: str
    domains: int
    why: str


def main(
    only: Annotated[str, Option(help="Cases, or beginnings of their names; all if empty.")] = "",
    side: Annotated[str, Option(("--sides",), help="Of kube-scheduler, muster; both if empty.")] = "",
    patience_s: Annotated[float, Option(("--patience",), min=1, help="Seconds to wait for a start.")] = 20.0,
    out: Annotated[
        Path, Option(help="Where compare.csv and compare.md go. Rows of other cases stay.")
    ] = Path("out"),
    folder: Annotated[Path | None, Option(help="Where the cluster and all logs go.")] = None,
) -> int:
    """What kube-scheduler 1.37 with its gates on, and Muster, make of the same manifests."""
    cases = _chosen(only)
    results = read(out / "compare.csv")
    with ExitStack() as stack:
        place = stack.enter_context(options.folder(folder, "muster-compare-"))
        gates = LocalCluster(place / "cluster", native=True)
        cluster = stack.enter_context(gates)
        apply_nodes(cluster.api, nodes())
        for body in CLASSES:
            cluster.api.post("/apis/scheduling.k8s.io/v1/priorityclasses", body)
        (place / "credentials").mkdir(mode=0o700)
        client = Client.of(cluster.kubeconfig, place / "credentials")
        for name in options.chosen(side, SIDES, "--sides"):
            with _scheduler(name, cluster, place / name):
                for case in cases:
                    result = _run(cluster, client, case, name, patience_s)
                    results[case.name, name] = result
                    write(out, results.values())
                    print(
                        f"{name:>14} {case.name:<22} {result.started:>2} of {result.pods:<2} started",
                        flush=True,
                    )
    worse = [case.name for case in cases if is_worse(*(results.get((case.name, name)) for name in SIDES))]
    print(f"{len(cases)} cases; kube-scheduler did better in {len(worse)}: {', '.join(worse) or 'none'}")
    return 1 if worse else 0


def is_worse(theirs: Result | None, ours: Result | None) -> bool:
    """Return whether kube-scheduler starts more pods, or as many in fewer domains."""
    if theirs is None or ours is None:
        return False
    return (theirs.started, -theirs.domains) > (ours.started, -ours.domains)


def _chosen(only: str) -> list[Case]:
    beginnings = tuple(word.strip() for word in only.split(",") if word.strip()) or ("",)
    return [case for case in all_cases() if case.name.startswith(beginnings)]


@contextmanager
def _scheduler(name: str, cluster: LocalCluster, folder: Path) -> Iterator[None]:
    if name == MUSTER:
        with Stack(cluster, folder):
            yield
        return
    native = sides.Native(cluster, folder, MUSTER)
    native.start()
    try:
        yield
    finally:
        native.process.stop()


class _Namespace:
    """The namespace of one case, and what is done in it. Pods of others have a node from the beginning."""

    def __init__(self, cluster: LocalCluster, client: Client, name: str, pods_of_others: int) -> None:
        cluster.create_namespace(name)
        self.name = name
        self._client = client
        self._pods_of_others = pods_of_others

    def path(self, kind: str, name: str = "") -> str:
        body = {"apiVersion": KINDS[kind], "kind": kind, "metadata": {"namespace": self.name}}
        return f"{collection(body)}/{name}".rstrip("/")

    def do(self, step: Step, binds: Binds, patience_s: float) -> None:
        match step:
            case Create(bodies):
                for body in bodies:
                    self._client.post(self.path(body["kind"]), body)
            case Change(kind, name, patch):
                self._client.patch(self.path(kind, name), patch)
            case Delete(kind, names):
                for name in names:
                    self._client.delete(self.path(kind, name))
            case Finish(pod):
                self._client.patch(self.path("Pod", pod), {"metadata": {"annotations": {COMPLETE: "0s"}}})
                self._until(lambda: self._client.get(self.path("Pod", pod))["status"]["phase"] == "Succeeded")
            case Look(0):
                time.sleep(LOOK_S)
            case Look(bound):
                self.wait(binds, bound, patience_s)

    def wait(self, binds: Binds, started: int, within_s: float) -> None:
        """Wait until this number of pods was started, or for that long."""
        with contextlib.suppress(NotBoundInTime):  # the result says how many were bound
            binds.wait(self._pods_of_others + started, within_s)

    def pods(self) -> list[Object]:
        """Return the pods that are not of another scheduler."""
        listed = self._client.get(self.path("Pod"))["items"]
        return [pod for pod in listed if pod["spec"]["schedulerName"] == MUSTER]

    def clear(self) -> None:
        """Delete all, and wait until no pods are left."""
        self._client.send("DELETE", f"{self.path('Pod')}?gracePeriodSeconds=0")
        self._until(lambda: not self._client.get(self.path("Pod"))["items"])
        self._client.delete(f"/api/v1/namespaces/{self.name}")

    def why(self, pods: Iterable[Object]) -> str:
        """Return what the first pod that waits says, or its PodGroup."""
        listed = self._client.get(self.path("PodGroup"))["items"]
        groups = {group["metadata"]["name"]: group for group in listed}
        for pod in pods:
            messages = (
                _message(pod, "PodScheduled", "False"),
                _message(pod, WAITING, "True"),
                _message(groups.get(_group_of(pod), {}), "PodGroupInitiallyScheduled", "False"),
            )
            if not pod["spec"].get("nodeName") and any(messages):
                return next(filter(None, messages))
        return ""

    def _until(self, done: Callable[[], bool]) -> None:
        until = time.monotonic() + CLEARED_S
        while not done():
            if time.monotonic() > until:
                raise TimeoutError(f"namespace {self.name}: not done within {CLEARED_S:g} s")
            time.sleep(POLL_S)


def _run(cluster: LocalCluster, client: Client, case: Case, side: str, patience_s: float) -> Result:
    pods_of_others = sum(1 for body in case.objects if body["spec"].get("nodeName"))
    namespace = _Namespace(cluster, client, f"{case.name}-{side}", pods_of_others)
    with Binds(client, namespace.name) as binds:
        began = time.monotonic()
        for step in case.steps:
            if not isinstance(step, Look):
                began = time.monotonic()
            namespace.do(step, binds, patience_s)
        namespace.wait(binds, case.starts, patience_s if case.starts else 0)
        time.sleep(LOOK_S if case.starts else NOTHING_S)
        pods = namespace.pods()
        last_binding = max((binds.at.get(pod["metadata"]["name"], 0.0) for pod in pods), default=0.0)
    started = [pod for pod in pods if pod["spec"].get("nodeName")]
    result = Result(
        case.name,
        side,
        len(pods),
        len(started),
        f"{last_binding - began:.2f}" if last_binding > began else "",
        len(_domains(case, started)),
        " ".join(namespace.why(pods).split())[:SHOWN],
    )
    namespace.clear()
    return result


def _domains(case: Case, started: Iterable[Object]) -> set[tuple[str, str]]:
    """Return the domains of each tree or gang."""
    labels = {node["metadata"]["name"]: node["metadata"]["labels"] for node in nodes()}
    return {(case.root_of(_group_of(pod)), labels[pod["spec"]["nodeName"]][case.key]) for pod in started}


def _group_of(pod: Object) -> str:
    """Return the name of the pod's PodGroup; that of a pod without one is its own."""
    group = pod["spec"].get("schedulingGroup") or {}
    return str(group.get("podGroupName", pod["metadata"]["name"]))


def _message(body: Object, kind: str, status: str) -> str:
    for condition in (body.get("status") or {}).get("conditions") or ():
        if condition["type"] == kind and condition["status"] == status:
            return str(condition.get("message", ""))
    return ""


def read(path: Path) -> dict[tuple[str, str], Result]:
    """Return the results of a file by case and side; none if there is no file."""
    if not path.is_file():
        return {}
    with path.open(newline="") as file:
        rows = [
            Result(
                row["case"],
                row["side"],
                int(row["pods"]),
                int(row["started"]),
                row["seconds"],
                int(row["domains"]),
                row["why"],
            )
            for row in csv.DictReader(file)
        ]
    return {(row.case, row.side): row for row in rows}


def write(out: Path, results: Iterable[Result]) -> None:
    """Write the results as CSV, and as a table with both sides of a case in one row."""
    out.mkdir(parents=True, exist_ok=True)
    by_case = {(row.case, row.side): row for row in results}
    with (out / "compare.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, [field.name for field in fields(Result)])
        writer.writeheader()
        writer.writerows(asdict(row) for row in by_case.values())
    (out / "compare.md").write_text("\n".join(table(by_case)) + "\n")


def table(by_case: dict[tuple[str, str], Result]) -> list[str]:
    """Return the lines of the table."""
    lines = [
        "| case | kube-scheduler: started, s, domains | Muster: started, s, domains | why not all |",
        "| --- | --- | --- | --- |",
    ]
    for case in all_cases():
        theirs, ours = (by_case.get((case.name, side)) for side in SIDES)
        if theirs is None and ours is None:
            continue
        reasons = [f"{row.side}: {row.why}" for row in (theirs, ours) if row is not None and row.why]
        why = "; ".join(reasons).replace("|", "\\|")
        lines.append(f"| {case.name}: {case.shows} | {_cell(theirs)} | {_cell(ours)} | {why} |")
    return lines


def _cell(row: Result | None) -> str:
    if row is None:
        return "-"
    return f"{row.started} of {row.pods}, {row.seconds or '-'}, {row.domains}"


if __name__ == "__main__":
    sys.exit(run_command(main, "python -m benchmarks.native.compare"))
