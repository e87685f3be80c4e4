"""Say which gang holds which GPU after all was decided. The table's and the SVG's drawings share this."""

from __future__ import annotations

import string
from collections.abc import Mapping, Set
from dataclasses import dataclass

from muster.adapters.drawing import Mark, NodePicture
from muster.adapters.files.decide import Decided, Outcome
from muster.domain.snapshot import NodeState

TAKEN = "x"
"""The mark of a GPU that was taken before."""
PARTLY = "/"
"""The mark of a GPU whose memory was partly taken before."""
SHARED = "+"
"""The mark of a GPU that several of the gangs share."""
MANY = "*"
"""The letter of every gang after the other letters are used up."""

_LETTERS = string.ascii_uppercase + string.ascii_lowercase.replace(TAKEN, "")


@dataclass(frozen=True, slots=True)
class Holdings:
    """Which gang holds which GPU.

    `letters` maps the key of each placed gang to its letter. `holders` is node → GPU → (gang key, pod) as
    placed now; of several pods that share the GPU, the last. `shared` has (node, GPU) if several gangs have
    the GPU. `members` is node → gang key → how many members of the gang are there, with or without GPUs.
    """

    letters: Mapping[str, str]
    holders: Mapping[str, Mapping[int, tuple[str, str]]]
    members: Mapping[str, Mapping[str, int]]
    shared: Set[tuple[str, int]] = frozenset()

    def letter(self, node: str, gpu: int) -> str:
        """Return the mark of a GPU that is held."""
        return SHARED if (node, gpu) in self.shared else self.letters[self.holders[node][gpu][0]]


def holdings(decided: Decided) -> Holdings:
    """Return who holds which GPU, with a letter for each placed gang."""
    letters: dict[str, str] = {}
    holders: dict[str, dict[int, tuple[str, str]]] = {}
    members: dict[str, dict[str, int]] = {}
    shared: set[tuple[str, int]] = set()
    for outcome in decided.outcomes:
        if outcome.placed is None:
            continue
        key = key_of(outcome)
        letters[key] = _LETTERS[len(letters)] if len(letters) < len(_LETTERS) else MANY
        for member in outcome.placed.members:
            on_node = holders.setdefault(member.node, {})
            shared.update((member.node, gpu) for gpu in member.gpus if on_node.get(gpu, (key,))[0] != key)
            on_node.update(dict.fromkeys(member.gpus, (key, member.name)))
            counts = members.setdefault(member.node, {})
            counts[key] = counts.get(key, 0) + 1
    return Holdings(letters, holders, members, shared)


def key_of(outcome: Outcome) -> str:
    """Return the gang's key, which tells gangs of one name apart."""
    return outcome.group.gang.key


def picture(state: NodeState, holders: Holdings) -> NodePicture:
    """Return the picture of one node for `adapters.drawing`. `state` is the node's state after all
    decisions."""
    topology, name = state.node.topology, state.node.name
    marks = {
        gpu: Mark(mark_of(state, gpu)) for gpu in range(topology.gpu_count) if not state.free_gpus >> gpu & 1
    }
    marks |= {gpu: Mark(holders.letter(name, gpu), True) for gpu in holders.holders.get(name, {})}
    return NodePicture(name, topology, marks, state.unindexed_gpus, state.node.machine)


def mark_of(state: NodeState, gpu: int) -> str:
    """Return the mark of a GPU that was taken before, wholly or partly."""
    return PARTLY if gpu < len(state.memory) and state.memory[gpu] else TAKEN
