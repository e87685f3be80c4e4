"""Tests of the planner against the plain model on random clusters, and of the plain model on drawn ones."""

from __future__ import annotations

from random import Random

import pytest

from muster.placement.place import place
from tests.placement.drawings import cluster, gang
from tests.placement.plain_model import PlainModel
from tests.placement.plain_model_check import difference, draw


@pytest.mark.brute_force
@pytest.mark.parametrize("number", range(30))
def test_as_good_as_the_plain_model(number: int) -> None:
    world = draw(Random(f"1 {number}"))
    assert difference(*world, place(*world)) == "", world


@pytest.mark.parametrize(
    ("drawn", "gang_text", "worth"),
    [
        ("rack r1: a[4] b[4]\n rack r2: c[4]", "2 x 4 GPU", (-2, (-2,), 0, 0, (1, 2))),
        ("rack r1: a[4]\n rack r2: c[4]", "4 x 1 GPU, max rack=2", (-4, (-4,), 0, 0, (2, 2))),
        ("rack r1: a[4]\n rack r2: c[4]", "2 x 4 GPU, scope rack", None),
        ("rack r1: a[4]\n rack r2: c[4]", "2 x 4 GPU, scope rack, min 1", (-1, (-1,), 0, 0, (1, 1))),
        (": a[4 = 2+2] b[4]", "4 x 1 GPU by 4 nvlink-domain", (-4, (-4,), 0, 0, (1,))),
        (": a[4 = 2+2] b[4 = 2+2]", "4 x 1 GPU by 4 nvlink-domain", None),
        (": a[4 = 2+2]", "4 x 1 GPU, prefer nvlink-domain node", (-4, (-4,), 1, 0, (1,))),
        (": a[2] b[2]", "2 x 1 GPU within node + 2 x 1 GPU within node", (-4, (-2, -2), 0, 0, (2,))),
        ("zone z1 rack r: a[2]\n zone z2 rack r: b[2]", "2 x 2 GPU, scope rack", None),
        ("rack r: a[2]\n rack s: b[2]", "1 x 1 GPU + 2 x 1 GPU, share rack=w+x", None),
    ],
)  # fmt: skip
def test_the_plain_model(drawn: str, gang_text: str, worth: object) -> None:
    assert PlainModel(cluster(drawn), gang(gang_text), 1).best_worth() == (worth, True)
