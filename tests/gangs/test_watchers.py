"""The hints that a change of other pods concerns: the same answer as a look at each term, for less work."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from muster.domain import peers
from muster.domain.peers import Labels, PeerRules, PeerTerm, Selector, matches
from muster.domain.request import SelectorTerm
from muster.gangs.capacity.queueing_hints import QueueingHint
from muster.gangs.peers.existing_pods import MAX_CHANGES, Changes, PeerInterest
from muster.gangs.pending import watchers
from muster.gangs.pending.watchers import MAX_INTERESTS, MAX_LOOKED_AT, Watchers
from tests.gangs.test_constraints import other
from tests.gangs.test_existing_pods import LABELS
from tests.gangs.test_peer_changes import FULL, no
from tests.gangs.world import World, node, pod

NAMESPACES: Mapping[str, Mapping[str, str]] = {"n": {"team": "t"}}
REQUIREMENT = st.builds(
    SelectorTerm, st.sampled_from(["app", "tier"]), st.sampled_from(["Exists", "DoesNotExist"])
) | st.builds(
    SelectorTerm,
    st.sampled_from(["app", "tier"]),
    st.sampled_from(["In", "NotIn"]),
    st.sampled_from([("web",), ("db",), ("db", "web")]),
)
SELECTOR = st.none() | st.lists(REQUIREMENT, max_size=3).map(tuple)
TERM = st.builds(
    PeerTerm,
    st.just("zone"),
    SELECTOR,
    st.sampled_from([(), ("m",), ("m",), ("m", "n")]),
    st.sampled_from([None, None, (), (SelectorTerm("team", "Exists"),)]),
)
CLAIMS = st.frozensets(st.tuples(st.sampled_from("mn"), st.just("data")), max_size=1)
TERMS = st.frozensets(TERM, max_size=3)
WATCHED = st.builds(PeerInterest, TERMS, TERMS, CLAIMS)
MARKS = st.builds(
    Changes,
    st.sets(st.tuples(st.sampled_from("mn"), LABELS), max_size=3),
    TERMS.map(set),
    CLAIMS.map(set),
    st.sampled_from([False] * 9 + [True]),
)


def labels_of(namespace: str) -> Mapping[str, str]:
    return NAMESPACES.get(namespace, {})


def hint(number: int, *terms: PeerTerm) -> QueueingHint:
    """QueueingHint that watch these terms, unlike those of other numbers."""
    return watching(number, PeerInterest(frozenset(terms)))


def watching(number: int, interest: PeerInterest) -> QueueingHint:
    return QueueingHint(frozenset(), (("", 1, number),), interest)


def bears_on(changes: Changes, interest: PeerInterest) -> bool:
    """What `Watchers` is to answer, by a look at each term."""
    return (
        changes.everything
        or bool(interest.repelled_by & changes.terms)
        or bool(interest.claims & changes.claims)
        or any(
            term.covers(namespace, labels_of(namespace)) and matches(term.selector, dict(labels))
            for namespace, labels in changes.pods
            for term in interest.terms
        )
    )


@given(st.lists(WATCHED, max_size=8), st.data(), MARKS)
def test_it_finds_those_that_a_look_at_each_finds(
    interests: list[PeerInterest], data: st.DataObject, changes: Changes
) -> None:
    index = Watchers()
    hints = {watching(number, interest) for number, interest in enumerate(interests)}
    for hint in hints:
        index.add(hint)
    discarded = data.draw(st.sets(st.sampled_from(sorted(hints, key=repr)))) if hints else set()
    for hint in discarded:
        index.discard(hint)
    hints -= discarded
    assert index.hints_touched_by(changes, labels_of) == {
        hint for hint in hints if hint.interest is not None and bears_on(changes, hint.interest)
    }
    for hint in hints:
        index.discard(hint)
    assert not any(vars(index).values())


# --- what one change costs ------------------------------------------------------------------------------


def one(selector: Selector, *namespaces: str) -> PeerTerm:
    """A term of these namespaces, or of all."""
    return PeerTerm("zone", selector, namespaces, None if namespaces else ())


def is_in(key: str, *values: str) -> SelectorTerm:
    return SelectorTerm(key, "In", values)


X: Labels = (("app", "x"), ("job", "j7"))
CROWD = MAX_LOOKED_AT
COSTS: dict[str, tuple[Callable[[int], PeerTerm], int, int]] = {
    "equal terms": (lambda _: one((is_in("app", "x"),), "ns"), 1, CROWD),
    "unlike labels": (lambda i: one((is_in("job", f"j{i}"),), "ns"), 1, 1),
    "one label in common, another unlike": (
        lambda i: one((is_in("app", "x"), is_in("job", f"j{i}")), "ns"),
        2,  # the first term stood where none did
        1,
    ),
    "keys that must be there": (lambda i: one((SelectorTerm(f"k{i}", "Exists"),)), 0, 0),
    "another namespace": (lambda _: one((is_in("app", "x"),), "elsewhere"), 0, 0),
    "a crowd that a look would exclude": (
        lambda i: one((is_in("app", "x"), SelectorTerm("app", "NotIn", ("x", str(i))))),
        0,
        CROWD,
    ),
    "a crowd that requires nothing": (lambda i: one((SelectorTerm(f"k{i}", "DoesNotExist"),)), 0, CROWD),
}
"""What many needs watch; the terms that one pod is held against; the needs that count as touched."""


@pytest.mark.parametrize(("term", "looks", "touched_count"), COSTS.values(), ids=COSTS)
def test_one_pod_is_held_against_few_terms(
    term: Callable[[int], PeerTerm], looks: int, touched_count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    index, selectors = Watchers(), list[Selector]()
    for number in range(CROWD):
        index.add(hint(number, term(number)))

    def noted(selector: Selector, labels: Mapping[str, str]) -> bool:
        selectors.append(selector)
        return matches(selector, labels)

    monkeypatch.setattr(watchers, "matches", noted)
    assert len(index.hints_touched_by(Changes({("ns", X)}), labels_of)) == touched_count
    assert len(selectors) == looks


def test_a_crowd_takes_nothing_from_the_precision_of_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watchers, "MAX_LOOKED_AT", 20)
    index = Watchers()
    for number in range(50):
        index.add(hint(number, one((is_in("app", "x"), SelectorTerm("r", "NotIn", (str(number),))))))
    index.add(own_hint := hint(50, one((is_in("job", "j7"), SelectorTerm("app", "NotIn", ("x",))), "ns")))
    touched = index.hints_touched_by(Changes({("ns", X)}), labels_of)
    assert (len(touched), own_hint in touched) == (50, False)


def test_needs_that_watch_very_much_are_touched_by_every_change() -> None:
    index, wide = Watchers(), tuple(one((is_in("job", f"j{i}"),)) for i in range(MAX_INTERESTS + 1))
    index.add(hint(1, *wide))
    index.add(hint(2, *wide[1:]))
    assert {
        touched_hint.quotas[0][2] for touched_hint in index.hints_touched_by(Changes({("ns", ())}), labels_of)
    } == {1}


def test_changes_that_gather_are_bounded() -> None:
    gathered = Changes()
    for number in range(MAX_CHANGES + 1):
        gathered.add(Changes({("ns", (("i", str(number)),))}))
    assert gathered == Changes(everything=True)


def test_a_pod_event_is_held_against_few_terms_of_refused_gangs(monkeypatch: pytest.MonkeyPatch) -> None:
    """However many gangs wait: each keeps away from pods of its own application."""
    world = World(auto=False).start(node("a", FULL), node("b", FULL))
    world.see(replace(other("filler", "a"), gpus=FULL, gpu_resource="nvidia.com/gpu"))
    for number in range(40):
        app = (("app", f"app-{number}"),)
        apart = PeerRules(anti_affinity=(one((is_in("app", f"app-{number}"),), "ns"),))
        world.see(pod(f"p{number}", gang="", gpus=1, labels=app, peers=apart))
        world.solve(no(world.solves[0]))
    looks: list[SelectorTerm] = []

    def noted(requirement: SelectorTerm, labels: Mapping[str, str]) -> bool:
        looks.append(requirement)
        return satisfies(requirement, labels)

    satisfies = peers._satisfies
    monkeypatch.setattr(peers, "_satisfies", noted)
    world.see(other("x", "a", {"app": "other"}))
    assert (looks, world.solves) == ([], [])
    world.gone("x")
    assert (looks, world.solves) == ([], [])
