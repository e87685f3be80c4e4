"""What the chaos acts on: the processes, the API, the crowd, and the repairs that are due."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from e2e.chaos.crowd import Crowd
from e2e.chaos.losses import Losses
from e2e.chaos.patience import Patient
from e2e.chaos.submissions import Submission
from e2e.record import PODS, Record
from local_cluster.api import Object
from local_cluster.cluster import LocalCluster
from local_cluster.stack import Stack, StackError

API = "kube-apiserver"
RESTORES = 3
"""A leader that could not renew its lease may end just when it was found well."""
REPAIRED_AFTER_S = (2.0, 8.0)


@dataclass(order=True)
class _Repair:
    due: float
    node: str
    deed: Callable[[], None] = field(compare=False)


@dataclass
class World:
    """`nodes`: name → the Node object as it should be. `api_answers`: False while the API server is killed or
    hangs."""

    cluster: LocalCluster
    stack: Stack
    patient: Patient
    namespace: str
    record: Record
    crowd: Crowd
    losses: Losses
    chance: random.Random
    nodes: Mapping[str, Object]
    api_answers: bool = True
    _repairs: list[_Repair] = field(default_factory=list)

    # --- processes ------------------------------------------------------------------------------

    def hang_api(self) -> None:
        self.api_answers = False
        self.cluster.pause(API)

    def wake_api(self) -> None:
        self.cluster.resume(API)
        self.api_answers = True

    def kill_api(self) -> None:
        self.api_answers = False
        self.cluster.kill(API)

    def start_api(self) -> None:
        self.cluster.start(API)
        self.api_answers = True

    def wake(self) -> None:
        """No process hangs any more."""
        self.cluster.resume(API)
        for process in (self.stack.service, self.stack.scheduler):
            process.resume()

    def restore(self) -> None:
        """All processes run, and the leading scheduler is connected to the service.

        Raises:
            StackError: they do not come back.
        """
        self.wake()
        if not self.api_answers:
            self.start_api()
        for attempt in range(1, RESTORES + 1):
            try:
                self.stack.restore()
            except StackError:
                if attempt == RESTORES:
                    raise
            else:
                return

    # --- the target -----------------------------------------------------------------------------

    def running(self, submission: Submission) -> int:
        """How many of its members run: asked of the API server, or as last seen while it does not answer."""
        return sum(map(_runs, self.pods(submission)))

    def pods(self, submission: Submission) -> list[Object]:
        if not self.api_answers:
            return self.crowd.pods(submission)
        path = f"/api/v1/namespaces/{self.namespace}/pods"
        return [pod for pod in self.patient.get(path)["items"] if _belongs(pod, submission)]

    def alive(self) -> list[Object]:
        """All pods of the run, as last seen."""
        return [pod for pod in self.record.live(PODS) if pod["metadata"]["namespace"] == self.namespace]

    # --- order ----------------------------------------------------------------------------------

    def revision_when_going(self, kind: str, uids: Iterable[str]) -> int:
        """The API server's revision at which the first of these objects was deleted, or told to go.

        Raises:
            TooLateError: none was seen going.
        """
        uids_awaited = {*uids}

        def going() -> int | None:
            ends = [
                _revision(change.body)
                for change in self.record.changes()
                if change.uid in uids_awaited
                and (change.deed == "DELETED" or change.body["metadata"].get("deletionTimestamp"))
            ]
            return min(ends, default=None)

        return self.record.until(going, f"one of {sorted(uids_awaited)} in {kind} goes")

    def ran_by(self, submission: Submission, revision: int) -> int:
        """How many members ran at that revision. Revisions order what two watches saw."""
        listed = {_uid(pod) for pod in self.pods(submission) if _runs(pod)}

        def firsts() -> dict[str, int] | None:
            ran: dict[str, int] = {}
            for change in self.record.changes():
                if _belongs(change.body, submission) and _runs(change.body):
                    ran.setdefault(change.uid, _revision(change.body))
            return ran if listed <= {*ran} else None

        first_revisions = self.record.until(firsts, f"all that run of {submission.name} are seen")
        return sum(first <= revision for first in first_revisions.values())

    # --- repairs --------------------------------------------------------------------------------

    def broken(self) -> set[str]:
        """Nodes that wait for their repair."""
        return {repair.node for repair in self._repairs}

    def repair_later(self, node: str, deed: Callable[[], None]) -> None:
        """Some seconds from now, when the next faults have come."""
        due = time.monotonic() + self.chance.uniform(*REPAIRED_AFTER_S)
        self._repairs.append(_Repair(due, node, deed))

    def repair(self, *, all_of_them: bool = False) -> None:
        """Do the repairs that are due."""
        now = time.monotonic()
        due = sorted(repair for repair in self._repairs if all_of_them or repair.due <= now)
        self._repairs = [repair for repair in self._repairs if repair not in due]
        for repair in due:
            repair.deed()


def _belongs(pod: Object, submission: Submission) -> bool:
    return str(pod["metadata"]["name"]).startswith(f"{submission.name}-")


def _uid(body: Object) -> str:
    return str(body["metadata"]["uid"])


def _runs(pod: Object) -> bool:
    return bool((pod.get("status") or {}).get("phase") == "Running")


def _revision(body: Object) -> int:
    return int(body["metadata"]["resourceVersion"])
