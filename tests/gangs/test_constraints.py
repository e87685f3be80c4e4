"""What the pods of a gang require about other pods, in the planner's terms: roles, nodes and counts."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import pytest

from muster.domain.constraints import NODE, Affinity, AntiAffinity, PeerConstraint, TopologySpread
from muster.domain.node import Node
from muster.domain.peers import HostPort, PeerRules, PeerTerm, Selector, SpreadTerm
from muster.domain.pod import Pod, TopologyRequest
from muster.domain.request import NodeRules, Request, SelectorTerm
from muster.gangs.capacity.ledger import Ledger
from muster.gangs.capacity.queueing_hints import QueueingHint
from muster.gangs.capacity.requests import peer_interest, request
from muster.gangs.peers.constraints import MAX_RULES
from muster.gangs.peers.existing_pods import Changes
from muster.gangs.pending.watchers import Watchers
from tests.gangs.test_requests import group_of
from tests.gangs.world import foreign, node, with_topology

HOST = "kubernetes.io/hostname"
ZONE = "topology.kubernetes.io/zone"
NODES = tuple(node(name, labels={ZONE: f"z{name}"}) for name in "abc")


def app(name: str) -> Selector:
    return (SelectorTerm("app", "In", (name,)),)


def term(name: str, key: str = HOST, *namespaces: str, by: Selector = None) -> PeerTerm:
    return PeerTerm(key, app(name), namespaces or (() if by is not None else ("ns",)), by)


def member(uid: str, labels: dict[str, str] | None = None, role: str = "", **rules: Any) -> Pod:
    new_pod = with_topology(uid, TopologyRequest(role))
    return replace(new_pod, labels=tuple(sorted((labels or {}).items())), peers=PeerRules(**rules))


def other(
    uid: str, on: str, labels: dict[str, str] | None = None, namespace: str = "ns", **rules: Any
) -> Pod:
    """A running pod of another scheduler."""
    new_pod = foreign(uid, on, gpus=0)
    pairs = tuple(sorted((labels or {}).items()))
    return replace(new_pod, labels=pairs, namespace=namespace, peers=PeerRules(**rules))


def ledger_of(
    *pods: Pod, nodes: Iterable[Node] = NODES, namespaces: dict[str, dict[str, str]] | None = None
) -> Ledger:
    ledger = Ledger()
    for new_node in nodes:
        ledger.set_node(new_node)
    for name, labels in (namespaces or {}).items():
        ledger.existing_pods.see_namespace(name, tuple(sorted(labels.items())))
    for each_pod in pods:
        ledger.see(each_pod)
    return ledger


def asked(members: list[Pod], *other_pods: Pod, **cluster: Any) -> Request:
    return request(group_of(*members), ledger_of(*members, *other_pods, **cluster))


def constraints(members: list[Pod], *other_pods: Pod, **cluster: Any) -> tuple[PeerConstraint, ...]:
    return asked(members, *other_pods, **cluster).constraints


WEB, DB = {"app": "web"}, {"app": "db"}
ONE = frozenset({""})
NONE: frozenset[str] = frozenset()
OPEN = frozenset
APART = f"podAntiAffinity app=web by {HOST}"
NEAR = f"podAffinity app=db by {ZONE}"
SPREAD = f"topologySpreadConstraints app=web by {ZONE}, maxSkew 1"


CASES: dict[str, tuple[list[Pod], list[Pod], dict[str, Any], tuple[PeerConstraint, ...]]] = {
    "nothing": ([member("p", WEB)], [other("x", "a", WEB)], {}, ()),
    "apart from each other": (
        [member(uid, WEB, anti_affinity=(term("web"),)) for uid in ("p", "q")],
        [],
        {},
        (AntiAffinity(APART, HOST, ONE, ONE),),
    ),
    "apart from pods that run": (
        [member("p", DB, anti_affinity=(term("web"),))],
        [other("x", "a", WEB), other("y", "b", DB), other("z", "gone", WEB)],
        {},
        (AntiAffinity(APART, HOST, ONE, NONE, OPEN("a")),),
    ),
    "of its own namespace alone": (
        [member("p", DB, anti_affinity=(term("web"),))],
        [other("x", "a", WEB, "elsewhere")],
        {},
        (),
    ),
    "of namespaces by name": (
        [member("p", WEB, anti_affinity=(term("web", HOST, "m", "n"),))],
        [other("x", "a", WEB, "m"), other("y", "b", WEB)],
        {},
        (AntiAffinity(APART, HOST, ONE, NONE, OPEN("a")),),
    ),
    "of namespaces by label": (
        [member("p", WEB, anti_affinity=(term("web", HOST, "n", by=(SelectorTerm("team", "Exists"),)),))],
        [other("x", "a", WEB, "m"), other("y", "b", WEB, "n"), other("z", "c", WEB)],
        {"namespaces": {"m": {"team": "t"}, "n": {}, "ns": {}}},
        (AntiAffinity(APART, HOST, ONE, NONE, OPEN("ab")),),
    ),
    "of all namespaces, known or not": (
        [member("p", WEB, anti_affinity=(term("web", by=()),))],
        [other("x", "a", WEB, "m")],
        {},
        (AntiAffinity(APART, HOST, ONE, ONE, OPEN("a")),),
    ),
    "finished pods repel nobody, terminating ones do": (
        [member("p", DB, anti_affinity=(term("web"),))],
        [
            replace(other("x", "a", WEB), finished=True, running=False),
            replace(other("y", "b", WEB), terminating=True),
        ],
        {},
        (AntiAffinity(APART, HOST, ONE, NONE, OPEN("b")),),
    ),
    "a pod that runs repels": (
        [member("p", WEB)],
        [other("x", "a", DB, anti_affinity=(term("web"),)), other("y", "b", DB, anti_affinity=(term("db"),))],
        {},
        (AntiAffinity(f"podAntiAffinity of other pods, app=web by {HOST}", HOST, ONE, existing=OPEN("a")),),
    ),
    "a pod of another namespace repels": (
        [member("p", WEB)],
        [
            other("x", "a", DB, "m", anti_affinity=(term("web", ZONE, "m"),)),
            other("y", "b", DB, "m", anti_affinity=(term("web", ZONE, "ns"),)),
            other("z", "c", DB, "m", anti_affinity=(term("web", ZONE, by=(SelectorTerm("t", "Exists"),)),)),
        ],
        {"namespaces": {"ns": {"t": ""}}},
        (AntiAffinity(f"podAntiAffinity of other pods, 2 terms by {ZONE}", ZONE, ONE, existing=OPEN("bc")),),
    ),
    "terms by a key that no node has": (
        [member("p", WEB)],
        [other("x", "a", DB, anti_affinity=(term("web", "nowhere"),))],
        {},
        (),
    ),
    "what both say is one constraint": (
        [member("p", WEB, anti_affinity=(term("web"),))],
        [other("x", "a", WEB, anti_affinity=(term("web"),)), other("y", "b", WEB)],
        {},
        (AntiAffinity(APART, HOST, ONE, ONE, OPEN("ab")),),
    ),
    "a running member counts as any pod": (
        [member("p", WEB, anti_affinity=(term("web"),)), replace(member("q", WEB), node="c")],
        [],
        {},
        (AntiAffinity(APART, HOST, OPEN({"role-2"}), OPEN({"role-2"}), OPEN("c")),),
    ),
    "near to a pod that runs": (
        [member("p", WEB, affinity=(term("db", ZONE),))],
        [other("x", "a", DB), other("y", "b", WEB)],
        {},
        (Affinity(NEAR, ZONE, ONE, NONE, OPEN("a")),),
    ),
    "near to each other": (
        [member(uid, DB, affinity=(term("db", ZONE),)) for uid in ("p", "q")],
        [],
        {},
        (Affinity(NEAR, ZONE, ONE, ONE),),
    ),
    "one pod must match all terms": (
        [
            member(
                "p",
                {**WEB, **DB},
                affinity=(term("db", ZONE), PeerTerm(HOST, (SelectorTerm("x", "Exists"),), ("ns",))),
            )
        ],
        [other("x", "a", DB), other("y", "b", {"x": ""}), other("z", "c", {**DB, "x": ""})],
        {},
        (
            Affinity(NEAR, ZONE, ONE, NONE, OPEN("c")),
            Affinity(f"podAffinity x by {HOST}", HOST, ONE, NONE, OPEN("c")),
        ),
    ),
    "a match on a node without the label is none": (
        [member("p", DB, affinity=(term("db", "rack"),))],
        [other("x", "a", DB)],
        {},
        (Affinity("podAffinity app=db by rack", "rack", ONE, ONE),),
    ),
    "no selector is near to no pod": (
        [member("p", DB, affinity=(PeerTerm(ZONE, None, ("ns",)),))],
        [other("x", "a", DB)],
        {},
        (Affinity(f"podAffinity no pod by {ZONE}", ZONE, ONE),),
    ),
    "spread": (
        [member("p", WEB, spread=(SpreadTerm(ZONE, app("web")),))],
        [
            other("x", "a", WEB),
            other("y", "a", WEB),
            other("z", "b", DB),
            replace(other("t", "b", WEB), terminating=True),
            other("u", "c", WEB, "elsewhere"),
            other("v", "gone", WEB),
        ],
        {},
        (TopologySpread(SPREAD, ZONE, 1, ONE, ONE, {"a": 2}, 1, OPEN({ZONE})),),
    ),
    "spread over two keys, of pods that are not its own": (
        [
            member(
                "p",
                DB,
                spread=(SpreadTerm(ZONE, app("web"), honor_taints=True), SpreadTerm(HOST, app("web"), 2, 3)),
            )
        ],
        [],
        {},
        (
            TopologySpread(SPREAD, ZONE, 1, ONE, NONE, {}, 1, OPEN({ZONE, HOST}), honor_taints=True),
            TopologySpread(
                f"topologySpreadConstraints app=web by {HOST}, maxSkew 2, minDomains 3",
                HOST,
                2,
                ONE,
                NONE,
                {},
                3,
                OPEN({ZONE, HOST}),
            ),
        ),
    ),
    "an empty selector counts no pod": (
        [member("p", WEB, spread=(SpreadTerm(ZONE, ()),))],
        [other("x", "a", WEB)],
        {},
        (
            TopologySpread(
                f"topologySpreadConstraints all pods by {ZONE}, maxSkew 1",
                ZONE,
                1,
                ONE,
                NONE,
                {},
                1,
                OPEN({ZONE}),
            ),
        ),
    ),
    "a port": (
        [member("p", host_ports=(HostPort(8080),))],
        [
            other("x", "a", host_ports=(HostPort(8080, address="10.0.0.1"),)),
            other("y", "b", host_ports=(HostPort(8080, "UDP"),)),
            other("z", "c", namespace="elsewhere", host_ports=(HostPort(1), HostPort(8080))),
        ],
        {},
        (AntiAffinity("hostPort 8080/TCP", NODE, ONE, ONE, OPEN("ac")),),
    ),
    "a port of one address": (
        [member("p", host_ports=(HostPort(80, address="10.0.0.1"),))],
        [
            other("x", "a", host_ports=(HostPort(80, address="10.0.0.2"),)),
            other("y", "b", host_ports=(HostPort(80, address="10.0.0.1"),)),
            replace(other("z", "c", host_ports=(HostPort(80),)), terminating=True),
        ],
        {},
        (AntiAffinity("hostPort 10.0.0.1:80/TCP", NODE, ONE, ONE, OPEN("bc")),),
    ),
}


@pytest.mark.parametrize(("members", "other_pods", "cluster", "expected"), CASES.values(), ids=CASES)
def test_constraints(
    members: list[Pod], other_pods: list[Pod], cluster: dict[str, Any], expected: tuple[PeerConstraint, ...]
) -> None:
    built = constraints(members, *other_pods, **cluster)
    assert built == expected
    hash(built)


def roles(members: list[Pod], *other_pods: Pod) -> list[str]:
    gang_request = asked(members, *other_pods)
    return [
        f"{role.name}: {' '.join(role_member.name for role_member in role.members)}"
        for role in gang_request.roles
    ]


APART_FROM_WEB: dict[str, Any] = {"anti_affinity": (term("web"),)}
ROLES: dict[str, tuple[list[Pod], list[Pod], list[str]]] = {
    "labels that nobody speaks of": (
        [member("p", {"index": "0"}), member("q", {"index": "1"})],
        [],
        [": p q"],
    ),
    "labels of which one member speaks": (
        [member("p", WEB, **APART_FROM_WEB), member("q", DB, **APART_FROM_WEB)],
        [],
        ["role-1: q", "role-2: p"],
    ),
    "other labels of the same members": (
        [member("p", {**WEB, "i": "0"}, **APART_FROM_WEB), member("q", {**WEB, "i": "1"}, **APART_FROM_WEB)],
        [],
        [": p q"],
    ),
    "labels of which a pod that runs speaks": (
        [member("p", WEB), member("q", DB)],
        [other("x", "a", anti_affinity=(term("web"),))],
        ["role-1: q", "role-2: p"],
    ),
    "rules that differ": (
        [member("p", WEB, role="w", host_ports=(HostPort(1),)), member("q", WEB, role="w")],
        [],
        ["w-1: q", "w-2: p"],
    ),
    "claims that nobody shares": (
        [member("p", volume_claims=("data-0",)), member("q", volume_claims=("data-1",))],
        [],
        [": p q"],
    ),
    "the names of roles stay while members are bound": (
        [replace(member("p", WEB, **APART_FROM_WEB), node="a"), member("q", DB, **APART_FROM_WEB)],
        [],
        ["role-1: q"],
    ),
}


@pytest.mark.parametrize(("members", "other_pods", "expected"), ROLES.values(), ids=ROLES)
def test_members_with_other_constraints_are_other_roles(
    members: list[Pod], other_pods: list[Pod], expected: list[str]
) -> None:
    assert roles(members, *other_pods) == expected
    assert roles(members[::-1], *other_pods[::-1]) == expected


def test_roles_with_the_same_affinity_are_one_constraint() -> None:
    """So that the first member of either opens the one domain for both."""
    near = (term("db", ZONE),)
    members = [
        member("p", {**DB, "i": "0"}, affinity=near),
        member("q", {"app": "db"}, affinity=near, host_ports=(HostPort(1),)),
    ]
    affinities = [constraint for constraint in constraints(members) if isinstance(constraint, Affinity)]
    assert [constraint.roles for constraint in affinities] == [frozenset({"role-1", "role-2"})]


def test_roles_with_other_rules_about_nodes_are_spread_apart() -> None:
    spread = (SpreadTerm(ZONE, app("web")),)
    disk = NodeRules((SelectorTerm("disk", "In", ("ssd",)),))
    members = [member("p", WEB, spread=spread), replace(member("q", WEB, spread=spread), rules=disk)]
    spreads = constraints(members)
    assert [constraint.roles for constraint in spreads] == [frozenset({"role-1"}), frozenset({"role-2"})]
    assert all(
        isinstance(constraint, TopologySpread) and len(constraint.counted_roles) == 2
        for constraint in spreads
    )


def test_a_volume_that_attaches_to_one_node_keeps_its_users_together() -> None:
    members = [member(uid, volume_claims=(f"own-{uid}", "data")) for uid in ("p", "q")]
    ledger = ledger_of(*members)
    assert request(group_of(*members), ledger).constraints == ()
    for claim in ("data", "own-p", "own-q"):
        ledger.existing_pods.see_claim("ns", claim, True)
    name = "persistentVolumeClaim data, which attaches to one node"
    assert request(group_of(*members), ledger).constraints == (Affinity(name, NODE, ONE, ONE),)
    ledger.see(other("x", "b", volume_claims=("data",)))
    ledger.see(other("y", "c", namespace="elsewhere", volume_claims=("data",)))
    assert request(group_of(*members), ledger).constraints == (Affinity(name, NODE, ONE, ONE, OPEN("b")),)
    ledger.existing_pods.see_claim("ns", "data", False)
    assert request(group_of(*members), ledger).constraints == ()


def test_a_request_leaves_the_index_as_it_was() -> None:
    """A member's own held place does not repel it."""
    members = [member(uid, WEB, anti_affinity=(term("web"),)) for uid in ("p", "q")]
    ledger = ledger_of(*members)
    usage = replace(members[0], node="a").usage
    assert usage is not None
    ledger.hold((usage,))
    ledger.take_changes()
    for _ in range(2):
        assert request(group_of(*members), ledger).constraints == (AntiAffinity(APART, HOST, ONE, ONE),)
    assert ledger.existing_pods.nodes_matching((term("web"),)) == {"a"}
    assert not ledger.existing_pods.changes.concern_peers
    stranger = [replace(member("x", WEB, anti_affinity=(term("web"),)), namespace="ns")]
    assert request(group_of(*stranger), ledger).constraints == (
        AntiAffinity(APART, HOST, ONE, ONE, OPEN("a")),
    )


TOUCHED: dict[str, tuple[Pod, bool]] = {
    "a pod that matches": (other("x", "a", WEB), True),
    "a pod that does not": (other("x", "a", {"app": "cache"}), False),
    "one of another namespace": (other("x", "a", WEB, "elsewhere"), False),
    "one of which topology spread speaks": (other("x", "a", {"app": "spread"}), True),
    "one that repels": (other("r", "b", {"app": "r"}, anti_affinity=(term("p"),)), True),
    "one that repels others": (other("r", "b", {"app": "r"}, anti_affinity=(term("q"),)), False),
}


@pytest.mark.parametrize(("change", "expected"), TOUCHED.values(), ids=TOUCHED)
def test_which_changes_of_other_pods_bear_on_a_gang(change: Pod, expected: bool) -> None:
    members = [
        member("p", {"app": "p"}, anti_affinity=(term("web"),), spread=(SpreadTerm(ZONE, app("spread")),))
    ]
    ledger = ledger_of(*members, other("repels", "b", {"app": "r"}, anti_affinity=(term("p"),)))
    interest = peer_interest(group_of(*members), ledger)
    watchers = Watchers()
    watchers.add(QueueingHint(frozenset(), (), interest))
    for move in (lambda: ledger.see(change), lambda: ledger.forget(change.uid)):
        ledger.take_changes()
        move()
        changes = ledger.take_changes()
        assert bool(watchers.hints_touched_by(changes, ledger.existing_pods.labels_of)) is expected


def test_too_many_changes_are_a_change_of_everything() -> None:
    changes = Changes()
    for number in range(1000):
        changes.note_pod(other(f"x{number}", "a", {"i": str(number)}))
    assert changes.everything
    assert not changes.pods


def test_more_different_rules_than_are_planned_are_left_to_the_plugins() -> None:
    members = [member(f"p{i}", WEB, host_ports=(HostPort(i + 1),)) for i in range(MAX_RULES + 1)]
    assert roles(members) == [
        ": " + " ".join(sorted((role_member.name for role_member in members), key=_number))
    ]
    assert constraints(members) == ()
    planned_constraints = constraints(members[:-2])
    assert len(planned_constraints) == MAX_RULES - 1


def test_a_port_is_held_against_ports_of_its_number_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pods may have thousands of ports together: pairs of them are too many to look at."""
    compared: list[HostPort] = []
    equal = HostPort.__eq__

    def noted(port: HostPort, second: object) -> bool:
        compared.append(port)
        return equal(port, second)

    monkeypatch.setattr(HostPort, "__eq__", noted)
    members = [
        member(f"p{i}", WEB, host_ports=tuple(HostPort(1 + i * 8 + k) for k in range(8))) for i in range(8)
    ]
    other_pods = [other(f"o{i}", "a", host_ports=(HostPort(9, address=f"10.0.0.{i}"),)) for i in range(64)]
    compared.clear()
    assert len(constraints(members, *other_pods)) == 64
    assert len(compared) < 64 * 64


def _number(name: str) -> int:
    return int(name[1:])


def test_what_one_request_looks_at_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """The rules that were looked at before hold; those beyond the bound are left to the plugins."""
    everywhere = PeerTerm(HOST, (SelectorTerm("x", "DoesNotExist"),), (), ())
    other_pods = [other(f"o{i}", "a", {"i": str(i)}) for i in range(20)]
    members = [member("p", WEB, anti_affinity=(term("web"), everywhere, term("db")))]
    assert [constraint.topology_key for constraint in constraints(members, *other_pods)] == [HOST] * 2
    monkeypatch.setattr("muster.gangs.peers.constraints.MAX_LOOKED_AT", 30)
    assert [constraint.name for constraint in constraints(members, *other_pods)] == [APART]


def test_what_is_held_against_the_labels_of_members_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each selector is held against each set of labels: many of both are left to the plugins."""
    terms = (term("web"), term("db"))
    many = [member(f"p{i}", {"app": app}, anti_affinity=terms) for i, app in enumerate(("web", "db", "x"))]
    assert len(roles(many)) == 3
    assert constraints(many)
    monkeypatch.setattr("muster.gangs.peers.constraints.MAX_MATCHED", 10)
    assert len(roles(many)) == 1
    assert constraints(many) == ()
    alike = [member(f"p{i}", WEB, anti_affinity=terms) for i in range(8)]
    assert constraints(alike)


def test_many_rules_of_others_take_none_of_its_own_from_a_gang(monkeypatch: pytest.MonkeyPatch) -> None:
    """The rules of others are left to the plugins before those of the gang."""
    monkeypatch.setattr("muster.gangs.peers.constraints.MAX_MATCHED", 40)
    members = [member(f"p{i}", {**WEB, "i": str(i)}, anti_affinity=(term("web"),)) for i in range(4)]
    everywhere = [PeerTerm(ZONE, (SelectorTerm("i", "NotIn", (str(i),)),), (), ()) for i in range(16)]
    other_pods = [other(f"o{i}", "a", anti_affinity=(term,)) for i, term in enumerate(everywhere)]
    assert [constraint.name for constraint in constraints(members, *other_pods)] == [APART]
    assert len(constraints(members[:1], *other_pods[:4])) == 2


def test_an_index_makes_the_next_request_cheaper(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("muster.gangs.peers.constraints.MAX_LOOKED_AT", 30)
    members = [member("p", WEB, anti_affinity=(term("o7", ZONE), term("web"), term("o8", ZONE)))]
    ledger = ledger_of(*members, *(other(f"o{i}", "a", {"app": f"o{i}"}) for i in range(20)))
    for _ in range(2):
        from_index = request(group_of(*members), ledger).constraints
        assert [constraint.existing for constraint in from_index] == [{"a"}, frozenset(), {"a"}]
