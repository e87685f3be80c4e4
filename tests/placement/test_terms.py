"""Policies: which nodes and GPUs they prefer, and in which order they are decided."""

from __future__ import annotations

import pytest

from muster.domain.request import PolicyTerm
from muster.domain.topology import GpuTopology, Link
from muster.placement.gpus.costs import SHARING_COSTS, Cost, costs_of
from muster.placement.gpus.links import numa_nodes
from tests.placement.cases import Fits
from tests.placement.drawings import islands, matrix
from tests.placement.policy_parts import POLICY_PARTS

SWITCHED = "nvidia.com/nvswitch.present=true"

FITS = {
    "nvlink pack is what is done anyway": Fits(
        ": a[4 = 2+2, free 0111]", "2 x 1 GPU, terms nvlink:pack", "w-0@a/2 w-1@a/3"
    ),
    "nvlink spread: as many domains as can be": Fits(
        ": a[6 = 2+2+2]", "3 x 1 GPU, terms nvlink:spread", "w-0@a/0 w-1@a/2 w-2@a/4"
    ),
    "nvswitch prefer": Fits(
        f": a[4, free 1000] b[4, {SWITCHED}]", "1 x 1 GPU, terms nvswitch:prefer", "w-0@b/0"
    ),
    "… without it, the smaller hole": Fits(f": a[4, free 1000] b[4, {SWITCHED}]", "1 x 1 GPU", "w-0@a/0"),
    "nvswitch spread: nodes with a switch are left to others": Fits(
        f": a[4] b[4, free 1000, {SWITCHED}]", "1 x 1 GPU, terms nvswitch:spread", "w-0@a/0"
    ),
    "fewer nodes come before any policy": Fits(
        f": a[4] b[2, {SWITCHED}] c[2, {SWITCHED}]",
        "4 x 1 GPU, terms nvswitch:prefer",
        "w-0@a/0 w-1@a/1 w-2@a/2 w-3@a/3",
    ),
    "the first policy is decided first": Fits(
        f": a[4 = 2+2, {SWITCHED}] b[4]",
        "3 x 1 GPU, terms nvswitch:pack nvlink:pack",
        "w-0@a/0 w-1@a/1 w-2@a/2",
    ),
    "… and the other way round": Fits(
        f": a[4 = 2+2, {SWITCHED}] b[4]",
        "3 x 1 GPU, terms nvlink:pack nvswitch:pack",
        "w-0@b/0 w-1@b/1 w-2@b/2",
    ),
    "slices spread over NVLink domains": Fits(
        ": a[4 = 2+2, share, mem 8 8 8 8]", "2 x 4 GiB, terms nvlink:spread", "w-0@a/0 w-1@a/2"
    ),
    "a policy without GPUs to choose": Fits(
        ": a[0, cpu 2]", "1 x 0 GPU 1 cpu, terms numa:pack nvswitch:prefer", "w-0@a"
    ),
}
FITS |= {name: Fits(*row) for parts in POLICY_PARTS.values() for name, row in parts.fits.items()}


@pytest.mark.parametrize("name", FITS)
def test_policies_choose(name: str) -> None:
    FITS[name].check()


PACK, SPREAD = PolicyTerm("nvlink", "pack"), PolicyTerm("nvlink", "spread")
NUMA, SWITCH = PolicyTerm("numa", "prefer"), PolicyTerm("nvswitch", "prefer")
LEVELS = {
    (): (),
    (PACK,): (),
    (SPREAD,): (Cost.NVLINK_SPREAD,),
    (NUMA,): (Cost.NUMA_NODES, Cost.NVLINK_DOMAINS),
    (PACK, NUMA): (Cost.NVLINK_DOMAINS, Cost.NUMA_NODES),
    (SWITCH, NUMA, SPREAD): (Cost.NVSWITCH, Cost.NUMA_NODES, Cost.NVLINK_SPREAD),
}


@pytest.mark.parametrize("terms", LEVELS)
def test_the_levels_of_policies(terms: tuple[PolicyTerm, ...]) -> None:
    assert costs_of(terms, sliced=False) == LEVELS[terms]
    assert costs_of(terms, sliced=True) == ((LEVELS[terms] or (Cost.NVLINK_DOMAINS,)) + SHARING_COSTS)


def test_sockets_are_what_only_sys_joins() -> None:
    pcie = {(0, 1): "PIX", (2, 3): "NODE"}
    links = tuple(
        tuple(None if i == j else Link.of_kind(pcie.get((min(i, j), max(i, j)), "SYS")) for j in range(4))
        for i in range(4)
    )
    assert numa_nodes(GpuTopology(links)) == (0b0011, 0b1100)
    assert numa_nodes(islands([8])) == (0xFF,), "NVLink tells nothing"
    assert numa_nodes(GpuTopology.unknown(4)) == (0b1111,)
    assert numa_nodes(matrix("v100-8x-hybrid-cube-mesh")) == (0x0F, 0xF0)
