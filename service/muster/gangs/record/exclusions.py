"""The nodes that a gang leaves out: in-tree plugins refused them, or their changes voided plans of the gang.

A node is left out for all pods with equal requests. Role names may change as other pods come and go.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace

from muster.domain.pod import Pod
from muster.domain.request import Role
from muster.gangs.capacity.requests import PodRequests, pod_requests
from muster.gangs.messages.calls import Unreserve
from muster.gangs.messages.settings import GangSettings

NODE_CHANGED = "NodeChanged"
"""Stands for a plugin: the node's own changes voided plans of the gang."""
MAX_VOIDED_PLANS = 2
"""The number of voided plans from which on a gang leaves the node out."""
ROOM = "NodeResourcesFit"
"""The plugin that counts what pods take. It also counts pods that are not bound yet."""
ROOM_AFTER_S, ROOM_EVERY_S = 1.0, 5.0
"""When a full node is tried again after an unbound pod has gone, in seconds. `ROOM_AFTER_S` is the least time
after the pod went, so that the scheduler has seen it too. `ROOM_EVERY_S` is the least time between two tries
of a node."""

_Pair = tuple[PodRequests, str]
"""The requests of a pod, and a node."""


@dataclass(frozen=True, slots=True)
class Exclusion:
    """Why a node is left out, and until when.

    Times are in seconds of the inputs' clock. `until` is infinite until all other nodes have been tried.
    """

    since: float
    plugin: str
    message: str
    until: float = math.inf

    def ends(self, unbound_gone_at: float) -> float:
        """Return when the exclusion ends: not before all other nodes have been tried.

        It ends earlier if the node was full, and an unbound pod has gone since.
        """
        if self.plugin == ROOM and self.since < unbound_gone_at and self.until < math.inf:
            return min(self.until, self.since + ROOM_EVERY_S)
        return self.until


@dataclass(slots=True)
class Exclusions:
    """The exclusions of one gang, and the counts that decide how long they last."""

    by_pair: dict[_Pair, Exclusion] = field(default_factory=dict)
    refusals: dict[_Pair, int] = field(default_factory=dict)
    """How often an in-tree plugin has refused the node since the node last changed."""
    voided_plans: Counter[str] = field(default_factory=Counter)
    """Node → how many plans of the gang its changes have voided."""

    def add_refused(self, pod: Pod, call: Unreserve) -> bool:
        """Exclude the node that a plugin refused to this pod. Return whether this is the first refusal."""
        pair = (pod_requests(pod), call.node)
        self.refusals[pair] = self.refusals.get(pair, 0) + 1
        self.by_pair[pair] = Exclusion(call.now, call.plugin, call.message)
        return self.refusals[pair] == 1

    def add_voided(self, node: str, pods: Iterable[Pod], now: float) -> bool:
        """Count that a change of the node voids a plan for these pods.

        From the second time on, exclude the node: first until all other nodes were tried, then for a time
        that grows. Return whether the node was not excluded before.
        """
        self.voided_plans[node] += 1
        if self.voided_plans[node] < MAX_VOIDED_PLANS:
            return False
        sentence = f"it changed {self.voided_plans[node]} times under a plan"
        is_new = False
        for pair in {(pod_requests(pod), node) for pod in pods}:
            is_new |= pair not in self.by_pair
            self.refusals[pair] = self.voided_plans[node] - MAX_VOIDED_PLANS + 1
            self.by_pair[pair] = Exclusion(now, NODE_CHANGED, sentence)
        return is_new

    def excludes(self, pod: Pod, node: str) -> bool:
        """Return whether the pod must not use the node."""
        return (pod_requests(pod), node) in self.by_pair

    def keep(self, stays: Callable[[str, Exclusion], bool]) -> None:
        """End the exclusions for which `stays(node, exclusion)` is false."""
        pairs = self.by_pair.items()
        self.by_pair = {pair: exclusion for pair, exclusion in pairs if stays(pair[1], exclusion)}

    def end_expired(self, now: float, unbound_gone_at: float) -> None:
        """Forget the exclusions that have ended (see `Exclusion.ends`)."""
        self.keep(lambda _, exclusion: exclusion.ends(unbound_gone_at) > now)

    def allow_again(self, node: str) -> None:
        """Allow a node again because it has changed.

        An exclusion that the node's own changes caused (`NODE_CHANGED`) stays.
        """
        if not self.refusals and not self.by_pair:
            return
        self.keep(lambda name, exclusion: name != node or exclusion.plugin == NODE_CHANGED)
        self.refusals = {
            pair: times for pair, times in self.refusals.items() if pair[1] != node or pair in self.by_pair
        }

    def set_ends(self, now: float, unbound_gone_at: float, settings: GangSettings) -> float:
        """Set when exclusions end, now that all other nodes have been tried. Return when the
        first exclusion ends."""
        for pair, exclusion in self.by_pair.items():
            if exclusion.until == math.inf:
                ends = exclusion.since + settings.exclusion(self.refusals[pair])
                until = max(ends, now + settings.exclusion_first_s)
                self.by_pair[pair] = replace(exclusion, until=until)
        return min(exclusion.ends(unbound_gone_at) for exclusion in self.by_pair.values())

    def by_role(self, roles: Iterable[Role], pods: Iterable[Pod]) -> dict[str, dict[str, str]]:
        """Return role → node → the plugin that refused the pair, in the planner's form.

        `pods`: the members of the roles.
        """
        nodes_by_requests: dict[PodRequests, dict[str, str]] = {}
        for (requests, node), exclusion in self.by_pair.items():
            nodes_by_requests.setdefault(requests, {})[node] = exclusion.plugin
        pod_by_uid = {pod.uid: pod for pod in pods} if nodes_by_requests else {}
        requests_by_role = {
            role.name: pod_requests(pod_by_uid[member.uid])
            for role in roles
            for member in role.members
            if member.uid in pod_by_uid
        }
        return {
            role: nodes_by_requests[requests]
            for role, requests in requests_by_role.items()
            if requests in nodes_by_requests
        }

    def __str__(self) -> str:
        """Return a sentence on the nodes that are left out: which, how many, and why."""
        nodes: dict[tuple[str, str], set[str]] = {}
        for (_, node), exclusion in self.by_pair.items():
            nodes.setdefault((exclusion.plugin, exclusion.message[:80]), set()).add(node)
        listed = [
            f"{min(names) if len(names) == 1 else f'{len(names)} nodes'} ({plugin}: {why})"
            for (plugin, why), names in sorted(nodes.items(), key=lambda item: (-len(item[1]), item[0]))
        ]
        and_more = f" and {len(listed) - 3} more" if len(listed) > 3 else ""
        return f"Left out for a while: {', '.join(listed[:3])}{and_more}"
