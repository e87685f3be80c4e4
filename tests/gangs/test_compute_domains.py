"""Members whose claims are channels of NVIDIA's ComputeDomains prefer one NVLink clique."""

from __future__ import annotations

from dataclasses import replace

import pytest

from muster.domain.levels import FABRIC
from muster.domain.pod import Pod, TopologyRequest
from muster.domain.request import RolePreference, Scope
from muster.gangs.capacity.requests import request
from tests.gangs.test_requests import FOURS, group_of, ledger_of, on
from tests.gangs.world import with_topology


def channel(uid: str, domain: str, topology_request: TopologyRequest | None = None) -> Pod:
    """A pod with a channel of this ComputeDomain."""
    return replace(with_topology(uid, topology_request), compute_domain=domain)


NEAR = (Scope.NVLINK_DOMAIN, FABRIC)
OF_DOMAINS: dict[str, tuple[list[Pod], list[RolePreference]]] = {
    "one ComputeDomain": (
        [channel("p0", "x"), channel("p1", "x")],
        [RolePreference("the members of the ComputeDomain", NEAR, frozenset({""}))],
    ),
    "a member without a channel": (
        [channel("p0", "x"), channel("p1", "x"), with_topology("p2")],
        [RolePreference("the members of the ComputeDomain", NEAR, frozenset({"role-2"}))],
    ),
    "two roles of one": (
        [channel("p0", "x", TopologyRequest("a")), channel("p1", "x", TopologyRequest("b"))],
        [RolePreference("the members of the ComputeDomain", NEAR, frozenset({"a", "b"}))],
    ),
    "two, with a lone member": (
        [channel("p0", "x"), channel("p1", "x"), channel("q0", "y"), channel("q1", "y"), channel("r", "z")],
        [
            RolePreference("the members of the ComputeDomain of role-1", NEAR, frozenset({"role-1"})),
            RolePreference("the members of the ComputeDomain of role-2", NEAR, frozenset({"role-2"})),
        ],
    ),
    "one that runs": (
        [on("a", 1, channel("p0", "x")), channel("p1", "x")],
        [RolePreference("the members of the ComputeDomain", NEAR, frozenset({""}))],
    ),
    "users' own preference": (
        [channel(f"p{at}", "x", TopologyRequest("w", role_preferred=("rack",))) for at in range(2)],
        [RolePreference("role w", ("rack",), frozenset({"w"}))],
    ),
    "a scope of the role": (
        [channel(f"p{at}", "x", TopologyRequest("w", role_scope="rack")) for at in range(2)],
        [],
    ),
    "segments of two": ([channel(f"p{at}", f"x{at // 4}", FOURS) for at in range(8)], []),
    "one member": ([channel("p0", "x")], []),
}


@pytest.mark.parametrize(("pods", "expected"), OF_DOMAINS.values(), ids=OF_DOMAINS)
def test_members_of_a_compute_domain_prefer_one_clique(
    pods: list[Pod], expected: list[RolePreference]
) -> None:
    gang_request = request(group_of(*pods), ledger_of(*pods))
    assert list(gang_request.role_preferences) == expected
    assert sum(len(role.members) for role in gang_request.roles) == sum(not pod.node for pod in pods)
