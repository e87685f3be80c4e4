# ruff: noqa: E501 — golden sentences are as long as they are
"""Golden sentences: the cause first, with its numbers, short enough for an event."""

from __future__ import annotations

import pytest

from muster.domain.decision import Invalid, Placed, Unplaceable
from muster.domain.reasons import (
    BadValue,
    Cause,
    DialectsDisagree,
    DomainTooSmall,
    ForgedAllocation,
    MembersDisagree,
    MembersMissing,
    MemberTooLarge,
    NodesExcluded,
    NotDecided,
    NotEnoughFree,
    TooManyMembers,
)
from muster.domain.request import GangId
from muster.domain.sentences import MAX_CHARACTERS, placed_sentence, sentence
from muster.placement.place import place
from tests.placement.drawings import cluster, gang

GPU = "nvidia.com/gpu"

GOLDEN: list[tuple[Cause, str]] = [
    (
        BadValue("pod/default/w-0", "label gpu-topology-replica", "four", "a positive integer"),
        'pod/default/w-0: label gpu-topology-replica is "four", expected a positive integer',
    ),
    (
        MembersDisagree("gpu-topology-replica", (("2", "w-0"), ("3", "w-1"))),
        'Pods of one gang disagree on gpu-topology-replica: "2" (pod w-0), "3" (pod w-1)',
    ),
    (TooManyMembers(5, 4), "The gang has 5 live pods, more than its 4 replicas"),
    (
        ForgedAllocation("w-0", "gpu.topology/allocation"),
        "Pod w-0 came with the annotation gpu.topology/allocation, which only the scheduler may write",
    ),
    (
        DialectsDisagree("w-0", "ack gang a", "kai gang b"),
        "Pod w-0 names two different gangs or counts: ack gang a and kai gang b",
    ),
    (MembersMissing(3, 4), "Waiting for 1 more member: 3 of 4 are here"),
    (
        MemberTooLarge("worker", GPU, 16, "a", 8),
        "A member of role worker asks for 16 nvidia.com/gpu, and the largest node that admits it, a, has 8 nvidia.com/gpu",
    ),
    (
        MemberTooLarge("worker", "memory", 3 * 2**30, "a", 2**31),
        "A member of role worker asks for 3 GiB of memory, and the largest node that admits it, a, has 2 GiB of memory",
    ),
    (
        NotEnoughFree("worker", GPU, 10, 12, 2, 3),
        "Role worker needs 12 nvidia.com/gpu for 3 members, and 10 nvidia.com/gpu are free: 2 of 3 fit",
    ),
    (
        NotEnoughFree("worker", GPU, 12, 12, 1, 3),
        "Role worker needs 12 nvidia.com/gpu for 3 members; 12 nvidia.com/gpu are free, but scattered: only 1 of 3 fits",
    ),
    (
        NotEnoughFree("master, worker", "cpu", 1500, 3000, 0, 2),
        "Roles master, worker need 3 cpu for 2 members, and 1.5 cpu are free: none of 2 fits",
    ),
    (
        NotEnoughFree("", GPU, 8, 10, 8, 10),
        "The gang needs 10 nvidia.com/gpu for 10 members, and 8 nvidia.com/gpu are free: 8 of 10 fit",
    ),
    (NodesExcluded("", "cordoned", 1), "1 node does not admit the gang: cordoned"),
    (
        DomainTooSmall("nvlink-domain", "dgx-07/0", 3, 4),
        "No one nvlink-domain holds all 4 members: the best, dgx-07/0, holds 3",
    ),
    (
        DomainTooSmall("nvlink-domain", "a/0", 1, 2, has_nvlink=False),
        "No one nvlink-domain holds all 2 members: the best, a/0, holds 1; its node has no NVLink",
    ),
    (
        DomainTooSmall("rack", "", 0, 2),
        "All 2 members must lie in one rack, and none is known that has room for one",
    ),
    (NodesExcluded("worker", "cordoned", 1), "1 node does not admit role worker: cordoned"),
    (
        NodesExcluded("worker", "taint pool=a100:NoSchedule", 3),
        "3 nodes do not admit role worker: taint pool=a100:NoSchedule",
    ),
    (
        NotDecided(truncated=True),
        "The search was ended by wall clock before it found a plan or a proof that there is none",
    ),
]


@pytest.mark.parametrize(("cause", "expected"), GOLDEN, ids=lambda value: type(value).__name__)
def test_causes(cause: Cause, expected: str) -> None:
    assert sentence((cause,)) == expected


def test_decisions() -> None:
    causes = (DomainTooSmall("nvlink-domain", "a/0", 3, 4), NodesExcluded("w", "cordoned", 1))
    assert sentence(Unplaceable(GangId("n", "d", "g"), causes, ("scope node instead of nvlink-domain",))) == (
        "No one nvlink-domain holds all 4 members: the best, a/0, holds 3; 1 node does not admit role w: cordoned. "
        "It would help: scope node instead of nvlink-domain"
    )
    assert sentence(Invalid(GangId("n", "d", "g"), (TooManyMembers(5, 4),))).startswith("The gang has 5")


def test_long_ones_are_cut() -> None:
    causes = tuple(NodesExcluded("w", f"selector {'x' * 100}={i}", i) for i in range(50))
    assert len(sentence(causes)) <= MAX_CHARACTERS


PLACED = {
    (": a[v100-8x-gputopology-document, free 1001 0000]", "2 x 1 GPU"): (
        "2 of 2 members on node a: GPUs 0,3 (NV2, 50 GB/s modelled), proven optimal"
    ),
    (": a[8, free 0000 0100]", "3 x 1 GPU, min 1"): "1 of 3 members on node a: GPU 5, proven optimal",
    ("rack r1: a[4] b[4]", "2 x 4 GPU"): (
        "2 of 2 members on 2 nodes in rack r1: a ×1 GPUs 0,1,2,3; b ×1 GPUs 0,1,2,3 "
        "(NV12, 300 GB/s modelled), proven optimal"
    ),
    (": a[0]", "1 x 0 GPU"): "1 of 1 members on node a, proven optimal",
}


@pytest.mark.parametrize("drawing", PLACED)
def test_placed(drawing: tuple[str, str]) -> None:
    request = gang(drawing[1])
    placed = place(cluster(drawing[0]), request)
    assert isinstance(placed, Placed)
    assert placed_sentence(placed, request) == PLACED[drawing]
