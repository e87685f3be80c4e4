"""Scopes of roles and segments: by GPU, where one holds one member with GPUs, or any number without; and
levels of segments that exclude each other."""

from __future__ import annotations

import pytest

from tests.placement.cases import Fits
from tests.placement.drawings import gang

PAIRS = ": a[4 = 2+2]"

FITS = {
    "a role of one member": Fits(PAIRS, "1 x 1 GPU within gpu + 1 x 1 GPU", "w-0@a/0 x-0@a/1"),
    "as many of a role as one GPU holds": Fits(PAIRS, "3 x 1 GPU within gpu, min 1", "w-0@a/0"),
    "two roles, each in a GPU of its own": Fits(
        PAIRS, "1 x 1 GPU within gpu + 1 x 1 GPU within gpu", "w-0@a/0 x-0@a/1"
    ),
    "members without GPUs, where indices are known": Fits(
        ": a[4 = 2+2, unindexed 1] b[1]", "2 x 0 GPU within gpu", "w-0@b w-1@b"
    ),
    "a segment without GPUs": Fits(
        ": a[4 = 2+2, cpu 1] b[1, cpu 2]", "2 x 0 GPU 1 cpu by 2 gpu", "w-0@b w-1@b"
    ),
    "a segment of part of the role": Fits(PAIRS, "2 x 1 GPU by 2 gpu, min 1", "w-0@a/0"),
    "a wide domain is as many GPUs": Fits(
        ": a[2, clique k] b[2, clique k]", "2 x 1 GPU within gpu, min 1", "w-0@a/0"
    ),
    "a subgroup of which a member without GPUs runs: any domain of its node will do": Fits(
        ": a[4 = 2+2, free 1101]",
        "2 x 1 GPU + 1 x 0 GPU, share nvlink-domain=w+x, running x-9@a",
        "w-0@a/0 w-1@a/1 x-0@a",
    ),
    "and any GPU": Fits(PAIRS, "1 x 1 GPU + 1 x 0 GPU, share gpu=w+x, running x-9@a", "w-0@a/0 x-0@a"),
    "a role in two subgroups, of which members run in two domains": Fits(
        ": a[8 = 4+4, free 0100 0111]",
        "1 x 1 GPU + 2 x 1 GPU + 1 x 1 GPU, share nvlink-domain=w+x nvlink-domain=x+y, "
        "running w-9@a/0 y-9@a/4, min 2",
        "w-0@a/1 y-0@a/5",
    ),
}


@pytest.mark.parametrize("name", FITS)
def test_members_in_one_gpu(name: str) -> None:
    FITS[name].check()


@pytest.mark.parametrize("by", ["by 4 node by 2 node", "by 8 rack by 4 node by 2 rack"])
def test_segments_have_one_level_a_scope(by: str) -> None:
    with pytest.raises(ValueError, match=r"role 'w' has two segments by (node|rack)"):
        gang(f"8 x 1 GPU {by}")
