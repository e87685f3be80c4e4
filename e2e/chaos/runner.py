"""One run: load, faults that are aimed, and in the end whether all that was submitted got through."""

from __future__ import annotations

import contextlib
import itertools
import random
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from e2e.chaos import ground
from e2e.chaos.aim import MissedError, aim
from e2e.chaos.auditor import ChaosAuditor
from e2e.chaos.crowd import Crowd
from e2e.chaos.faults import Fault, NothingToBreakError, deck
from e2e.chaos.hostile import Hostile
from e2e.chaos.patience import NOT_FOUND, Patient
from e2e.chaos.report import Hit, Report
from e2e.chaos.sight import BETWEEN, Sight, look
from e2e.chaos.strangers import SCHEDULER, StockScheduler
from e2e.chaos.submissions import ACK, COLLECTIONS, OWN, Submission, ordinary
from e2e.chaos.watching import Deadline, Watching
from e2e.chaos.world import World
from e2e.client import Client
from e2e.fuzz.attacks import NODE
from e2e.objects import MUSTER
from e2e.pace import Pace
from e2e.record import NODES, PODS, Record
from local_cluster.api import ApiError
from local_cluster.cluster import LocalCluster
from local_cluster.patience import HANG_S
from local_cluster.stack import Stack

VOLUMES = "/api/v1/persistentvolumes"

CEILING = 0.7
"""The share of GPUs that the crowd asks for by itself; targets come on top."""

FULL = 0.65
"""Bound share above which the oldest are told to end before the next target is submitted."""

WAVE = 1.3
"""What is asked for in the end: more than there is, so that some gangs must wait."""

OUTAGE_S = 1.0
"""What is shorter is no outage, but business as usual."""

WHOLE_AGAIN_WITHIN_S = 45.0
HURRIES = 0.25
"""The share of faults after which the next one does not wait until the system has got over it."""

ROUNDS = 40
Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Options:
    """A run ends after `faults` that hit, or after `minutes` where that is given; it gives up hope of the
    former after three times as many tries. `hostile`: with a hostile user and a hostile node."""

    seed: int
    faults: int = 60
    minutes: float | None = None
    hostile: bool = False


def run(cluster: LocalCluster, stack: Stack, client: Client, options: Options, say: Say) -> Report:
    """Do it on a cluster whose processes run, and leave it as it was."""
    with StockScheduler(cluster, stack.directory):
        return _Run(cluster, stack, client, options, say).run()


class _Run:
    def __init__(
        self, cluster: LocalCluster, stack: Stack, client: Client, options: Options, say: Say
    ) -> None:
        self._options = options
        self._say = say
        self._client = client
        self._patient = Patient(client)
        self._chance = random.Random(options.seed)
        self._name = f"chaos-{uuid.uuid4().hex[:6]}"
        podgroups = {dialect: path for dialect, path in COLLECTIONS.items() if _serves(client, path)}
        dialects = (ACK, OWN, *podgroups)
        self._pace = Pace(client, self._name)
        self._auditor = ChaosAuditor(self._name, ground.TOTAL_GPUS, clock=self._pace.at, hostile_nodes=[NODE])
        self._watching = Watching(client, self._auditor, self._name, podgroups=podgroups.values())
        self._record = Record(client, (PODS, NODES), namespace=self._name)
        pools = f"{self._name}{ground.DEVICES_OF}{{:02}}"
        self._hostile = Hostile(cluster, Patient(client), options.seed, pools) if options.hostile else None
        self._crowd = Crowd(
            Patient(client),
            self._name,
            self._record,
            self._auditor.losses,
            random.Random(f"{options.seed} crowd"),
            gpus={True: ground.DEVICE_GPUS, False: ground.TOTAL_GPUS - ground.DEVICE_GPUS},
            ceiling=CEILING,
            dialects=dialects,
        )
        self._world = World(
            cluster,
            stack,
            self._patient,
            self._name,
            self._record,
            self._crowd,
            self._auditor.losses,
            self._chance,
            ground.nodes(self._name),
        )
        self._hits: list[Hit] = []
        self._rounds = 0

    def run(self) -> Report:
        began = time.monotonic()
        try:
            verdict, unfinished = self._live(began)
        except Exception:  # but for Ctrl-C: then the whole cluster goes
            self._tidy()
            raise
        self._tidy()
        losses = self._auditor.losses
        return Report(
            seed=self._options.seed,
            seconds=time.monotonic() - began,
            wanted=0 if self._options.minutes is not None else self._options.faults,
            hits=self._hits,
            counts=self._crowd.counts,
            load=self._auditor.meter.report(),
            waits=self._auditor.waited(MUSTER),
            baseline=self._auditor.waited(SCHEDULER),
            hostile=self._hostile.report if self._hostile else None,
            binds=self._auditor.binds,
            strangers_placed=self._crowd.strangers.placed,
            relisted=self._auditor.relisted,
            pods_gone=losses.gone,
            evicted=losses.evicted,
            longest_partial_s=self._auditor.longest_partial_s,
            allocations=self._auditor.devices.allocations,
            longest_left_s=self._auditor.devices.longest_left_s,
            settled_rounds=self._rounds,
            unfinished=unfinished,
            violations=verdict,
        )

    def _live(self, began: float) -> tuple[Mapping[str, Sequence[str]], list[str]]:
        """The auditor's verdict, and the gangs that did not end."""
        self._world.restore()
        self._world.cluster.create_namespace(self._name)
        with self._record, self._watching, self._pace:
            self._make_nodes()
            with self._hostile or contextlib.nullcontext(), self._crowd:
                try:
                    self._fill()
                    self._auditor.meter.begin(time.monotonic())
                    self._break_things(began)
                    self._watching.catch_up()
                    self._auditor.meter.end(time.monotonic())
                    self._auditor.waits.end()
                    self._close()
                finally:
                    self._world.wake()
            unfinished = [self._story(submission.name) for submission in self._crowd.open()]
            return self._watching.verdict(), unfinished

    # --- before and after -----------------------------------------------------------------------

    def _make_nodes(self) -> None:
        for body in self._world.nodes.values():
            self._patient.create(NODES, body)
        for volume, claim in ground.volumes(self._name, self._name):
            self._patient.create(VOLUMES, volume)
            self._patient.create(f"/api/v1/namespaces/{self._name}/persistentvolumeclaims", claim)
        for path, body in ground.devices(self._name, self._name):
            self._patient.create(path, body)
        self._record.until(lambda: len(self._ready()) == len(self._world.nodes), "nodes ready")

    def _ready(self) -> list[str]:
        return [
            str(node["metadata"]["name"])
            for node in self._record.live(NODES)
            if node["metadata"]["name"] in self._world.nodes
            and any(
                c["type"] == "Ready" and c["status"] == "True"
                for c in (node.get("status") or {}).get("conditions") or ()
            )
            and not node["spec"].get("taints")
        ]

    def _fill(self) -> None:
        """Wait until half of the GPUs are bound."""

        def loaded() -> bool:
            self._crowd.check()
            return self._load() >= 0.5

        self._record.until(loaded, "half of the GPUs are bound")

    def _load(self) -> float:
        facts = [self._auditor.facts(pod) for pod in self._world.alive()]
        return sum(pod.gpus for pod in facts if pod.holds) / ground.TOTAL_GPUS

    def _tidy(self) -> None:
        """Leave the cluster as it was."""
        self._world.restore()
        pods = f"/api/v1/namespaces/{self._name}/pods"
        self._patient.delete(f"/apis/batch/v1/namespaces/{self._name}/jobs?propagationPolicy=Background")
        self._patient.delete(pods, grace_s=0)
        for name in self._world.nodes:
            self._patient.delete(f"{NODES}/{name}")
        for volume, _ in ground.volumes(self._name, self._name):
            self._patient.delete(f"{VOLUMES}/{volume['metadata']['name']}")
        for path, body in ground.devices(self._name, self._name):
            self._patient.delete(f"{path}/{body['metadata']['name']}")
        self._patient.delete(f"/api/v1/namespaces/{self._name}")
        if self._hostile:
            self._hostile.tidy()

    # --- faults ---------------------------------------------------------------------------------

    def _break_things(self, began: float) -> None:
        for number, (fault, moment) in enumerate(deck(self._chance, self._crowd.dialects)):
            self._world.repair()
            self._check()
            hits = sum(hit.hit for hit in self._hits)
            late = self._options.minutes is not None and time.monotonic() - began > self._options.minutes * 60
            hopeless = self._options.minutes is None and number >= 3 * self._options.faults
            if late or hopeless or (self._options.minutes is None and hits >= self._options.faults):
                return
            self._make_room()
            hit = self._one(number, fault, moment, began)
            self._hits.append(hit)
            self._watching.catch_up()
            sight_text = f"{hit.running} of {hit.needed} ran" if hit.gang else ""
            self._say(
                f"{hit.at_s:6.1f} s  {'hit ' if hit.hit else 'miss'} {hit.fault} at {hit.moment}: {hit.gang} "
                f"{hit.phase} {sight_text}, back after {hit.back_after_s:.1f} s {hit.note}".rstrip()
            )

    def _check(self) -> None:
        """Raise what a thread ended with."""
        self._crowd.check()
        if self._hostile:
            self._hostile.check()

    def _make_room(self) -> None:
        if self._load() > FULL:
            self._crowd.end(self._crowd.open()[:2])

    def _one(self, number: int, fault: Fault, moment: str, began: float) -> Hit:
        """Submit a gang, wait for the moment, break, heal."""
        world, note, ran = self._world, "", 0
        started = at = self._restore(time.monotonic())
        dialects = fault.dialects or self._crowd.dialects
        sight: Sight | None = None
        hurt: Submission | None = None
        try:
            with aim(world, moment, number, dialects) as aimed:
                if fault.asks_api and not world.api_answers:
                    world.wake_api()
                at = time.monotonic()
                revision = fault.inject(world, aimed)
                sight, hurt = aimed.sight, aimed.submission
                ran = (
                    world.ran_by(aimed.submission, revision) if revision else world.running(aimed.submission)
                )
            fault.heal(world, aimed)
        except (MissedError, NothingToBreakError) as problem:
            note = str(problem)
        back = self._restore(started)
        return Hit(
            number=number,
            at_s=round(at - began, 2),
            fault=fault.name,
            moment=moment,
            gang=sight.gang if sight else "",
            phase=sight.phase if sight else "",
            generation=sight.generation if sight else 0,
            running=ran,
            needed=sight.needed if sight else 0,
            hit=sight is not None and sight.phase in BETWEEN and ran < sight.needed,
            back_after_s=round(back - at, 2),
            whole_after_s=self._whole_again(hurt, at),
            note=note,
        )

    def _whole_again(self, submission: Submission | None, since: float) -> float | None:
        """Wait until all members of the target are bound; the seconds since the fault. None when that does
        not come in time, and when it was not waited for: now and then the next fault comes at once."""
        if submission is None or self._chance.random() < HURRIES:
            return None

        def whole() -> bool:
            if submission not in self._crowd.open():
                return True
            bound = [pod for pod in self._crowd.pods(submission) if pod["spec"].get("nodeName")]
            return len(bound) >= submission.needed

        if not self._wait(whole, f"{submission.name} is whole", WHOLE_AGAIN_WITHIN_S):
            return None
        return round(time.monotonic() - since, 2)

    def _wait(self, question: Callable[[], bool], event: str, quiet_s: float = HANG_S) -> bool:
        """Wait with a deadline, and start meanwhile what has ended by itself, as a kubelet does: a leader
        that could not renew its lease ends, a little after all was well."""
        return Deadline(quiet_s, self._look_after).until(self._record, question, event)

    def _look_after(self) -> None:
        self._check()
        self._world.repair()
        self._restore(time.monotonic())

    def _restore(self, since: float) -> float:
        """All processes are well again; when. The auditor is told of an outage."""
        self._world.restore()
        now = time.monotonic()
        if now - since > OUTAGE_S:
            self._auditor.outage(since, now)
        return now

    # --- the end --------------------------------------------------------------------------------

    def _close(self) -> None:
        """Ask for more than there is, then end what runs, little by little, until nothing waits any more."""
        self._world.repair(all_of_them=True)
        self._world.restore()
        self._crowd.stop_keeping()
        number = itertools.count(1_000_000)
        while self._crowd.demand < WAVE:
            self._crowd.submit(ordinary(self._chance, next(number), self._crowd.dialects, None))
        for self._rounds in range(1, ROUNDS + 1):
            self._crowd.check()
            self._crowd.remind(str(self._rounds))
            waits = self._settle()
            if not self._crowd.open():
                return
            settled = "settled" if waits else "NOT settled"
            self._say(f"round {self._rounds}: {len(self._crowd.open())} open, {settled}")
            if not waits:
                return
            self._end_some()

    def _story(self, gang: str) -> str:
        """What the service says of a gang that did not end."""
        sight = look(self._world.stack, self._name, gang)
        return f"{gang}: {sight.phase}: {sight.reason}" if sight else f"{gang}: not known to the service"

    def _settle(self) -> bool:
        deadline = Deadline(HANG_S, self._look_after)
        return self._watching.settle(f"round {self._rounds} after the faults", deadline)

    def _end_some(self) -> None:
        """Half of what runs, oldest first; at least three."""

        def running() -> list[Submission]:
            return [submission for submission in self._crowd.open() if self._world.running(submission)]

        self._wait(lambda: bool(running()), "some run")
        ending = running()
        ending = ending[: max(3, len(ending) // 2)]
        self._crowd.end(ending)
        names = {submission.name for submission in ending}

        self._wait(
            lambda: not any(submission.name in names for submission in self._crowd.open()),
            "some have ended",
        )


def _serves(client: Client, collection: str) -> bool:
    """Whether the cluster has these PodGroups."""
    try:
        client.get(collection)
    except ApiError as problem:
        if problem.status != NOT_FOUND:
            raise
        return False
    return True
