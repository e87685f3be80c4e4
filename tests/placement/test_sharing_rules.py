"""Slices under rules by NVLink domain: kept where a node is one domain, refused where it has several."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from muster.domain.causes.not_planned import NotSupported
from muster.domain.decision import Placed, Unplaceable
from muster.domain.request import RolePreference
from muster.domain.sentences import sentence
from muster.placement.cluster.matching import GangCluster
from muster.placement.gang.instance import instance_of, unsupported_rule
from muster.placement.place import place
from tests.placement.brute_force import assert_as_good_as_trying_everything
from tests.placement.drawings import cluster, gang
from tests.placement.test_properties import examples
from tests.placement.worlds import worlds

ONE_DOMAIN = "rack r1: a[2, share, mem 8 8] b[2, share, mem 8 8] c[2, share, mem 8 8]"
SEVERAL = "rack r1: a[4 = 2+2, share, mem 8 8 8 8] b[2, share, mem 8 8]"
WIDE = "rack r1: a[2 = 1+1, share, mem 8 8, clique k] b[2, share, mem 8 8, clique k] c[2, share, mem 8 8]"

RULES = {
    "at most so many": "4 x 4 GiB, max nvlink-domain=2",
    "each role": "2 x 8 GiB within nvlink-domain + 2 x 8 GiB within nvlink-domain",
    "segments": "4 x 4 GiB by 2 nvlink-domain",
}


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize(("drawn", "holds"), [(ONE_DOMAIN, True), (WIDE, True), (SEVERAL, False)])
def test_a_rule_by_domain(rule: str, drawn: str, holds: bool) -> None:
    decision = place(cluster(drawn), gang(RULES[rule]))
    assert isinstance(decision, Placed if holds else Unplaceable)
    if isinstance(decision, Unplaceable):
        assert [type(cause) for cause in decision.causes] == [NotSupported]


def test_a_node_that_is_not_for_them_refuses_no_rule() -> None:
    """The node of several domains serves no slices."""
    decision = place(cluster(f"{ONE_DOMAIN}\n : d[4 = 2+2]"), gang("4 x 4 GiB, max nvlink-domain=2"))
    assert isinstance(decision, Placed)
    assert len({member.node for member in decision.members}) == 2


LONE = ": n[3 = 2+1, share, spread, mem 6 6 6]"
TWO = ": a[3, share, mem 6 6 6] b[3 pcie, share, spread, mem 6 6 6]"

PREFERENCES: dict[str, tuple[str, str, tuple[str, ...], str, str | None, str | None]] = {
    # a cluster, a gang, what these roles prefer, what is reached, the first level without proof
    "all members, one GPU": (LONE, "2 x 1 GiB", ("gpu",), "w", "gpu", None),
    "all members, one domain": (TWO, "1 x 1 GiB", ("nvlink-domain",), "w", "nvlink-domain", None),
    "all members, the second": (
        LONE,
        "2 x 6 GiB",
        ("gpu", "nvlink-domain"),
        "w",
        "nvlink-domain",
        None,
    ),
    "all roles": (LONE, "1 x 1 GiB + 1 x 2 GiB", ("gpu",), "wx", "gpu", None),
    "all roles, none that can be had": (LONE, "3 x 6 GiB", ("gpu", "nvlink-domain"), "w", None, None),
    "one role of two, a node": (LONE, "2 x 1 GiB + 1 x 6 GiB", ("node",), "w", "node", None),
    "one role of two, one GPU": (LONE, "2 x 1 GiB + 2 x 4 GiB", ("gpu",), "w", None, "role_preferences"),
    "one role of two, one domain": (
        LONE,
        "2 x 4 GiB + 1 x 6 GiB",
        ("nvlink-domain", "node"),
        "w",
        "node",
        "role_preferences",
    ),
}


@pytest.mark.parametrize("name", PREFERENCES)
def test_a_preference_of_roles_that_share_gpus_is_kept_or_not_proven(name: str) -> None:
    """After random clusters: preferences that no rule can keep were dropped, and the plan was called best."""
    drawn, gang_text, scopes, roles, reached, unproven = PREFERENCES[name]
    request = replace(gang(gang_text), role_preferences=(RolePreference("theirs", scopes, frozenset(roles)),))
    decision = place(cluster(drawn), request)
    assert isinstance(decision, Placed)
    assert decision.objective.role_preferences == (("theirs", reached),)
    assert decision.unproven == unproven
    assert ("not proven optimal in role preferences" in sentence(decision)) == (unproven is not None)
    if name == "all members, one domain":
        assert {member.node for member in decision.members} == {"b"}  # a node that spreads is to be opened


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
    assume(unsupported_rule(instance_of(GangCluster(*world), {})) is None)
    assert_as_good_as_trying_everything(*world)
