"""Pods, PodGroups and nodes that come and go under names used again: `python -m tests.gangs.churn`.

After each round the cluster is as it was before, so what the service keeps in memory must be so too. Every
object goes through the Intake, as from a watch, to the Coordinator. Prints one line of JSON; exits with 1 if
any container has grown.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import resource
import sys
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from itertools import count
from pathlib import Path
from typing import Any

import msgspec
import structlog

from muster.adapters.kube.intake import Intake
from muster.dialects.gangs import native
from muster.dialects.objects import ConfigMapObject, CustomObject, NodeObject, PodObject
from muster.dialects.settings import DialectSettings
from muster.gangs.messages.inputs import Input
from tests.adapters.changes import seen
from tests.gangs.reachable import sizes
from tests.gangs.world import World

GPU = "nvidia.com/gpu"
HISTORY = 3
"""Finished Jobs of one name that stay, as with `successfulJobsHistoryLimit`."""
SLACK = 160
"""Entries by which a container may grow: of each name some owners are remembered, and heaps are tidied now
and then. A leak has one entry or more in each round."""
PODS_A_ROUND = 9
WARM = 200
"""Rounds after which memory is as it is to stay."""


class Churn:
    """One service in memory, and the cluster that it sees."""

    def __init__(self) -> None:
        self.world = World()
        self.intake = Intake(DialectSettings(), self._put, lambda _: None)
        self._numbers = count()
        self._history: list[list[str]] = []
        self.pods = 0

    async def _put(self, message: Input) -> None:
        self.world.send(replace(message, now=self.world.now))

    async def prepare(self) -> None:
        """Two nodes, and a shim."""
        for name in "ab":
            await self.node(name)
        self.world.start()

    async def rounds(self, number: int) -> None:
        """Let everything come and go, this many times."""
        for _ in range(number):
            await self._job_with_history()
            await self._gang_that_runs()
            await self._gang_that_never_fits()
            await self._pod_of_another_scheduler()
            await self._pod_group()
            await self._native_pod_group()
            await self._node_with_facts()
            self.world.wait(30)
            for log_lists in (self.world.verdicts, self.world.events, self.world.evictions, self.world.shown):
                log_lists.clear()
            self.world.pods.clear()

    # --- what comes and goes ----------------------------------------------------------------------------

    async def _job_with_history(self) -> None:
        """A CronJob: each run is a Job of one name for its gang, and the last few stay, finished."""
        owner = f"job-{next(self._numbers)}"
        uids = await self._gang("cron", owner, 2)
        await self._run("cron", uids, owner)
        for uid in uids:
            await self._pod(uid, "cron", owner, of=2, node="a", phase="Succeeded")
        self._history.append(uids)
        if len(self._history) > HISTORY:
            await self._delete(*self._history.pop(0))

    async def _gang_that_runs(self) -> None:
        """A Job, deleted while it runs."""
        owner = f"job-{next(self._numbers)}"
        uids = await self._gang("runs", owner, 2)
        await self._run("runs", uids, owner)
        await self._delete(*uids)

    async def _gang_that_never_fits(self) -> None:
        uids = await self._gang("large", f"job-{next(self._numbers)}", 2, gpus=99)
        await self._delete(*uids)
        lone = f"lone-{next(self._numbers)}"
        await self._pod(lone, "", "", gpus=99)
        await self._delete(lone)

    async def _pod_of_another_scheduler(self) -> None:
        uid = f"foreign-{next(self._numbers)}"
        await self._pod(uid, None, "", node="b")
        await self._delete(uid)

    async def _pod_group(self) -> None:
        """A PodGroup under a name used again, and a pod that waits for it."""
        uid = f"group-{next(self._numbers)}"
        member = f"pod-{uid}"
        annotations = {"scheduling.run.ai/pod-group": "group"}
        await self._pod(member, "", f"owner-{uid}", annotations=annotations)
        metadata = {"name": "group", "namespace": "ns", "uid": uid}
        body = {"apiVersion": "scheduling.run.ai/v2", "metadata": metadata, "spec": {"minMember": 2}}
        await self.intake.on_pod_group(*seen(msgspec.convert(body, CustomObject)))
        self.world.wait(5)
        await self._delete(member)
        await self.intake.on_pod_group(uid, None)

    async def _native_pod_group(self) -> None:
        """PodGroups of Kubernetes, basic and a gang in turn, under a name used again. A pod of ours and
        one of another scheduler name them."""
        number = next(self._numbers)
        container = {"name": "main", "resources": {"limits": {GPU: "1"}}}
        membership = {"schedulingGroup": {"podGroupName": "native"}, "containers": [container]}
        pods = ((f"native-{number}", "muster", ""), (f"stranger-{number}", "default-scheduler", "b"))
        for uid, scheduler, node in pods:
            metadata = {"name": uid, "namespace": "ns", "uid": uid}
            spec = {"schedulerName": scheduler, "nodeName": node, **membership}
            await self.intake.on_pod(*seen(msgspec.convert({"metadata": metadata, "spec": spec}, PodObject)))
        policies: tuple[dict[str, Any], ...] = ({"basic": {}}, {"gang": {"minCount": 2}})
        for policy in policies:
            uid = f"group-{next(self._numbers)}"
            metadata = {"name": "native", "namespace": "ns", "uid": uid}
            body = {"apiVersion": native.APIS[1], "metadata": metadata, "spec": {"schedulingPolicy": policy}}
            await self.intake.on_pod_group(*seen(msgspec.convert(body, CustomObject)))
            self.world.wait(5)
            await self.intake.on_pod_group(uid, None)
        await self._delete(*(uid for uid, *_ in pods))

    async def _node_with_facts(self) -> None:
        """A node of a name never used before, as an autoscaler makes them, with a broken ConfigMap."""
        name = f"node-{next(self._numbers)}"
        await self.node(name)
        labels = {"ack.node.gpu.schedule": "topology", "nodename": name}
        metadata = {"name": f"of-{name}", "namespace": "kube-system", "labels": labels}
        body = {"metadata": metadata, "data": {"devices": '{"0":"Unhealthy"}', "linkType": "[["}}
        await self.intake.on_config_map(*seen(msgspec.convert(body, ConfigMapObject)))
        await self.intake.nodes.on_node(name, None)
        await self.intake.on_config_map(f"kube-system/of-{name}", None)

    # --- objects ----------------------------------------------------------------------------------------

    async def node(self, name: str) -> None:
        amounts = {"cpu": "64", "memory": "64Gi", "pods": "110", GPU: "4"}
        body = {"metadata": {"name": name, "uid": name}, "status": {"allocatable": amounts}}
        await self.intake.nodes.on_node(*seen(msgspec.convert(body, NodeObject)))

    async def _gang(self, gang: str, owner: str, of: int, gpus: int = 1) -> list[str]:
        uids = [f"{owner}-{rank}" for rank in range(of)]
        for uid in uids:
            await self._pod(uid, gang, owner, of=of, gpus=gpus)
        return uids

    async def _run(self, gang: str, uids: list[str], owner: str) -> None:
        """The shim claims, permits and binds."""
        world = self.world
        assert world.reserve(gang=gang).claimed
        answer = world.permit(gang=gang)
        assert answer.allowed
        verdict = world.verdict(gang)
        homes = [world.home(member, gang) for member in range(len(uids))]
        for member, (_, uid) in enumerate(verdict.members):
            carried = answer.annotations[member]
            await self._pod(
                uid, gang, owner, of=len(uids), node=homes[member], annotations=carried, phase="Running"
            )

    async def _pod(
        self,
        uid: str,
        gang: str | None,
        owner: str,
        *,
        of: int = 1,
        gpus: int = 1,
        node: str = "",
        phase: str = "Pending",
        annotations: Mapping[str, str] | None = None,
    ) -> None:
        labels = {"gpu-topology": gang, "gpu-topology-replica": str(of)} if gang else {}
        number = int(uid.split("-")[1]) if uid.split("-")[1].isdigit() else 0
        created = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(1_700_000_000 + 60 * number))
        began = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(1_700_000_030 + 60 * number))
        owners = [{"uid": owner, "kind": "Job", "name": owner, "controller": True}] if owner else []
        body: dict[str, Any] = {
            "metadata": {
                "name": uid,
                "namespace": "ns",
                "uid": uid,
                "labels": labels,
                "annotations": dict(annotations or {}),
                "ownerReferences": owners,
                "creationTimestamp": created,
            },
            "spec": {
                "schedulerName": "default-scheduler" if gang is None else "muster",
                "nodeName": node,
                "containers": [{"name": "main", "resources": {"limits": {GPU: str(gpus)}}}],
            },
            "status": {"phase": phase, "startTime": began if phase != "Pending" else None},
        }
        self.pods += phase == "Pending"
        await self.intake.on_pod(*seen(msgspec.convert(body, PodObject)))
        self.world.wait(0)

    async def _delete(self, *uids: str) -> None:
        for uid in uids:
            await self.intake.on_pod(uid, None)
            self.world.wait(0)

    def sizes(self) -> Counter[str]:
        """The entries of all that the service keeps."""
        return sizes(self.world.coordinator) + sizes(self.intake)


def grown(before: Counter[str], after: Counter[str]) -> dict[str, tuple[int, int]]:
    """Return what has more entries than before, by more than SLACK."""
    return {path: (before[path], after[path]) for path in after if after[path] > before[path] + SLACK}


@dataclass(frozen=True, slots=True)
class Outcome:
    """What grew after the first rounds (path → entries before and after), pods that came, KiB of memory."""

    grown: dict[str, tuple[int, int]]
    pods: int
    resident_kib: tuple[int, int]


async def churned(rounds: int) -> Outcome:
    """Return what grows in these rounds, after the first WARM rounds."""
    churn = Churn()
    await churn.prepare()
    await churn.rounds(WARM)
    before, resident = churn.sizes(), _resident_kib()
    await churn.rounds(rounds)
    return Outcome(grown(before, churn.sizes()), churn.pods, (resident, _resident_kib()))


def _resident_kib() -> int:
    """The memory of this process; 0 where the system has no /proc."""
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
    except OSError:
        return 0
    return pages * resource.getpagesize() // 1024


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.gangs.churn", description=__doc__)
    parser.add_argument("--pods", type=int, default=1_000_000)
    options = parser.parse_args()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    began, rounds = time.monotonic(), max(2 * SLACK, options.pods // PODS_A_ROUND)
    outcome = asyncio.run(churned(rounds))
    print(json.dumps({"seconds": round(time.monotonic() - began), **asdict(outcome)}))
    return 1 if outcome.grown else 0


if __name__ == "__main__":
    sys.exit(main())
