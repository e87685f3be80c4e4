# ruff: noqa: E501 — golden sentences are as long as they are
"""`max-per`: a part holds at most a number of members."""

from __future__ import annotations

from hypothesis import strategies as st

from muster.domain.causes.out_of_place import NoSuchDomain
from muster.domain.constraints import MaxPer, MorePerPart, TooFewParts
from muster.domain.decision import FewerMembers
from tests.placement.constraints.tested import Tested

ISLANDS = "rack r1: a[8 = 4+4] b[8 = 4+4]\n rack r2: c[8 = 4+4] d[8 = 4+4]\n: e[8 = 4+4]"

MAX_PER = Tested(
    kind=MaxPer,
    cause=TooFewParts,
    relaxation=MorePerPart,
    word="max",
    feature="max per",
    numbers=st.integers(1, 3),
    kept=lambda most, members: members <= most,
    families={"at most so many in one part": ("max per",)},
    read={"at most so many": ("rack=2, node = 1", (MaxPer("node", 1), MaxPer("rack", 2)))},
    misread={
        "no number": "rack",
        "none at all": "rack=0",
        "the same part twice": "rack=1,rack=2",
        "no part": "=1",
        "GPUs, which members do not share": "node=2,gpu=1",
    },
    plans={
        "too many on a node": (
            ISLANDS,
            "3 x 1 GPU, max node=2",
            "w-0@a/0 w-1@a/1 w-2@b/0",
            "w-0@a/0 w-1@a/1 w-2@a/2",
            "in node a",
        ),
        "too many in a rack, running ones counted": (
            ISLANDS,
            "2 x 1 GPU, max rack=2 node=2, running w-9@a/0",
            "w-0@b/0 w-1@c/0",
            "w-0@b/0 w-1@b/1",
            "3 members lie in rack r1, at most 2 may",
        ),
        "too many on a node without a rack": (
            ISLANDS,
            "3 x 1 GPU, max rack=2",
            "w-0@e/0 w-1@e/1 w-2@a/0",
            "w-0@e/0 w-1@e/1 w-2@e/2",
            "in rack e",
        ),
        "too many in a domain, both of one member's counted": (
            ISLANDS,
            "1 x 2 GPU + 1 x 1 GPU + 1 x 0 GPU, max nvlink-domain=1",
            "w-0@a/01 x-0@a/4 y-0@a",
            "w-0@a/34 x-0@a/5 y-0@a",
            "2 members lie in nvlink-domain a/1, at most 1 may",
        ),
    },
    refused={
        "at most so many in one node": (
            ": a[8] b[8] c[8]",
            "8 x 1 GPU, max node=2",
            (TooFewParts("node", 2, 6, 8, even_empty=True),),
            (MorePerPart("node", 3, 2), FewerMembers(6, 8)),
        ),
        "no node has the label that members are spread over": (
            ": a[8] b[8]",
            "3 x 1 GPU, max block=1",
            (TooFewParts("block", 1, 2, 3, even_empty=True), NoSuchDomain("block", labels=("block",))),
            (MorePerPart("block", 2, 1), FewerMembers(2, 3)),
        ),
    },
    sentences=(
        ((TooFewParts("node", 2, 6, 8),), "At most 2 members may lie in one node: 6 of 8 fit"),
        (
            (TooFewParts("node", 1, 0, 1, running=2),),
            "At most 1 member may lie in one node, 2 that run already counted: none of 1 fits",
        ),
        (
            (TooFewParts("block", 1, 2, 3), NoSuchDomain("block")),
            "At most 1 member may lie in one block: 2 of 3 fit; no node lies in any block, so each counts as one",
        ),
    ),
    helps=((MorePerPart("node", 3, 2), "up to 3 members in one node instead of 2"),),
    found={
        "a rack with room for all, and a cap": (
            "rack r1: a[4, cpu 3] b[4, cpu 3]\n rack r2: c[4, cpu 3]",
            "3 x 1 GPU 2 cpu, max rack=2",
        ),
        "a cap on parts that no label names": (
            "rack r1: a[4]\n rack r2: c[4]",
            "2 x 1 GPU by 2 rack, max zone=1, min 1",
        ),
        "two roles in segments, and a cap that holds one segment and a half": (
            "rack r1: a[2] b[2]\n rack r2: c[2] d[2]\n rack r3: e[2]",
            "4 x 1 GPU by 2 node + 2 x 1 GPU by 2 node, max rack=3",
        ),
    },
)
