"""Slices under rules by NVLink domain: kept where a node is one domain, refused where it has several."""

from __future__ import annotations

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from muster.domain.causes.not_planned import NotSupported
from muster.domain.decision import Placed, Unplaceable
from muster.placement.explain.unsupported import unsupported
from muster.placement.gang.instance import instance_of
from muster.placement.place import place
from tests.placement.brute_force import assert_as_good_as_trying_everything
from tests.placement.drawings import cluster, gang
from tests.placement.test_properties import examples
from tests.placement.worlds import worlds

ONE = "rack r1: a[2, share, mem 8 8] b[2, share, mem 8 8] c[2, share, mem 8 8]"
SEVERAL = "rack r1: a[4 = 2+2, share, mem 8 8 8 8] b[2, share, mem 8 8]"
WIDE = "rack r1: a[2 = 1+1, share, mem 8 8, clique k] b[2, share, mem 8 8, clique k] c[2, share, mem 8 8]"

RULES = {
    "at most so many": "4 x 4 GiB, max nvlink-domain=2",
    "each role": "2 x 8 GiB within nvlink-domain + 2 x 8 GiB within nvlink-domain",
    "segments": "4 x 4 GiB by 2 nvlink-domain",
}


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize(("drawn", "kept"), [(ONE, True), (WIDE, True), (SEVERAL, False)])
def test_a_rule_by_domain(rule: str, drawn: str, kept: bool) -> None:
    decision = place(cluster(drawn), gang(RULES[rule]))
    assert isinstance(decision, Placed if kept else Unplaceable)
    if isinstance(decision, Unplaceable):
        assert [type(cause) for cause in decision.causes] == [NotSupported]


def test_a_node_that_is_not_for_them_refuses_no_rule() -> None:
    """The node of several domains serves no slices."""
    decision = place(cluster(f"{ONE}\n : d[4 = 2+2]"), gang("4 x 4 GiB, max nvlink-domain=2"))
    assert isinstance(decision, Placed)
    assert len({member.node for member in decision.members}) == 2


FEATURES = {
    "roles": ("slices", "role scope"),
    "segments": ("slices", "segments"),
    "at most so many": ("slices", "max per"),
    "all, beside members that run": ("slices", "role scope", "segments", "max per", "running"),
}


@pytest.mark.brute_force
@pytest.mark.parametrize("name", FEATURES)
@examples(100)
@given(data=st.data())
def test_as_good_as_trying_everything(name: str, data: st.DataObject) -> None:
    world = data.draw(worlds(*FEATURES[name]))
    assume(unsupported(instance_of(*world, {})) is None)
    assert_as_good_as_trying_everything(*world)
