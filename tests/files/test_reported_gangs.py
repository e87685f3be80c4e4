"""Gangs of other people's reports, through `muster place`: elastic roles, members that come later, replicas.

The first line of each file in `reports/` names the report.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.files.manifests import Object, decisions, spots

REPORTS = Path(__file__).parent / "reports"


def decided(name: str) -> Object:
    gang: Object
    (gang,) = decisions(str(REPORTS / f"{name}.yaml"))["gangs"]
    return gang


@pytest.mark.parametrize(
    ("name", "placed_count", "waiting", "sentence"),
    [
        ("elastic-roles-rack", 5, 2, "5 of 7 members on 5 nodes in rack rb: "),
        ("pytorch-elastic-roles", 5, 2, "5 of 7 members on 5 nodes: "),
        ("ray-multihost-grow", 2, 2, "5 of 7 members: 3 run already, 2 more on 2 nodes: "),
    ],
)
def test_as_many_members_start_as_fit(name: str, placed_count: int, waiting: int, sentence: str) -> None:
    gang = decided(name)
    assert gang["message"].startswith(sentence)
    assert gang["message"].endswith(f"; {waiting} wait")
    nodes = [member["node"] for member in gang["members"]]
    assert (len([node for node in nodes if node]), nodes.count(None)) == (placed_count, waiting)


def test_one_whole_replica_more_starts() -> None:
    assert {name.rpartition("-")[2] for name in spots(decided("ray-multihost-grow"))} == {"b0", "b1"}


def test_the_leader_goes_where_its_workers_fit_too() -> None:
    gang = decided("lws-leader-first")
    assert gang["members"][0]["node"].startswith("b")
    assert gang["message"].endswith("; 3 members that come later fit too")
