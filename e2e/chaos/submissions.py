"""What is submitted: gangs in every dialect and single pods, drawn from a seed. Pure."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace

from e2e import objects
from e2e.chaos.auditor import NATIVE_PODGROUPS, POD_GROUP, PODGROUPS, SCHEDULING_GROUP
from e2e.chaos.fits import CLAIM_OF_RACK, DRA_RESOURCE, GPUS_BY_CLAIM, SCOPE
from e2e.objects import Words
from e2e.scene import COMPLETE
from e2e.slices import COUNT, RESOURCE
from local_cluster.api import Object
from local_cluster.nodes import HOSTNAME, RACK

BY_RESOURCE, BY_CLAIM = "resource", "claim"
"""How members ask for GPUs of a DRA driver: by nvidia.com/gpu, or by a claim from a template."""

DEVICES, DEVICES_OF_TARGETS = 0.2, 0.35
"""The share of what the crowd submits, without slices, that asks for these GPUs, and the share of targets."""

TEMPLATE_OF = "gpus-"
"""Begins the names of templates; the rest is how many devices their claims have."""

ACK, OWN, PODGROUP, NATIVE, SINGLE = "ack", "own", "podgroup", "native", ""
"""PODGROUP: a PodGroup of scheduling.run.ai; NATIVE: of Kubernetes' own API."""
COLLECTIONS = {PODGROUP: PODGROUPS, NATIVE: NATIVE_PODGROUPS}
TOPOLOGY_KEYS = {"rack": RACK, "node": HOSTNAME}
"""Scope → the label that a PodGroup of Kubernetes names. Of other scopes its pods say the word."""
TERMINATE = "local-cluster/terminate-after"
RETRIES = 1_000
"""Of a Job: each member that the chaos deletes counts as one that failed."""

NODES_OF_A_RACK, GPUS_OF_A_NODE = 4, 8

CPU_A_GPU = 8
"""A node has 96 for eight GPUs: what others take of it matters."""

SLICES = 0.3
"""The share of what the crowd submits that asks for memory of shared GPUs."""

APART, SPREAD, VOLUME = "anti-affinity", "spread", "volume"
"""What members may ask for besides GPUs: a node each, at most two more in a rack than in any other, or a
volume that the nodes of one rack can reach."""

ASKS = 0.4
"""The share of gangs of whole GPUs that ask for one of these."""

GANG = "chaos.muster.dev/gang"
"""Label of all pods: the submission's name, for the selectors of their constraints."""

RACKS_WITH_VOLUMES = ("r0", "r1")


@dataclass(frozen=True, slots=True)
class Submission:
    """A gang, or a single pod (`dialect` SINGLE). All members ask for the same.

    `needed` is less than `members` in an elastic gang, and 0 for a PodGroup whose policy is basic. `lasts_s`:
    how long each runs; None: until it is told to end. `slow_s`: how long a deleted member stays, terminating.
    `memory`: GiB of shared GPUs that a member asks for, evenly over `gpus` of them; 0: it asks for whole
    ones. `asks` is one of APART, SPREAD and VOLUME, or ""; `rack` is where the volume is. `devices` is
    BY_RESOURCE or BY_CLAIM if a DRA driver serves its GPUs, else "".
    """

    name: str
    dialect: str
    job: bool
    members: int
    needed: int
    gpus: int
    scope: str
    lasts_s: int | None
    slow_s: int
    memory: int = 0
    asks: str = ""
    rack: str = ""
    devices: str = ""

    @property
    def total(self) -> int:
        """Its whole GPUs."""
        return 0 if self.memory else self.members * self.gpus

    def key(self, namespace: str) -> str:
        """The gang as the auditor names it."""
        words = {ACK: "gpu-topology/", OWN: "gpu.topology/group/", PODGROUP: f"{POD_GROUP}/", SINGLE: ""}
        words[NATIVE] = f"{SCHEDULING_GROUP}/"
        suffix = "-0" if self.dialect == SINGLE else ""
        return f"{namespace}/{words[self.dialect]}{self.name}{suffix}"

    def pod(self, rank: int) -> Object:
        """One member; of a Job, its template."""
        plain = 0 if self.memory or self.devices else self.gpus
        pod = objects.pod(f"{self.name}-{rank}", gpus=plain, gang=self._words())
        container_resources = pod["spec"]["containers"][0]["resources"]
        container_resources["requests"]["cpu"] = str(CPU_A_GPU * self.gpus)
        if self.memory:
            container_resources["limits"] = {RESOURCE: str(self.memory)}
            pod["metadata"]["labels"][COUNT] = str(self.gpus)
        if self.devices:
            self._ask_for_devices(pod)
        pod["metadata"]["labels"][GANG] = self.name
        pod["spec"] |= self._constraints()
        if self.dialect == NATIVE:
            pod["spec"][SCHEDULING_GROUP] = {"podGroupName": self.name}
        if self.lasts_s is not None:
            pod["metadata"]["annotations"][COMPLETE] = f"{self.lasts_s}s"
        if self.slow_s:
            pod["metadata"]["annotations"][TERMINATE] = f"{self.slow_s}s"
            pod["spec"]["terminationGracePeriodSeconds"] = 60
        return pod

    def pods(self) -> list[Object]:
        return [self.pod(rank) for rank in range(self.members)]

    def as_job(self) -> Object:
        job = objects.job(self.name, self.pod(0), completions=self.members)
        job["spec"]["backoffLimit"] = RETRIES
        return job

    @property
    def podgroups(self) -> str:
        """The collection of its PodGroup; "" if it has none."""
        return COLLECTIONS.get(self.dialect, "")

    def podgroup(self) -> Object:
        if self.dialect == NATIVE:
            return self._native_podgroup()
        policy = {"topologyPolicy": {"scope": self.scope}} if self.scope else {}
        return {
            "apiVersion": "scheduling.run.ai/v2",
            "kind": "PodGroup",
            "metadata": {"name": self.name},
            "spec": {"minMember": self.needed, **policy},
        }

    def _native_podgroup(self) -> Object:
        key = TOPOLOGY_KEYS.get(self.scope)
        constraints = {"schedulingConstraints": {"topology": [{"key": key}]}} if key else {}
        policy: Object = {"gang": {"minCount": self.needed}} if self.needed else {"basic": {}}
        return {
            "apiVersion": "scheduling.k8s.io/v1beta1",
            "kind": "PodGroup",
            "metadata": {"name": self.name},
            "spec": {"schedulingPolicy": policy, **constraints},
        }

    def _ask_for_devices(self, pod: Object) -> None:
        container_resources = pod["spec"]["containers"][0]["resources"]
        if self.devices == BY_RESOURCE:
            container_resources["limits"] = {DRA_RESOURCE: str(self.gpus)}
            container_resources["requests"][DRA_RESOURCE] = str(self.gpus)
            return
        pod["metadata"]["labels"][GPUS_BY_CLAIM] = str(self.gpus)
        container_resources["claims"] = [{"name": "gpus"}]
        template = f"{TEMPLATE_OF}{self.gpus}"
        pod["spec"]["resourceClaims"] = [{"name": "gpus", "resourceClaimTemplateName": template}]

    def _constraints(self) -> Object:
        selector = {"matchLabels": {GANG: self.name}}
        if self.asks == APART:
            term = {"labelSelector": selector, "topologyKey": "kubernetes.io/hostname"}
            return {
                "affinity": {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}
            }
        if self.asks == SPREAD:
            rule = {"maxSkew": 2, "topologyKey": RACK, "whenUnsatisfiable": "DoNotSchedule"}
            return {"topologySpreadConstraints": [rule | {"labelSelector": selector}]}
        if self.asks == VOLUME:
            claim = {"claimName": CLAIM_OF_RACK + self.rack}
            return {"volumes": [{"name": "data", "persistentVolumeClaim": claim}]}
        return {}

    def _words(self) -> Words:
        in_podgroup = self.dialect == PODGROUP or (self.dialect == NATIVE and self.scope in TOPOLOGY_KEYS)
        scope = {SCOPE: self.scope} if self.scope and not in_podgroup else {}
        if self.dialect == ACK:
            return Words(objects.ack(self.name, self.members).labels, scope)
        if self.dialect == OWN:
            group_keys = {"gpu.topology/group": self.name, "gpu.topology/min-member": str(self.needed)}
            return Words({}, group_keys | scope)
        if self.dialect == PODGROUP:
            return Words({}, {POD_GROUP: self.name})
        return Words({}, scope)


def ordinary(chance: random.Random, number: int, dialects: Sequence[str], lasts_s: int | None) -> Submission:
    """What fills the cluster: a third single pods, the rest gangs; slices and devices among both."""
    if chance.random() < SLICES:
        return _slices(chance, number, dialects, lasts_s)
    if chance.random() < DEVICES:
        return _devices(chance, number, dialects, lasts_s)
    if chance.random() < 0.35:
        gpus = chance.choice((1, 1, 1, 2, 2, 4, 8))
        return Submission(f"single-{number}", SINGLE, False, 1, 1, gpus, "", lasts_s, 0)
    members, gpus = chance.randint(2, 6), chance.choice((1, 1, 1, 2, 2, 4))
    scopes = ["", "", "rack"]
    if members * gpus <= 8:
        scopes.append("node")
    if gpus > 1 and members * gpus <= 4:
        scopes.append("nvlink-domain")
    submission = _gang(chance, f"gang-{number}", dialects, members, gpus, chance.choice(scopes), lasts_s)
    return _asking(chance, submission) if chance.random() < ASKS else submission


def _asking(chance: random.Random, submission: Submission) -> Submission:
    """Return the gang with something to ask for besides GPUs, of a kind that its scope leaves possible."""
    asks = chance.choice((APART, SPREAD, VOLUME))
    if asks == VOLUME:
        return replace(submission, asks=VOLUME, rack=chance.choice(RACKS_WITH_VOLUMES))
    if submission.scope == "rack" and asks == APART and submission.members <= NODES_OF_A_RACK:
        return replace(submission, asks=APART)
    return replace(submission, asks=asks, scope="")


def target(
    chance: random.Random, number: int, dialects: Sequence[str], members: int, lasts_s: int | None
) -> Submission:
    """What a fault is aimed at: a gang that nearly always fits, and needs all its members."""
    scope = chance.choice(("", "", "rack"))
    submission = _gang(chance, f"target-{number}", dialects, members, 1, scope, lasts_s)
    devices = chance.choice((BY_RESOURCE, BY_CLAIM)) if chance.random() < DEVICES_OF_TARGETS else ""
    return replace(submission, needed=members, devices=devices)


def _devices(chance: random.Random, number: int, dialects: Sequence[str], lasts_s: int | None) -> Submission:
    """GPUs of a DRA driver. A single pod has none by claims: it would be left to kube-scheduler."""
    gpus = chance.choice((1, 1, 2, 4))
    if chance.random() < 0.3:
        submission = Submission(f"device-{number}", SINGLE, False, 1, 1, gpus, "", lasts_s, 0)
        return replace(submission, devices=BY_RESOURCE)
    members = chance.randint(2, 4)
    scopes = ("", "rack", "node") if members * gpus <= GPUS_OF_A_NODE else ("", "rack")
    submission = _gang(chance, f"devices-{number}", dialects, members, gpus, chance.choice(scopes), lasts_s)
    return replace(submission, devices=chance.choice((BY_RESOURCE, BY_CLAIM)))


def _slices(chance: random.Random, number: int, dialects: Sequence[str], lasts_s: int | None) -> Submission:
    """Memory of one GPU or, evenly, of two; alone or in gangs of two to four."""
    gpus = chance.choice((1, 1, 1, 2))
    memory = gpus * chance.randint(1, 6)
    if chance.random() < 0.5:
        return Submission(f"slice-{number}", SINGLE, False, 1, 1, gpus, "", lasts_s, 0, memory)
    submission = _gang(chance, f"slices-{number}", dialects, chance.randint(2, 4), gpus, "", lasts_s)
    return replace(submission, memory=memory)


def _gang(
    chance: random.Random,
    name: str,
    dialects: Sequence[str],
    members: int,
    gpus: int,
    scope: str,
    lasts_s: int | None,
) -> Submission:
    dialect = chance.choice(dialects)
    job = dialect not in COLLECTIONS and chance.random() < 0.4
    elastic = dialect in (OWN, NATIVE) and members > 2 and chance.random() < 0.4
    members_needed = members - chance.randint(1, members - 2) if elastic else members
    slow_s = chance.choice((0, 0, 0, 1, 2))
    return Submission(name, dialect, job, members, members_needed, gpus, scope, lasts_s, slow_s)
