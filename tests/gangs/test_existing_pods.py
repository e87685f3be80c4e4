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
from muster.gangs.peers.anti_affinity_index import MAX_OF_ALL, MAX_PLACES, MAX_TERMS, AntiAffinityIndex
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
    made = pod(uid, gpus=0) if ours else foreign(uid, "", gpus=0)
    return replace(
        made,
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
    ledger, seen = Ledger(), dict[str, Pod]()
    namespaces: dict[str, dict[str, str]] = {}
    for step in steps:
        match step:
            case ("gone", uid):
                ledger.forget(uid)
                seen.pop(uid, None)
            case ("hold", uid, node) if uid in seen and not seen[uid].finished:
                ledger.hold((Usage(uid, node, seen[uid].resources),))
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
                seen[uid] = _made(step)
                ledger.see(seen[uid])
    there = []
    for uid, each in seen.items():
        usage = ledger.usage(uid)
        if usage is not None and not each.finished and (each.node or each.claim is not None):
            there.append((each, usage.node))
    index = ledger.existing_pods
    _compare(ledger, there, namespaces, terms, port)
    with index.without(apart):
        _compare(ledger, [pair for pair in there if pair[0].uid not in apart], namespaces, terms, port)
    _compare(ledger, there, namespaces, terms, port)


def _compare(
    ledger: Ledger,
    there: list[tuple[Pod, str]],
    namespaces: dict[str, dict[str, str]],
    terms: list[PeerTerm],
    port: HostPort,
) -> None:
    index = ledger.existing_pods

    def covers(term: PeerTerm, namespace: str) -> bool:
        by_label = matches(term.namespace_selector, namespaces.get(namespace, {}))
        return namespace in term.namespaces or by_label

    assert index.matching(terms) == {
        node
        for each, node in there
        if all(covers(term, each.namespace) and matches(term.selector, dict(each.labels)) for term in terms)
    }
    for selector in SELECTORS:
        assert index.counted("m", selector) == Counter(
            node
            for each, node in there
            if each.namespace == "m" and not each.terminating and matches(selector, dict(each.labels))
        )
    pairs = {("app", "web"), ("tier", "db")}
    repelling: dict[PeerTerm, set[str]] = {}
    for each, node in there:
        for term in each.peers.anti_affinity:
            ins = [one for one in term.selector or () if one.operator == "In"]
            may_match = all(any((one.key, value) in pairs for value in one.values) for one in ins)
            if covers(term, "m") and may_match:
                repelling.setdefault(term, set()).add(node)
    found: dict[PeerTerm, set[str]] = {}
    for term, nodes in index.repelling.against("m", namespaces.get("m", {}), pairs):
        found.setdefault(term, set()).update(nodes)
    assert found == repelling
    assert bool(index.repelling) >= bool(repelling)
    assert index.with_port(port) == {
        node for each, node in there if any(port.conflicts(other) for other in each.peers.host_ports)
    }
    assert index.with_claim("m", "data") == {
        node for each, node in there if each.namespace == "m" and each.peers.volume_claims
    }


def test_what_has_gone_leaves_nothing_behind() -> None:
    ledger = Ledger()
    term = PeerTerm("zone", (), ("m", "n"), (SelectorTerm("team", "Exists"),))
    rules = PeerRules(anti_affinity=(term,), host_ports=(HostPort(1),), volume_claims=("data",))
    for number in range(200):
        made = replace(
            foreign(f"u{number}", "a", gpus=0),
            labels=(("i", str(number)),),
            peers=rules,
            terminating=number % 2 == 0,
        )
        ledger.see(made)
        ledger.forget(made.uid)
        ledger.existing_pods.take_changes()
    index = ledger.existing_pods
    left = (
        index._in_namespace,
        index._known,
        index._node,
        index._by_labels,
        index._terminating,
        index.repelling,
        index._ports,
        index._claims,
    )
    assert not any(left)


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
    mine = PeerTerm("zone", (SelectorTerm("app", "In", ("web",)),), (), ())
    ledger.see(replace(foreign("v", "b", gpus=0), peers=PeerRules(anti_affinity=(mine,))))
    found = dict(ledger.existing_pods.repelling.against("m", {}, [("app", "web")]))
    assert len(found) == most + 1
    assert found[mine] == {"b"}


def test_a_term_of_many_namespaces_and_values_stands_in_few_places() -> None:
    namespaces = tuple(f"n{i:03}" for i in range(256))
    values = tuple(f"v{i:03}" for i in range(256))
    wide = PeerTerm("zone", (SelectorTerm("app", "In", values),), namespaces)
    of_values = PeerTerm("zone", (SelectorTerm("app", "In", values),), ("n007",))
    of_namespaces = PeerTerm("zone", (SelectorTerm("app", "In", ("v007",)),), namespaces)
    index = AntiAffinityIndex()
    for term in (wide, of_values, of_namespaces):
        index.add("m", term, "a", 1)
    assert sum(len(terms) for by in index._terms.values() for terms in by.values()) <= 3 * MAX_PLACES
    found = dict(index.against("n007", {}, [("app", "v007")]))
    assert found == dict.fromkeys((wide, of_values, of_namespaces), frozenset({"a"}))
    assert not dict(index.against("elsewhere", {}, [("app", "v007")]))
    for term in (wide, of_values, of_namespaces):
        index.add("m", term, "a", -1)
    assert not index
