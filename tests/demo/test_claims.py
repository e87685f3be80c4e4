"""Claims hold on good facts, and each of them can fail: a claim that can't is none."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace

import pytest

from local_cluster.demo.claims import check
from local_cluster.demo.facts import Facts, Seat
from local_cluster.demo.report import report
from tests.demo.samples import MATRICES, good_facts, outcome


def test_all_hold_on_good_facts() -> None:
    assert [claim.name for claim in check(good_facts(), MATRICES) if not claim.holds] == []


def test_none_holds_on_no_facts() -> None:
    assert not any(claim.holds for claim in check(Facts(), MATRICES))


def pair_on_nv1(facts: Facts) -> None:
    muster = outcome(("master", "v100-1", (0,)), ("worker", "v100-1", (1,)))
    facts.placed["pytorch-dist-nccl"] = replace(facts.placed["pytorch-dist-nccl"], muster=muster)


def job_elsewhere(facts: Facts) -> None:
    job = facts.placed["test-gpu-topology"]
    facts.placed["test-gpu-topology"] = replace(job, muster=outcome(("job", "v100-2", (1, 2))))


def ring_over_the_socket(facts: Facts) -> None:
    ring = facts.placed["ring-of-four"]
    facts.placed["ring-of-four"] = replace(ring, muster=ring.first_fit)


def switched_split(facts: Facts) -> None:
    gang = facts.placed["finetune"]
    facts.placed["finetune"] = replace(gang, muster=gang.first_fit)


def other_gpus_taken(facts: Facts) -> None:
    gang = facts.placed["pair-on-the-rest"]
    facts.placed["pair-on-the-rest"] = replace(gang, free_gpus_before={"v100-2": (0, 1, 2, 4, 5, 7)})


def held_pod_bound(facts: Facts) -> None:
    assert facts.held
    facts.held = replace(facts.held, bound=1)


def held_pod_bound_early(facts: Facts) -> None:
    assert facts.held
    facts.held = replace(facts.held, bound_early=True)


def held_gang_holds(facts: Facts) -> None:
    assert facts.held
    facts.held = replace(facts.held, free_gpu_count_while_held=14)


def half_bound(facts: Facts) -> None:
    assert facts.pending
    facts.pending = replace(facts.pending, bound=4, free_gpu_count_after=4)


def reason_without_numbers(facts: Facts) -> None:
    assert facts.pending
    facts.pending = replace(facts.pending, event="TopologyUnplaceable: it does not fit")


def gpu_twice(facts: Facts) -> None:
    facts.seats = (*facts.seats, Seat("thief", "v100-1", (3,)))


def pod_without_its_gpus(facts: Facts) -> None:
    facts.mismatched = ("worker",)


FAULTS: dict[Callable[[Facts], None], set[str]] = {
    pair_on_nv1: {"idle_pair_nv2"},
    ring_over_the_socket: {"busy_ring_best"},
    switched_split: {"switched_nv18"},
    other_gpus_taken: {"busy_pair_best"},
    held_pod_bound: {"incomplete_held"},
    held_pod_bound_early: {"incomplete_held"},
    job_elsewhere: {"job_packed"},
    held_gang_holds: {"incomplete_held"},
    half_bound: {"too_large_pending", "nothing_held"},
    reason_without_numbers: {"reason_names_numbers"},
    gpu_twice: {"no_gpu_twice"},
    pod_without_its_gpus: {"no_gpu_twice"},
}


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.__name__)
def test_a_fault_is_seen(fault: Callable[[Facts], None]) -> None:
    facts = good_facts()
    fault(facts)
    failed = {claim.name for claim in check(facts, MATRICES) if not claim.holds}
    assert failed == FAULTS[fault]


def test_a_narrower_link_than_first_fit_is_seen() -> None:
    facts = good_facts()
    pair = facts.placed["pytorch-dist-nccl"]
    facts.placed["pytorch-dist-nccl"] = replace(pair, muster=pair.first_fit, first_fit=pair.muster)
    assert "no_narrower_than_first_fit" in {c.name for c in check(facts, MATRICES) if not c.holds}


# --- the JSON ---------------------------------------------------------------------------------------

UNITS = {
    "bandwidth_gb_per_s": (int, float, type(None)),
    "placed_ms": (int, float),
}


def test_report_is_versioned_and_complete() -> None:
    facts = good_facts()
    document = json.loads(report(facts, check(facts, MATRICES), {"v100-1": (4, 5)}))
    assert document["version"] == 1
    assert document["holds"] is True
    assert list(document) == [
        "version",
        "holds",
        "claims",
        "placed",
        "held",
        "pending",
        "pods",
        "free_gpus",
        "timings",
    ]
    assert {gang["name"] for gang in document["placed"]} == set(facts.placed)
    assert document["free_gpus"] == {"v100-1": [4, 5]}
    assert document["timings"] == {"story_ms": 1234.6}
    for gang in document["placed"]:
        assert isinstance(gang["placed_ms"], UNITS["placed_ms"])
        for side in ("muster", "first_fit"):
            assert set(gang[side]) == {"seats", "link", "bandwidth_gb_per_s"}
            assert isinstance(gang[side]["bandwidth_gb_per_s"], UNITS["bandwidth_gb_per_s"])
    split = next(gang for gang in document["placed"] if gang["name"] == "finetune")
    assert split["first_fit"]["bandwidth_gb_per_s"] is None
