"""The one object that adapters talk to: inputs and the shim's calls in, instructions and answers out.

The coordinator is synchronous and not thread-safe: one task owns it. It sends each planner one `Solve` at a
time. Each `Solve` must be answered with `SolveAnswered` or `SolveFailed`.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence

from muster.domain.snapshot import Snapshot
from muster.gangs.lifecycle import alternatives, bindings, decisions, planning, victims
from muster.gangs.lifecycle.arrivals import PodHandler
from muster.gangs.lifecycle.node_changes import NodeHandler
from muster.gangs.lifecycle.recovery import Clock, SessionHandler
from muster.gangs.lifecycle.state import State
from muster.gangs.messages import calls, inputs
from muster.gangs.messages.instructions import Instruction, Lane
from muster.gangs.messages.settings import GangSettings
from muster.gangs.record.gang import Gang, GangView, view
from muster.gangs.record.phases import GivenUp
from muster.gangs.reporting import places
from muster.gangs.reporting.differences import Differences
from muster.gangs.reporting.podgroup_status import PodGroupStatuses
from muster.gangs.reporting.tally import Tally

_DEFAULTS = GangSettings()


class Coordinator:
    """Hold the state of all gangs, and hand each input and call to the module that handles it.

    `state` is for tests and this package. Adapters use the methods.
    """

    def __init__(
        self, settings: GangSettings = _DEFAULTS, wall_clock: Callable[[], float] = time.time
    ) -> None:
        self.state = State(settings, wall_clock)
        self._pods = PodHandler(self.state)
        self._nodes = NodeHandler(self.state, self._pods.gangs_of)
        self._sessions = SessionHandler(self.state, self._pods, self._nodes)
        self._clock = Clock(self.state, self._pods)
        self._statuses = PodGroupStatuses(
            settings, self.state.roster, self._pods.gangs_named, self.state.publisher
        )

    # --- inputs -------------------------------------------------------------------------------------

    def handle(self, message: inputs.Input) -> list[Instruction]:
        """Take in an input, and return the instructions that follow from it."""
        self.state.now, self.state.members_regrouped = message.now, 0
        match message:
            case inputs.SolveFailed():
                decisions.take_failure(self.state, message)
            case inputs.SolveAnswered():
                decisions.take_answer(self.state, message)
            case inputs.VictimsFound():
                victims.take_answer(self.state, message)
            case inputs.Synced():
                self.state.synced = True
                self._pods.catch_up()
                self._sessions.activate()
            case inputs.SessionOpened():
                self._sessions.open_session(message)
            case inputs.SessionClosed(_, epoch):
                if epoch == self.state.epoch:
                    self._sessions.close_session()
            case inputs.WatchInterrupted(_, resource):
                self._clock.interrupt(resource)
            case inputs.WatchResumed(_, resource):
                self._clock.resume(resource)
            case inputs.Tick():
                self._clock.tick()
                self._nodes.tick()
                self._pods.tick()
                self._pods.differences.tick()
            case _:
                self._cluster_changed(message)
        self._pods.catch_up()
        self._sessions.catch_up()
        self._statuses.write_due()
        planning.ask_planners(self.state)
        victims.ask(self.state)
        return self.state.publisher.take()

    def _cluster_changed(self, change: inputs.ClusterChange) -> None:
        """Take in a change of an object in the cluster."""
        match change:
            case inputs.PodSeen(_, pod):
                if changed_nodes := self._pods.see_pod(pod):
                    self._nodes.void_overbooked(changed_nodes)
            case inputs.PodGone(_, uid):
                self._pods.drop_pod(uid)
            case inputs.NodeSeen() | inputs.NodeGone():
                node = change.node if isinstance(change, inputs.NodeSeen) else None
                name = change.name if isinstance(change, inputs.NodeGone) else change.node.name
                self._nodes.see_node(name, node)
                self._pods.differences.compare_node_again(name)
            case inputs.PodGroupSeen(_, group):
                self._pods.see_pod_group(group.key, group)
                self._statuses.see_status(group)
            case inputs.PodGroupGone(_, key):
                self._pods.see_pod_group(key, None)
            case inputs.JobSeen(_, uid, succeeded):
                self._pods.see_job(uid, succeeded)
            case inputs.DeviceClaimSeen(_, claim):
                if changed_nodes := self._pods.see_claim(claim):
                    self._nodes.void_overbooked(changed_nodes)
            case inputs.PoliciesSeen(_, policies):
                self._pods.see_policies(policies)
            case _:
                self._peers_changed(change)

    def _peers_changed(self, change: inputs.PeerChange) -> None:
        """Take in a change of facts that concern pods only together with other pods."""
        ledger = self.state.ledger
        match change:
            case inputs.NamespaceSeen(_, name, labels):
                ledger.existing_pods.see_namespace(name, labels)
            case inputs.VolumeClaimSeen(_, namespace, name, attaches_once):
                ledger.existing_pods.see_claim(namespace, name, attaches_once)
            case inputs.BudgetSeen(_, key, budget):
                ledger.budgets.see(key, budget)
                self.state.occupants.limit_namespaces()
            case inputs.BudgetsUnread(_, unread):
                if unread is not ledger.budgets.unread:
                    ledger.budgets.unread = unread
                    self.state.occupants.note_all()
            case inputs.CheckpointsSeen(_, saved):
                ledger.see_checkpoints(saved)

    @property
    def catches_up(self) -> bool:
        """Return whether a change concerns many gangs, and more inputs are needed to update all of them."""
        return self.state.catches_up

    def next_deadline(self) -> float | None:
        """Return when the next Tick is due, in seconds of the inputs' clock; None if no Tick is needed."""
        if self.state.interrupted:
            return None
        if victims.may_ask(self.state):
            return self.state.now
        handlers = (self._clock, self._nodes, self._statuses, self._pods, self._pods.differences)
        deadlines = [handler.next_deadline() for handler in handlers]
        return min((when for when in deadlines if when is not None), default=None)

    def keys(self) -> list[str]:
        """Return the keys of all gangs, sorted."""
        return sorted(self.state.gangs)

    def keys_of(self, namespace: str, name: str) -> list[str]:
        """Return the keys of the gangs that have this name, or a pod of this name."""
        gangs = self.state.gangs.items()
        keys = {key for key, gang in gangs if (gang.name[0], gang.group.gang.name) == (namespace, name)}
        pods = self.state.roster.pods.values()
        uids = (pod.uid for pod in pods if (pod.namespace, pod.name) == (namespace, name))
        return sorted(keys or set(self._pods.gangs_of(uids).values()))

    def differences(self) -> Differences:
        """Return the pods whose containers have other GPUs than planned."""
        return self._pods.differences

    def tally(self, keys: Iterable[str] | None = None, tally: Tally | None = None) -> Tally:
        """Count all gangs as metrics show them, or add the gangs with these keys to a tally."""
        tally = tally or Tally(reserved=Counter(binding=len(self.state.orphans)))
        for gang in self._gangs(keys):
            tally.add(gang)
        return tally

    def _gangs(self, keys: Iterable[str] | None) -> Iterator[Gang]:
        """Yield the gangs with these keys that exist; all, sorted by key, if `keys` is None."""
        gangs = (self.state.gangs.get(key) for key in (self.keys() if keys is None else keys))
        return (gang for gang in gangs if gang is not None)

    def count_waiting(self) -> Counter[str]:
        """Count the gangs that wait for each planner."""
        return Counter({lane.value: self.state.queue.count_waiting(lane) for lane in Lane})

    def snapshot(self) -> Snapshot:
        """Return the cluster with all taken and reserved capacity."""
        return self.state.ledger.snapshot()

    def summary(self, keys: Iterable[str] | None = None) -> tuple[GangView, ...]:
        """Return views of the gangs with these keys; of all gangs, sorted by key, if `keys` is None.

        Keys of gangs that are gone are skipped. No timer is set.
        """
        return tuple(map(self._view, self._gangs(keys)))

    def _view(self, gang: Gang) -> GangView:
        """Regroup the gang if it is stale, and return its view."""
        self.state.try_regroup(gang)
        return view(gang, self.state.queue_order(gang))

    def gpus_of_pods(self, nodes: Sequence[str]) -> list[tuple[places.PodGpus, ...]]:
        """Return the GPUs that each pod takes, for each of these nodes."""
        return places.gpus_of_pods(self.state.ledger, nodes, self._pods.gangs_of)

    def owners(self, nodes: Sequence[str]) -> list[tuple[places.Owner, ...]]:
        """Return which gangs have the GPUs of each of these nodes."""
        return [places.owners(usages, self.state.gangs) for usages in self.gpus_of_pods(nodes)]

    def details(self, key: str) -> places.GangDetails | None:
        """Return the details of the gang with this key; None if there is no such gang."""
        gang = self.state.gangs.get(key)
        return places.details(self.state.ledger, gang, self._view(gang)) if gang is not None else None

    def alternatives(self, key: str) -> places.AskAlternatives | str:
        """Return the question for a planner about other places of this gang, or a sentence that says why
        there is none."""
        gang = self.state.gangs.get(key)
        return alternatives.ask(self.state, gang) if gang is not None else alternatives.NO_PLACE

    def evicts(self, uid: str) -> bool:
        """Return whether the pod is still to be evicted.

        Its gang may have been completed after all, by another service or in a new session.
        """
        phases = (gang.in_phase for gang in self.state.gangs.values())
        return self.state.active and any(
            isinstance(phase, GivenUp) and uid in phase.evicting for phase in phases
        )

    # --- the shim's calls ---------------------------------------------------------------------------

    def answer(self, call: calls.Call[calls.CallAnswer]) -> tuple[calls.CallAnswer, list[Instruction]]:
        """Answer a call of the shim, and return the instructions that follow from it.

        Raises:
            StaleError: the epoch, or the plan or question that the call names, is not the current one.
        """
        answer_call = bindings.ANSWERS[type(call)]
        if isinstance(call, calls.Filter | calls.Score):  # these calls change nothing
            return answer_call(self.state, call), []
        self.state.now = call.now
        answer: calls.CallAnswer = answer_call(self.state, call)
        self._statuses.write_due()
        planning.ask_planners(self.state)
        return answer, self.state.publisher.take()
