"""The users: they keep the cluster loaded, replace bare pods that went, and clear away what has ended."""

from __future__ import annotations

import contextlib
import random
import threading
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Self

from e2e.chaos.losses import Losses
from e2e.chaos.patience import Patient
from e2e.chaos.strangers import Strangers
from e2e.chaos.submissions import NATIVE, Submission, ordinary
from e2e.facts import FINISHED, SUCCEEDED
from e2e.record import PODS, Record, TooLateError, within
from e2e.scene import COMPLETE
from local_cluster.api import Object
from local_cluster.patience import HANG_S

REMINDER = "chaos.muster.dev/round"
LOOKS_EVERY_S = 1.0
LASTS_S = (40, 140)
"""Longer than outages, so that these do not empty the cluster."""


@dataclass
class Counts:
    """What became of what was submitted, in gangs (single pods are gangs of one) and pods; `slices`,
    `devices` and `native`: how many of these ask for memory of shared GPUs, ask for GPUs of a DRA driver, and
    name a PodGroup of Kubernetes."""

    gangs: int = 0
    pods: int = 0
    slices: int = 0
    devices: int = 0
    native: int = 0
    ended: int = 0
    withdrawn: int = 0
    replaced_pods: int = 0


@dataclass
class _Open:
    """A submission that has not ended. `uids` and `names`: of its bare pods, by rank.

    `succeeded`: UIDs of pods of its Job, which does not make them again if they are deleted.
    """

    submission: Submission
    succeeded: set[str] = field(default_factory=set)
    uids: dict[int, str] = field(default_factory=dict)
    names: dict[int, str] = field(default_factory=dict)


class Crowd:
    """`ceiling`: share of the cluster's GPUs that open submissions ask for at least, while it keeps the load.
    `gpus`: how many GPUs there are, by whether they are devices: a submission has those of one kind alone.

    A thread of its own submits; the chaos deletes and submits from another.
    """

    def __init__(
        self,
        patient: Patient,
        namespace: str,
        record: Record,
        losses: Losses,
        chance: random.Random,
        *,
        gpus: Mapping[bool, int],
        ceiling: float,
        dialects: Sequence[str],
    ) -> None:
        self.strangers = Strangers(patient, namespace, record, losses, random.Random(chance.random()))
        self.counts = Counts()
        self.dialects = tuple(dialects)
        self._patient = patient
        self._namespace = namespace
        self._record = record
        self._losses = losses
        self._chance = chance
        self._gpus = gpus
        self._ceiling = ceiling
        self._lock = threading.RLock()
        self._open: dict[str, _Open] = {}
        self._seen: set[str] = set()
        self._read = 0
        self._keeps = True
        self._over = threading.Event()
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._work, name="crowd", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over.set()
        self._patient.give_up()
        self._thread.join(timeout=HANG_S)

    def check(self) -> None:
        """Raise what the thread ended with."""
        if self._failure is not None:
            raise self._failure

    # --- what the chaos asks for ----------------------------------------------------------------

    def submit(self, submission: Submission) -> None:
        with self._lock:
            self.counts.gangs += 1
            self.counts.pods += submission.members
            self.counts.slices += submission.members if submission.memory else 0
            self.counts.devices += submission.members if submission.devices else 0
            self.counts.native += submission.members if submission.dialect == NATIVE else 0
            opened = self._open[submission.name] = _Open(submission)
            if submission.podgroups:
                self.create_podgroup(submission)
            if submission.job:
                self._patient.create(f"/apis/batch/v1/namespaces/{self._namespace}/jobs", submission.as_job())
                return
            for rank in range(submission.members):
                self._create(opened, rank)

    def create_podgroup(self, submission: Submission) -> None:
        self._patient.create(within(submission.podgroups, self._namespace), submission.podgroup())

    def delete_podgroup(self, submission: Submission, *, at_once: bool = False) -> None:
        """`at_once`: also a PodGroup of Kubernetes, which a finalizer keeps while pods name it."""
        path = f"{within(submission.podgroups, self._namespace)}/{submission.name}"
        self._patient.delete(path)
        if at_once:
            self._patient.patch(path, {"metadata": {"finalizers": None}})

    def set_min_count(self, submission: Submission, count: int) -> Object | None:
        """Change how many members a PodGroup of Kubernetes needs; None if it is gone."""
        path = f"{within(submission.podgroups, self._namespace)}/{submission.name}"
        return self._patient.patch(path, {"spec": {"schedulingPolicy": {"gang": {"minCount": count}}}})

    def withdraw(self, submission: Submission) -> None:
        """Its submitter takes it back, with all its pods."""
        with self._lock:
            opened = self._open.pop(submission.name, None)
            if opened is not None:
                self.counts.withdrawn += 1
                self._remove(opened)

    def delete_pod(self, pod: Object) -> None:
        """One pod goes; its Job, or this crowd, replaces it."""
        self._losses.excuse([str(pod["metadata"]["uid"])])
        self._patient.delete(self._path(pod))

    def pods(self, submission: Submission) -> list[Object]:
        """Its pods, as last seen."""
        return self._by_submission().get(submission.name, [])

    def open(self) -> list[Submission]:
        """What has not ended, oldest first."""
        return [opened.submission for opened in list(self._open.values())]

    def remind(self, round_: str) -> None:
        """Change an annotation of each Job that has not ended, so that its controller looks at it again.

        An API server that hung may leave it with an old view: then it makes no pods for minutes.
        """
        body = {"metadata": {"annotations": {REMINDER: round_}}}
        for submission in self.open():
            if submission.job:
                path = f"/apis/batch/v1/namespaces/{self._namespace}/jobs/{submission.name}"
                self._patient.patch(path, body)

    def stop_keeping(self) -> None:
        """Submit no more by itself; go on replacing and clearing away."""
        with self._lock:
            self._keeps = False

    def end(self, submissions: Sequence[Submission]) -> None:
        """Have their running pods come to their end."""
        ending = {"metadata": {"annotations": {COMPLETE: "0s"}}}
        for submission in submissions:
            for pod in self.pods(submission):
                if _phase(pod) == "Running":
                    self._patient.patch(self._path(pod), ending)

    @property
    def demand(self) -> float:
        """The share of the cluster's GPUs that open submissions ask for."""
        return sum(submission.total for submission in self.open()) / sum(self._gpus.values())

    # --- the crowd's own thread -----------------------------------------------------------------

    def _work(self) -> None:
        try:
            while not self._over.is_set():
                self._tend()
                self.strangers.tend(keep=self._keeps)
                if self._keeps and (lacking := self._lacking()):
                    self.submit(self._for(lacking))
                    continue
                with contextlib.suppress(TooLateError):
                    self._record.until(self._has_news, "a change", LOOKS_EVERY_S)
        except BaseException as problem:  # noqa: BLE001  told to the main thread by `check`
            self._failure = problem

    def _lacking(self) -> set[bool]:
        """Return for which GPUs less is asked than the ceiling."""
        gpus_asked = dict.fromkeys(self._gpus, 0)
        for submission in self.open():
            gpus_asked[bool(submission.devices)] += submission.total
        return {kind for kind, gpus in self._gpus.items() if gpus_asked[kind] < self._ceiling * gpus}

    def _for(self, lacking: Collection[bool]) -> Submission:
        while True:
            lasts_s = self._chance.randint(*LASTS_S)
            drawn = ordinary(self._chance, self.counts.gangs, self.dialects, lasts_s)
            if bool(drawn.devices) in lacking:
                return drawn

    def _has_news(self) -> bool:
        return self._over.is_set() or self._record.length > self._read

    def _tend(self) -> None:
        """Replace bare pods that went, and clear away what has ended."""
        changes = self._record.changes(self._read)
        self._read += len(changes)
        self._seen.update(change.uid for change in changes if change.kind == PODS)
        by_submission = self._by_submission()
        with self._lock:
            for change in changes:
                opened = self._open.get(_submission(change.body))
                if opened is not None and change.kind == PODS and _phase(change.body) == SUCCEEDED:
                    opened.succeeded.add(change.uid)
            for opened in list(self._open.values()):
                submission = opened.submission
                pods = by_submission.get(submission.name, [])
                finished = sum(_phase(pod) in FINISHED for pod in pods)
                if (len(opened.succeeded) if submission.job else finished) >= submission.members:
                    del self._open[submission.name]
                    self.counts.ended += 1
                    self._remove(opened)
                    continue
                if _stuck(submission, pods):
                    self.withdraw(submission)
                    continue
                live = {str(pod["metadata"]["uid"]) for pod in pods}
                for rank, uid in opened.uids.items():
                    if uid in self._seen and uid not in live:
                        self.counts.replaced_pods += 1
                        self._create(opened, rank)

    def _create(self, opened: _Open, rank: int) -> None:
        """A replacement has a name of its own, as with controllers: kwok deletes by name, a little late."""
        pod = opened.submission.pod(rank)
        if rank in opened.names:
            pod["metadata"]["name"] += f"-{self.counts.replaced_pods}"
        created = self._patient.create(f"/api/v1/namespaces/{self._namespace}/pods", pod)
        uid, name = str(created["metadata"]["uid"]), str(created["metadata"]["name"])
        opened.uids[rank], opened.names[rank] = uid, name
        self._losses.submitted(uid, f"{self._namespace}/{name}", opened.submission.key(self._namespace))

    def _remove(self, opened: _Open) -> None:
        submission = opened.submission
        self._losses.excuse([submission.key(self._namespace)])
        if submission.job:
            jobs = f"/apis/batch/v1/namespaces/{self._namespace}/jobs"
            self._patient.delete(f"{jobs}/{submission.name}?propagationPolicy=Background")
        else:
            for name in opened.names.values():
                self._patient.delete(f"/api/v1/namespaces/{self._namespace}/pods/{name}")
        if submission.podgroups:
            self.delete_podgroup(submission)

    def _by_submission(self) -> dict[str, list[Object]]:
        """Submission → its pods."""
        pods_of: dict[str, list[Object]] = {}
        for pod in self._record.live(PODS):
            if pod["metadata"]["namespace"] == self._namespace:
                pods_of.setdefault(_submission(pod), []).append(pod)
        return pods_of

    def _path(self, pod: Object) -> str:
        return f"/api/v1/namespaces/{self._namespace}/pods/{pod['metadata']['name']}"


def _submission(pod: Object) -> str:
    """Return the name of a pod's submission, which has one hyphen; that of the pod goes on with another."""
    return "-".join(str(pod["metadata"]["name"]).split("-")[:2])


def _stuck(submission: Submission, pods: Sequence[Object]) -> bool:
    """Return whether a replacement waits for bare pods that have finished: those are no members any more and
    do not count as done, so it would wait for ever."""
    finished = sum(_phase(pod) in FINISHED for pod in pods)
    waiting = any(not pod["spec"].get("nodeName") for pod in pods)
    return not submission.job and waiting and finished > submission.members - submission.needed


def _phase(pod: Object) -> str:
    return str((pod.get("status") or {}).get("phase", ""))
