"""The table of docs/security.md, of what others can spend, has the bounds of the code and names tests."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from muster.adapters import alternatives_answerer, scrape, victims_answerer, web
from muster.adapters.kube import budgets as budget_intake
from muster.adapters.kube import checkpoints, decode, intake, lenient, nodes, watch
from muster.adapters.page import access, board, rows, server
from muster.adapters.telemetry import logs, room
from muster.config import Config
from muster.dialects.devices import claims, published
from muster.dialects.jobs import pruned
from muster.dialects.kinds import description
from muster.dialects.nodes import bounds
from muster.dialects.pods import peers
from muster.domain import allocation, sentences
from muster.gangs.lifecycle import arrivals, deferral, node_changes
from muster.gangs.peers import budgets, constraints
from muster.gangs.pending import planner_share
from muster.gangs.record.exclusions import MAX_VOIDED_PLANS

TESTS = Path(__file__).parents[1]
PAGE = (TESTS.parent / "docs" / "security.md").read_text()
TABLE = PAGE.partition("## What others can spend\n")[2].partition("\n## ")[0]
ROWS = [
    [cell.strip() for cell in row[1:-1].split("|")] for row in TABLE.splitlines() if row.startswith("| ")
][2:]
CONFIG = Config()
EVENTS, CONDITIONS, PLANNER = CONFIG.events, CONFIG.conditions, CONFIG.planner
RENEWAL = f"one more in {room.RENEWAL_S / 60:.0f} minutes"

BOUNDS = (
    f"{lenient.MAX_DEPTH} levels; above {watch.THREAD_BYTES >> 10} KiB on a thread; "
    f"lists in pages of {watch.PAGE_BYTES >> 20} MiB",
    f"{decode.MAX_FREE_BYTES >> 10} KiB each",
    f"by changes of pods and groups above {watch.LARGE_BYTES >> 10} KiB",
    f"of a namespace {watch.BURST_BYTES >> 20} MiB at once, then {watch.BYTES_PER_S >> 20} MiB a second",
    f"{pruned.MAX_VALUES:,} values in {pruned.MAX_LEVELS} levels, {description.MAX_ROLES} roles",
    f"of a pod {peers.MAX_TERMS} terms of a kind, {peers.MAX_SIZE:,} names and values; "
    f"of a gang {constraints.MAX_RULES} rules, {constraints.MAX_LOOKED_AT:,} label sets",
    f"{claims.MAX_CLAIMS} of a pod",
    f"of a namespace {budgets.MAX_BUDGETS}, with {budgets.MAX_SIZE:,} names and values; "
    f"{1 / budget_intake.CHANGE_S:g} changed selectors a second, "
    f"after {budget_intake.ADVANCE_S:g} s in advance",
    f"{checkpoints.SENT_AT_ONCE:,} pods in {checkpoints.PAUSE_S:g} s",
    f"{victims_answerer.LIMIT_S:g} s ({victims_answerer.FIRST_S:g} s for the first of a process) "
    f"and {victims_answerer.MEMORY_MIB} MiB; "
    f"{ {0.25: 'a quarter'}[victims_answerer.SHARE] } of a core, nice {victims_answerer.NICENESS}",
    f"of {deferral.MANY} pods or more | once in {deferral.REGROUP_EVERY_S * 1000:g} ms for each pod",
    f"for each pod, after {arrivals.GROUPS_AHEAD_S:g} s in advance of a namespace",
    f"{PLANNER.time_limit_s:g} s and {PLANNER.memory_mib:,} MiB for a decision, "
    f"{PLANNER.most_roles} roles of a gang",
    f"of the foreground planner {planner_share.FOREGROUND.share:.0%}".replace("%", " %"),
    f"of the background one {planner_share.BACKGROUND.share:.0%}".replace("%", " %"),
    f"{CONFIG.gangs.ahead} members not permitted",
    f"of a namespace {EVENTS.namespace_per_s:g} a second and {EVENTS.namespace_queue:,} waiting, "
    f"of all {EVENTS.per_s:g} a second; one text again after {EVENTS.repeat_after_s:g} s",
    f"of a namespace {CONDITIONS.namespace_per_s:g} a second and {CONDITIONS.namespace_queue:,} waiting",
    f"a sentence {sentences.MAX_CHARACTERS} characters, a line of the log {logs.MAX_CHARACTERS:,}",
    f"{scrape.MAX_QUEUES} queues; {RENEWAL}",
    f"{scrape.MAX_NAMESPACES} namespaces; {RENEWAL}",
    f"{room.MAX_MODELS} models; {RENEWAL}",
    f"{allocation.MAX_GPUS} GPUs, a matrix of {bounds.MAX_TEXT >> 10} KiB",
    f"{bounds.MAX_LABELS:,} labels, {bounds.MAX_TAINTS} taints, "
    f"{bounds.MAX_RESOURCES} resources, {bounds.MAX_CONFIG_MAPS} ConfigMaps",
    f"{published.MAX_POOLS} pools with "
    f"{published.MAX_DEVICES:,} devices; {bounds.MAX_PROBLEMS} problems, "
    f"{published.MAX_ROUNDINGS} ways to round memory up",
    f"{1 / nodes.CHANGE_S:g} changes a second, after {nodes.ADVANCE_S:g} s in advance",
    f"{MAX_VOIDED_PLANS} plans of a gang; all refused gangs once in {CONFIG.gangs.numbers_s:g} s; "
    f"{node_changes.WAKES} times those with members that it admits",
    f"{intake.READ_AT_ONCE} at once, then a fifth of the loop",
    f"{web.MAX_CONNECTIONS} on each port; {CONFIG.page.clients} browsers",
    f"{web.MAX_GANG_ANSWERS_AT_ONCE} answers of `/gangs`",
    f"of `/metrics` and `/nodes` {web.ANSWERS_WITHOUT_PAUSE}",
    f"a tenth of a core, nice {alternatives_answerer.NICENESS}; {alternatives_answerer.WAITING} wait",
    f"1/{board.PAUSE_SHARE} of the loop; "
    f"{server.MAX_ANSWERS_AT_ONCE} answers at a time | they wait {server.WAIT_S:g} s",
    f"{board.MAX_CHANGES} changes in {board.MAX_BYTES >> 20} MiB, {rows.MAX_ROWS:,} gangs in the list",
    f"not read for {server.SEND_S:g} s",
    f"{access.PER_S:g} unknown ones a second; {access.MAX_KNOWN_TOKENS:,} answers",
)


@pytest.mark.parametrize("bound", BOUNDS)
def test_each_bound_is_that_of_the_code(bound: str) -> None:
    assert bound in TABLE


@pytest.mark.parametrize("row", ROWS, ids=range(len(ROWS)))
def test_each_row_names_tests_that_are_there(row: list[str]) -> None:
    assert len(row) == 5
    files = re.findall(r"`([\w/]+\.py)`", row[-1])
    assert files
    assert [name for name in files if not (TESTS / name).is_file()] == []


def test_all_four_have_rows() -> None:
    assert [row[0] for row in ROWS if row[0]] == [
        "a user with pods", "a user with namespaces", "a node", "a reader of ports 8080 and 8081",
    ]  # fmt: skip
