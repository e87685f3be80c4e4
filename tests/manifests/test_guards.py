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

BINDING = "ValidatingAdmissionPolicyBinding /muster-cdi-annotations"


def patches_of(page: str, section: str) -> list[list[Any]]:
    """Return the patches of each YAML block in a section of a page."""
    text = (REPOSITORY / page).read_text().partition(f"## {section}\n")[2].partition("\n## ")[0]
    blocks = [yaml.safe_load(block) for block in re.findall(r"```yaml\n(.*?)```", text, re.DOTALL)]
    return [block["patches"] for block in blocks if "patches" in block]


def guards(objects: dict[str, Manifest], name: str) -> dict[str, Manifest]:
    return {key: item for key, item in objects.items() if key.endswith(f"/{name}")}


DRA = patches_of("docs/dra.md", "A guard against a second allocator")
CDI = patches_of("docs/security.md", "Annotations of NVIDIA's NRI plugin")


@pytest.mark.parametrize(
    ("patches", "values", "number"),
    [
        (CDI[0], {"cdiAnnotations.namespaces": ["gpu-operator", "monitoring"]}, 2),
        (CDI[1], {"cdiAnnotations.guard": False}, 0),
    ],
    ids=["other namespaces", "none"],
)
def test_the_rule_about_cdi_annotations_can_be_changed(
    tmp_path: Path, patches: list[Any], values: dict[str, Any], number: int
) -> None:
    expected = guards(overlay(tmp_path, patches=patches), "muster-cdi-annotations")
    assert guards(comparable(template(values)), "muster-cdi-annotations") == expected
    assert len(expected) == number


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
    said = expected["ValidatingAdmissionPolicy /muster-dra-guard"]["spec"]["variables"][0]["expression"]
    assert said == "['gpu.amd.com', 'gpu.nvidia.com']"


def test_the_guard_of_dra_devices_names_the_account_of_the_release() -> None:
    values = {"draGuard.drivers": ["gpu.nvidia.com"]}
    policies = guards(comparable(template(values, namespace="gpu-scheduling")), "muster-dra-guard")
    assert "system:serviceaccount:gpu-scheduling:muster" in str(policies)


def test_the_rule_about_cdi_annotations_names_the_account_of_the_release() -> None:
    policies = guards(comparable(template(namespace="gpu-scheduling")), "muster-cdi-annotations")
    assert "system:serviceaccount:gpu-scheduling:muster" in str(policies)


def test_no_namespace_may_be_left_out() -> None:
    binding = comparable(template({"cdiAnnotations.namespaces": []}))[BINDING]
    assert binding["spec"] == {"policyName": "muster-cdi-annotations", "validationActions": ["Deny"]}


@pytest.mark.parametrize(
    ("value", "wrong"),
    [
        ("cdiAnnotations.guard", "no"),
        ("cdiAnnotations.namespaces", ["GPU operator"]),
        ("draGuard.drivers", ["gpu'] + ['"]),
        ("draGuard.drivers", "gpu.nvidia.com"),
    ],
)
def test_a_wrong_value_is_refused_by_its_name(value: str, wrong: object) -> None:
    with pytest.raises(HelmError) as refused:
        template({value: wrong})
    assert value.rpartition(".")[2] in str(refused.value)
