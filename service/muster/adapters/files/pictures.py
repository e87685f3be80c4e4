"""Who holds which GPU after all was decided: what the table's and the SVG's drawings show alike."""

from __future__ import annotations

import string
from collections.abc import Mapping, Set
from dataclasses import dataclass

from muster.adapters.drawing import Mark, NodePicture
from muster.adapters.files.decide import Decided, Outcome
from muster.domain.snapshot import NodeState

TAKEN = "x"
"""Stands on a GPU that was taken before."""
PARTLY = "/"
"""Stands on a GPU of whose memory some was taken before, and some is left."""
SHARED = "+"
"""Stands on a GPU that several of the gangs share."""
MANY = "*"
"""Stands for every gang after the letters have run out."""

_LETTERS = string.ascii_uppercase + string.ascii_lowercase.replace(TAKEN, "")


@dataclass(frozen=True, slots=True)
class Holdings:
    """`letters`: gang key → letter, of placed gangs. `held`: node → GPU → (gang key, pod) placed there now,
    of several that share it the last. `shared`: (node, GPU) where those are of several gangs.
    `members`: node → gang key → how many of its members, those without GPUs too."""

    letters: Mapping[str, str]
    held: Mapping[str, Mapping[int, tuple[str, str]]]
    members: Mapping[str, Mapping[str, int]]
    shared: Set[tuple[str, int]] = frozenset()

    def letter(self, node: str, gpu: int) -> str:
        """What stands on a GPU that is held."""
        return SHARED if (node, gpu) in self.shared else self.letters[self.held[node][gpu][0]]


def holdings(decided: Decided) -> Holdings:
    """Return who holds which GPU, with a letter for each placed gang."""
    letters: dict[str, str] = {}
    held: dict[str, dict[int, tuple[str, str]]] = {}
    members: dict[str, dict[str, int]] = {}
    shared: set[tuple[str, int]] = set()
    for outcome in decided.outcomes:
        if outcome.placed is None:
            continue
        key = key_of(outcome)
        letters[key] = _LETTERS[len(letters)] if len(letters) < len(_LETTERS) else MANY
        for member in outcome.placed.members:
            on_node = held.setdefault(member.node, {})
            shared.update((member.node, gpu) for gpu in member.gpus if on_node.get(gpu, (key,))[0] != key)
            on_node.update(dict.fromkeys(member.gpus, (key, member.name)))
            counts = members.setdefault(member.node, {})
            counts[key] = counts.get(key, 0) + 1
    return Holdings(letters, held, members, shared)


def key_of(outcome: Outcome) -> str:
    """Return the gang's key, which tells gangs of one name apart."""
    return outcome.group.gang.key


def picture(state: NodeState, known: Holdings) -> NodePicture:
    """One node, for `adapters.drawing`; `state` is the one after."""
    topology, name = state.node.topology, state.node.name
    marks = {
        gpu: Mark(taken(state, gpu)) for gpu in range(topology.gpu_count) if not state.free_gpus >> gpu & 1
    }
    marks |= {gpu: Mark(known.letter(name, gpu), True) for gpu in known.held.get(name, {})}
    return NodePicture(name, topology, marks, state.unindexed_gpus, state.node.machine)


def taken(state: NodeState, gpu: int) -> str:
    """Return the mark of a GPU that is taken before, in whole or in part."""
    return PARTLY if gpu < len(state.memory) and state.memory[gpu] else TAKEN
