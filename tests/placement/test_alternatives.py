"""Where else a gang could have gone: which domains, in which order, and the first level that differs."""

from __future__ import annotations

from dataclasses import replace

import pytest

from muster.domain.alternatives import Alternatives, Question, Than
from muster.domain.decision import Placed
from muster.placement import alternatives as module
from muster.placement.alternatives import alternatives
from muster.placement.cluster.columns import columns_of
from muster.placement.evaluate import worths
from muster.placement.limits import Limits
from muster.placement.model.objective import quality_levels
from muster.placement.place import place
from tests.placement.drawings import cluster, gang, plan


def of_best(nodes: str, gang_text: str, limits: Limits | None = None) -> Alternatives:
    """The alternatives of the best plan."""
    snapshot, request = cluster(nodes), gang(gang_text)
    decision = place(snapshot, request)
    assert isinstance(decision, Placed)
    return alternatives(snapshot, Question(request, decision.members), limits)


def verdicts(answer: Alternatives) -> list[tuple[str, str]]:
    return [(alternative.domain, alternative.says) for alternative in answer.tried]


RACKS = """
    rack r1: a[4] b[4]
    rack r2: c[4] d[4]
    rack r3: e[4, free 1111] f[4, free 0011]
    rack r4: g[4, free 0001]
"""


def test_each_other_rack_says_the_first_level_at_which_it_is_not_as_good() -> None:
    answer = of_best(RACKS, "8 x 1 GPU")
    assert (answer.domain, answer.scope) == ("rack r1", "rack")
    assert verdicts(answer) == [
        ("rack r2", "as good at each level"),
        ("rack r3", "only 6 of 8 members fit; 6 GPUs are free there, at most 4 on one node"),
        ("rack r4", "only 1 of 8 members fit; 1 GPU is free there"),
    ]


def test_all_levels_of_the_objective_are_compared() -> None:
    """Also one that is added later."""
    snapshot, request = cluster(RACKS), gang("8 x 1 GPU")
    decision = place(snapshot, request)
    assert isinstance(decision, Placed)
    compared = [worth.level for worth in worths(request, decision.members, columns_of(snapshot))]
    domains, *other_levels = (level.name for level in quality_levels(()))
    assert domains == "nvlink_domains"
    assert compared == [
        "members",
        "preferred_scope",
        *(f"crossings {scope}" for scope in ("rack", "node", "nvlink-domain")),
        *other_levels,
        "preference_penalty",
    ]


def test_what_fits_only_elsewhere_in_several_racks_crosses_more_of_them() -> None:
    answer = of_best(
        "rack r1: a[4] b[4]\nrack r2: c[4]\nrack r3: d[4]\nrack r4: e[8 pcie, cordoned]", "8 x 1 GPU"
    )
    assert verdicts(answer)[0] == ("racks r2 and r3", "2 racks instead of 1")
    assert {name for name, _ in verdicts(answer)} == {"racks r2 and r3", "rack r2", "rack r3"}
    assert (answer.shut, answer.left_out, answer.late) == (1, 0, False)
    assert answer.others == "1 rack has no node that admits the gang"


def test_a_gang_on_one_node_is_compared_with_other_nodes() -> None:
    answer = of_best("rack r1: a[8, free 0000 1111] b[8]\nrack r2: c[8 pcie]", "4 x 1 GPU, scope node")
    assert (answer.domain, answer.scope) == ("node a", "node")
    texts = dict(verdicts(answer))
    assert texts["node c"] == "4 NVLink domains instead of 1"
    assert texts["node b"].split()[0] in ("damage", "best"), "b would be broken up"
    assert answer.tried[-1].domain == "node c", "the best comes first"


def test_slower_links_are_told_with_their_bandwidth() -> None:
    answer = of_best(
        "rack r1: a[v100-8x-gputopology-document, free 0000 1001] b[8 unknown]", "2 x 1 GPU, scope node"
    )
    assert all(alternative.than is Than.WORSE for alternative in answer.tried), verdicts(answer)


def test_links_that_are_not_known_beside_gpus_of_unknown_index_are_no_gain() -> None:
    answer = of_best("rack r1: a[4, free 1100] b[4, unindexed 1]", "2 x 1 GPU, scope node")
    assert answer.domain == "node a"
    assert [(alternative.domain, alternative.than) for alternative in answer.tried] == [
        ("node b", Than.WORSE)
    ], verdicts(answer)


def test_a_gang_that_no_rack_holds_is_compared_with_each_rack_too() -> None:
    answer = of_best("rack r1: a[4]\nrack r2: b[4]", "8 x 1 GPU")
    assert answer.domain == "racks r1 and r2"
    assert verdicts(answer) == [
        ("rack r1", "only 4 of 8 members fit; 4 GPUs are free there"),
        ("rack r2", "only 4 of 8 members fit; 4 GPUs are free there"),
    ]


def test_a_place_that_has_become_better_is_said_to_be() -> None:
    snapshot, request = cluster("rack r1: a[4] b[4]"), gang("2 x 2 GPU")
    current_plan = plan(snapshot, request, "w-0@a/01 w-1@b/01")
    answer = alternatives(snapshot, Question(request, current_plan.members))
    assert verdicts(answer) == [("rack r1", "better now: 1 node instead of 2")]
    apart = cluster("rack r1: a[4]\nrack r2: b[4]")
    answer = alternatives(apart, Question(request, current_plan.members))
    assert answer.domain == "racks r1 and r2"
    assert verdicts(answer)[0] == ("rack r1", "better now: 1 rack instead of 2")


def test_at_most_so_many_are_computed_and_the_others_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    nodes = "\n".join(f"rack r{at}: a{at}[4] b{at}[4]" for at in range(1, 21))
    calls = 0

    def count_and_place(*args: object) -> object:
        nonlocal calls
        calls += 1
        return place(*args)  # type: ignore[arg-type]

    monkeypatch.setattr(module, "place", count_and_place)
    answer = of_best(nodes, "8 x 1 GPU")
    assert len(answer.tried) == module.MAX_ALTERNATIVES
    assert answer.left_out == 19 - module.MAX_ALTERNATIVES
    assert calls <= module.MAX_ALTERNATIVES + 3
    assert answer.others == "11 more racks were not tried"


def test_no_time_is_said() -> None:
    answer = of_best(RACKS, "8 x 1 GPU", Limits(seconds_left=lambda: 0.0))
    assert (answer.tried, answer.left_out, answer.late) == ((), 3, True)
    assert answer.others == "3 more racks were not tried because the time was over"


def test_a_gang_that_may_start_with_fewer_is_compared_with_all_that_it_has() -> None:
    answer = of_best(RACKS, "8 x 1 GPU, min 2")
    assert [alternative.than for alternative in answer.tried] == [Than.EQUAL, Than.FEWER, Than.FEWER]
    assert {alternative.of for alternative in answer.tried} == {8}


def test_members_without_gpus_have_alternatives_too() -> None:
    answer = of_best("rack r1: a[0, cpu 4] b[0, cpu 2]", "2 x 0 GPU 2 cpu")
    assert answer.domain == "node a"
    assert verdicts(answer) == [("node b", "only 1 of 2 members fit; 0 GPUs are free there")]


@pytest.mark.parametrize(
    "gang_text",
    [
        "2 x 1 GPU, prefer nvlink-domain node",
        "4 x 1 GPU by 2 node",
        "2 x 1 GPU, terms numa:pack nvlink:spread",
        "2 x 4 GiB, scope node",
        "2 x 1 GPU + 1 x 0 GPU, share rack=w+x",
    ],
)
def test_a_cluster_of_equal_nodes_has_equal_alternatives(gang_text: str) -> None:
    nodes = "\n".join(f"rack r{at}: n{at}[4, mem 16 16 16 16, share]" for at in (1, 2))
    if "GiB" not in gang_text:
        nodes = nodes.replace(", mem 16 16 16 16, share", "")
    answer = of_best(nodes, gang_text)
    assert [alternative.than for alternative in answer.tried] == [Than.EQUAL], verdicts(answer)


def test_scores_are_the_last_level() -> None:
    snapshot, request = cluster("rack r1: a[4] b[4]"), gang("1 x 4 GPU")
    (role,) = request.roles
    request = replace(request, roles=(replace(role, scores={"a": 90, "b": 20}),))
    decision = place(snapshot, request)
    assert isinstance(decision, Placed)
    (alternative,) = alternatives(snapshot, Question(request, decision.members)).tried
    assert alternative.says == "preference penalty 80 instead of 10"


def test_names_from_the_cluster_are_printable() -> None:
    snapshot, request = cluster("rack r1: a\x1b[4]\nrack r2: b\u202e[4]"), gang("1 x 4 GPU")
    members = plan(snapshot, request, "w-0@a\x1b/0123").members
    alternatives_of_gang = alternatives(snapshot, Question(request, members))
    (alternative,) = alternatives_of_gang.tried
    assert alternatives_of_gang.domain == r"node a\x1b"
    assert alternative.domain == r"node b\u202e"
