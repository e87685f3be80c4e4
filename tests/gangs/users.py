"""What users, controllers, kubelets and other schedulers do in the model."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import msgspec

from muster.domain.levels import FabricLevel
from muster.domain.peers import PeerRules
from muster.domain.pod import COMPOSITE, KUBERNETES, GangClaim, TopologyRequest
from muster.domain.pod import NATIVE as KINDS
from muster.domain.podgroup import PodGroup
from muster.domain.policies import DEFAULT_POLICIES, Policies, Policy
from muster.domain.request import PolicyTerm
from muster.gangs.messages import inputs
from muster.gangs.messages.settings import GangSettings
from tests.gangs.native_watch import LEAVES, MIDDLE, NATIVE, ROOT, TREE, group_object
from tests.gangs.stage import (
    APPS,
    GANGS,
    HALL,
    HOST,
    MAX_MEMBERS,
    NODES,
    POD_GROUP,
    PREFERENCES,
    VOLUMES,
    ZONE,
    ZONES,
    Chooser,
    Cut,
    Flying,
    names_native,
    peer_rules,
)
from tests.gangs.world import foreign, node, pod, with_topology

NEAR = Policies(True, (Policy("near", 10, PolicyTerm("nvlink", "pack")),), (FabricLevel("rack", ("rack",)),))
"""Policies that a ConfigMap may hold; the pods of k name `near`."""
NATIVE_POLICIES: tuple[dict[str, Any], ...] = (
    *({"gang": {"minCount": count}} for count in (2, 2, 1, 3)),
    {"basic": {}},
)
"""Policies that Kubernetes' PodGroup may have."""
COMPOSITE_POLICIES: tuple[dict[str, Any], ...] = (
    *({"gang": {"minGroupCount": count}} for count in (1, 1, 2, 2, 3)),
    {"basic": {}},
)
PARENTS = {ROOT: ("", "", "", MIDDLE), MIDDLE: (ROOT, ROOT, "")} | dict.fromkeys(
    LEAVES, (ROOT, ROOT, ROOT, MIDDLE, "")
)
"""Group → parents that it may have. The CompositePodGroups may form a ring."""


class Users:
    """The cluster as they see it: its nodes, PodGroups and policies; its pods are the world's."""

    def __init__(self) -> None:
        self.world = Cut(GangSettings(ahead=6), auto=False, answers_in_tree=True)
        self.nodes = {name: node(name, labels={ZONE: ZONES[name], HALL: ZONES[name]}) for name in NODES[:2]}
        self.names: Sequence[str] = sorted(GANGS.keys() - set(LEAVES))
        """Gangs that are made."""
        self.pod_group: PodGroup | None = None
        self.policies = NEAR
        self.serial = 0
        self.flying: list[Flying] = []
        """Bindings on their way."""
        self.deleted: Counter[str] = Counter()
        """Run → its pods that have succeeded and are deleted."""
        self.renamed: set[str] = set()
        """Pods whose gang label was edited: bound by the plan of one gang, they may be members of another."""

    def create_one(self, choose: Chooser) -> None:
        gang = choose.of(self.names)
        self._create(gang, choose.of((0, 1)), peer_rules(choose, gang))

    def create_all(self, choose: Chooser) -> None:
        """A complete gang, pod by pod."""
        gang = choose.of(self.names)
        peers = peer_rules(choose, gang)
        for _ in range(GANGS[gang][0]):
            self._create(gang, 0, peers)

    def create_tree(self, choose: Chooser) -> None:
        """Pods of all PodGroups that may have a parent."""
        for name in LEAVES:
            for _ in range(choose.of((0, 1, 2, 2))):
                self._create(name, 0, PeerRules())

    def create_again(self, choose: Chooser) -> None:
        """Another run under a name that may be there, by an owner of its own."""
        gang, run = choose.of(("e", "g", "p", NATIVE)), f"run-{self.serial}"
        peers = peer_rules(choose, gang)
        for _ in range(GANGS[gang][0]):
            self._create(gang, 0, peers, run)

    def create_wave(self, choose: Chooser) -> None:
        """Another wave of an owner whose pods have ended, pod by pod."""
        owned = [p for p in self.world.pods.values() if p.owner.startswith("run-") and p.claim]
        busy = {p.owner for p in owned if not p.finished} | self.deleted.keys()
        if ended := sorted({(p.claim.name, p.owner) for p in owned if p.claim and p.owner not in busy}):
            gang, run = choose.of(ended)
            peers = peer_rules(choose, gang)
            for _ in range(GANGS.get(gang, (2,))[0]):
                self._create(gang, 0, peers, run)

    def lose_after_success(self, choose: Chooser) -> None:
        """A member of a run succeeds, and its node is deleted, with all pods of the run or with this one.

        Its Job counts this pod as succeeded at once, or later.
        """
        owned = [p for p in self.world.pods.values() if p.node and p.owner.startswith("run-")]
        bound = sorted(p.uid for p in owned if p.succeeded or not p.finished)  # who failed stays so
        if not bound:
            return
        lost_pod = self.world.pods[choose.of(bound)]
        self.world.see(
            replace(
                lost_pod,
                started=lost_pod.started or self._clock(),
                running=False,
                finished=True,
                succeeded=True,
            )
        )
        siblings = [p.uid for p in self.world.pods.values() if p.owner == lost_pod.owner and not p.succeeded]
        if choose.of((True, False)):
            self.job_says(lost_pod.owner)
        self.deleted[lost_pod.owner] += 1
        for uid in (lost_pod.uid, *choose.of((siblings, ()))):
            self.world.gone(uid)
        if choose.of((True, False)):
            self._make_again(lost_pod.owner, lost_pod.claim.name if lost_pod.claim else "")

    def make_again(self, choose: Chooser) -> None:
        """A Job makes the pods again that it lost, but for those that have succeeded."""
        runs = {
            p.owner: p.claim.name for p in self.world.pods.values() if p.owner in self.deleted and p.claim
        }
        if runs:
            run = choose.of(sorted(runs))
            self._make_again(run, runs[run])
        self.jobs_say()

    def _make_again(self, run: str, gang: str) -> None:
        run_pods = [p for p in self.world.pods.values() if p.owner == run and (p.succeeded or not p.finished)]
        for _ in range(GANGS.get(gang, (2,))[0] - len(run_pods) - self.deleted[run]):
            self._create(gang, 0, PeerRules(), run)

    def jobs_say(self) -> None:
        """Every Job says how many of its pods have succeeded."""
        for run in sorted(self.deleted):
            self.job_says(run)

    def job_says(self, run: str) -> None:
        self.world.send(inputs.JobSeen(self.world.now, run, self.succeeded(run)))

    def succeeded(self, run: str) -> int:
        """Return how many pods of a run have succeeded, deleted or not."""
        return self.deleted[run] + sum(p.succeeded for p in self.world.pods.values() if p.owner == run)

    def _create(self, gang: str, priority: int, peers: PeerRules, run: str = "") -> None:
        members, gpus = GANGS[gang]
        gang_pods = [
            p for p in self.world.pods.values() if p.claim and p.claim.name == gang and not p.finished
        ]
        if len([p for p in gang_pods if not run or p.owner == run]) > MAX_MEMBERS.get(gang, members):
            return
        self.serial += 1
        uid = f"{gang or 'lone'}-{self.serial}"
        new_pod = pod(uid, gang, members, gpus, created=self._clock(), priority=priority, owner=run)
        if gang == POD_GROUP:
            new_pod = replace(new_pod, claim=GangClaim("kai", gang, by_object=True))
        elif gang in (NATIVE, *LEAVES):
            new_pod, peers = replace(new_pod, claim=GangClaim(KUBERNETES, gang, by_object=True)), PeerRules()
        elif gang in MAX_MEMBERS:
            new_pod = replace(new_pod, claim=with_topology(uid, of=members, gang=gang).claim)
        elif gang == "k" and new_pod.claim is not None:
            new_pod = replace(
                new_pod, claim=replace(new_pod.claim, topology_request=TopologyRequest(policies=("near",)))
            )
        elif gang == "o":
            new_pod = replace(
                new_pod, owner="workers" if any(p.owner == "master" for p in gang_pods) else "master"
            )
        if gang in VOLUMES:
            peers = replace(peers, volume_claims=(uid,))
        labels = (("app", gang),)
        new_pod = replace(new_pod, peers=peers, labels=labels, preferences=gang in PREFERENCES)
        self.world.see(new_pod)

    def _clock(self) -> float:
        """Later with each pod."""
        return self.world.now + self.serial * 1e-6

    def pod_group_seen(self, choose: Chooser) -> None:
        """It is made, or needs another number of members."""
        uid = self.pod_group.uid if self.pod_group is not None else f"group-{self.serial}"
        self.serial += 1
        self.pod_group = PodGroup("ns", "kai", POD_GROUP, uid, min_member=choose.of((2, 2, 1, 3)))
        self.world.send(inputs.PodGroupSeen(self.world.now, self.pod_group))

    def pod_group_gone(self, choose: Chooser) -> None:
        if self.pod_group is not None:
            self.world.send(inputs.PodGroupGone(self.world.now, self.pod_group.key))
            self.pod_group = None

    def native_group_seen(self, choose: Chooser) -> None:
        """Kubernetes' PodGroup is made, or its minCount changes."""
        self._see_group(NATIVE, choose)

    def native_group_gone(self, choose: Chooser) -> None:
        self._lose_group(NATIVE, choose)

    def tree_made(self, choose: Chooser) -> None:
        """The groups of a tree are made that do not exist, parents before children or after them."""
        has_middle = choose.of((True, False, False))
        names = [ROOT, *([MIDDLE] if has_middle else []), *LEAVES[: choose.of((2, 3))]]
        for name in names if choose.of((True, False)) else reversed(names):
            parent = "" if name == ROOT else ROOT
            if name in LEAVES and has_middle:
                parent = choose.of((ROOT, MIDDLE))
            if name not in self.world.native.groups:
                self._see_group(name, choose, parent)

    def tree_group_seen(self, choose: Chooser) -> None:
        """A group is made, perhaps with another parent than before, or its count changes."""
        self._see_group(choose.of(TREE), choose)

    def tree_group_gone(self, choose: Chooser) -> None:
        self._lose_group(choose.of(TREE), choose)

    def _see_group(self, name: str, choose: Chooser, parent: str | None = None) -> None:
        native = self.world.native
        policy = choose.of(COMPOSITE_POLICIES if name in (ROOT, MIDDLE) else NATIVE_POLICIES)
        old_group = native.groups.get(name)
        if old_group is None:
            self.serial += 1
            label = choose.of(("", "", "", HOST, HALL) if name in TREE else ("", "", HOST))
            if parent is None:
                parent = choose.of(PARENTS.get(name, ("",)))
            native.make(group_object(f"native-{self.serial}", policy, label, name, parent))
        elif old_group.spec["schedulingPolicy"].keys() == policy.keys():  # no update may change the choice
            spec = old_group.spec | {"schedulingPolicy": policy}
            native.make(msgspec.structs.replace(old_group, spec=spec))

    def _lose_group(self, name: str, choose: Chooser) -> None:
        """It is deleted, and perhaps made anew with other rules before the service sees the deletion."""
        native = self.world.native
        old_group = native.groups.pop(name, None)
        if old_group is None:
            return
        if seen_late := choose.of((True, False, False)):
            self._see_group(name, choose)
        native.forget_group(old_group.metadata.uid)
        if not seen_late and choose.of((True, False)):
            self._see_group(name, choose)

    def native_groups_refused(self, choose: Chooser) -> None:
        self.world.native.refuse(choose.of((KINDS, (KUBERNETES,), (COMPOSITE,))))

    def native_groups_served(self, choose: Chooser) -> None:
        self.world.native.serve()

    def native_pods_read(self, choose: Chooser) -> None:
        """Some of the pods are read again whose PodGroup has changed."""
        self.world.native.reads.read_later(choose.of((1, 2, None)))

    def policies_seen(self, choose: Chooser) -> None:
        self.policies = choose.of((NEAR, DEFAULT_POLICIES))
        self.world.send(inputs.PoliciesSeen(self.world.now, self.policies))

    def delete(self, choose: Chooser) -> None:
        if self.world.pods:
            uid = choose.of(sorted(self.world.pods))
            if choose.of((True, False)):
                self.world.see(replace(self.world.pods[uid], terminating=True))
            else:
                self.world.gone(uid)

    def finish(self, choose: Chooser) -> None:
        """A bound pod ends, well or not."""
        running = sorted(p.uid for p in self.world.pods.values() if p.node and not p.finished)
        if running:
            uid = choose.of(running)
            ended = replace(self.world.pods[uid], running=False, finished=True)
            started = ended.started or self._clock()
            self.world.see(replace(ended, started=started, succeeded=choose.of((True, False))))

    def lose_member(self, choose: Chooser) -> None:
        """A bound member fails or is deleted, and its controller makes another one, at once or not."""
        bound = sorted(p.uid for p in self.world.pods.values() if p.usage and p.claim and not p.claim.lone)
        if not bound:
            return
        lost_pod = self.world.pods[choose.of(bound)]
        if choose.of((True, False)):
            self.world.see(replace(lost_pod, running=False, finished=True))
        else:
            self.world.gone(lost_pod.uid)
        if lost_pod.claim is not None and choose.of((True, False)):
            self._create(lost_pod.claim.name, lost_pod.priority, lost_pod.peers, lost_pod.owner)

    def rename(self, choose: Chooser) -> None:
        """A pod's gang label is edited."""
        waiting = [p for p in self.world.pods.values() if not (p.node or names_native(p))]
        pods = sorted(p.uid for p in waiting if p.claim and not p.claim.lone)
        if pods:
            gang = choose.of(("g", "h"))
            claim = pod("x", gang, GANGS[gang][0]).claim
            uid = choose.of(pods)
            self.renamed.add(uid)
            self.world.see(replace(self.world.pods[uid], claim=claim))

    def relabel(self, choose: Chooser) -> None:
        """A label is edited that the rules of others may name."""
        if self.world.pods:
            uid = choose.of(sorted(self.world.pods))
            self.world.see(replace(self.world.pods[uid], labels=(("app", choose.of(APPS)),)))

    def node_seen(self, choose: Chooser) -> None:
        name = choose.of(NODES)
        cordoned, broken = choose.of((False, False, True)), choose.of((0, 0, 0, 0b1, 0b1100))
        zone = choose.of((ZONES[name],) * 3 + ("west",))
        self.nodes[name] = node(
            name, labels={ZONE: zone, HALL: zone}, unschedulable=cordoned, unhealthy=broken
        )
        self.world.send(inputs.NodeSeen(self.world.now, self.nodes[name]))

    def node_gone(self, choose: Chooser) -> None:
        name = choose.of(NODES)
        if self.nodes.pop(name, None) is not None:
            self.world.send(inputs.NodeGone(self.world.now, name))

    def others_bind(self, choose: Chooser) -> None:
        """Another scheduler knows nothing of plans; what is on its way to a node it does see (nominated)."""
        name, gpus = choose.of(NODES), choose.of((1, 2))
        if self.world.missed is not None:
            return  # the API server is away for all
        state = self.world.coordinator.state
        sure = {*state.ledger.bound, *(f.uid for f in self.flying), *self.world.coordinator.state.orphans}
        sure |= {p.uid for p in self.world.pods.values() if p.node}
        for gang in state.gangs.values():
            sure |= set(gang.awaited_bindings)
        on_node = {**state.ledger.stated_usages_on(name)}
        on_node |= {p.uid: u for p in self.world.pods.values() if (u := p.usage) and u.node == name}
        usages = [usage for uid, usage in on_node.items() if uid in sure]
        gpus_used = sum(usage.gpus.bit_count() + usage.unindexed_gpus for usage in usages)
        if name in self.nodes and gpus_used + gpus <= 4:
            self.serial += 1
            foreign_pod = foreign(f"f-{self.serial}", name, gpus)
            app = choose.of(APPS)
            self.world.see(replace(foreign_pod, labels=(("app", app),), peers=peer_rules(choose, app)))

    def kubelet(self, choose: Chooser) -> None:
        """Bound pods start, terminating ones end."""
        for pod_now in list(self.world.pods.values()):
            if pod_now.terminating:
                self.world.gone(pod_now.uid)
            elif pod_now.node and not (pod_now.started or pod_now.finished):
                self.world.see(replace(pod_now, started=self._clock(), running=True))
