"""Members inside one node: how they may lie in its NVLink domains, in few steps."""

from __future__ import annotations

import random
from collections.abc import Iterator
from itertools import chain, combinations_with_replacement, product, repeat
from typing import Any

import pytest

from muster.domain.causes.not_planned import NotDecided
from muster.domain.decision import Placed, Unplaceable
from muster.placement.cluster.fabric import Shape
from muster.placement.gpus import choices, node_rules
from muster.placement.gpus.node_rules import (
    NodeRule,
    domains_of_members,
    is_packing_allowed,
    searched_domains,
)
from muster.placement.place import Limits, place
from muster.placement.search import classes
from tests.placement.drawings import cluster, gang, islands

Member = tuple[int, tuple[int, ...]]
"""The block of a member, and its GPUs by domain. A member without GPUs lies in the domain with a 1."""


@pytest.fixture(autouse=True)
def nothing_known() -> None:
    """Each test searches anew."""
    for cached in (node_rules._search, choices.sets_under, choices.choices, classes.patterns_under_rule):
        cached.cache_clear()


def draw_rule(rng: random.Random) -> tuple[NodeRule, tuple[int, ...], list[int]]:
    """A rule, a packing, and the sizes of the domains."""
    sizes = [rng.choice([1, 1, 2, 3]) for _ in range(rng.choice([1, 2, 3]))]
    blocks = rng.choice([1, 2, 2, 3])
    groups = [tuple(b for b in range(blocks) if rng.random() < 0.6) for _ in range(rng.choice([0, 0, 1, 2]))]
    rule = NodeRule(
        tuple(rng.choice([0, 1, 1, 2, 3]) for _ in range(blocks)),
        (1,) * blocks,
        tuple(rng.choice([0, 0, 1, 2]) for _ in range(blocks)),
        tuple(rng.choice([-1, -1, -1, rng.randrange(len(sizes))]) for _ in range(blocks)),
        tuple(filter(None, groups)),
        max_by_domain=tuple(rng.randrange(3) for _ in sizes) if rng.random() < 0.4 else (),
    )
    return rule, tuple(rng.randrange(3) for _ in range(blocks)), sizes


def by_definition(rule: NodeRule, packing: tuple[int, ...], sizes: list[int]) -> bool:
    """Whether any way to lie, out of all of them, keeps the rule."""

    def any_way(block: int, members: list[Member]) -> bool:
        if block == len(packing):
            return keeps(rule, members, sizes)
        every = list(_shares(rule.gpus[block], sizes))
        return any(
            any_way(block + 1, [*members, *((block, share) for share in shares)])
            for shares in combinations_with_replacement(every, packing[block])
        )

    return any_way(0, [])


def _shares(gpus: int, sizes: list[int]) -> Iterator[tuple[int, ...]]:
    if not gpus:
        yield from (tuple(int(d == at) for d in range(len(sizes))) for at in range(len(sizes)))
    else:
        for share in product(*(range(min(gpus, size) + 1) for size in sizes)):
            if sum(share) == gpus:
                yield share


def keeps(rule: NodeRule, members: list[Member], sizes: list[int]) -> bool:
    """Whether members that lie so keep the rule."""
    domains = range(len(sizes))
    with_gpus = [(block, share) for block, share in members if rule.gpus[block]]
    if any(sum(share[d] for _, share in with_gpus) > sizes[d] for d in domains):
        return False
    if rule.max_by_domain and any(
        sum(share[d] > 0 for _, share in with_gpus) > rule.max_by_domain[d] for d in domains
    ):
        return False
    for block, unit in enumerate(rule.domain_unit):
        shares = [share for of, share in members if of == block]
        bound = unit or rule.pinned[block] >= 0 or any(block in group for group in rule.one_domain_blocks)
        if bound and any(sum(gpus > 0 for gpus in share) > 1 for share in shares):
            return False
        if unit and any(sum(share[d] > 0 for share in shares) % unit for d in domains):
            return False
        if rule.pinned[block] >= 0 and any(not share[rule.pinned[block]] for share in shares):
            return False
    group_domains = (
        {d for of, share in members if of in group for d in domains if share[d]}
        for group in rule.one_domain_blocks
    )
    return all(len(of_group) <= 1 for of_group in group_domains)


def shape_of(sizes: list[int]) -> Shape:
    """A node with domains of these sizes."""
    ends = [sum(sizes[: i + 1]) for i in range(len(sizes))]
    masks = tuple((1 << end) - (1 << end - size) for end, size in zip(ends, sizes, strict=True))
    return Shape(islands(sizes), masks, masks)


@pytest.mark.parametrize("seed", range(30))
def test_members_lie_in_domains_as_the_rule_says(seed: int) -> None:
    rng = random.Random(seed)
    for _ in range(30):
        rule, packing, sizes = draw_rule(rng)
        shape, gpus = shape_of(sizes), (1 << sum(sizes)) - 1
        if not rule.binds_domains:
            continue
        domains = searched_domains(rule, shape, gpus)
        assert is_packing_allowed(rule, packing, domains) is not None
        assert is_packing_allowed(rule, packing, domains) == by_definition(rule, packing, sizes), (
            rule,
            packing,
            sizes,
        )
        if is_packing_allowed(rule, packing, domains):
            assert holds_in(rule, packing, shape, gpus), (rule, packing, sizes)


def holds_in(rule: NodeRule, packing: tuple[int, ...], shape: Shape, gpus: int) -> bool:
    """Whether members lie in these GPUs as `domains_of_members` says."""
    sizes = [(gpus & domain).bit_count() for domain in shape.domains]
    members: list[Member] = []
    for block, lying in enumerate(domains_of_members(rule, packing, shape, gpus)):
        member_gpus = rule.gpus[block]
        entries: list[int | tuple[int, ...]] = [*(lying or ())]
        for at, entry in enumerate(entries):
            if isinstance(entry, int):
                share = tuple(max(1, member_gpus) * (domain == at) for domain in range(len(sizes)))
                members += [(block, share)] * entry
            else:
                members.append((block, entry))
        assert lying is None or sum(of == block for of, _ in members) == packing[block]
    return keeps(rule, members, sizes)


def steps_of(monkeypatch: pytest.MonkeyPatch, drawing: str, gang_text: str) -> tuple[Any, int]:
    """The decision, and how many steps the searches inside nodes took."""
    steps, original = list[int](), node_rules._state_after

    def count_call(*args: Any) -> Any:
        steps.append(1)
        return original(*args)

    monkeypatch.setattr(node_rules, "_state_after", count_call)
    return place(cluster(drawing), gang(gang_text)), len(steps)


PCIE = ": a[16 pcie]"


@pytest.mark.parametrize(
    ("drawing", "gang_text"),
    [
        (PCIE, "39 x 0 GPU by 3 nvlink-domain"),
        (PCIE, "40 x 0 GPU by 3 nvlink-domain"),
        (PCIE, "12 x 1 GPU by 1 nvlink-domain"),
        (PCIE, "6 x 1 GPU by 1 nvlink-domain + 6 x 1 GPU 1 cpu by 1 nvlink-domain"),
        (PCIE, "9 x 1 GPU by 1 nvlink-domain + 4 x 0 GPU by 2 nvlink-domain + 7 x 1 GPU 1 cpu"),
        (PCIE, "4 x 2 GPU, max nvlink-domain=1"),
        (f": a[48 = {'+'.join(['4'] * 12)}]", "12 x 3 GPU by 1 nvlink-domain"),
        (f": a[48 = {'+'.join(['4'] * 12)}]", "9 x 4 GPU by 1 nvlink-domain + 12 x 1 GPU"),
    ],
)
def test_members_in_many_domains_are_placed_in_few_steps(
    drawing: str, gang_text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    decision, steps = steps_of(monkeypatch, drawing, gang_text)
    assert isinstance(decision, Placed)
    assert steps < 20_000


@pytest.mark.parametrize(
    ("drawing", "gang_text"),
    [
        (PCIE, "8 x 1 GPU by 2 nvlink-domain"),
        (PCIE, "4 x 2 GPU by 1 nvlink-domain + 4 x 1 GPU by 1 nvlink-domain"),
        (f": a[48 = {'+'.join(['4'] * 12)}]", "13 x 3 GPU by 1 nvlink-domain"),
    ],
)
def test_that_members_do_not_fit_in_many_domains_is_proven_in_few_steps(
    drawing: str, gang_text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    decision, steps = steps_of(monkeypatch, drawing, gang_text)
    assert isinstance(decision, Unplaceable)
    assert not any(isinstance(cause, NotDecided) for cause in decision.causes)
    assert steps < 20_000


def test_domains_that_are_alike_are_no_reason_not_to_prove_a_plan() -> None:
    decision = place(cluster(PCIE), gang("12 x 1 GPU by 1 nvlink-domain"))
    assert isinstance(decision, Placed)
    assert decision.optimal


@pytest.mark.parametrize(
    "gang_text", ["3 x 2 GPU by 1 nvlink-domain + 4 x 1 GPU", "2 x 3 GPU, max nvlink-domain=1"]
)
def test_without_steps_nothing_is_claimed(gang_text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(node_rules, "MAX_STEPS", 0)
    decision = place(cluster(": a[10 = 4+4+2]"), gang(gang_text))
    assert isinstance(decision, Unplaceable)
    assert decision.causes == (NotDecided(truncated=False),)


def test_of_nodes_with_too_many_gpu_sets_the_lowest_gpus_that_keep_the_rule_are_taken() -> None:
    decision = place(cluster(f": a[48 = {'+'.join(['4'] * 12)}]"), gang("2 x 3 GPU by 1 nvlink-domain"))
    assert isinstance(decision, Placed)
    assert [member.gpus for member in decision.members] == [(0, 1, 2), (4, 5, 6)]


def test_once_the_wall_clock_is_spent_no_more_nodes_under_rules_are_looked_at(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    looked_at, original = list[int](), classes.patterns_under_rule

    def count_call(*args: Any) -> Any:
        looked_at.append(1)
        return original(*args)

    monkeypatch.setattr(classes, "patterns_under_rule", count_call)
    snapshot = cluster("\n".join(f"rack r{i}: a{i}[8 = 4+4] b{i}[8 = 2+2+4]" for i in range(4)))
    request = gang("6 x 1 GPU by 2 nvlink-domain + 9 x 1 GPU 1 cpu by 3 nvlink-domain")
    assert isinstance(place(snapshot, request), Placed)
    in_time, clock = len(looked_at), chain(repeat(1.0, 4), repeat(0.0))
    decision = place(snapshot, request, Limits(seconds_left=lambda: next(clock)))
    assert isinstance(decision, Unplaceable)
    assert decision.causes == (NotDecided(truncated=True),)
    assert 0 < len(looked_at) - in_time < in_time
