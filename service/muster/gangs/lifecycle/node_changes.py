"""Node changes: void the plans that a change of a node breaks.

A kubelet may write the labels and the status of its own node all the time. Gangs leave out such a node after
some voided plans, so that no gang waits for ever.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from muster.domain.node import Node
from muster.domain.rate import Rate
from muster.domain.sentences import unhealthy_sentence
from muster.gangs.capacity.ledger import is_equal_for_plans, is_same_for, labels_of_domains
from muster.gangs.lifecycle import reconciliation, refusals
from muster.gangs.lifecycle.state import State
from muster.gangs.messages.instructions import EmitEvent, EventReason
from muster.gangs.record.gang import Gang
from muster.gangs.record.phases import AcceptedPlan, Planned, Reserving, Trigger


def stays_valid(state: State, plan: AcceptedPlan, old_node: Node | None, node: Node | None) -> bool:
    """Return whether a plan on this node is still valid after the change."""
    if old_node is None or not is_same_for(plan.request, state.ledger.policies, old_node, node):
        return False
    return node is not None and (
        old_node.allocatable == node.allocatable or reconciliation.plan_still_fits(state, plan)
    )


WAKES = 24
"""How many changes of one node may have refused gangs planned again within `numbers_s`. A node that joins the
cluster changes some ten times."""


class NodeHandler:
    """Handle changes of nodes. `gangs_of` returns UID → key of its gang, as `PodHandler.gangs_of`."""

    def __init__(self, state: State, gangs_of: Callable[[Iterable[str]], Mapping[str, str]]) -> None:
        self._state = state
        self._gangs_of = gangs_of
        self._problems: dict[str, str] = {}
        """Node → the message that was last reported about it."""
        self._renames = Rate(0.0, clock=lambda: state.now)
        """How often all gangs are planned again because a node changed its domains."""
        self._rename_due: dict[str, float] = {}
        """Node that changed its domains again → when all gangs are planned again for this change."""
        self._wakes: dict[str, tuple[float, int]] = {}
        """Node → since when its changes are counted, and their number."""
        self._helps_again_at: dict[str, float] = {}
        """Node that changed too often → when its changes may help gangs again."""

    def see_node(self, name: str, node: Node | None) -> None:
        """Take in a node that appeared or changed; None if it is gone. Plans on it that are not permitted
        become void."""
        state, old_node = self._state, self._state.ledger.nodes.get(name)
        if node is not None:
            changed, verb = state.ledger.set_node(node), "changed"
        else:
            changed, verb = state.ledger.drop_node(name), "is gone"
            self._problems.pop(name, None)
            self._wakes.pop(name, None)
            self._helps_again_at.pop(name, None)
        if not changed:
            return
        helps_later = self._helps_later(name)
        # Nodes may be in other domains of constraints, or may no longer be eligible.
        if not helps_later and _differ(old_node, node, lambda n: (n.labels, n.taints, n.unschedulable)):
            state.ledger.existing_pods.changes.everything = True
        if node is not None:
            self.report_problems(node)
            if old_node is not None and old_node.hands_out is not node.hands_out:
                self._drop_annotations(name)
            if old_node is not None and is_equal_for_plans(old_node, node):
                return
        for gang in self._planned_on(name):
            if (plan := gang.plan) is not None and not stays_valid(state, plan, old_node, node):
                is_new = node is not None and gang.exclusions.add_voided(name, plan.pods.values(), state.now)
                why = f"node {name} {verb}"
                reconciliation.withdraw(state, gang, Trigger.NODE_CHANGED, why, cause_is_excluded=is_new)
        state.retained.release_taken(name)
        for gang in state.gangs.values():
            gang.exclusions.allow_again(name)
        if _differ(old_node, node, lambda n: (n.labels, n.topology)):
            self._wake_members(name)
        keys = labels_of_domains(state.ledger.policies)
        # A new node may split a domain of other nodes in two, but never merges domains.
        if old_node is not None and _differ(old_node, node, lambda n: [n.labels.get(key) for key in keys]):
            self._plan_refused(name)

    def next_deadline(self) -> float | None:
        """Return when `tick` is due; None if it is not."""
        return min((*self._helps_again_at.values(), *self._rename_due.values()), default=None)

    def tick(self) -> None:
        """Let nodes that changed too often help gangs now."""
        ledger, now = self._state.ledger, self._state.now
        names = [name for name, helps_at in self._helps_again_at.items() if helps_at <= now]
        ledger.note_gained(names)
        ledger.existing_pods.changes.everything |= bool(names)
        for name in names:
            del self._helps_again_at[name]
        for name in [name for name, due_at in self._rename_due.items() if due_at <= now]:
            del self._rename_due[name]
            self._plan_refused(name)

    def _helps_later(self, name: str) -> bool:
        """Count a change of a node. Return whether the node has changed so often that it helps refused gangs
        only later."""
        ledger, for_s = self._state.ledger, self._state.settings.numbers_s
        if name not in ledger.gained_nodes or name not in ledger.nodes:
            return False
        since, count = self._wakes.get(name, (self._state.now, 0))
        if self._state.now - since >= for_s:
            since, count = self._state.now, 0
        self._wakes[name] = (since, count + 1)
        if count < WAKES:
            return False
        ledger.gained_nodes.discard(name)
        self._helps_again_at[name] = since + for_s
        return True

    def report_problems(self, node: Node) -> None:
        """Report problems of the node, once for each change: facts that can't be read, and pods on unhealthy
        GPUs."""
        sentences = [f"used without what can't be read: {'; '.join(node.problems)}"] if node.problems else []
        on_node = self._state.ledger.usages_on(node.name).items() if node.unhealthy else ()
        if uids := [uid for uid, usage in on_node if usage.gpus & node.unhealthy]:
            pods = [self._state.roster.pods.get(uid) for uid in uids]
            names = sorted(f"{pod.namespace}/{pod.name}" if pod else "a pod that is not ours" for pod in pods)
            sentences.insert(0, unhealthy_sentence(node.unhealthy, names))
        message = "; ".join(sentences)
        if self._state.active and self._problems.get(node.name, "") != message:
            self._problems[node.name] = message
            if message:
                self._state.publisher.instruct(
                    EmitEvent("default", ((node.name, node.name),), EventReason.INVALID, message, "Node")
                )

    def void_overbooked(self, nodes: tuple[str, ...]) -> None:
        """Void plans on nodes where others took reserved capacity, until the remaining plans fit."""
        for name in nodes:
            self._state.retained.release_taken(name)
            for gang in self._planned_on(name):
                if (plan := gang.plan) is not None and not reconciliation.plan_still_fits(self._state, plan):
                    why = f"others took what it was to have on node {name}"
                    reconciliation.withdraw(self._state, gang, Trigger.NODE_CHANGED, why)

    def _wake_members(self, name: str) -> None:
        """Plan the refused gangs again that have members on a node which changed.

        The node's labels and links decide where their other members fit, however full the node is.
        """
        state = self._state
        keys = set(self._gangs_of(state.ledger.stated_usages_on(name)).values())
        state.to_wake |= dict.fromkeys(sorted(keys))
        for question in state.open_questions.values():
            question.since.anywhere |= question.gang in keys

    def _plan_refused(self, name: str) -> None:
        """Plan all refused gangs again: the change of this node may have merged two domains.

        Such changes rarely help, so each node may cause this once in `numbers_s`. A further change takes
        effect after that time.
        """
        if (due := self._renames.due_at(name)) > self._state.now:
            self._rename_due[name] = due
        else:
            self._renames.forget()
            self._renames.charge(name, self._state.settings.numbers_s)
            refusals.note_gangs_to_wake(self._state, anywhere=True)

    def _drop_annotations(self, node: str) -> None:
        """Drop the annotations of plans on the node: new annotations say whether its GPUs are exact now."""
        for gang in self._planned_on(node):
            if gang.plan is not None:
                gang.plan.annotations = None

    def _planned_on(self, node: str) -> list[Gang]:
        """Return the gangs with a plan on the node, unless they are permitted already."""
        ledger = self._state.ledger
        keys = set(self._gangs_of(ledger.stated_usages_on(node).keys() & ledger.reservations.keys()).values())
        gangs = (self._state.gangs[key] for key in sorted(keys))
        return [gang for gang in gangs if isinstance(gang.in_phase, Planned | Reserving)]


def _differ(old_node: Node | None, node: Node | None, facts: Callable[[Node], object]) -> bool:
    """Return whether these facts of a node changed, or the node appeared or went."""
    return old_node is None or node is None or facts(old_node) != facts(node)
