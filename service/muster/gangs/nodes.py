"""What happens to gangs when a node comes, changes, goes, or others take of it."""

from __future__ import annotations

from collections.abc import Callable

from muster.domain.node import Node
from muster.domain.sentences import unhealthy_sentence
from muster.gangs import events
from muster.gangs.gang import Gang
from muster.gangs.instructions import EmitEvent, EventReason
from muster.gangs.life import Phase, Trigger
from muster.gangs.lives import Lives


class Nodes:
    """`gang_of`: the key of the gang that a pod's UID is of, "" for none."""

    def __init__(self, lives: Lives, gang_of: Callable[[str], str]) -> None:
        self._lives = lives
        self._gang_of = gang_of
        self._problems: dict[str, str] = {}
        """What was said last of a node."""

    def changed(self, event: events.NodeSeen | events.NodeGone) -> None:
        """A node came, changed or went: plans on it that are not permitted are void."""
        lives = self._lives
        name = event.node.name if isinstance(event, events.NodeSeen) else event.name
        before = lives.ledger.nodes.get(name)
        if isinstance(event, events.NodeSeen):
            changed, what = lives.ledger.set_node(event.node), "changed"
        else:
            changed, what = lives.ledger.drop_node(name), "is gone"
            self._problems.pop(name, None)
        if not changed:
            return
        if _bears_on_constraints(before, lives.ledger.nodes.get(name)):
            lives.ledger.neighbours.marks.everything = True
        if isinstance(event, events.NodeSeen):
            self.say_problems(event.node)
        for gang in self._planned_on(name):
            lives.withdraw(gang, Trigger.NODE_CHANGED, f"node {name} {what}", event.now)
        lives.kept.let_go_of_taken(name)
        for gang in lives.gangs.values():
            if gang.refusals or gang.exclusions:
                gang.exclusions = {key: out for key, out in gang.exclusions.items() if key[1] != name}
                gang.refusals = {key: times for key, times in gang.refusals.items() if key[1] != name}
        if lives.ledger.on_node(name) and _moved(before, lives.ledger.nodes.get(name)):
            # Where members run, its labels and links bear on the places of the others, however full it is.
            lives.freed(anywhere=True)

    def say_problems(self, node: Node) -> None:
        """Say on the node what of it can't be read, and what runs on broken GPUs, once for each change."""
        said = [f"used without what can't be read: {'; '.join(node.problems)}"] if node.problems else []
        on_node = self._lives.ledger.on_node(node.name).items()
        if uids := [uid for uid, usage in on_node if usage.gpus & node.unhealthy]:
            pods = [self._lives.roster.pods.get(uid) for uid in uids]
            names = sorted(f"{pod.namespace}/{pod.name}" if pod else "a pod that is not ours" for pod in pods)
            said.insert(0, unhealthy_sentence(node.unhealthy, names))
        message = "; ".join(said)
        if self._lives.active and self._problems.get(node.name, "") != message:
            self._problems[node.name] = message
            if message:
                self._lives.voice.instruct(
                    EmitEvent("default", ((node.name, node.name),), EventReason.INVALID, message, "Node")
                )

    def taken_on(self, nodes: tuple[str, ...], now: float) -> None:
        """Void plans on nodes where others took what they hold, until what is left fits."""
        for name in nodes:
            self._lives.kept.let_go_of_taken(name)
            for gang in self._planned_on(name):
                if gang.holds and not self._lives.bears(gang):
                    why = f"others took what it was to have on node {name}"
                    self._lives.withdraw(gang, Trigger.NODE_CHANGED, why, now)

    def _planned_on(self, node: str) -> list[Gang]:
        """The gangs with a plan on the node that is not permitted yet."""
        keys = {
            self._gang_of(uid) for uid in self._lives.ledger.on_node(node) if uid in self._lives.ledger.held
        }
        gangs = (self._lives.gangs[key] for key in sorted(keys) if key)
        return [gang for gang in gangs if gang.phase in (Phase.PLANNED, Phase.RESERVING)]


def _moved(before: Node | None, after: Node | None) -> bool:
    """Whether the node is in other parts of the fabric than it was."""
    if before is None or after is None:
        return before is not after
    return (before.labels, before.topology) != (after.labels, after.topology)


def _bears_on_constraints(before: Node | None, after: Node | None) -> bool:
    """Whether the domains of constraints between pods, or the nodes that count for them, may be others."""
    if before is None or after is None:
        return before is not after
    facts = [(node.labels, node.taints, node.unschedulable) for node in (before, after)]
    return facts[0] != facts[1]
