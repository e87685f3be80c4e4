"""Each field of `TopologyRequest`: a PodGroup may state it, members must agree on it, the planner gets it.

A field that is added without the three would have no effect, or only that of the first member.
"""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import pytest

from muster.domain.constraints import MaxPer
from muster.domain.pod import GangClaim, Pod, TopologyRequest
from muster.domain.podgroup import PodGroup
from muster.domain.policies import Policies, Policy
from muster.domain.request import PolicyTerm, Request, Segment
from muster.gangs.capacity.ledger import Ledger
from muster.gangs.capacity.requests import request
from muster.gangs.membership.consistency import disagreements
from muster.gangs.membership.group import complete_pod
from muster.gangs.membership.roster import Roster
from tests.gangs.world import pod, with_topology

STATED: dict[str, Any] = {
    "required_scope": "rack",
    "preferred_scopes": ("node",),
    "role_scope": "rack",
    "segments": (Segment(2, "rack"),),
    "per_scope": (MaxPer("rack", 2),),
    "policies": ("numa-locality",),
    "role_preferred": ("node",),
}
"""A value for each field but the role, which is the pod's own word."""


def member(name: str, **stated: Any) -> Pod:
    return pod(
        name,
        claim=GangClaim("kai", "train", topology_request=TopologyRequest(role="w", **stated), by_object=True),
    )


def test_the_table_has_each_field() -> None:
    assert {request_field.name for request_field in fields(TopologyRequest)} == {"role", *STATED}


@pytest.mark.parametrize("field", STATED)
def test_a_pod_gets_what_its_pod_group_states(field: str) -> None:
    group = PodGroup(
        "ns", "kai", "train", uid="g", topology_request=TopologyRequest(**{field: STATED[field]})
    )
    claim = complete_pod(member("a"), {("ns", "kai", "train"): group}).claim
    assert claim is not None
    assert getattr(claim.topology_request, field) == STATED[field]


@pytest.mark.parametrize("field", STATED)
def test_the_planner_gets_it(field: str) -> None:
    def request_of(**stated: Any) -> Request:
        roster, ledger = Roster(), Ledger()
        ledger.set_policies(Policies(policies=(Policy("numa-locality", 1, PolicyTerm("numa", "pack")),)))
        roster.see(with_topology("a", TopologyRequest(role="w", **stated)))
        (group,) = roster.groups(("ns", "annotations", "g", ""))
        return request(group, ledger)

    assert request_of() != request_of(**{field: STATED[field]})


@pytest.mark.parametrize("field", STATED)
def test_members_must_agree(field: str) -> None:
    assert disagreements([member("a"), member("b")]) == []
    assert disagreements([member("a"), member("b", **{field: STATED[field]})])
