"""The rights of the component for jobs: what the table of kinds needs, and no more."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import yaml

from muster.adapters.kube import decode
from muster.dialects.kinds.table import KINDS, MAKERS

RBAC = Path(__file__).parents[2] / "scheduler-config" / "jobs" / "rbac.yaml"


def test_there_is_one_rule_for_each_kind() -> None:
    """Each may be removed alone."""
    (role,) = [
        manifest for manifest in yaml.safe_load_all(RBAC.read_text()) if manifest["kind"] == "ClusterRole"
    ]
    assert {tuple(rule["verbs"]) for rule in role["rules"]} == {("list", "watch")}
    rules = Counter(
        f"{resource}.{group}"
        for rule in role["rules"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
    )
    watched = [*map(decode.jobs, KINDS), *map(decode.makers, MAKERS)]
    assert rules == Counter(resource.plural for resource in watched)
    assert len(role["rules"]) == len(watched)
