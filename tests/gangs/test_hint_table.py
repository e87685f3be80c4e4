"""The hints of refused gangs as arrays: the same answer as one look at each of them."""

from __future__ import annotations

import random
from collections.abc import Collection
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from muster.domain.node import Node, Resources, Taint, Usage
from muster.domain.request import NodeRules, SelectorTerm, Toleration
from muster.gangs.capacity import queueing_hints as refused
from muster.gangs.capacity.ledger import Ledger, resources_fit
from muster.gangs.capacity.queueing_hints import FIRST_ROWS, HintTable, QueueingHint, admits
from tests.gangs.world import node

RESOURCES = ("nvidia.com/gpu", "aliyun.com/gpu", "")
HUGE = 10**30
TAINT = Taint("theirs", "", "NoSchedule")
RULES = (
    NodeRules(),
    NodeRules(required=(SelectorTerm("pool", "In", ("x",)),)),
    NodeRules(
        any_of=((SelectorTerm("pool", "NotIn", ("x",)),),), tolerations=(Toleration("theirs", "Exists"),)
    ),
)

amounts = st.sampled_from([0, 1, 2, 3, 4, 8, HUGE])
requests = st.builds(
    lambda resource, gpus, cpu, memory, pods, rules: (
        resource if gpus else "",
        gpus if resource else 0,
        Resources(cpu, memory, pods),
        rules,
    ),
    st.sampled_from(RESOURCES),
    st.sampled_from([0, 1, 2, 4, 8, 9, HUGE]),
    amounts,
    amounts,
    st.sampled_from([1, 2]),  # 0 stands for a gang that holds places: see `for_holder`
    st.sampled_from(RULES),
)
quotas = st.tuples(
    st.sampled_from(RESOURCES[:2]),
    st.sampled_from([1, 2, 4, 8, 9, HUGE]),
    st.sampled_from([0, 1, 2, 5, HUGE]),
)
hint = st.builds(
    QueueingHint, st.frozensets(requests, min_size=1, max_size=3), st.lists(quotas, max_size=3).map(tuple)
)


def may_fit_now(hint: QueueingHint, ledger: Ledger, gained: Collection[str]) -> bool:
    """One look at a gang that did not fit: whether it may fit now."""
    states = [state for state in map(ledger.state, gained) if state is not None]
    takes_one = any(
        resources_fit(resources, state.free)
        and (not gpus or (resource in state.node.gpu_resources and gpus <= state.max_gpus))
        and admits(state.node, rules)
        for resource, gpus, resources, rules in hint.requests
        for state in states
    )
    whole = ledger.whole_gpus().items()
    return takes_one and all(
        must <= sum(nodes * (free // k) for (name, free), nodes in whole if name == resource)
        for resource, k, must in hint.quotas
    )


def cluster(seed: int, size: int) -> Ledger:
    """Nodes of two kinds with anything on them, some overcommitted."""
    random_ = random.Random(seed)
    ledger = Ledger()
    for number in range(size):
        labels, taints = random_.choice([{}, {"pool": "x"}]), random_.choice([(), (TAINT,)])
        new_node: Node = node(f"n{number}", random_.choice([1, 2, 4, 8]), labels, taints=taints)
        room = Resources(random_.choice([1, 2, 4]), random_.choice([1, 4]), random_.choice([1, 2, 3]))
        ledger.set_node(replace(new_node, allocatable=room))
        for usage_number in range(random_.randrange(3)):
            resources = Resources(random_.choice([0, 1, 3]), random_.choice([0, 1]), 1)
            ledger.bind(
                f"u{number}-{usage_number}",
                Usage(f"u{number}-{usage_number}", new_node.name, resources, gpus=1 << usage_number),
            )
    return ledger


@given(st.lists(hint, max_size=12, unique=True), st.integers(0, 1000), st.data())
def test_it_finds_those_that_one_look_at_each_finds(
    all_needs: list[QueueingHint], seed: int, data: st.DataObject
) -> None:
    ledger = cluster(seed, 4)
    columns = HintTable()
    for needs in all_needs:
        columns.add(needs)
    discarded = data.draw(st.sets(st.sampled_from(all_needs))) if all_needs else set()
    for needs in discarded:
        columns.discard(needs)
    gained = data.draw(st.sets(st.sampled_from([f"n{number}" for number in range(5)])))
    remaining = set(all_needs) - discarded
    expected = {needs for needs in remaining if may_fit_now(needs, ledger, gained)}
    matching = columns.may_fit(ledger, gained)
    assert expected <= matching, "what may fit is never passed over"
    assert {needs for needs in matching if not _huge(needs)} == {
        needs for needs in expected if not _huge(needs)
    }
    assert len(columns._slots) == len(remaining)
    assert all((needs in columns._slots) is (needs in remaining) for needs in all_needs)


@given(st.lists(hint, max_size=12, unique=True), st.integers(0, 1000))
def test_a_gang_that_holds_places_is_found_wherever_a_node_admits_a_member(
    all_needs: list[QueueingHint], seed: int
) -> None:
    """Its places may be on any node, and are free for it."""
    ledger, table = cluster(seed, 4), HintTable()
    holders = {needs.for_holder() for needs in all_needs}
    for needs in holders:
        table.add(needs)
    for name, gained in ledger.nodes.items():
        expected = {needs for needs in holders if any(admits(gained, rules) for *_, rules in needs.requests)}
        assert table.may_fit(ledger, {name}) == expected


def _huge(hint: QueueingHint) -> bool:
    """Whether a number of it is beyond those of columns: there a superset is all that is promised."""
    numbers = [
        number
        for _, gpus, resources, _ in hint.requests
        for number in (gpus, resources.cpu_milli, resources.memory_bytes, resources.pods)
    ]
    numbers += [number for _, gpus, members in hint.quotas for number in (gpus, members)]
    return HUGE in numbers


def _one(gpus: int, cpu: int) -> QueueingHint:
    return QueueingHint(
        frozenset({("nvidia.com/gpu", gpus, Resources(cpu, 1, 1), NodeRules())}),
        (("nvidia.com/gpu", gpus, 1),),
    )


def _of_pool(number: int) -> QueueingHint:
    rules = NodeRules(required=(SelectorTerm("pool", "In", (f"p{number}",)),))
    return QueueingHint(frozenset({("", 0, Resources(1, 1, 1), rules)}), ())


def test_rules_that_come_and_go_leave_nothing() -> None:
    ledger = Ledger()
    for number in (1000, 1001):
        ledger.set_node(node(f"n{number}", labels={"pool": f"p{number}"}))
    columns = HintTable()
    for number in range(20 * FIRST_ROWS):
        columns.add(_of_pool(number))
        if number not in (1000, 1001):
            columns.discard(_of_pool(number))
    assert len(columns._rules) <= 3 * FIRST_ROWS
    for number in (1000, 1001):
        assert columns.may_fit(ledger, {f"n{number}"}) == {_of_pool(number)}


def test_who_admits_members_is_looked_at_in_bounds() -> None:
    """What is not looked at may fit."""
    ledger, columns, many = Ledger(), HintTable(), refused.MAX_NAMES
    for number in range(refused.FEW_NODES + 1):
        ledger.set_node(node(f"n{number}"))
    for number in range(many):
        columns.add(_of_pool(number))
    looked_at = many // (1 + RULES[1].size)
    assert len(columns.may_fit(ledger, {"n0"})) == many - looked_at
    assert len(columns.may_fit(ledger, ledger.nodes)) == many


def test_of_one_gang_many_nodes_are_looked_at() -> None:
    ledger, columns = Ledger(), HintTable()
    for number in range(10 * refused.FEW_NODES):
        ledger.set_node(node(f"n{number}", labels={"pool": "p0"}))
    columns.add(_of_pool(1))
    assert columns.may_fit(ledger, ledger.nodes) == set()
    ledger.set_node(node("fits", labels={"pool": "p1"}))
    assert columns.may_fit(ledger, ledger.nodes) == {_of_pool(1)}


def test_many_that_come_and_go_leave_nothing() -> None:
    ledger = cluster(1, 10)
    gained = {f"n{number}" for number in range(10)}
    columns = HintTable()
    for number in range(20 * FIRST_ROWS):
        columns.add(_one(1 + number % 8, number))
        if number >= FIRST_ROWS:
            columns.discard(_one(1 + (number - FIRST_ROWS) % 8, number - FIRST_ROWS))
    live = [_one(1 + number % 8, number) for number in range(19 * FIRST_ROWS, 20 * FIRST_ROWS)]
    columns.add(small := _one(1, 1))
    assert len(columns._slots) == FIRST_ROWS + 1
    assert len(columns._hints) <= 3 * FIRST_ROWS + 2
    expected = {needs for needs in [*live, small] if may_fit_now(needs, ledger, gained)}
    assert columns.may_fit(ledger, gained) == expected


def test_of_many_different_nodes_none_that_helps_is_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(refused, "MAX_OFFERS", 3)
    ledger = cluster(2, 40)
    gained = {f"n{number}" for number in range(40)}
    columns, all_needs = HintTable(), {_one(gpus, cpu) for gpus in range(1, 9) for cpu in range(6)}
    for needs in all_needs:
        columns.add(needs)
    expected = {needs for needs in all_needs if may_fit_now(needs, ledger, gained)}
    assert expected
    assert expected <= columns.may_fit(ledger, gained)
