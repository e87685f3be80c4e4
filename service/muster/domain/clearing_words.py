"""Say which pods would have to end so that a refused gang fits, or why no end of pods helps.

Users read a clause behind the causes of the refusal, which names at most `NAMED` gangs or pods. Programs read
all of them as JSON.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TypedDict

from muster.domain.clearing import Blocker, BlockerKind, Clearing, NoClearing, Victim
from muster.domain.words import counted_noun, list_names, plural, whole_units

NAMED = 3


def clearing_clause(answer: Clearing | NoClearing) -> str:
    """Return the clause: "the gang would fit if batch/sweep ended (priority 10, 16 GPUs, running 40 min)".

    Return "" if the gang fits without the end of a pod.
    """
    if isinstance(answer, NoClearing):
        return _why_none(answer)
    going = sorted(pod.name for pod in answer.going)
    is_one = len(going) == 1
    ending = f"{counted_noun('pod', len(going))} that {'is' if is_one else 'are'} being deleted"
    are_gone = f"{'is' if is_one else 'are'} gone"
    if not answer.victims:
        return f"the gang will fit when {ending} {are_gone}: {list_names(going, NAMED)}" if going else ""
    later = f"; it must also wait until {ending} {are_gone}" if going else ""
    return f"the gang would fit if {_victims(answer)}{later}{_doubt(answer)}"


def _victims(clearing: Clearing) -> str:
    """Return "batch/sweep ended (…)", "4 of the 16 members of ml/elastic ended (…)", or "4 gangs ended (…)"
    with names."""
    victims = sorted(clearing.victims, key=lambda victim: (-victim.gpus, -len(victim.pods), victim.name))
    if len(victims) == 1:
        (victim,) = victims
        time, unit = whole_units(victim.ran_s)
        ran = f", running {time} {unit}" if victim.ends else ""
        return f"{_subject(victim)} ended (priority {victim.priority}, {_size(victims)}{ran})"
    priorities = {victim.priority for victim in victims}
    priority = f"priority {max(priorities)}{' or less' if len(priorities) > 1 else ''}"
    names = [victim.name if victim.ends else _subject(victim) for victim in victims]
    cost = f"{_size(victims)}, {_loss(clearing.loss)} lost"
    return f"{_count(victims)} of {priority} ended ({cost}): {list_names(names, NAMED)}"


def _subject(victim: Victim) -> str:
    if victim.ends:
        return victim.name
    return f"{len(victim.pods)} of the {victim.members} members of {victim.name}"


def _count(victims: Sequence[Victim]) -> str:
    """Return "4 gangs", "4 pods" or "4 gangs or pods"."""
    nouns = sorted({"pod" if victim.name.startswith("pod ") else "gang" for victim in victims})
    return f"{len(victims)} {' or '.join(plural(noun, len(victims)) for noun in nouns)}"


def _size(victims: Sequence[Victim]) -> str:
    gpus = sum(victim.gpus for victim in victims)
    return counted_noun("GPU", gpus) if gpus else counted_noun("pod", sum(len(v.pods) for v in victims))


def _loss(gpu_minutes: int) -> str:
    if gpu_minutes < 120:
        return counted_noun("GPU-minute", gpu_minutes)
    hours = gpu_minutes / 60
    return f"{hours:.0f} GPU-hours" if hours >= 10 else f"{hours:.1f} GPU-hours"


def _doubt(clearing: Clearing) -> str:
    if clearing.proven:
        return ""
    if clearing.gap is None:
        return "; it is not proven that no others are better"
    return f"; others may lose up to {100 * clearing.gap:.3g} % less"


def _why_none(answer: NoClearing) -> str:
    if not answer.proven:
        return "it was not decided whose end would make room"
    if answer.even_empty or not answer.blockers:
        return "the end of other gangs would not make enough room"
    clauses = list(_obstacles(answer.blockers[:NAMED]))
    if (unnamed := answer.blocker_count - len(clauses)) > 0:
        clauses.append(f"and {unnamed} more")
    return f"the end of gangs of lower priority would not make enough room: {'; '.join(clauses)}"


def _obstacles(blockers: Sequence[Blocker]) -> Iterator[str]:
    """Yield a clause for each unit or budget that is in the way."""
    for blocker in blockers:
        size = counted_noun("GPU", blocker.gpus) if blocker.gpus else counted_noun("pod", blocker.pods)
        match blocker.kind:
            case BlockerKind.PRIORITY:
                yield f"{blocker.name} has priority {blocker.priority} and {size}"
            case BlockerKind.PROTECTED:
                yield f"{blocker.name} with {size} is protected: {blocker.clause}"
            case BlockerKind.BUDGET:
                evictions = f"{blocker.allowed} of {blocker.pods} evictions"
                yield f"PodDisruptionBudget {blocker.name} allows {evictions}"


class VictimJson(TypedDict):
    """A gang, or a pod in no gang, that would lose `pods`: all its `members` if it `ends`.

    Of many pods, only the first are in `pods`. It has run for `running_s` seconds.
    """

    name: str
    priority: int
    pods: list[str]
    pod_count: int
    members: int
    ends: bool
    gpus: int
    running_s: int
    lost_gpu_minutes: int


class ClearingJson(TypedDict):
    """The victims at the least loss with whose end the gang `fits`, or what is in its way; `says`: in words.

    Of many victims, only the first are in `victims`.
    `domain` is where the gang would lie then. `going` are pods there that are being deleted. If not `proven`,
    other victims may lose less, by the share `gap` at most. `blockers` are some of `blocker_count`.
    """

    fits: bool
    says: str
    victims: list[VictimJson]
    victim_count: int
    going: list[str]
    domain: str
    lost_gpu_minutes: int
    proven: bool
    gap: float | None
    blockers: list[Blocker]
    blocker_count: int


def clearing_json(answer: Clearing | NoClearing, most: int | None = None) -> ClearingJson:
    """Return the answer for programs, with at most `most` victims, and pods of each."""
    if isinstance(answer, NoClearing):
        return {
            "fits": False,
            "says": clearing_clause(answer),
            "victims": [],
            "victim_count": 0,
            "going": [],
            "domain": "",
            "lost_gpu_minutes": 0,
            "proven": answer.proven,
            "gap": None,
            "blockers": list(answer.blockers),
            "blocker_count": answer.blocker_count,
        }
    return {
        "fits": True,
        "says": clearing_clause(answer),
        "victims": [_victim_json(victim, most) for victim in answer.victims[:most]],
        "victim_count": len(answer.victims),
        "going": sorted(pod.name for pod in answer.going)[:most],
        "domain": answer.plan.domain,
        "lost_gpu_minutes": answer.loss,
        "proven": answer.proven,
        "gap": answer.gap,
        "blockers": [],
        "blocker_count": 0,
    }


def _victim_json(victim: Victim, most: int | None) -> VictimJson:
    return {
        "name": victim.name,
        "priority": victim.priority,
        "pods": [pod.name for pod in victim.pods[:most]],
        "pod_count": len(victim.pods),
        "members": victim.members,
        "ends": victim.ends,
        "gpus": victim.gpus,
        "running_s": int(victim.ran_s),
        "lost_gpu_minutes": victim.loss,
    }
