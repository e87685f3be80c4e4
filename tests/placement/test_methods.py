"""Which exact method decides which level, and why the others decline."""

from __future__ import annotations

import re
from dataclasses import fields
from pathlib import Path

import pytest

from checks.objective import table
from muster.domain.decision import Objective, Placed, Step
from muster.placement.limits import Budget
from muster.placement.model.objective import OBJECTIVE, VALUES, Level, quality_levels
from muster.placement.place import Limits, place
from muster.placement.search import search
from muster.placement.search.plan import Declined, MethodAnswer, PartialPlan, Undecided, Value
from muster.placement.search.search import METHODS
from tests.placement.drawings import cluster, gang

RACKS = "rack r1: a[4] b[2]\n rack r2: c[4] d[2]\n rack r3: e[4] f[2]"
BELOW = [level.name for level in quality_levels(())]


def methods_of(text: str, gang_text: str) -> dict[str, str]:
    """Return the method of each level."""
    return {step.level: step.method for step in steps(text, gang_text)}


def steps(text: str, gang_text: str) -> tuple[Step, ...]:
    decision = place(cluster(text), gang(gang_text), Limits(deterministic_time=60))
    assert isinstance(decision, Placed)
    return decision.steps


ONE_METHOD = {
    "4 x 1 GPU": "single-node",
    "5 x 1 GPU": "domain-tables",
    "8 x 1 GPU": "domain-tables",
    "8 x 1 GPU by 2 rack": "domain-tables",
    "8 x 1 GPU by 2 node": "domain-tables",
}


@pytest.mark.parametrize(("gang_text", "method"), ONE_METHOD.items())
def test_a_method_decides_all_levels_from_the_nodes_down(gang_text: str, method: str) -> None:
    method_by_level = methods_of(RACKS, gang_text)
    assert method_by_level["members"] == "all-members"
    assert {method_by_level[level] for level in ("nodes", *BELOW)} == {method}


def test_parts_are_decided_by_sorted_capacities_before() -> None:
    assert methods_of(RACKS, "5 x 1 GPU")["rack"] == "sorted-capacities"


def test_roles_of_multiples_are_decided_as_one_role() -> None:
    method_by_level = methods_of(RACKS, "4 x 1 GPU + 2 x 2 GPU")
    assert method_by_level["rack"] == "role-aggregation, domain-tables"


@pytest.mark.parametrize(
    ("gang_text", "parts", "links"),
    [
        ("4 x 1 GPU 1 cpu + 2 x 2 GPU 3 cpu", "region-count", "link-thresholds"),
        ("7 x 1 GPU by 2 rack", "region-count", "link-thresholds"),
    ],
)
def test_what_members_are_bound_by_is_left_to_the_core(gang_text: str, parts: str, links: str) -> None:
    method_by_level = methods_of(RACKS, gang_text)
    assert method_by_level["rack"] == method_by_level["nodes"] == parts
    assert method_by_level["weakest_link"] == links


def test_fewer_members_are_a_level_too() -> None:
    assert (
        methods_of("rack r1: a[4]\n rack r2: b[2]", "5 x 1 GPU within rack, min 2")["members"]
        == "most-members"
    )


def test_what_declines_says_why() -> None:
    declined = [pair for step in steps(RACKS, "4 x 1 GPU 1 cpu + 2 x 2 GPU 3 cpu") for pair in step.declined]
    assert ("single-node", "no node takes all members") in declined
    assert ("role-aggregation", "the requests are not multiples of one another") in declined
    assert ("sorted-capacities", "several roles") in declined


def test_every_level_is_decided_once_in_the_order_of_the_objective() -> None:
    levels = [step.level for step in steps(f"zone z1 {RACKS}", "8 x 1 GPU, prefer zone")]
    assert levels == ["members", "preferred_scope", "zone", "rack", "nodes", *BELOW]


def test_methods_have_names_of_their_own() -> None:
    assert len({method.name for method in METHODS}) == len(METHODS)


def test_the_page_lists_them_in_their_order() -> None:
    page = (Path(__file__).parents[2] / "docs/objective.md").read_text()
    assert re.findall(r"^\| `([a-z-]+)` \| \S", page, re.MULTILINE) == [method.name for method in METHODS]


class _Never:
    """A method that always declines."""

    name, accepted_states = "never", (Undecided,)

    def solve(self, plan: PartialPlan, level: Level, incumbent: Value | None, budget: Budget) -> MethodAnswer:
        return Declined(f"not even {level.name}")


def test_a_level_that_no_method_decides_is_a_defect(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is not told as a proof that nothing fits."""
    monkeypatch.setattr(search, "METHODS", (_Never(),))
    with pytest.raises(LookupError, match=r"no method decides rack: .*not even rack"):
        place(cluster(RACKS), gang("4 x 1 GPU"))


def test_each_value_of_the_objective_has_a_row_in_its_order() -> None:
    assert [row.field for row in VALUES] == [field.name for field in fields(Objective)]


def test_the_page_has_the_rows_of_the_objective() -> None:
    page = (Path(__file__).parents[2] / "docs/objective.md").read_text()
    assert table(OBJECTIVE) in page, "python -m checks.objective writes it"
