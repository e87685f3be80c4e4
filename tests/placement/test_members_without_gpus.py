"""Members without GPUs: off nodes with GPUs where they can, else where they make the fewest GPUs unusable."""

from __future__ import annotations

import pytest

from muster.domain.decision import Placed
from muster.placement.place import place
from tests.placement import naive_unusable
from tests.placement.cases import Fits
from tests.placement.drawings import cluster, gang

ROOMY = "rack r1: g[8, cpu 96]\n rack r2: c[0, cpu 96]\n rack r3: d[0, cpu 96]"
CASES = {
    "workers without GPUs go to nodes without": Fits(
        ROOMY,
        "1 x 1 GPU 8 cpu + 4 x 0 GPU 24 cpu",
        "w-0@g/0 x-0@c x-1@c x-2@c x-3@c",
    ),
    "so do they without others, though these are two nodes in two racks": Fits(
        "rack r1: g[8, cpu 96]\n rack r2: c[0, cpu 32]\n rack r3: d[0, cpu 32]",
        "2 x 0 GPU 24 cpu",
        "w-0@c w-1@d",
    ),
    "and to nodes without a rack": Fits(
        "rack r1: g[8, cpu 96] h[8, cpu 96]\n : c[0, cpu 32] d[0, cpu 32]",
        "2 x 0 GPU 24 cpu",
        "w-0@c w-1@d",
    ),
    "a launcher stays beside its workers if no GPU is lost": Fits(
        "rack r1: g[8, cpu 96]\n rack r2: c[0, cpu 96]",
        "8 x 1 GPU 8 cpu + 1 x 0 GPU 2 cpu",
        "w-0@g/0 w-1@g/1 w-2@g/2 w-3@g/3 w-4@g/4 w-5@g/5 w-6@g/6 w-7@g/7 x-0@g",
    ),
    "a master that takes the cpu of a GPU does not": Fits(
        "rack r1: g[8, cpu 96]\n rack r2: c[0, cpu 96]",
        "1 x 1 GPU 12 cpu + 1 x 0 GPU 12 cpu",
        "w-0@g/0 x-0@c",
    ),
    "a gang without GPUs stays off an empty NVLink domain": Fits(
        "rack r1: a[4, cpu 16, clique k1] b[4, cpu 16, clique k1]\n"
        "rack r2: c[4, free 0001, cpu 16, clique k2] d[4, free 0001, cpu 16, clique k2]",
        "4 x 0 GPU 4 cpu",
        "w-0@c w-1@d w-2@d w-3@d",
    ),
    "a scope that is asked for holds for them too": Fits(
        ROOMY,
        "1 x 1 GPU 8 cpu + 2 x 0 GPU 24 cpu, scope rack",
        "w-0@g/0 x-0@g x-1@g",
    ),
    "equal racks of two zones are both looked at": Fits(
        "zone z2 rack r1: a[4 = 4, cpu 3]\n zone z1 rack r1: b[2 = 1+1, cpu 3]",
        "2 x 1 GPU + 1 x 0 GPU",
        "w-0@a/0 w-1@a/1 x-0@a",
    ),
    "members with GPUs come together first": Fits(
        "rack r1: a[2, cpu 4] b[2, cpu 4]\n rack r2: c[4, cpu 8, free 1110]\n rack r3: d[0, cpu 1]",
        "3 x 1 GPU 2 cpu + 1 x 0 GPU 2 cpu",
        "w-0@c/0 w-1@c/1 w-2@c/2 x-0@c",
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_members_without_gpus_go_where_they_do_least_harm(name: str) -> None:
    CASES[name].check()


def test_only_members_with_gpus_count_as_crossing() -> None:
    decision = place(cluster(ROOMY), gang("1 x 1 GPU 8 cpu + 8 x 0 GPU 24 cpu"))
    assert isinstance(decision, Placed)
    assert dict(decision.objective.crossings) == {"rack": 1, "node": 1, "nvlink-domain": 1}
    assert decision.objective.unusable_gpus == 0


def test_a_gang_whose_members_all_have_gpus_has_no_such_level() -> None:
    decision = place(cluster(ROOMY), gang("2 x 1 GPU"))
    assert isinstance(decision, Placed)
    assert decision.objective.unusable_gpus is None
    assert "unusable_gpus" not in {step.level for step in decision.steps}


NUMBERS = {
    "a free GPU loses its share, and another pod's GPU will": (": g[4, cpu 16]", "1 x 0 GPU 8 cpu", 4),
    "a member that takes nothing costs one": (": g[4, cpu 16]", "1 x 0 GPU", 1),
    "taken GPUs count once": (": g[4, free 0000, cpu 16]", "1 x 0 GPU 8 cpu", 2),
    "beside own GPUs an eighth of a share is free": (
        ": g[4, cpu 32]",
        "1 x 1 GPU 8 cpu + 1 x 0 GPU 1 cpu",
        0,
    ),
    "more is not": (": g[4, cpu 32]", "1 x 1 GPU 8 cpu + 1 x 0 GPU 2 cpu", 2),
    "what own GPUs leave of their shares is free": (": g[4, cpu 16]", "1 x 1 GPU 1 cpu + 1 x 0 GPU 3 cpu", 0),
}


@pytest.mark.parametrize(("nodes", "gang_text", "number"), NUMBERS.values(), ids=NUMBERS.keys())
def test_gpus_made_unusable_are_now_and_later_ones(nodes: str, gang_text: str, number: int) -> None:
    snapshot, request = cluster(nodes), gang(gang_text)
    decision = place(snapshot, request)
    assert isinstance(decision, Placed)
    assert decision.objective.unusable_gpus == number
    everyone = {"g": tuple(len(role.members) for role in request.roles)}
    assert naive_unusable.unusable(snapshot, request, everyone, ()) == number
