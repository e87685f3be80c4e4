"""docs/surfaces.md names every key that is read or written, and nothing that is not there."""

from __future__ import annotations

import re
from dataclasses import fields
from pathlib import Path

import pytest

from muster.dialects.gangs import kai, other_systems, own, ranks
from muster.dialects.objects import PodSpec
from muster.dialects.settings import DEFAULTS
from muster.domain.allocation import RESERVED_KEYS
from muster.gangs.messages.instructions import EventReason

REPOSITORY = Path(__file__).parents[2]
PAGE = (REPOSITORY / "docs" / "surfaces.md").read_text()
NO_KEYS = {
    "scheduler_names", "gpu_resources", "system_namespace", "policies_namespace",
    "unique_names", "infer_gangs", "node_agents",
}  # fmt: skip
"""Settings that are no single key."""
KEYS = {
    *(getattr(DEFAULTS, field.name) for field in fields(DEFAULTS) if field.name not in NO_KEYS),
    *DEFAULTS.gpu_resources,
    *own.KEYS,
    *kai.GANG_KEYS, kai.POLICY, kai.ROLE, kai.SUBGROUP,
    *other_systems.places(),
    *ranks.KEYS,
    *RESERVED_KEYS,
    *EventReason,
}  # fmt: skip


ABBREVIATED = re.compile("ALIYUN_COM_GPU(?=_MEM_)|.*/")
"""What the page leaves out of a key in a list of those that share it."""


@pytest.mark.parametrize("key", sorted(KEYS))
def test_every_key_is_on_the_page(key: str) -> None:
    end = re.escape(ABBREVIATED.sub("", key, count=1))
    assert re.search(rf"`({re.escape(key)}|…/?{end}|{end})[`:=< ]", PAGE)


def test_the_modules_that_it_names_are_there() -> None:
    text = PAGE.partition("## Where each key is read")[2].partition("\n## ")[0]
    root = REPOSITORY / "service/muster"
    paths = re.findall(r"`([\w/]+\.py)`", text)
    assert [path for path in paths if not any((root / at / path).is_file() for at in ("", "dialects"))] == []
    assert "gangs/own.py" in paths


WHAT_A_POD_MAY_ASK = (REPOSITORY / "docs" / "what-a-pod-may-ask.md").read_text()
ANSWERS = ("modelled", "asked", "tried", "ignored", "refused")
FILTERS = [
    "DeferredPodScheduling",
    "DynamicResources",
    "InterPodAffinity",
    "NodeAffinity",
    "NodeDeclaredFeatures",
    "NodeName",
    "NodePorts",
    "NodeResourcesFit",
    "NodeUnschedulable",
    "NodeVolumeLimits",
    "PodTopologySpread",
    "TaintToleration",
    "VolumeBinding",
    "VolumeRestrictions",
    "VolumeZone",
]
"""The plugins of kube-scheduler 1.37.1 that have a Filter."""
POD_SPEC = [
    "volumes",
    "initContainers",
    "containers",
    "ephemeralContainers",
    "restartPolicy",
    "terminationGracePeriodSeconds",
    "activeDeadlineSeconds",
    "dnsPolicy",
    "nodeSelector",
    "serviceAccountName",
    "serviceAccount",
    "automountServiceAccountToken",
    "nodeName",
    "hostNetwork",
    "hostPID",
    "hostIPC",
    "shareProcessNamespace",
    "securityContext",
    "imagePullSecrets",
    "hostname",
    "subdomain",
    "affinity",
    "schedulerName",
    "tolerations",
    "hostAliases",
    "priorityClassName",
    "priority",
    "dnsConfig",
    "readinessGates",
    "runtimeClassName",
    "enableServiceLinks",
    "preemptionPolicy",
    "overhead",
    "topologySpreadConstraints",
    "setHostnameAsFQDN",
    "os",
    "hostUsers",
    "schedulingGates",
    "resourceClaims",
    "resources",
    "hostnameOverride",
    "workloadRef",
    "schedulingGroup",
    "evictionResponders",
]
"""The fields of k8s.io/api core/v1 PodSpec, v0.37.1."""


def rows(heading: str) -> dict[str, list[str]]:
    """The rows of the table under a heading, by each name in their first cell."""
    table = WHAT_A_POD_MAY_ASK.partition(f"## {heading}")[2].partition("\n## ")[0]
    cells = [
        [cell.strip() for cell in row.strip("|").split("|")] for row in table.splitlines() if row[:1] == "|"
    ]
    return {name: cells_after for first, *cells_after in cells[2:] for name in first.strip("`").split("`, `")}


def test_who_answers_for_each_filter_plugin() -> None:
    plugins = rows("Filter plugins of 1.37")
    assert sorted(plugins) == FILTERS
    assert all(answer.startswith(ANSWERS) for _, answer, _ in plugins.values())
    for _, answer, modules in plugins.values():
        for path in re.findall(r"`([\w/]+\.py)`", modules):
            assert (REPOSITORY / "service" / "muster" / path).is_file(), path
        assert modules or not answer.startswith("modelled")


def test_who_answers_for_each_field_of_a_pod() -> None:
    fields = rows("Fields of a pod")
    assert sorted(fields) == sorted(POD_SPEC)
    assert all(answer.startswith(ANSWERS) for (answer,) in fields.values())
    assert set(PodSpec.__struct_encode_fields__) <= set(POD_SPEC)
    read = {
        field for field, (answer,) in fields.items() if not answer.startswith(("ignored", "asked: NodeD"))
    }
    assert read <= set(PodSpec.__struct_encode_fields__)
