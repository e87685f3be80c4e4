"""Users who make namespaces gain nothing by a name: only those that the manifests make are trusted."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from muster.config import Config
from muster.dialects.settings import DialectSettings
from tests.manifests.comparing import made
from tests.manifests.everything import EVERY_OPTION, components
from tests.manifests.helm import template
from tests.manifests.rendering import Manifest

pytestmark = pytest.mark.go  # helm and kustomize are built or run with it

OF_KUBERNETES = {"kube-system"}
"""The API server makes it, and refuses to delete it."""
ACCOUNT = re.compile(r"system:serviceaccounts?:([a-z0-9-]+)")
BY_NAME = "kubernetes.io/metadata.name"


def trusted(objects: list[Manifest]) -> Iterator[tuple[str, str]]:
    """Yield what trusts a namespace, and the name of that namespace."""
    for item in objects:
        subject_name = f"{item['kind']} {item['metadata']['name']}"
        text = json.dumps(item)
        assert BY_NAME not in text, f"{subject_name} selects namespaces by name"
        yield from ((subject_name, name) for name in ACCOUNT.findall(text))
        yield from ((subject_name, subject["namespace"]) for subject in item.get("subjects", ()))
        if item["kind"] in {"Role", "RoleBinding"}:
            yield subject_name, item["metadata"]["namespace"]
        if item["kind"] == "Deployment":
            (service,) = (
                entry
                for entry in item["spec"]["template"]["spec"]["containers"]
                if entry["name"] == "service"
            )
            names = {entry["name"]: entry["value"] for entry in service["env"]}
            yield from ((subject_name, names[key]) for key in names if key.endswith("NAMESPACE"))


def namespaces(objects: list[Manifest]) -> set[str]:
    return {item["metadata"]["name"] for item in objects if item["kind"] == "Namespace"}


@pytest.mark.parametrize("component", [None, *components()])
def test_each_component_trusts_the_namespaces_that_it_makes(component: str | None, tmp_path: Path) -> None:
    objects = made(tmp_path, *filter(None, [component]))
    namespace_of = dict(trusted(objects))
    assert len(namespace_of) > 3
    assert set(namespace_of.values()) <= namespaces(objects) | OF_KUBERNETES


@pytest.mark.parametrize("values", [{}, EVERY_OPTION], ids=["defaults", "every option"])
def test_the_chart_trusts_the_namespaces_that_it_makes(values: dict[str, Any]) -> None:
    objects = template(values, namespace="gangs")
    namespace_of = dict(trusted(objects))
    assert len(namespace_of) > 3
    assert set(namespace_of.values()) <= namespaces(objects) | {"gangs"} | OF_KUBERNETES


def test_the_defaults_of_the_service_trust_no_other_namespace() -> None:
    settings, config = DialectSettings(), Config()
    believed = {settings.system_namespace, settings.policies_namespace, settings.node_agents}
    believed |= {config.config_maps.namespace, config.policies.namespace, config.node_agents.namespace}
    assert believed == {"muster-system", "kube-system", ""}


def test_policies_of_another_namespace_are_an_overlay_and_a_setting(tmp_path: Path) -> None:
    """Role and RoleBinding go where the setting points: nothing is granted elsewhere."""
    values = {"service.settings": {"policies": {"namespace": "kai-scheduler"}}, "policies": {"levels": []}}
    objects = template(values)
    places = {
        item["kind"]: item["metadata"]["namespace"]
        for item in objects
        if item["metadata"]["name"] in {"muster-policies", "kai-scheduler-config"}
    }
    assert places == dict.fromkeys(("Role", "RoleBinding", "ConfigMap"), "kai-scheduler")
