"""Tests of the admission policies that have options: chart and overlay give the same objects."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.manifests.comparing import comparable, overlay
from tests.manifests.helm import HelmError, template
from tests.manifests.rendering import REPOSITORY, Manifest

pytestmark = pytest.mark.go  # helm and kustomize are built or run with it


def patches_of(page: str, section: str) -> list[list[Any]]:
    """Return the patches of each YAML block in a section of a page."""
    text = (REPOSITORY / page).read_text().partition(f"## {section}\n")[2].partition("\n## ")[0]
    blocks = [yaml.safe_load(block) for block in re.findall(r"```yaml\n(.*?)```", text, re.DOTALL)]
    return [block["patches"] for block in blocks if "patches" in block]


def guards(objects: dict[str, Manifest], name: str) -> dict[str, Manifest]:
    return {key: item for key, item in objects.items() if key.endswith(f"/{name}")}


DRA = patches_of("docs/dra.md", "A guard against a second allocator")
CDI = patches_of("docs/security.md", "Annotations of NVIDIA's NRI plugin")
NETWORK = patches_of("docs/security.md", "What listens")
POLICIES = patches_of("docs/policies.md", "In another namespace")


def test_the_rule_about_cdi_annotations_can_be_left_out(tmp_path: Path) -> None:
    assert guards(overlay(tmp_path, patches=CDI[0]), "muster-cdi-annotations") == {}
    assert guards(comparable(template({"cdiAnnotations.guard": False})), "muster-cdi-annotations") == {}


def test_the_guard_of_dra_devices_is_the_component(tmp_path: Path) -> None:
    expected = guards(overlay(tmp_path, "dra-guard"), "muster-dra-guard")
    chart = comparable(template({"draGuard.drivers": ["gpu.nvidia.com"]}))
    assert guards(chart, "muster-dra-guard") == expected
    assert len(expected) == 2
    assert guards(comparable(template()), "muster-dra-guard") == {}


def test_the_guard_of_dra_devices_takes_other_drivers(tmp_path: Path) -> None:
    expected = guards(overlay(tmp_path, "dra-guard", patches=DRA[0]), "muster-dra-guard")
    objects = comparable(template({"draGuard.drivers": ["gpu.amd.com", "gpu.nvidia.com"]}))
    assert guards(objects, "muster-dra-guard") == expected
    expression = expected["ValidatingAdmissionPolicy /muster-dra-guard"]["spec"]["variables"][0]["expression"]
    assert expression == "['gpu.amd.com', 'gpu.nvidia.com']"


def test_the_guard_of_dra_devices_names_the_account_of_the_release() -> None:
    values = {"draGuard.drivers": ["gpu.nvidia.com"]}
    policies = guards(comparable(template(values, namespace="gpu-scheduling")), "muster-dra-guard")
    assert "system:serviceaccount:gpu-scheduling:muster" in str(policies)


def test_the_rule_about_cdi_annotations_names_the_account_of_the_release() -> None:
    policies = guards(comparable(template(namespace="gpu-scheduling")), "muster-cdi-annotations")
    assert "system:serviceaccount:gpu-scheduling:muster" in str(policies)


def test_names_of_namespaces_are_refused_with_the_way_out() -> None:
    with pytest.raises(HelmError, match=r"cdiAnnotations\.namespaces is gone: label these namespaces"):
        template({"cdiAnnotations.namespaces": ["gpu-operator"]})


def test_policies_of_another_namespace_are_the_overlay(tmp_path: Path) -> None:
    expected = guards(overlay(tmp_path, patches=POLICIES[0]), "muster-policies")
    values = {"service.settings": {"policies": {"namespace": "kai-scheduler"}}}
    assert guards(comparable(template(values)), "muster-policies") == expected
    assert {item["metadata"]["namespace"] for item in expected.values()} == {"kai-scheduler"}


def test_port_8080_is_closed_by_the_component(tmp_path: Path) -> None:
    expected = guards(overlay(tmp_path, "network-policy"), "muster")["NetworkPolicy muster-system/muster"]
    chart = comparable(template({"networkPolicy.enabled": True}))
    assert chart["NetworkPolicy muster-system/muster"] == expected
    tokens, metrics = expected["spec"]["ingress"]
    assert [port["port"] for port in tokens["ports"]] == [10259, 8081]
    assert "from" not in tokens
    assert [port["port"] for port in metrics["ports"]] == [8080]
    assert metrics["from"] == [
        {"namespaceSelector": {"matchLabels": {"gpu.topology/reads-metrics": "allowed"}}}
    ]
    assert "NetworkPolicy muster-system/muster" not in comparable(template())


def test_others_may_reach_port_8080(tmp_path: Path) -> None:
    expected = guards(overlay(tmp_path, "network-policy", patches=NETWORK[0]), "muster")
    values = {"networkPolicy": {"enabled": True, "from": [{"ipBlock": {"cidr": "10.0.0.0/28"}}]}}
    name = "NetworkPolicy muster-system/muster"
    assert comparable(template(values))[name] == expected[name]


@pytest.mark.parametrize(
    ("value", "wrong"),
    [
        ("cdiAnnotations.guard", "no"),
        ("networkPolicy.from", ["10.0.0.0/28"]),
        ("draGuard.drivers", ["gpu'] + ['"]),
        ("draGuard.drivers", "gpu.nvidia.com"),
    ],
)
def test_a_wrong_value_is_refused_by_its_name(value: str, wrong: object) -> None:
    with pytest.raises(HelmError) as refused:
        template({value: wrong})
    assert value.rpartition(".")[2] in str(refused.value)
