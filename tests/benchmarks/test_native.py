"""The two gangs that `make native` compares ask for the same."""

from __future__ import annotations

import msgspec

from benchmarks.native import sides
from muster.dialects.objects import PodObject
from muster.dialects.pods import pods
from muster.dialects.settings import DEFAULTS


def test_both_gangs_ask_for_the_same_pods_in_one_rack() -> None:
    ours, theirs = sides.muster_gang("g", 3), sides.native_gang("g", 3)
    assert [pod["spec"]["containers"] for pod in ours] == [pod["spec"]["containers"] for pod in theirs]
    assert {pod["spec"]["schedulingGroup"]["podGroupName"] for pod in theirs} == {"g"}
    group = sides.pod_group("g", 3)["spec"]
    assert group["schedulingPolicy"] == {"gang": {"minCount": 3}}
    assert group["schedulingConstraints"] == {"topology": [{"key": "topology.kubernetes.io/rack"}]}


def test_musters_gang_says_its_full_size() -> None:
    first = sides.muster_gang("g", 3)[0]
    claim = pods.read(msgspec.convert(first, PodObject, strict=False), DEFAULTS).claim
    assert claim is not None
    assert (claim.name, claim.min_member, claim.size, claim.topology_request.required_scope) == (
        "g",
        3,
        3,
        "rack",
    )
