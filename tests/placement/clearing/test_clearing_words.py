"""The sentence about the victims of a refused gang, and about why no victims help."""

from __future__ import annotations

from dataclasses import replace

import pytest

from muster.domain.causes.too_little import NotEnoughFree
from muster.domain.clearing import Blocker, BlockerKind, Clearing, NoClearing, Occupant, Victim
from muster.domain.clearing_words import clearing_clause
from muster.domain.decision import FewerMembers, Objective, Placed, Unplaceable
from muster.domain.node import Resources, Usage
from muster.domain.request import GangId
from muster.domain.sentences import MAX_CHARACTERS, sentence
from muster.domain.topology import mask_of

GANG = GangId("ml", "annotations", "big")
OBJECTIVE = Objective(None, (), (), None, (), None, 0.0, 0, 0)
PLAN = Placed(GANG, (), OBJECTIVE, None, "", optimal=True)
HOUR = 3600.0


def occupant(name: str, gpus: int = 8) -> Occupant:
    return Occupant(Usage(name, "node", Resources(), gpus=mask_of(range(gpus))), name)


def victim(
    name: str,
    pods: int = 2,
    *,
    of: int = 0,
    gpus: int = 8,
    priority: int = 10,
    hours: float = 1,
    loss: int = 960,
) -> Victim:
    """A unit that loses `pods` pods of its `of`; all of them, if `of` is 0."""
    gone = tuple(occupant(f"{name}-{i}", gpus) for i in range(pods))
    return Victim(name, name, priority, gone, not of, loss, of or pods, hours * HOUR)


def clearing(*victims: Victim, going: int = 0, **proof: object) -> Clearing:
    ending = tuple(occupant(f"batch/a-{i}") for i in range(going))
    return replace(Clearing(GANG, victims, ending, PLAN), **proof)  # type: ignore[arg-type]


def no_clearing(*blockers: Blocker, count: int = 0) -> NoClearing:
    return NoClearing(GANG, proven=True, blockers=blockers, blocker_count=count or len(blockers))


HIGHER = Blocker(BlockerKind.PRIORITY, "ml/a", pods=2, gpus=16, priority=100)
PROTECTED = Blocker(BlockerKind.PROTECTED, "ml/b", pods=1, gpus=1, clause="it says never")
BUDGET = Blocker(BlockerKind.BUDGET, "ml/pdb", pods=8, gpus=8, allowed=1)

CLAUSES: dict[str, tuple[Clearing | NoClearing, str]] = {
    "one gang": (
        clearing(victim("batch/sweep-7", hours=0.67)),
        "the gang would fit if batch/sweep-7 ended (priority 10, 16 GPUs, running 40 min)",
    ),
    "one pod": (
        clearing(victim("pod ml/notebook", pods=1, gpus=1, priority=0, hours=100)),
        "the gang would fit if pod ml/notebook ended (priority 0, 1 GPU, running 4 d)",
    ),
    "a gang without GPUs": (
        clearing(victim("ml/loader", pods=3, gpus=0, hours=0.01)),
        "the gang would fit if ml/loader ended (priority 10, 3 pods, running 36 s)",
    ),
    "several gangs": (
        clearing(*(victim(f"batch/s-{i}", gpus=8 - i, loss=2500) for i in range(5))),
        "the gang would fit if 5 gangs of priority 10 ended (60 GPUs, 208 GPU-hours lost): "
        "batch/s-0, batch/s-1, batch/s-2 and 2 more",
    ),
    "gangs and pods of several priorities": (
        clearing(victim("ml/a", loss=90), victim("pod ml/p", pods=1, gpus=1, priority=3, loss=20)),
        "the gang would fit if 2 gangs or pods of priority 10 or less ended (17 GPUs, 110 GPU-minutes lost): "
        "ml/a, pod ml/p",
    ),
    "some members of a gang": (
        clearing(victim("ml/elastic", pods=4, of=16)),
        "the gang would fit if 4 of the 16 members of ml/elastic ended (priority 10, 32 GPUs)",
    ),
    "a gang, and some members of another": (
        clearing(victim("ml/a"), victim("ml/elastic", pods=1, of=3, loss=80)),
        "the gang would fit if 2 gangs of priority 10 ended (24 GPUs, 17 GPU-hours lost): "
        "ml/a, 1 of the 3 members of ml/elastic",
    ),
    "pods that end anyway": (
        clearing(going=3),
        "the gang will fit when 3 pods that are being deleted are gone: batch/a-0, batch/a-1, batch/a-2",
    ),
    "a gang, and a pod that ends anyway": (
        clearing(victim("ml/a"), going=1),
        "the gang would fit if ml/a ended (priority 10, 16 GPUs, running 60 min); "
        "it must also wait until 1 pod that is being deleted is gone",
    ),
    "no victim": (clearing(), ""),
    "not proven": (
        clearing(victim("ml/a"), proven=False, gap=0.041),
        "the gang would fit if ml/a ended (priority 10, 16 GPUs, running 60 min); "
        "others may lose up to 4.1 % less",
    ),
    "not proven, without a bound": (
        clearing(victim("ml/a"), proven=False),
        "the gang would fit if ml/a ended (priority 10, 16 GPUs, running 60 min); "
        "it is not proven that no others are better",
    ),
    "blockers of each kind": (
        no_clearing(HIGHER, PROTECTED, BUDGET),
        "the end of gangs of lower priority would not make enough room: ml/a has priority 100 and 16 GPUs; "
        "ml/b with 1 GPU is protected: it says never; PodDisruptionBudget ml/pdb allows 1 of 8 evictions",
    ),
    "many blockers": (
        no_clearing(HIGHER, HIGHER, HIGHER, HIGHER, count=12),
        "the end of gangs of lower priority would not make enough room: ml/a has priority 100 and 16 GPUs; "
        "ml/a has priority 100 and 16 GPUs; ml/a has priority 100 and 16 GPUs; and 9 more",
    ),
    "not even an empty cluster": (
        NoClearing(GANG, proven=True, even_empty=True),
        "the end of other gangs would not make enough room",
    ),
    "not decided": (
        NoClearing(GANG, proven=False),
        "it was not decided whose end would make room",
    ),
}


@pytest.mark.parametrize(("answer", "clause"), CLAUSES.values(), ids=CLAUSES)
def test_the_victims_or_the_obstacles_are_named(answer: Clearing | NoClearing, clause: str) -> None:
    assert clearing_clause(answer) == clause


def test_the_causes_come_first_and_the_other_changes_that_help_last() -> None:
    cause = NotEnoughFree("", "nvidia.com/gpu", 0, 16, 0, 2)
    refused = Unplaceable(GANG, (cause,), (FewerMembers(1, 2),), clearing=clearing(victim("ml/a")))
    assert sentence(refused) == (
        "The gang needs 16 nvidia.com/gpu for 2 members, and 0 nvidia.com/gpu are free: none of 2 fits. "
        "The gang would fit if ml/a ended (priority 10, 16 GPUs, running 60 min). "
        "It would help: to start with 1 member instead of 2"
    )
    assert sentence(replace(refused, clearing=clearing(), relaxations=())) == (
        "The gang needs 16 nvidia.com/gpu for 2 members, and 0 nvidia.com/gpu are free: none of 2 fits"
    )


def test_long_names_leave_the_sentence_its_bound() -> None:
    long_names = clearing(*(victim(f"{'n' * 63}/{'g' * 253}-{i}") for i in range(2000)))
    refused = Unplaceable(GANG, (NotEnoughFree("", "nvidia.com/gpu", 0, 16, 0, 2),), clearing=long_names)
    assert len(sentence(refused)) == MAX_CHARACTERS
