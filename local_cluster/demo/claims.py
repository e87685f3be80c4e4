"""What the demo claims, each checked on facts that came from the API server."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeVar

from local_cluster.demo.facts import Facts, HeldGang, Outcome, PendingGang, PlacedGang
from local_cluster.demo.matrix import Matrix

PAIR, JOB, SWITCHED = "pytorch-dist-nccl", "test-gpu-topology", "finetune"
SECOND_PAIR, RING = "pair-on-the-rest", "ring-of-four"
"""Names of the gangs; their pods' names begin so."""

BUSY = (0, 3, 6)
"""GPUs that are taken on the busy nodes."""

T = TypeVar("T", HeldGang, PendingGang)
Matrices = Mapping[str, Matrix]
Check = Callable[[Facts, Matrices], tuple[bool, str]]
"""Whether a claim holds, and what was seen. A fact that is missing raises, which refutes the claim."""


@dataclass(frozen=True, slots=True)
class Claim:
    """One sentence, whether it holds, and what was seen."""

    name: str
    text: str
    holds: bool
    evidence: str


def check(facts: Facts, matrices: Matrices) -> list[Claim]:
    """All claims, in the order of the story."""
    return [_checked(name, text, look, facts, matrices) for name, (text, look) in CLAIMS.items()]


def _checked(name: str, text: str, look: Check, facts: Facts, matrices: Matrices) -> Claim:
    try:
        holds, evidence = look(facts, matrices)
    except (LookupError, ValueError) as problem:
        holds, evidence = False, f"not seen: {problem!r}"
    return Claim(name, text, holds, evidence)


# --- placed gangs -----------------------------------------------------------------------------------


def _link(gang: str, kind: str) -> Check:
    """The weakest link on the gang's best ring is of this kind."""

    def seen(facts: Facts, _: Matrices) -> tuple[bool, str]:
        gang_placed = facts.placed[gang]
        return gang_placed.muster.link == kind, _where(gang_placed)

    return seen


def _best_left(gang: str) -> Check:
    """By trying all sets of the node's free GPUs over the matrix that it publishes."""

    def seen(facts: Facts, matrices: Matrices) -> tuple[bool, str]:
        gang_placed = facts.placed[gang]
        ((node, gpus),) = gang_placed.muster.gpus.items()
        free = gang_placed.free_gpus_before[node]
        sets = matrices[node].best_sets(free, len(gpus))
        busy = tuple(gpu for gpu in range(matrices[node].gpu_count) if gpu not in free)
        listed = " ".join("-".join(map(str, gpu_set)) for gpu_set in sets)
        return gpus in sets and busy == BUSY, f"{_where(gang_placed)}; best of all sets: {listed}"

    return seen


def _packed(facts: Facts, _: Matrices) -> tuple[bool, str]:
    nodes = {node for gang in (PAIR, JOB) for node in facts.placed[gang].muster.gpus}
    return len(nodes) == 1, f"both gangs are on {' and '.join(sorted(nodes))}"


def _not_narrower(facts: Facts, _: Matrices) -> tuple[bool, str]:
    pairs = [(_speed(gang.muster), _speed(gang.first_fit)) for gang in facts.placed.values()]
    wider = sum(ours > theirs for ours, theirs in pairs)
    evidence = f"wider for {wider} of {len(pairs)} gangs, as wide for the others"
    return bool(pairs) and all(ours >= theirs for ours, theirs in pairs), evidence


def _no_gpu_twice(facts: Facts, _: Matrices) -> tuple[bool, str]:
    pods_by_gpu = Counter((seat.node, gpu) for seat in facts.seats for gpu in seat.gpus)
    twice = [f"{node} GPU {gpu}" for (node, gpu), count in pods_by_gpu.items() if count > 1]
    wrong = [*twice, *facts.mismatched]
    evidence = ", ".join(wrong) if wrong else f"{len(pods_by_gpu)} GPUs in {len(facts.seats)} pods"
    return bool(pods_by_gpu) and not wrong, evidence


# --- gangs that wait --------------------------------------------------------------------------------


def _held(facts: Facts, _: Matrices) -> tuple[bool, str]:
    held_gang = _there(facts.held)
    before, during = held_gang.free_gpu_count_before, held_gang.free_gpu_count_while_held
    nothing = held_gang.bound == 0 and not held_gang.bound_early and before == during
    started = len(facts.placed[SWITCHED].muster.seats) == held_gang.needed
    situation = f"with {held_gang.present} of {held_gang.needed} pods there, {held_gang.bound} bound"
    return nothing and started, f"{situation}; {before} GPUs free before, {during} while it waited"


def _wholly_pending(facts: Facts, _: Matrices) -> tuple[bool, str]:
    pending = _there(facts.pending)
    return pending.bound == 0, f"{pending.members - pending.bound} of {pending.members} pods pending"


def _says_why(facts: Facts, _: Matrices) -> tuple[bool, str]:
    pending = _there(facts.pending)
    numbers = {str(pending.members), str(pending.free_gpu_count_before)}
    numbers_told = [set(re.findall(r"\d+", text)) for text in (pending.condition, pending.event)]
    names = all(numbers <= expected_numbers for expected_numbers in numbers_told)
    evidence = f"both name {' and '.join(sorted(numbers, key=int))}" if names else "a number is missing"
    return pending.condition_reason == "Unschedulable" and names, evidence


def _holds_nothing(facts: Facts, _: Matrices) -> tuple[bool, str]:
    pending = _there(facts.pending)
    before, after = pending.free_gpu_count_before, pending.free_gpu_count_after
    return before == after, f"{before} GPUs free before, {after} after"


# --- in words ---------------------------------------------------------------------------------------


def _there(gang: T | None) -> T:
    if gang is None:
        raise LookupError("the gang")
    return gang


def _speed(outcome: Outcome) -> float:
    return outcome.bandwidth_gb_per_s or 0.0


def _where(gang_placed: PlacedGang) -> str:
    spots = [f"{node} GPUs {' '.join(map(str, gpus))}" for node, gpus in gang_placed.muster.gpus.items()]
    return f"{', '.join(spots)}, {gang_placed.muster.link or 'no link'}"


CLAIMS: dict[str, tuple[str, Check]] = {
    "idle_pair_nv2": ("two one-GPU pods of a gang get a pair joined by NV2, 50 GB/s", _link(PAIR, "NV2")),
    "job_nv2": ("the two-GPU Job gets a pair joined by NV2, 50 GB/s", _link(JOB, "NV2")),
    "job_packed": ("the Job joins the node in use, the idle ones stay whole", _packed),
    "busy_pair_best": ("with GPUs 0, 3, 6 taken, two pods get the best pair left", _best_left(SECOND_PAIR)),
    "busy_ring_best": ("with GPUs 0, 3, 6 taken, four pods get the best ring left", _best_left(RING)),
    "incomplete_held": ("an incomplete gang is held, no pod bound, and starts once complete", _held),
    "switched_nv18": ("on the NVSwitch node a gang gets NV18, 450 GB/s", _link(SWITCHED, "NV18")),
    "too_large_pending": ("the gang that does not fit is wholly pending", _wholly_pending),
    "reason_names_numbers": ("its condition and its event say why, with numbers", _says_why),
    "nothing_held": ("the gang that does not fit holds nothing", _holds_nothing),
    "no_narrower_than_first_fit": ("no gang's link is narrower than first-fit's", _not_narrower),
    "no_gpu_twice": ("every pod has the GPUs it asked for, and no GPU is in two pods", _no_gpu_twice),
}
"""Name in the JSON → (the sentence, its check)."""
