"""What `make native` measures, and the manifests that `make native-compare` gives to both schedulers."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import msgspec
import pytest

from benchmarks.native import __main__ as measure
from benchmarks.native import cases, compare, sides
from benchmarks.native.cases import Case, Look
from benchmarks.native.compare import Result
from local_cluster.api import Object
from local_cluster.nodes import RACK, ZONE
from muster.dialects.gangs import podgroups
from muster.dialects.objects import CustomObject, PodObject
from muster.dialects.pods import pods

CASES = cases.all_cases()


def groups(case: Case) -> list[Object]:
    return [body for body in case.objects if body["kind"] == "PodGroup"]


def read(body: Object) -> CustomObject:
    return msgspec.convert(body, CustomObject, strict=False)


# --- make native -----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", sides.COLUMNS)
def test_a_column_has_the_pods_that_its_groups_need(name: str) -> None:
    column = sides.COLUMNS[name]
    needed = {
        body["metadata"]["name"]: body["spec"]["schedulingPolicy"]["gang"]["minCount"]
        for body in column.groups
        if body["kind"] == "PodGroup"
    }
    members = Counter(pod["spec"]["schedulingGroup"]["podGroupName"] for pod in column.pods)
    assert members == needed
    gpus = sum(int(node["status"]["allocatable"]["aliyun.com/gpu"]) for node in measure.nodes())
    assert len(column.pods) <= gpus


def test_a_column_ends_when_its_share_of_the_gangs_is_bound() -> None:
    column = sides.many_gangs("ten", 10, 2, 0.9)
    bound_at = {pod["metadata"]["name"]: float(number) for number, pod in enumerate(column.pods)}
    assert measure.bound_after(column, bound_at) == 17  # the last pod of the ninth gang
    whole = sides.one_tree("tree", 2, 2)
    bound_at = {pod["metadata"]["name"]: float(number) for number, pod in enumerate(whole.pods)}
    assert measure.bound_after(whole, bound_at) == 3


# --- make native-compare ---------------------------------------------------------------------------


def test_there_are_54_cases_and_each_has_a_name_of_its_own() -> None:
    assert len({case.name for case in CASES}) == len(CASES) == 54


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_the_objects_of_a_case_are_well_formed(case: Case) -> None:
    assert {body["metadata"]["name"]: 1 for body in case.objects if body["kind"] == "Pod"}
    for body in groups(case):
        if not cases.parent_of(body):
            assert podgroups.read(read(body)).causes == ()
    members = [body for body in case.objects if "schedulingGroup" in body["spec"]]
    for body in members:
        assert pods.read(msgspec.convert(body, PodObject, strict=False)).causes == ()
        assert body["spec"]["schedulingGroup"]["podGroupName"] in {
            group["metadata"]["name"] for group in groups(case)
        }
    assert case.starts <= sum(1 for body in case.objects if body["spec"].get("schedulerName") == "muster")
    assert not isinstance(case.steps[-1], Look), "a case ends by what is awaited"


def test_the_children_of_a_tree_have_one_root() -> None:
    (case,) = [case for case in CASES if case.name == "tree-levels"]
    assert {case.root_of(body["metadata"]["name"]) for body in groups(case)} == {"root"}
    assert case.root_of("lone") == "lone"


def test_nodes_lie_in_racks_of_four_and_two_blocks_of_a_zone() -> None:
    labels = [node["metadata"]["labels"] for node in cases.nodes()]
    racks = Counter(label[RACK] for label in labels)
    assert (len(racks), {*racks.values()}) == (6, {4})
    zones = {(label[ZONE], label[cases.BLOCK], label[RACK]) for label in labels}
    assert sorted(zones)[:3] == [("z0", "b0", "r0"), ("z0", "b0", "r1"), ("z0", "b1", "r2")]


def result(started: int, domains: int, side: str = "muster") -> Result:
    return Result("single-fits", side, 4, started, "0.10", domains, "why | so")


@pytest.mark.parametrize(
    ("theirs", "ours", "worse"),
    [
        ((4, 2), (4, 2), False),
        ((4, 1), (4, 2), True),
        ((4, 2), (4, 1), False),
        ((4, 2), (3, 1), True),
        ((3, 1), (4, 2), False),
        ((0, 0), (0, 0), False),
    ],
)
def test_more_pods_or_fewer_domains_are_better(
    theirs: tuple[int, int], ours: tuple[int, int], worse: bool
) -> None:
    assert compare.is_worse(result(*theirs), result(*ours)) == worse


def test_a_case_of_one_side_alone_is_not_judged() -> None:
    assert not compare.is_worse(result(4, 1), None)
    assert not compare.is_worse(None, result(0, 0))


def test_results_of_a_part_stay_when_another_part_is_run(tmp_path: Path) -> None:
    rows = [result(3, 1, side) for side in compare.SIDES]
    compare.write(tmp_path, rows)
    results = compare.read(tmp_path / "compare.csv")
    assert [*results.values()] == rows
    table = (tmp_path / "compare.md").read_text().splitlines()
    assert len(table) == 3
    assert table[2].startswith("| single-fits: four pods, room for all | 3 of 4, 0.10, 1 | 3 of 4, 0.10, 1 |")
    assert r"muster: why \| so" in table[2]
