"""Show decisions in a terminal: one row for each gang, then the touched nodes, with letters for gangs.

The pictures are readable without colour. The SVG shares the letters.
"""

from __future__ import annotations

import string
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass

from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from muster.adapters.drawing import Mark, NodePicture, draw_node, draw_strips
from muster.adapters.files.decide import GangOutcome, Outcomes, OutcomeStatus
from muster.domain.clearing import Clearing
from muster.domain.decision import Unplaceable
from muster.domain.printable import printable
from muster.domain.snapshot import NodeState
from muster.domain.topology import bits
from muster.domain.words import list_names, natural_key

TAKEN_MARK = "x"
"""The mark of a GPU that was taken before."""
PARTLY = "/"
"""The mark of a GPU whose memory was partly taken before."""
SHARED = "+"
"""The mark of a GPU that several of the gangs share."""
VICTIM = "!"
"""The mark of a GPU whose pod would have to end so that a refused gang fits."""
MANY = "*"
"""The letter of every gang after the other letters are used up."""

_LETTERS = string.ascii_uppercase + string.ascii_lowercase.replace(TAKEN_MARK, "")


@dataclass(frozen=True, slots=True)
class Holdings:
    """The GPUs that each gang holds.

    `letters`: key of a placed gang → its letter. `holders`: node → GPU → (gang key, pod) as placed now; if
    several pods share the GPU, the last of them. `shared` has (node, GPU) if several gangs have the GPU.
    `members`: node → gang key → number of the gang's members there, with or without GPUs. `victims`: node →
    GPU → the pod that would have to end so that a refused gang fits.
    """

    letters: Mapping[str, str]
    holders: Mapping[str, Mapping[int, tuple[str, str]]]
    members: Mapping[str, Mapping[str, int]]
    victims: Mapping[str, Mapping[int, str]]
    shared: Set[tuple[str, int]] = frozenset()

    def letter(self, node: str, gpu: int) -> str:
        """Return the mark of a GPU that is held."""
        return SHARED if (node, gpu) in self.shared else self.letters[self.holders[node][gpu][0]]


def holdings(decided: Outcomes) -> Holdings:
    """Return the GPUs that each gang holds, with a letter for each placed gang."""
    letters: dict[str, str] = {}
    holders: dict[str, dict[int, tuple[str, str]]] = {}
    members: dict[str, dict[str, int]] = {}
    shared: set[tuple[str, int]] = set()
    for outcome in decided.outcomes:
        if outcome.plan is None:
            continue
        key = key_of(outcome)
        letters[key] = _LETTERS[len(letters)] if len(letters) < len(_LETTERS) else MANY
        for member in outcome.plan.members:
            on_node = holders.setdefault(member.node, {})
            shared.update((member.node, gpu) for gpu in member.gpus if on_node.get(gpu, (key,))[0] != key)
            on_node.update(dict.fromkeys(member.gpus, (key, member.name)))
            counts = members.setdefault(member.node, {})
            counts[key] = counts.get(key, 0) + 1
    return Holdings(letters, holders, members, _victims(decided), shared)


def _victims(decided: Outcomes) -> dict[str, dict[int, str]]:
    victims: dict[str, dict[int, str]] = {}
    for outcome in decided.outcomes:
        clearing = outcome.decision.clearing if isinstance(outcome.decision, Unplaceable) else None
        for victim in clearing.victims if isinstance(clearing, Clearing) else ():
            for pod in (pod for pod in victim.pods if pod.usage.gpus):
                victims.setdefault(pod.usage.node, {}).update(dict.fromkeys(bits(pod.usage.gpus), pod.name))
    return victims


def key_of(outcome: GangOutcome) -> str:
    """Return the gang's key, by which gangs of one name differ."""
    return outcome.group.gang.key


def rails_used(decided: Outcomes, outcome: GangOutcome) -> str:
    """Return "network rails 1,2" for a gang on several nodes that does not use all rails of its nodes, else
    ""."""
    rails_of_gang, rails_of_nodes = set[int](), set[int]()
    if outcome.plan is None or outcome.plan.objective.rails is None:
        return ""
    for member in outcome.plan.members:
        rail_by_gpu = decided.after.nodes[member.node].node.rail_by_gpu
        rails_of_nodes.update(rail_by_gpu if member.gpus else ())
        rails_of_gang.update(rail_by_gpu[gpu] for gpu in member.gpus if rail_by_gpu)
    if rails_of_gang == rails_of_nodes:
        return ""
    return f"network rails {','.join(map(str, sorted(rails_of_gang)))}"


def picture(state: NodeState, holders: Holdings) -> NodePicture:
    """Return the picture of one node for `adapters.drawing`. `state` is the node's state after all
    decisions."""
    topology, name = state.node.topology, state.node.name
    taken_gpus = [gpu for gpu in range(topology.gpu_count) if not state.free_gpus >> gpu & 1]
    marks = {gpu: Mark(mark_of(state, gpu, holders)) for gpu in taken_gpus}
    marks |= {gpu: Mark(holders.letter(name, gpu), True) for gpu in holders.holders.get(name, {})}
    return NodePicture(name, topology, marks, state.unindexed_gpus, state.node.machine)


def mark_of(state: NodeState, gpu: int, holdings: Holdings) -> str:
    """Return the mark of a GPU that was taken before, wholly or partly."""
    if gpu in holdings.victims.get(state.node.name, {}):
        return VICTIM
    return PARTLY if gpu < len(state.memory) and state.memory[gpu] else TAKEN_MARK


# --- the terminal --------------------------------------------------------------------------------

DRAWN = 6
"""Up to this number of nodes, each is drawn with its links. More nodes are drawn as strips."""
STRIPS = 64
"""Largest number of strips. Further nodes are counted."""

_STYLES = {
    OutcomeStatus.PLACED: "bold green",
    OutcomeStatus.WAITING: "yellow",
    OutcomeStatus.UNPLACEABLE: "bold red",
    OutcomeStatus.INVALID: "bold red",
}


def show(console: Console, decided: Outcomes, made_up_names: Sequence[str] = ()) -> None:
    """Print all decisions, then the nodes that hold members or victims.

    `made_up_names`: objects with generateName.
    """
    if not decided.outcomes:
        console.print("No gang is pending: there is nothing to place.")
        return
    held_gpus = holdings(decided)
    console.print(_gangs(decided, held_gpus))
    if made_up_names:
        console.print(Text(printable(f"made-up names, for generateName: {list_names(made_up_names)}"), "dim"))
    touched = {name for name, gpus in held_gpus.holders.items() if gpus} | held_gpus.victims.keys()
    nodes = sorted(touched, key=natural_key)
    if nodes:
        console.print()
        console.print(_nodes(decided, held_gpus, nodes), no_wrap=True, overflow="ignore", crop=False)


def _gangs(decided: Outcomes, holdings: Holdings) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column("", no_wrap=True)
    table.add_column("GANG", overflow="fold")
    table.add_column("STATUS", no_wrap=True)
    table.add_column("PODS", no_wrap=True, justify="right")
    table.add_column("DECISION", overflow="fold")
    for outcome in decided.outcomes:
        table.add_row(
            Text(holdings.letters.get(key_of(outcome), "")),
            Text(printable(str(outcome.group.gang))),
            Text(outcome.status.value, _STYLES[outcome.status]),
            _pods(outcome),
            Text(printable(outcome.message)),
        )
    return table


def _pods(outcome: GangOutcome) -> str:
    """Return the number of placed and bound pods, and the number of needed pods, or of present pods if that
    is larger."""
    placed_count = len(outcome.plan.members) if outcome.plan else 0
    bound = len(outcome.group.bound)
    return f"{placed_count + bound}/{max(outcome.group.needed, outcome.group.present)}"


def _more_marks(shown: list[NodePicture]) -> str:
    """Return the explanation of the marks that most pictures do not have."""
    letters = {mark.letter for picture in shown for mark in picture.marks.values()}
    meanings = {
        PARTLY: "its memory in part",
        SHARED: "several of the gangs",
        VICTIM: "would have to end",
    }
    return "".join(f"   {letter}: {text}" for letter, text in meanings.items() if letter in letters)


def _nodes(decided: Outcomes, holdings: Holdings, nodes: list[str]) -> RenderableType:
    shown = [picture(decided.after.nodes[name], holdings) for name in nodes[:STRIPS]]
    legend = Text(f"letters: the gangs above   {TAKEN_MARK}: taken before{_more_marks(shown)}", "dim")
    if len(nodes) <= DRAWN:
        parts: list[RenderableType] = [part for p in shown for part in (draw_node(p), Text())]
    else:
        parts = [draw_strips(shown)]
        if len(nodes) > STRIPS:
            parts.append(Text(f"and {len(nodes) - STRIPS} nodes more"))
    for outcome in decided.outcomes:
        if rails := rails_used(decided, outcome):
            parts.append(Text(f"{holdings.letters[key_of(outcome)]}: {rails}", "dim"))
    return Group(*parts, legend)
