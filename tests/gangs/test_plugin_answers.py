"""The constraints of a gang of one leave open the nodes that kube-scheduler's own plugins leave open.

The answers are those of kube-scheduler 1.37.1's InterPodAffinity, PodTopologySpread and NodePorts:
shim/internal/pluginanswers holds them against the plugins themselves.
"""

from __future__ import annotations

import json

from tests.gangs.drawn_cases import CASES, WANTED
from tests.gangs.oracle import allowed


def test_the_plugins_and_the_constraints_agree() -> None:
    cases = [json.loads(line) for line in CASES.read_text().splitlines()]
    assert len(cases) > max(WANTED.values())
    for number, case in enumerate(cases):
        assert {plugin: sorted(names) for plugin, names in allowed(case).items()} == case["Open"], number


def test_each_plugin_refuses_some_nodes_in_enough_cases() -> None:
    cases = [json.loads(line) for line in CASES.read_text().splitlines()]
    for plugin, count in WANTED.items():
        assert sum(0 < len(case["Open"][plugin]) < len(case["Nodes"]) for case in cases) >= count
