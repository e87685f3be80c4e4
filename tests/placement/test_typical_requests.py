"""Damage by the requests that usually come: the formula by hand, and which plans it makes the better ones."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from muster.domain.decision import Placed
from muster.domain.node import Usage
from muster.domain.request import TypicalRequest
from muster.domain.snapshot import Snapshot
from muster.placement.cluster.columns import LARGEST, columns_of
from muster.placement.gpus.damage import is_priced, prices_of
from muster.placement.place import place
from tests.placement.drawings import cluster, gang, plan
from tests.placement.worlds import clusters

SINGLE, PAIR, FOUR = (TypicalRequest(1, gpus, 2000 * gpus) for gpus in (1, 2, 4))
HALF = TypicalRequest(1, 1, 1000, units=4)
ON_T4 = TypicalRequest(1, 1, labels=(("model", ("T4",)),))

USABLE = {
    # a node, one kind: GPU-thousandths that it can use
    "all of them": ("a[4, cpu 8]", SINGLE, 4000),
    "cpu for three of four": ("a[4, cpu 6]", SINGLE, 3000),
    "cpu for none": ("a[4, cpu 1]", SINGLE, 0),
    "taken ones do not count": ("a[4, cpu 8, free 0110]", SINGLE, 2000),
    "nor does one of those that another scheduler took": ("a[4, cpu 8, unindexed 1]", SINGLE, 3000),
    "a pair finds three GPUs": ("a[4, cpu 8, free 0111]", PAIR, 3000),
    "a pair finds one": ("a[4, cpu 8, free 0001]", PAIR, 0),
    "cpu for one pair of two": ("a[4, cpu 4]", PAIR, 2000),
    "a half finds open GPUs and whole ones": ("a[3, cpu 8, mem 8 8 8, left 8 4 2]", HALF, 1500),
    "a half, cpu for one of two": ("a[3, cpu 1, mem 8 8 8, left 8 4 2]", HALF, 750),
    "a whole request leaves open GPUs": ("a[3, cpu 8, mem 8 8 8, left 8 4 2]", SINGLE, 1000),
    "no slices are served": ("a[4, cpu 8]", HALF, 0),
    "slices alone are served": ("a[2, cpu 8, share, mem 8 8]", SINGLE, 0),
    "its label": ("a[4, cpu 8, model=T4]", ON_T4, 4000),
    "another label": ("a[4, cpu 8, model=A100]", ON_T4, 0),
    "cordoned": ("a[4, cpu 8, cordoned]", SINGLE, 0),
}


@pytest.mark.parametrize(("drawn", "kind", "usable"), USABLE.values(), ids=USABLE.keys())
def test_what_a_kind_can_use(drawn: str, kind: TypicalRequest, usable: int) -> None:
    prices = prices_of(columns_of(replace(cluster(f": {drawn}"), typical=(kind,))))
    assert (prices.usable * (prices.weights[prices.nodes.row_class] > 0)).tolist() == [[usable]]


WHOLE = {
    # the cluster, its kinds, GPUs and cores taken of a: the damage
    "one GPU less, price 1": (": a[4, cpu 8]", (SINGLE,), 1, 2, 1000),
    "its cpu too: one of three is fed": (": a[4, cpu 8]", (SINGLE,), 1, 6, 3000),
    "cpu alone: two of four are fed": (": a[4, cpu 8]", (SINGLE,), 0, 4, 2000),
    "half of what comes": (": a[4, cpu 8]", (SINGLE, TypicalRequest(1, 1, 64_000)), 1, 2, 500),
    "by shares, not by numbers": (
        ": a[4, cpu 8]", (replace(SINGLE, share=30), TypicalRequest(10, 1, 64_000)), 1, 2, 750,
    ),
    "a request for four is spoilt, not four": (": a[4, cpu 8]", (FOUR,), 1, 2, 1000),
    "what it can use nowhere is not dearer for that": (": a[4, cpu 8, free 0111]", (FOUR,), 1, 2, 0),
    "twice as scarce, four times the price": (
        ": a[4, cpu 8, model=T4] b[4, cpu 8]", (ON_T4,), 1, 2, 4000,
    ),
    "less than half a step": (": a[4, cpu 8]", (SINGLE, TypicalRequest(249, 1, 64_000)), 1, 2, 0),
}  # fmt: skip


@pytest.mark.parametrize(("drawn", "kinds", "gpus", "cores", "damage"), WHOLE.values(), ids=WHOLE.keys())
def test_the_damage_of_whole_gpus(
    drawn: str, kinds: tuple[TypicalRequest, ...], gpus: int, cores: int, damage: int
) -> None:
    prices = prices_of(columns_of(replace(cluster(drawn), typical=kinds)))
    damages = prices.damage_of_gpus(np.array([0]), np.array([gpus]), np.array([1000 * cores]))
    assert damages.tolist() == [[damage]]


NONE = int(LARGEST)
SLICES = {
    # kinds, units taken: the damage by GPU of a[3, mem 8 8 8, left 8 4 2]; 1,750 thousandths are free
    "a GPU is opened: none is left for a whole request": ((SINGLE,), 2, [3060, 0, 0]),
    "it fits on two": ((SINGLE,), 4, [3060, 0, NONE]),
    "of one that has 4 left 2 are of no use to halves": ((HALF,), 2, [340 * 2, 1360, 0]),
}


@pytest.mark.parametrize(("kinds", "units", "damage"), SLICES.values(), ids=SLICES.keys())
def test_the_damage_of_a_slice(kinds: tuple[TypicalRequest, ...], units: int, damage: list[int]) -> None:
    drawn = cluster(": a[3, cpu 64, mem 8 8 8, left 8 4 2]")
    prices = prices_of(columns_of(replace(drawn, typical=kinds)))
    assert prices.damage_of_slice(np.array([0]), units, 1000).tolist() == [damage]


BETTER = {
    # cluster, kinds, gang, where it goes told of them, and where without
    "little cpu goes where cpu is short": (
        ": a[1, cpu 32] b[2, cpu 3]", (TypicalRequest(1, 1, 8000),), "1 x 1 GPU 1 cpu", "w-0@b/0", "w-0@a/0",
    ),
    "T4 stay for those who name them": (
        ": a[2, cpu 8, model=T4] b[2, cpu 8]", (ON_T4, SINGLE), "1 x 1 GPU 1 cpu", "w-0@b/0", "w-0@a/0",
    ),
    "a pod without GPUs leaves the cpu that free GPUs want": (
        ": a[2, cpu 4] b[2, cpu 16]", (SINGLE,), "1 x 0 GPU 2 cpu", "w-0@b", "w-0@a",
    ),
    "… also where a wide domain and a policy are about GPUs": (
        ": a[4, cpu 3] b[4, cpu 4, clique k]", (TypicalRequest(1, 1, 500),),
        "1 x 0 GPU 2 cpu, terms numa:pack", "w-0@b", "w-0@b",
    ),
    "a slice on the GPU whose rest is of use": (
        ": a[2, cpu 8, mem 8 8, left 3 5]", (replace(HALF, units=3),), "1 x 2 GiB", "w-0@a/1", "w-0@a/0",
    ),
}  # fmt: skip


@pytest.mark.parametrize(
    ("drawn", "kinds", "gang_text", "with_prices", "without_prices"), BETTER.values(), ids=BETTER.keys()
)
def test_plans_that_are_better_for_it(
    drawn: str, kinds: tuple[TypicalRequest, ...], gang_text: str, with_prices: str, without_prices: str
) -> None:
    request = gang(gang_text)
    for snapshot, at in (
        (replace(cluster(drawn), typical=kinds), with_prices),
        (cluster(drawn), without_prices),
    ):
        decision = place(snapshot, request)
        assert isinstance(decision, Placed)
        assert decision.optimal
        assert decision.members == plan(snapshot, request, at).members, decision.members


@pytest.mark.parametrize(
    ("gang_text", "priced"),
    [
        ("2 x 1 GPU + 3 x 0 GPU", True),
        ("1 x 4 GiB", True),
        ("2 x 4 GiB", False),
        ("1 x 4 GiB on 2 GPUs", False),
        ("1 x 4 GiB + 1 x 1 GPU", False),
        ("1 x 4 GiB, running w-8@a/0", False),
    ],
)
def test_whose_damage_is_priced(gang_text: str, priced: bool) -> None:
    snapshot = cluster(": a[2]")
    assert is_priced(gang(gang_text), columns_of(replace(snapshot, typical=(SINGLE,)))) is priced
    assert not is_priced(gang(gang_text), columns_of(snapshot))


@settings(deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(clusters(roomy=True), st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3)), max_size=6))
def test_prices_do_not_tell_how_they_were_come_by(snapshot: Snapshot, usages: list[tuple[int, int]]) -> None:
    snapshot = replace(snapshot, typical=(SINGLE, PAIR, HALF))
    names = list(snapshot.nodes)
    for i, (node, gpu) in enumerate(usages):
        name = names[node % len(names)]
        mask = 1 << gpu & snapshot.nodes[name].free_gpus
        snapshot = snapshot.with_usages(
            [Usage(str(i), name, gang("1 x 0 GPU 1 cpu").roles[0].resources, mask)]
        )
        followed = prices_of(columns_of(snapshot))
        prices_of(columns_of(replace(snapshot, typical=(FOUR,))))
        afresh = prices_of(columns_of(replace(snapshot)))
        rows = np.arange(len(names))
        ways = np.array([0, 1, 2]), np.array([0, 500, 2000])
        assert (followed.damage_of_gpus(rows, *ways) == afresh.damage_of_gpus(rows, *ways)).all()
        assert (followed.damage_of_slice(rows, 4, 500) == afresh.damage_of_slice(rows, 4, 500)).all()
