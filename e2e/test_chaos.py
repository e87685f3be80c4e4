"""A short run of the chaos, its options, and what a seed fixes."""

from __future__ import annotations

import itertools
import json
import random
from collections import Counter
from dataclasses import replace
from typing import Any

import pytest

from e2e.arena import Arena
from e2e.chaos import __main__ as command
from e2e.chaos.auditor import RULES
from e2e.chaos.crowd import Counts
from e2e.chaos.faults import FAULTS, PODGROUP_FAULTS, deck
from e2e.chaos.fits import SCOPE
from e2e.chaos.hostile import HostileReport
from e2e.chaos.meter import LoadReport
from e2e.chaos.report import Hit, Report
from e2e.chaos.runner import Options, run
from e2e.chaos.strangers import SCHEDULER
from e2e.chaos.submissions import ACK, COLLECTIONS, NATIVE, OWN, Submission, ordinary, target
from e2e.chaos.waits import Waits
from e2e.objects import MUSTER
from local_cluster.nodes import RACK

SEED, HITS = 8275, 4
"""A deck that begins with the scheduler, a whole gang, the service and the API server."""


def test_a_short_run_breaks_no_rule(arena: Arena) -> None:
    """Four faults that hit: a minute, or two on a busy machine."""
    if arena.cluster is None or arena.stack is None:
        pytest.skip("kills and stops processes, which are out of reach on a cluster of somebody else's")
    report = run(arena.cluster, arena.stack, arena.client, Options(SEED, HITS), print)
    assert report.ok, report.json()


@pytest.mark.parametrize(
    "wrong",
    [["--faults", "0"], ["--faults", "some"], ["--minutes", "-1"], ["--faults", "3", "--minutes", "1"]],
)
def test_an_option_that_makes_no_sense_is_refused(
    wrong: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as refused:
        command.main(wrong)
    assert refused.value.code == command.FAILED
    assert wrong[-2] in capsys.readouterr().err


def test_a_seed_fixes_what_is_submitted_and_broken() -> None:
    def drawn(seed: int) -> list[object]:
        chance = random.Random(seed)
        dialects = (ACK, OWN, *COLLECTIONS)
        crowd = [ordinary(chance, number, dialects, 10) for number in range(20)]
        cards = [(fault.name, moment) for fault, moment in itertools.islice(deck(chance, dialects), 40)]
        return [*crowd, *cards, target(chance, 0, dialects, 5, 3)]

    assert drawn(1) == drawn(1)
    assert drawn(1) != drawn(2)


def test_every_fault_comes_once_before_any_comes_again() -> None:
    all_faults = [(fault.name, moment) for fault in (*FAULTS, *PODGROUP_FAULTS) for moment in fault.moments]
    drawn = itertools.islice(deck(random.Random(1), (*COLLECTIONS,)), len(all_faults))
    assert sorted((fault.name, moment) for fault, moment in drawn) == sorted(all_faults)


@pytest.mark.parametrize("seed", range(20))
def test_what_is_submitted_fits_the_empty_cluster(seed: int) -> None:
    chance = random.Random(seed)
    submission = ordinary(chance, 0, (ACK, OWN, *COLLECTIONS), None)
    assert 1 <= submission.needed <= submission.members
    assert submission.total <= {"": 96, "rack": 32, "node": 8, "nvlink-domain": 4}[submission.scope]
    assert len(submission.pods()) == submission.members


def test_faults_of_podgroups_come_only_where_the_cluster_serves_them() -> None:
    names = {fault.name for fault, _ in itertools.islice(deck(random.Random(1), (ACK, OWN)), 100)}
    assert names == {fault.name for fault in FAULTS}


def test_a_podgroup_of_kubernetes_has_the_scope_that_a_node_label_can_state() -> None:
    gang = Submission("gang-1", NATIVE, False, 3, 2, 1, "rack", None, 0)
    assert gang.podgroup()["spec"] == {
        "schedulingPolicy": {"gang": {"minCount": 2}},
        "schedulingConstraints": {"topology": [{"key": RACK}]},
    }
    assert gang.pod(0)["spec"]["schedulingGroup"] == {"podGroupName": "gang-1"}
    assert SCOPE not in gang.pod(0)["metadata"]["annotations"]
    on_nvlink = replace(gang, needed=0, scope="nvlink-domain")
    assert on_nvlink.podgroup()["spec"] == {"schedulingPolicy": {"basic": {}}}
    assert on_nvlink.pod(0)["metadata"]["annotations"][SCOPE] == "nvlink-domain"


HIT = Hit(0, 1.0, "cordon", "planned", "g", "planned", 1, 0, 2, True, 0.1, None)
NONE: dict[str, list[str]] = {rule: [] for rule in RULES}
REPORTS: dict[str, tuple[dict[str, Any], bool]] = {
    "clean": ({}, True),
    "violated": ({"violations": NONE | {"lost": ["lost: n/p vanished"]}}, False),
    "a gang did not end": ({"unfinished": ["g: planning: "]}, False),
    "too few faults hit": ({"hits": [replace(HIT, hit=False)]}, False),
    "hostile actors": ({"hostile": HostileReport(Counter(slice=2))}, True),
    "as many faults as there was time for": ({"hits": [], "wanted": 0}, True),
}


@pytest.mark.parametrize("name", REPORTS)
def test_a_report_is_ok_or_not(name: str) -> None:
    changed, ok = REPORTS[name]
    clean = Report(
        seed=1,
        seconds=1.0,
        wanted=1,
        hits=[HIT],
        counts=Counts(),
        load=LoadReport(0.0, 0.0, 0.0, 0.0),
        waits=Waits().report(MUSTER, []),
        baseline=Waits().report(SCHEDULER, []),
        hostile=None,
        binds=0,
        strangers_placed=0,
        relisted=0,
        pods_gone=0,
        evicted=[],
        longest_partial_s=0.0,
        allocations=0,
        longest_left_s=0.0,
        settled_rounds=1,
        unfinished=[],
        violations=NONE,
    )
    report = replace(clean, **changed)
    assert report.ok is ok
    assert json.loads(report.json())["ok"] is ok
