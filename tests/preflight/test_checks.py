"""Each check of `muster preflight` as a table: what is known of a cluster, and what is said of it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import yaml

from muster.adapters.preflight.checks import GATED, NEEDED_RESOURCES, Finding, Level, judge
from muster.adapters.preflight.facts import (
    INSTALLER,
    SCHEDULER,
    SERVICE,
    Clock,
    Facts,
    NamespaceFacts,
    NodeFacts,
    Right,
    rights,
)
from muster.adapters.preflight.report import answer
from muster.domain.node import HandsOut
from tests.files.manifests import REPOSITORY
from tests.published import validator

LABELS = {
    "topology.kubernetes.io/rack": "r1",
    "topology.kubernetes.io/zone": "z1",
    "gpu.topology/node-agent": "second-endpoint",
}
NODE = NodeFacts("a", {"nvidia.com/gpu": 8}, LABELS, links_known=True)
BY_DRA = replace(NODE, name="b", drivers=frozenset({"gpu.nvidia.com"}))
SERVED = {
    **{group: frozenset(resources) for group, resources in NEEDED_RESOURCES.items()},
    "resource.k8s.io/v1": frozenset(NEEDED_RESOURCES["resource.k8s.io/v1"]) | {"devicetaintrules"},
    "scheduling.run.ai/v2": frozenset({"podgroups"}),
}
GOOD = Facts(
    version="v1.37.1",
    served=SERVED,
    installed=True,
    missing_rights=frozenset(),
    policy=True,
    policy_bound=True,
    guarded_drivers=frozenset(),
    nodes=(NODE,),
    gpu_drivers=frozenset(),
    gpu_pods={"muster": 3},
    clock=Clock(-0.6, 0.5),
    leases_ahead={},
)


def inexact(resource: str, why: HandsOut) -> NodeFacts:
    return NodeFacts("b", {resource: 8}, LABELS, links_known=True, not_exact=why)


def without(*groups: str) -> dict[str, frozenset[str]]:
    return {group: resources for group, resources in SERVED.items() if group not in groups}


CASES: dict[str, tuple[dict[str, Any], str, Level, tuple[str, ...]]] = {
    "the version before": ({"version": "v1.36.4"}, "version", Level.WARNING, ("v1.36.4", "older", "1.37")),
    "the version after": ({"version": "v1.38.0"}, "version", Level.WARNING, ("newer",)),
    "an old version": ({"version": "v1.33.9"}, "version", Level.ERROR, ("v1.33.9", "1.34")),
    "a cloud's suffix": ({"version": "v1.37.2-eks-1a2b"}, "version", Level.OK, ()),
    "no version": ({"version": "main"}, "version", Level.WARNING, ("main",)),
    "an API that is not served": (
        {"served": without("policy/v1")}, "api", Level.ERROR, ("poddisruptionbudgets.policy/v1",),
    ),
    "a feature of 1.37 that is not there": (
        {"served": SERVED | {"resource.k8s.io/v1": frozenset(NEEDED_RESOURCES["resource.k8s.io/v1"])}},
        "api", Level.ERROR, ("DRADeviceTaintRules=false",),
    ),
    "a right is missing": (
        {"missing_rights": frozenset({("", "pods/binding", "create")})},
        "rights", Level.ERROR, ("Muster's account", "create pods/binding"),
    ),
    "a user who may not install": (
        {"installed": False, "missing_rights": frozenset({("apps", "deployments", "create")})},
        "rights", Level.ERROR, ("you may not", "create deployments.apps"),
    ),
    "rights may not be asked": ({"missing_rights": None}, "rights", Level.WARNING, ("SubjectAccessReviews",)),
    "no policy": (
        {"policy": False}, "admission", Level.ERROR,
        ("policy muster-allocations", "admission.yaml", "helm upgrade"),
    ),
    "a policy without its binding": ({"policy_bound": False}, "admission", Level.ERROR, ("binding",)),
    "another's rights in Muster's namespace": (
        {"namespaces": {"muster-system": NamespaceFacts(True, ("mallory",))}},
        "namespaces", Level.WARNING, ("muster-system/mallory", "delete"),
    ),
    "a namespace that is there before Muster": (
        {"namespaces": {"muster-system": NamespaceFacts()}, "installed": False},
        "namespaces", Level.NOTE, ("muster-system", "before Muster"),
    ),
    "a label that no policy guards yet": (
        {"exempt": ("team-a",), "installed": False},
        "namespaces", Level.WARNING, ("team-a", "nri-annotations"),
    ),
    "labels that all may set": (
        {"labels_guarded": False},
        "namespaces", Level.WARNING, ("muster-namespace-labels", "admission-labels.yaml"),
    ),
    "a namespace of Helm's": (
        {"namespaces": {"muster-system": NamespaceFacts()}},
        "namespaces", Level.WARNING, ("pod-security.kubernetes.io/enforce=restricted",),
    ),
    "an exempt namespace": ({"exempt": ("gpu-operator",)}, "namespaces", Level.OK, ("pods of gpu-operator",)),
    "nothing is installed": ({"installed": False, "policy": False}, "admission", Level.NOTE, ()),
    "a DRA driver without its guard": (
        {"nodes": (NODE, BY_DRA), "guarded_drivers": frozenset({"gpu.other.com"})},
        "dra-guard", Level.WARNING, ("devices of gpu.nvidia.com,", "component scheduler-config/dra-guard"),
    ),
    "a DRA driver before the installation": (
        {"nodes": (BY_DRA,), "installed": False}, "dra-guard", Level.NOTE, ("draGuard.drivers",),
    ),
    "a DRA driver with its guard": (
        {"nodes": (BY_DRA,), "guarded_drivers": BY_DRA.drivers | {"gpu.other.com"}},
        "dra-guard", Level.OK, ("only Muster allocates devices of gpu.nvidia.com",),
    ),
    "no CRD of PodGroups": (
        {"served": without("scheduling.run.ai/v2")}, "podgroups", Level.NOTE, ("crd-podgroup.yaml",),
    ),
    "no PodGroups of Kubernetes": (
        {}, "podgroups", Level.OK, ("scheduling.run.ai/v2", "feature gate GenericWorkload of the API server"),
    ),
    "PodGroups of Kubernetes alone": (
        {"served": without("scheduling.run.ai/v2") | {"scheduling.k8s.io/v1beta1": frozenset({"podgroups"})}},
        "podgroups", Level.OK, ("PodGroups of scheduling.k8s.io/v1beta1 are read",),
    ),
    "no GPUs": ({"nodes": (NodeFacts("a"),)}, "gpus", Level.ERROR, ("device plugin",)),
    "GPUs by DRA alone": (
        {"nodes": (), "gpu_drivers": frozenset({"gpu.nvidia.com"})},
        "gpus", Level.ERROR, ("gpu.nvidia.com", "extendedResourceName"),
    ),
    "a node whose device plugin is down": (
        {"nodes": (NODE, NodeFacts("b", {}, {"nvidia.com/gpu.present": "true"}))},
        "gpus", Level.WARNING, ("b have GPUs by their labels",),
    ),
    "a device plugin that chooses GPUs": (
        {"nodes": (NODE, inexact("nvidia.com/gpu", HandsOut.OWN_CHOICE))}, "devices", Level.NOTE,
        ("on b the device plugin of nvidia.com/gpu chooses", "gpu.topology/node-agent=second-endpoint"),
    ),
    "AMD's device plugin": (
        {"nodes": (NODE, inexact("amd.com/gpu", HandsOut.OWN_CHOICE))},
        "devices", Level.NOTE, ("device plugin of amd.com/gpu chooses", "ask for all GPUs of a node"),
    ),
    "a device plugin that reads annotations": (
        {"nodes": (NODE, inexact("aliyun.com/gpu", HandsOut.READS_ANNOTATIONS))},
        "devices", Level.NOTE, ("on b the device plugin may swap", "node agent in place of"),
    ),
    "a node agent that is away": (
        {"nodes": (NODE, inexact("nvidia.com/gpu", HandsOut.AGENT_AWAY))},
        "devices", Level.WARNING, ("on b no node agent is seen to be ready", "look at the node agents of b"),
    ),
    "no racks": (
        {"nodes": (NODE, replace(NODE, name="b", labels={"topology.kubernetes.io/zone": "z"}))},
        "topology", Level.WARNING, ("1 of 2 nodes have no rack (b)",),
    ),
    "links that are not known": (
        {"nodes": (replace(NODE, links_known=False),)}, "topology", Level.WARNING, ("unknown links",),
    ),
    "one GPU has no links": (
        {"nodes": (NodeFacts("a", {"nvidia.com/gpu": 1}, LABELS),)}, "topology", Level.OK, (),
    ),
    "many nodes are counted": (
        {"nodes": tuple(replace(NODE, name=f"n{i}", labels={}) for i in range(9))},
        "topology", Level.WARNING, ("n3 and 5 more",),
    ),
    "another scheduler's pods": (
        {"gpu_pods": {"muster": 1, "default-scheduler": 12}},
        "schedulers", Level.WARNING, ("12 pods with GPUs are of default-scheduler",),
    ),
    "another scheduler without pods": (
        {"served": SERVED | {"scheduling.volcano.sh/v1beta1": frozenset({"podgroups"})}},
        "schedulers", Level.NOTE, ("Volcano",),
    ),
    "a clock that is ahead": ({"clock": Clock(7.0, 8.0)}, "clocks", Level.WARNING, ("7 s",)),
    "a clock that is behind": ({"clock": Clock(-9.0, -8.0)}, "clocks", Level.WARNING, ("8 s",)),
    "a node that is ahead": ({"leases_ahead": {"a": 30.0}}, "clocks", Level.WARNING, ("a are ahead", "30 s")),
    "half a second is nothing": ({"leases_ahead": {"a": 0.5}}, "clocks", Level.OK, ()),
    "nodes may not be listed": ({"unread": ("nodes",)}, "read", Level.WARNING, ("nodes",)),
}  # fmt: skip


def test_a_good_cluster_has_nothing_but_ok() -> None:
    findings = judge(GOOD)
    assert {finding.level for finding in findings} == {Level.OK}
    assert len({finding.check for finding in findings}) == len(findings)
    assert answer(findings)["ready"]


@pytest.mark.parametrize("name", CASES)
def test_one_thing_is_wrong(name: str) -> None:
    changed, check, level, words = CASES[name]
    by_check = {finding.check: finding for finding in judge(replace(GOOD, **changed))}
    finding = by_check[check]
    assert finding.level is level
    assert all(word in f"{finding.message} {finding.remedy}" for word in words), finding
    assert bool(finding.remedy) or level in {Level.OK, Level.NOTE} or check == "version"
    assert answer([*by_check.values()])["ready"] is not (level is Level.ERROR or found_error(by_check))


def found_error(by_check: dict[str, Finding]) -> bool:
    return any(finding.level is Level.ERROR for finding in by_check.values())


def test_answers_are_as_published() -> None:
    for changed, *_ in CASES.values():
        preflight = answer(judge(replace(GOOD, **changed)))
        plain = {
            **preflight,
            "findings": [{f: str(getattr(x, f)) for f in x.__struct_fields__} for x in preflight["findings"]],
        }
        validator("preflight-v1.json").validate(plain)


def of_roles(file: str) -> frozenset[Right]:
    """The rights of a file's ClusterRoles, but for those to objects of one name."""
    documents = yaml.safe_load_all((REPOSITORY / "scheduler-config" / file).read_text())
    return frozenset(
        (group, resource, verb)
        for document in documents
        if document["kind"] == "ClusterRole"
        for rule in document["rules"]
        if "resourceNames" not in rule
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    )


@pytest.mark.parametrize(
    ("table", "file"), [(SERVICE, "rbac-service.yaml"), (SCHEDULER, "rbac-scheduler.yaml")]
)
def test_the_rights_are_those_of_the_manifests(table: str, file: str) -> None:
    assert rights(table) == of_roles(file)


def test_the_installer_may_create_every_kind_of_the_manifests() -> None:
    kinds = {
        document["kind"].lower()
        for path in (REPOSITORY / "scheduler-config").rglob("*.yaml")
        for document in yaml.safe_load_all(path.read_text())
        if document and "kustomize.config" not in document.get("apiVersion", "kustomize.config")
    }
    can = {resource for _, resource, _ in rights(INSTALLER)}
    plural = {
        f"{kind[:-1]}ies" if kind.endswith("y") else f"{kind}es" if kind.endswith("ss") else f"{kind}s"
        for kind in kinds
    }
    options = {
        "daemonsets",
        "networkpolicies",
        "prometheusrules",
        "servicemonitors",
    }  # of components that not everyone wants
    assert plural - can == {"kubeschedulerconfigurations"} | options  # a file for the shim, no object


def test_gated_features_are_no_part_of_every_server() -> None:
    assert all(resource not in NEEDED_RESOURCES.get(group, set()) for group, resource in GATED)
