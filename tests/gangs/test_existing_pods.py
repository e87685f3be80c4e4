"""The index of all pods on nodes answers as a look at each pod would, whatever came before."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from muster.domain.node import Usage
from muster.domain.peers import HostPort, PeerRules, PeerTerm, Selector, matches
from muster.domain.pod import Pod
from muster.domain.request import SelectorTerm
from muster.gangs.capacity.ledger import Ledger
from muster.gangs.peers.existing_pods import MAX_INDEX_KEYS, MAX_OF_ALL, MAX_TERMS, AntiAffinityIndex
from tests.gangs.world import foreign, pod

SELECTORS: list[Selector] = [
    None,
    (),
    (SelectorTerm("app", "In", ("web", "db")),),
    (SelectorTerm("app", "NotIn", ("web",)),),
    (SelectorTerm("tier", "Exists"),),
]
TERM = st.builds(
    PeerTerm,
    st.just("zone"),
    st.sampled_from(SELECTORS),
    st.sampled_from([(), ("m",), ("m", "n")]),
    st.sampled_from([None, (), (SelectorTerm("team", "Exists"),)]),
)
PORT = st.builds(HostPort, st.sampled_from([1, 2]), st.just("TCP"), st.sampled_from(["0.0.0.0", "10.0.0.1"]))
LABELS = st.dictionaries(st.sampled_from(["app", "tier"]), st.sampled_from(["web", "db"])).map(
    lambda labels: tuple(sorted(labels.items()))
)
RULES = st.builds(
    PeerRules,
    anti_affinity=st.lists(TERM, max_size=2, unique=True).map(tuple),
    host_ports=st.lists(PORT, max_size=2, unique=True).map(tuple),
    volume_claims=st.sampled_from([(), ("data",)]),
)
UIDS = ("u0", "u1", "u2", "u3")
STATE = st.tuples(
    st.sampled_from(UIDS),
    st.sampled_from(["m", "n"]),
    st.sampled_from(["", "a", "b"]),
    LABELS,
    RULES,
    st.sampled_from(["runs", "runs", "terminates", "finished"]),
    st.booleans(),
)
STEP = st.one_of(
    STATE,
    st.tuples(st.just("gone"), st.sampled_from(UIDS)),
    st.tuples(st.just("hold"), st.sampled_from(UIDS), st.sampled_from(["a", "b"])),
    st.tuples(st.just("release"), st.sampled_from(UIDS)),
    st.tuples(
        st.just("namespace"), st.sampled_from(["m", "n"]), st.sampled_from([None, (), (("team", "t"),)])
    ),
)


def _made(state: Any) -> Pod:
    uid, namespace, node, labels, rules, phase, ours = state
    new_pod = pod(uid, gpus=0) if ours else foreign(uid, "", gpus=0)
    return replace(
        new_pod,
        namespace=namespace,
        node=node,
        labels=labels,
        peers=rules,
        running=phase == "runs",
        terminating=phase == "terminates",
        finished=phase == "finished",
    )


@given(
    st.lists(STEP, max_size=25), st.lists(TERM, min_size=1, max_size=2), PORT, st.sets(st.sampled_from(UIDS))
)
def test_the_index_answers_as_a_look_at_each_pod(
    steps: list[Any],
    terms: list[PeerTerm],
    port: HostPort,
    apart: set[str],
) -> None:
    ledger, pods_by_uid = Ledger(), dict[str, Pod]()
    namespaces: dict[str, dict[str, str]] = {}
    for step in steps:
        match step:
            case ("gone", uid):
                ledger.forget(uid)
                pods_by_uid.pop(uid, None)
            case ("hold", uid, node) if uid in pods_by_uid and not pods_by_uid[uid].finished:
                ledger.hold((Usage(uid, node, pods_by_uid[uid].resources),))
            case ("release", uid):
                ledger.release((uid,))
            case ("namespace", name, labels):
                if labels is None:
                    if name in namespaces:
                        ledger.existing_pods.see_namespace(name, None)
                    namespaces.pop(name, None)
                else:
                    ledger.existing_pods.see_namespace(name, labels)
                    namespaces[name] = dict(labels)
            case (uid, _, _, _, _, _, _):
                pods_by_uid[uid] = _made(step)
                ledger.see(pods_by_uid[uid])
    on_nodes = []
    for uid, existing_pod in pods_by_uid.items():
        usage = ledger.usage(uid)
        if (
            usage is not None
            and not existing_pod.finished
            and (existing_pod.node or existing_pod.claim is not None)
        ):
            on_nodes.append((existing_pod, usage.node))
    index = ledger.existing_pods
    _compare(ledger, on_nodes, namespaces, terms, port)
    with index.hide(apart):
        _compare(ledger, [pair for pair in on_nodes if pair[0].uid not in apart], namespaces, terms, port)
    _compare(ledger, on_nodes, namespaces, terms, port)


def _compare(
    ledger: Ledger,
    on_nodes: list[tuple[Pod, str]],
    namespaces: dict[str, dict[str, str]],
    terms: list[PeerTerm],
    port: HostPort,
) -> None:
    index = ledger.existing_pods

    def covers(term: PeerTerm, namespace: str) -> bool:
        by_label = matches(term.namespace_selector, namespaces.get(namespace, {}))
        return namespace in term.namespaces or by_label

    assert index.nodes_matching(terms) == {
        node
        for existing_pod, node in on_nodes
        if all(
            covers(term, existing_pod.namespace) and matches(term.selector, dict(existing_pod.labels))
            for term in terms
        )
    }
    for selector in SELECTORS:
        assert index.count_matching("m", selector) == Counter(
            node
            for existing_pod, node in on_nodes
            if existing_pod.namespace == "m"
            and not existing_pod.terminating
            and matches(selector, dict(existing_pod.labels))
        )
    pairs = {("app", "web"), ("tier", "db")}
    repelling: dict[PeerTerm, set[str]] = {}
    for existing_pod, node in on_nodes:
        for term in existing_pod.peers.anti_affinity:
            ins = [selector_term for selector_term in term.selector or () if selector_term.operator == "In"]
            may_match = all(
                any((selector_term.key, value) in pairs for value in selector_term.values)
                for selector_term in ins
            )
            if covers(term, "m") and may_match:
                repelling.setdefault(term, set()).add(node)
    repelling_nodes: dict[PeerTerm, set[str]] = {}
    for term, nodes in index.repelling.terms_against("m", namespaces.get("m", {}), pairs):
        repelling_nodes.setdefault(term, set()).update(nodes)
    assert repelling_nodes == repelling
    assert bool(index.repelling) >= bool(repelling)
    assert index.nodes_with_port(port) == {
        node
        for existing_pod, node in on_nodes
        if any(_conflict(port, host_port) for host_port in existing_pod.peers.host_ports)
    }
    assert index.nodes_with_claim("m", "data") == {
        node
        for existing_pod, node in on_nodes
        if existing_pod.namespace == "m" and existing_pod.peers.volume_claims
    }


def test_what_has_gone_leaves_nothing_behind() -> None:
    ledger = Ledger()
    term = PeerTerm("zone", (), ("m", "n"), (SelectorTerm("team", "Exists"),))
    rules = PeerRules(anti_affinity=(term,), host_ports=(HostPort(1),), volume_claims=("data",))
    for number in range(200):
        existing_pod = replace(
            foreign(f"u{number}", "a", gpus=0),
            labels=(("i", str(number)),),
            peers=rules,
            terminating=number % 2 == 0,
        )
        ledger.see(existing_pod)
        ledger.forget(existing_pod.uid)
        ledger.take_changes()
    index = ledger.existing_pods
    tables = (
        index._in_namespace,
        index._pods,
        index._by_labels,
        index._terminating,
        index.repelling,
        index._ports,
        index._claims,
    )
    assert not any(tables)


@pytest.mark.parametrize(("owners", "most"), [(1, MAX_TERMS), (12, MAX_OF_ALL - 1)])
def test_the_terms_of_others_that_are_looked_at_are_bounded(owners: int, most: int) -> None:
    """Thousands of different terms do not slow the requests of others. Who has few has them looked at."""
    ledger = Ledger()
    for number in range(3 * owners * MAX_TERMS):
        term = PeerTerm("zone", (SelectorTerm("app", "NotIn", (str(number),)),), (), ())
        ledger.see(
            replace(
                foreign(f"u{number}", "a", gpus=0),
                namespace=f"evil{number % owners}",
                peers=PeerRules(anti_affinity=(term,)),
            )
        )
    own_term = PeerTerm("zone", (SelectorTerm("app", "In", ("web",)),), (), ())
    ledger.see(replace(foreign("v", "b", gpus=0), peers=PeerRules(anti_affinity=(own_term,))))
    terms_of_nodes = dict(ledger.existing_pods.repelling.terms_against("m", {}, [("app", "web")]))
    assert len(terms_of_nodes) == most + 1
    assert terms_of_nodes[own_term] == {"b"}


def test_a_term_of_many_namespaces_and_values_stands_in_few_places() -> None:
    namespaces = tuple(f"n{i:03}" for i in range(256))
    values = tuple(f"v{i:03}" for i in range(256))
    wide = PeerTerm("zone", (SelectorTerm("app", "In", values),), namespaces)
    with_values = PeerTerm("zone", (SelectorTerm("app", "In", values),), ("n007",))
    with_namespaces = PeerTerm("zone", (SelectorTerm("app", "In", ("v007",)),), namespaces)
    index = AntiAffinityIndex()
    for term in (wide, with_values, with_namespaces):
        index.add("m", term, "a", 1)
    assert sum(len(terms) for by in index._terms.values() for terms in by.values()) <= 3 * MAX_INDEX_KEYS
    terms_of_nodes = dict(index.terms_against("n007", {}, [("app", "v007")]))
    assert terms_of_nodes == dict.fromkeys((wide, with_values, with_namespaces), frozenset({"a"}))
    assert not dict(index.terms_against("elsewhere", {}, [("app", "v007")]))
    for term in (wide, with_values, with_namespaces):
        index.add("m", term, "a", -1)
    assert not index


def _conflict(first: HostPort, second: HostPort) -> bool:
    """The rules of HostPortInfo.CheckConflict (kube-scheduler, framework/types.go), written as there."""
    same = (first.port, first.protocol) == (second.port, second.protocol)
    return same and (first.address == "0.0.0.0" or second.address in ("0.0.0.0", first.address))
