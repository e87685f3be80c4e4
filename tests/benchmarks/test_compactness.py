"""Tests of what counts as a plan of any scheduler, and of how compact it is."""

from __future__ import annotations

from dataclasses import replace

import pytest

from benchmarks.compactness import Compactness, compactness, holds
from muster.domain.request import Request, Scope, Segment
from tests.placement.drawings import cluster, gang

NODES = """
    zone z1 rack r1: a[8, free 1111 0000, cpu 8] b[8]
    zone z2 rack r2: c[8]
"""


def assigned(request: Request, nodes: str) -> dict[str, str]:
    members = [member for role in request.roles for member in role.members]
    return {member.uid: node for member, node in zip(members, nodes, strict=True)}


def test_parts_are_counted() -> None:
    request = gang("4 x 1 GPU")
    assert compactness(cluster(NODES), request, assigned(request, "aabc")) == Compactness(2, 2, 3)
    assert Compactness(1, 9, 9) < Compactness(2, 1, 1)
    assert Compactness(1, 1, 9) < Compactness(1, 2, 2)


@pytest.mark.parametrize(
    ("request_text", "nodes", "valid"),
    [
        ("4 x 1 GPU", "aaaa", True),
        ("5 x 1 GPU", "aaaaa", False),  # 4 GPUs are free
        ("3 x 1 GPU 4 cpu", "aaa", False),  # 8 cores
        ("2 x 1 GPU, scope rack", "ab", True),
        ("2 x 1 GPU, scope rack", "bc", False),
        ("2 x 1 GPU, scope node", "ab", False),
    ],
)
def test_a_plan_keeps_capacities_and_scopes(request_text: str, nodes: str, valid: bool) -> None:
    request = gang(request_text)
    assert holds(cluster(NODES), request, assigned(request, nodes)) == valid


def test_a_plan_places_everyone() -> None:
    request = gang("3 x 1 GPU")
    assert not holds(cluster(NODES), request, {"w0": "a"})


def test_a_plan_keeps_roles_and_segments_together() -> None:
    request = gang("4 x 1 GPU")
    role = request.roles[0]
    in_rack = replace(request, roles=(replace(role, required_scope=Scope.RACK),))
    in_pairs = replace(request, roles=(replace(role, segments=(Segment(2, Scope.RACK),)),))
    assert not holds(cluster(NODES), in_rack, assigned(request, "aacc"))
    assert holds(cluster(NODES), in_pairs, assigned(request, "abcc"))
    assert not holds(cluster(NODES), in_pairs, assigned(request, "acbc"))


@pytest.mark.parametrize(("free", "valid"), [("1111 1111", True), ("1111 0011", False), ("0011 1111", False)])
def test_a_plan_finds_room_in_nvlink_domains(free: str, valid: bool) -> None:
    request = gang("8 x 1 GPU")
    role = replace(request.roles[0], segments=(Segment(4, Scope.NVLINK_DOMAIN),))
    nodes = cluster(f"rack r: a[8 = 4+4, free {free}] b[8 = 4+4]")
    assert holds(nodes, replace(request, roles=(role,)), assigned(request, "aaaabbbb"))
    assert holds(nodes, replace(request, roles=(role,)), assigned(request, "aaaaaaaa")) == valid
