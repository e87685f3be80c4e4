"""Who holds which GPU after all was decided: what the table's and the SVG's drawings show alike."""

from __future__ import annotations

import string
from collections.abc import Mapping
from dataclasses import dataclass

from muster.adapters.drawing import Mark, NodePicture
from muster.adapters.files.decide import Decided, Outcome
from muster.domain.snapshot import NodeState

TAKEN = "x"
"""Stands on a GPU that was taken before."""
MANY = "*"
"""Stands for every gang after the letters have run out."""

_LETTERS = string.ascii_uppercase + string.ascii_lowercase.replace(TAKEN, "")


@dataclass(frozen=True, slots=True)
class Holdings:
    """`letters`: gang key → letter, of placed gangs. `held`: node → GPU → (gang key, pod) placed there now.
    `members`: node → gang key → how many of its members, those without GPUs too."""

    letters: Mapping[str, str]
    held: Mapping[str, Mapping[int, tuple[str, str]]]
    members: Mapping[str, Mapping[str, int]]


def holdings(decided: Decided) -> Holdings:
    letters: dict[str, str] = {}
    held: dict[str, dict[int, tuple[str, str]]] = {}
    members: dict[str, dict[str, int]] = {}
    for outcome in decided.outcomes:
        if outcome.placed is None:
            continue
        key = key_of(outcome)
        letters[key] = _LETTERS[len(letters)] if len(letters) < len(_LETTERS) else MANY
        for member in outcome.placed.members:
            held.setdefault(member.node, {}).update(dict.fromkeys(member.gpus, (key, member.name)))
            counts = members.setdefault(member.node, {})
            counts[key] = counts.get(key, 0) + 1
    return Holdings(letters, held, members)


def key_of(outcome: Outcome) -> str:
    return outcome.group.gang.key


def picture(state: NodeState, known: Holdings) -> NodePicture:
    """One node, for `adapters.drawing`; `state` is the one after."""
    topology, name = state.node.topology, state.node.name
    marks = {gpu: Mark(TAKEN) for gpu in range(topology.gpu_count) if not state.free_gpus >> gpu & 1}
    marks |= {gpu: Mark(known.letters[key], True) for gpu, (key, _) in known.held.get(name, {}).items()}
    return NodePicture(name, topology, marks, state.unindexed_gpus)
