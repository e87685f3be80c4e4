"""The capacity that is taken on each node: by bound pods, and by reservations of plans and Bindings under
way.

A pod counts once: when it is seen bound, its reservation ends. The ledger updates the state of each changed
node, so that a snapshot costs a shallow copy.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace

from muster.domain.levels import FABRIC, NVLINK
from muster.domain.node import DeviceClaim, Node, PoolKey, Resources, Usage
from muster.domain.pod import Pod
from muster.domain.policies import DEFAULT_POLICIES, Policies
from muster.domain.request import Request
from muster.domain.snapshot import NodeState, Snapshot
from muster.domain.topology import bits
from muster.gangs.capacity.device_claims import DeviceClaims
from muster.gangs.peers.budgets import Budgets
from muster.gangs.peers.existing_pods import Changes, ExistingPods
from muster.placement.verify.admission import untolerated_taint

_SETTLED_AT_ONCE = 256
"""If more nodes than this have changed since the last snapshot, their states are computed at once: about 10
ms."""


class Ledger:
    """Usages by pod UID. Other classes only read `nodes`, `bound`, `reservations` and `gained_nodes`."""

    def __init__(self) -> None:
        self.nodes: dict[str, Node] = {}
        self.bound: dict[str, Usage] = {}
        self.reservations: dict[str, Usage] = {}
        self.policies = DEFAULT_POLICIES
        self.existing_pods = ExistingPods(self.node_of)
        """The pods of these usages, for constraints between pods."""
        self.budgets = Budgets()
        self.device_claims = DeviceClaims()
        """The devices that ResourceClaims hold. They count even if no pod's usage has them."""
        self._nodes_of: dict[PoolKey, set[str]] = {}
        """Pool of devices → its nodes. A pool may have several nodes, because a node may name the pool of
        another node."""
        self._on_node: dict[str, dict[str, Usage]] = {}
        self._states: dict[str, NodeState] = {}
        self._states_after_end: dict[str, NodeState] = {}
        """Node → its state as if all pods with GPUs had ended."""
        self.changed_nodes: set[str] = set()
        """Nodes that changed, or with pods that changed. A reader removes the nodes."""
        self._dirty: set[str] = set()
        self._unsorted = False
        self._snapshot: Snapshot | None = None
        self._whole_gpus: Counter[tuple[str, int]] = Counter()

    @property
    def gained_nodes(self) -> set[str]:
        """Return the nodes on which plans may find more capacity since `take_changes`: new and changed nodes,
        and nodes that lost a usage."""
        return self.existing_pods.changes.gained_nodes

    def set_policies(self, policies: Policies) -> None:
        """Set fabric levels and typical requests for all later snapshots."""
        if policies != self.policies:
            self.policies, self._snapshot = policies, None

    def set_node(self, node: Node) -> bool:
        """Take in a node's new state. Return whether the state differs from the last one."""
        old_node = self.nodes.get(node.name)
        if old_node == node:
            return False
        self._unsorted |= node.name not in self.nodes
        self._forget_pools(node.name)
        self.nodes[node.name] = node
        for device in node.devices:
            if device is not None:
                self._nodes_of.setdefault(device.pool_key, set()).add(node.name)
        self._touch(node.name)
        if old_node is None or not is_equal_for_plans(old_node, node):
            self.gained_nodes.add(node.name)
        return True

    def drop_node(self, name: str) -> bool:
        """Forget a node. Return whether it existed.

        Usages on the node stay, in case the node comes back.
        """
        self._forget_pools(name)
        if self.nodes.pop(name, None) is None:
            return False
        self._set_state(name, None)
        self._touch(name)
        return True

    def _forget_pools(self, name: str) -> None:
        """Forget the device pools of a node that is gone or changed."""
        devices = self.nodes[name].devices if name in self.nodes else ()
        for key in {device.pool_key for device in devices if device is not None}:
            self._nodes_of[key].discard(name)
            if not self._nodes_of[key]:
                del self._nodes_of[key]

    def see(self, pod: Pod) -> tuple[str, ...]:
        """Take in a pod's new state. Return the nodes on which usage changed."""
        self.existing_pods.see(pod)
        if pod.node:
            self.changed_nodes.add(pod.node)
        return self.bind(pod.uid, pod.usage)

    def see_checkpoints(self, saved: Mapping[str, float]) -> None:
        """Take in when pods saved their work, as `existing_pods` does."""
        self.existing_pods.see_checkpoints(saved)
        self.changed_nodes.update(filter(None, map(self.node_of, saved)))

    def forget(self, uid: str) -> None:
        """Forget a pod that is gone."""
        self.bind(uid, None)
        self.existing_pods.forget(uid)

    def bind(self, uid: str, usage: Usage | None) -> tuple[str, ...]:
        """Set the usage of a pod as the cluster sees it; None if the pod is unbound, finished or gone.

        A reservation for the pod ends when the pod is seen bound. Return the nodes on which usage changed.
        """
        old_usage = self.usage(uid)
        if usage is None:
            self.bound.pop(uid, None)
        else:
            self.bound[uid] = usage
            self.reservations.pop(uid, None)
        return self._reindex(uid, old_usage)

    def see_claim(self, claim: DeviceClaim) -> tuple[str, ...]:
        """Take in the devices that a ResourceClaim holds. Return the nodes on which they changed."""
        changed_nodes = tuple(self._nodes_with(self.device_claims.see(claim)))
        for name in changed_nodes:
            self._touch(name)
            self.gained_nodes.add(name)
        return changed_nodes

    def hold(self, usages: Iterable[Usage]) -> None:
        """Reserve capacity. Pods that are bound already are skipped."""
        for usage in usages:
            if usage.pod_uid not in self.bound:
                old_usage = self.usage(usage.pod_uid)
                self.reservations[usage.pod_uid] = usage
                self._reindex(usage.pod_uid, old_usage)

    def release(self, uids: Iterable[str]) -> None:
        """End the reservations of these pods, if they have any."""
        for uid in uids:
            old_usage = self.usage(uid)
            if self.reservations.pop(uid, None) is not None:
                self._reindex(uid, old_usage)

    def usage(self, uid: str) -> Usage | None:
        """Return the present usage of the pod, bound or reserved; None if it has none."""
        return self.bound.get(uid) or self.reservations.get(uid)

    def node_of(self, uid: str) -> str:
        """Return the node that the pod is on, bound or by a reservation; "" if it is on no node."""
        usage = self.usage(uid)
        return usage.node if usage is not None else ""

    def snapshot(self) -> Snapshot:
        """Return the cluster as it is now: the same object until something changes."""
        if self._snapshot is None:
            self._settle()
            policies = self.policies
            self._snapshot = Snapshot(dict(self._states), policies.levels, policies.typical, policies.naming)
        return self._snapshot

    def snapshot_without(self, uids: Collection[str]) -> Snapshot:
        """Return the cluster as if these pods took nothing."""
        snapshot = self.snapshot()
        return replace(snapshot, nodes={**snapshot.nodes, **self.states_without(uids)})

    def states_without(self, uids: Collection[str]) -> dict[str, NodeState]:
        """Return name → state, as if these pods took nothing, for each node that they use."""
        used_nodes = {usage.node for uid in uids if (usage := self.usage(uid)) is not None}
        used_nodes |= self._nodes_with(pool for uid in uids for pool in self.device_claims.pools_of(uid))
        return {
            name: NodeState.of(self.nodes[name], self.counted_usages_on(name, uids))
            for name in used_nodes & self.nodes.keys()
        }

    def stated_usages_on(self, name: str) -> Mapping[str, Usage]:
        """Return UID → usage on the node, by plans and annotations."""
        return self._on_node.get(name, {})

    def usages_on(self, name: str) -> Mapping[str, Usage]:
        """Return UID → usage on the node. Allocations of claims count before annotations."""
        on_node = self.stated_usages_on(name)
        if name not in self.nodes:
            return on_node
        usages = self._usages(name)
        return {uid: usages[uid] for uid in on_node}

    def counted_usages_on(self, name: str, left_out_uids: Collection[str] = ()) -> list[Usage]:
        """Return the usages on the node as `snapshot` counts them, without the pods in `left_out_uids`.

        Some usages are of claims that no pod has.
        """
        return _credible_usages(self.nodes[name], self._usages(name, left_out_uids).values())

    def gpus_of(self, uid: str) -> int:
        """Return the bit mask of the pod's GPUs, as `snapshot` counts them.

        Return 0 if the indices are not known or can't be true.
        """
        usage = self.usage(uid)
        if usage is None or not usage.holds_gpus or usage.node not in self.nodes:
            return 0
        usages = self.counted_usages_on(usage.node)
        return next(pod_usage.gpus for pod_usage in usages if pod_usage.pod_uid == uid)

    def state(self, name: str) -> NodeState | None:
        """Return the state of the node; None if it does not exist."""
        self._settle()
        return self._states.get(name)

    def snapshot_after_all_ended(
        self, own_uids: Collection[str], unchanged_nodes: Collection[str]
    ) -> Snapshot:
        """Return the cluster as if all pods with GPUs had ended, except for the pods in `own_uids`.

        Pods without GPUs stay, because no plan relies on their end. Nodes in `unchanged_nodes` keep their
        present state.
        """
        snapshot = self.snapshot()
        states = {name: self._states_after_end[name] for name in snapshot.nodes}
        for name in {
            usage.node for uid in own_uids if (usage := self.usage(uid)) is not None
        } & self.nodes.keys():
            usages = self._usages(name).values()
            stays = (usage for usage in usages if usage.pod_uid in own_uids or not usage.holds_gpus)
            states[name] = _state(self.nodes[name], stays)
        states |= {name: snapshot.nodes[name] for name in unchanged_nodes if name in states}
        return replace(snapshot, nodes=states)

    def whole_gpus(self) -> Mapping[tuple[str, int], int]:
        """Return (extended resource, free whole GPUs) → number of nodes. Tainted GPUs count as free."""
        self._settle()
        return self._whole_gpus

    def note_gained(self, nodes: Iterable[str]) -> None:
        """Note that these nodes may be used again by gangs from which they were hidden."""
        self.gained_nodes.update(nodes)

    def take_changes(self) -> Changes:
        """Return the changes of free capacity and of other pods, and start anew."""
        changes, self.existing_pods.changes = self.existing_pods.changes, Changes()
        return changes

    def _nodes_with(self, pools: Iterable[PoolKey]) -> set[str]:
        return {name for pool in pools for name in self._nodes_of.get(pool, ())}

    def _set_state(self, name: str, state: NodeState | None) -> None:
        """Set the state of a node, and count the node in `_whole_gpus`; None if the node is gone."""
        old_state = self._states.pop(name, None) if state is None else self._states.get(name)
        for counted_state, nodes in ((old_state, -1), (state, 1)):
            if counted_state is not None:
                for resource in counted_state.node.gpu_resources:
                    self._whole_gpus[resource, counted_state.max_gpus] += nodes
        if state is not None:
            self._states[name] = state

    def _reindex(self, uid: str, old_usage: Usage | None) -> tuple[str, ...]:
        """Update the indexes after the usage of a pod changed. Return the nodes on which usage changed."""
        new_usage = self.usage(uid)
        if old_usage == new_usage:
            return ()
        nodes = (usage.node if usage is not None else "" for usage in (old_usage, new_usage))
        self.existing_pods.move(uid, *nodes)
        if old_usage is not None:
            self.gained_nodes.add(old_usage.node)
            on_node = self._on_node[old_usage.node]
            del on_node[uid]
            if not on_node:
                del self._on_node[old_usage.node]
        if new_usage is not None:
            self._on_node.setdefault(new_usage.node, {})[uid] = new_usage
        changes = [usage for usage in (old_usage, new_usage) if usage is not None]
        for usage in changes:
            if not self._try_adjust(usage, adds=usage is new_usage):
                self._touch(usage.node)
        return tuple({usage.node for usage in changes})

    def _try_adjust(self, usage: Usage, adds: bool) -> bool:
        """Add a usage without GPU indices to its node's state, or subtract the usage.

        Return whether this was possible. So a node with thousands of pods is not summed up again for each
        pod.
        """
        state = self._states.get(usage.node)
        if state is None or usage.gpus or usage.units or state.node.devices or usage.node in self._dirty:
            return False
        self._snapshot = None
        self.changed_nodes.add(usage.node)
        self._set_state(usage.node, _state_after(state, usage, adds))
        if not usage.holds_gpus:
            self._states_after_end[usage.node] = _state_after(self._states_after_end[usage.node], usage, adds)
        return True

    def _touch(self, name: str) -> None:
        """Have the state of a node computed again before it is read."""
        self._dirty.add(name)
        self.changed_nodes.add(name)
        self._snapshot = None
        if len(self._dirty) > _SETTLED_AT_ONCE:
            self._settle()

    def _usages(self, name: str, left_out_uids: Collection[str] = ()) -> Mapping[str, Usage]:
        """Return the usages of pods and of device claims on a node, without the pods in `left_out_uids`."""
        usages = self._on_node.get(name, {})
        if left_out_uids:
            usages = {uid: usage for uid, usage in usages.items() if uid not in left_out_uids}
        node = self.nodes[name]
        if not node.devices:
            return usages
        return self.device_claims.usages_with_claims(node, usages, self.bound, left_out_uids)

    def _settle(self) -> None:
        """Compute the states of the nodes that changed."""
        for name in self._dirty:
            if name in self.nodes:
                node, usages = self.nodes[name], self._usages(name).values()
                state = _state(node, usages)
                self._set_state(name, state)
                stays = [usage for usage in usages if not usage.holds_gpus]
                self._states_after_end[name] = _state(node, stays) if len(stays) < len(usages) else state
            else:
                self._states_after_end.pop(name, None)
        self._dirty.clear()
        if self._unsorted:
            self._states = {name: self._states[name] for name in sorted(self._states)}
            self._unsorted = False


def is_equal_for_plans(old_node: Node, node: Node) -> bool:
    """Return whether no plan depends on this change of a node.

    No plan depends on whether an agent runs on the node, or on the node's problems.
    """
    return replace(old_node, hands_out=node.hands_out, problems=node.problems) == node


def is_same_for(request: Request, policies: Policies, old_node: Node, node: Node | None) -> bool:
    """Return whether a plan of the request stays valid after this change of the node, resources aside."""
    if node is None:
        return False
    same_otherwise = replace(
        old_node,
        labels=node.labels,
        taints=node.taints,
        allocatable=node.allocatable,
        machine=node.machine,
        hands_out=node.hands_out,
        problems=node.problems,
    )
    if same_otherwise != node:
        return False
    if old_node.taints != node.taints and any(untolerated_taint(node, role) for role in request.roles):
        return False
    keys = _labels_read(request, policies) if old_node.labels != node.labels else ()
    return all(old_node.labels.get(key) == node.labels.get(key) for key in keys)


def _labels_read(request: Request, policies: Policies) -> frozenset[str]:
    """Return the keys of node labels that decide where this request may be placed."""
    keys = labels_of_domains(policies)
    keys.update(request.preferred_scopes)
    keys.update(limit.scope for limit in request.per_scope)
    keys.update(subgroup.scope for subgroup in request.subgroups)
    keys.update(scope for preference in request.role_preferences for scope in preference.scopes)
    keys.update(constraint.topology_key for constraint in request.constraints)
    for role in request.roles:
        keys.update(segment.scope for segment in role.segments)
        keys.update(term.key for terms in (role.rules.required, *role.rules.any_of) for term in terms)
    required_scopes = (request.required_scope, *(role.required_scope for role in request.roles))
    return frozenset(keys.union(filter(None, required_scopes)))


def labels_of_domains(policies: Policies) -> set[str]:
    """Return the keys of node labels that name domains of levels."""
    keys = {FABRIC, *(key for level in (*policies.levels, NVLINK) for key in level.labels)}
    return keys.union(*policies.naming.trees)


def fits(snapshot: Snapshot, usages: Iterable[Usage]) -> bool:
    """Return whether all these usages fit together on top of what the snapshot has taken."""
    states: dict[str, NodeState] = {}
    for usage in usages:
        state = states.get(usage.node) or snapshot.nodes.get(usage.node)
        if (
            state is None
            or not (_slices_fit(usage, state) if usage.units else _gpus_fit(usage, state))
            or not resources_fit(usage.resources, state.free)
        ):
            return False
        states[usage.node] = state.with_usage(usage)
    return True


def _gpus_fit(usage: Usage, state: NodeState) -> bool:
    """Return whether the GPUs are free. In-tree answers say whether the pod tolerates their taints."""
    return not usage.gpus & ~(state.free_gpus | state.tainted) and usage.gpus.bit_count() <= state.max_gpus


def _slices_fit(usage: Usage, state: NodeState) -> bool:
    memory = state.free_memory
    return all(gpu < len(memory) and memory[gpu] >= usage.units for gpu in bits(usage.gpus))


def resources_fit(resources: Resources, free: Resources) -> bool:
    """Return whether the resources fit, as kube-scheduler and the planner count them.

    Resources that are not requested are not checked.
    """
    return (
        resources.pods <= free.pods
        and (resources.cpu_milli == 0 or resources.cpu_milli <= free.cpu_milli)
        and (resources.memory_bytes == 0 or resources.memory_bytes <= free.memory_bytes)
        and all(amount <= free.other_amount(name) for name, amount in resources.others)
    )


def _state(node: Node, usages: Iterable[Usage]) -> NodeState:
    return NodeState.of(node, _credible_usages(node, usages))


def _state_after(state: NodeState, usage: Usage, adds: bool) -> NodeState:
    free = state.free - usage.resources if adds else state.free + usage.resources
    gpus = usage.unindexed_gpus if adds else -usage.unindexed_gpus
    return replace(state, free=free, unindexed_gpus=state.unindexed_gpus + gpus)


def _credible_usages(node: Node, usages: Iterable[Usage]) -> list[Usage]:
    """Return the usages of a node, without GPU indices that can't be true.

    Indices can't be true if the node has no such GPU or two bound pods have the same GPU. Nor can they if
    shares exceed the memory of a GPU. Such usages count by the number of GPUs only: usage is overestimated
    rather than underestimated. Pods with whole GPUs are believed before pods that share GPUs, because no
    share is planned on a whole GPU.
    """
    whole_gpus, shared_gpus, credible = 0, 0, []
    memory = dict(enumerate(node.gpu_memory))
    for usage in sorted(usages, key=lambda usage: (usage.units > 0, usage.pod_uid)):
        unavailable = whole_gpus if usage.units else whole_gpus | shared_gpus
        is_overcommitted = usage.units and any(
            memory.get(gpu, usage.units) < usage.units for gpu in bits(usage.gpus)
        )
        if usage.gpus and (
            usage.gpus & unavailable or usage.gpus >> node.topology.gpu_count or is_overcommitted
        ):
            credible.append(replace(usage, gpus=0, unindexed_gpus=usage.gpus.bit_count()))
            continue
        credible.append(usage)
        if not usage.units:
            whole_gpus |= usage.gpus
            continue
        shared_gpus |= usage.gpus
        for gpu in bits(usage.gpus):
            memory[gpu] = memory.get(gpu, usage.units) - usage.units
    return credible
