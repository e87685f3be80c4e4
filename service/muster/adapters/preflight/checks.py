"""Judge the facts about a cluster, without I/O. Each check takes the facts and returns one finding."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Mapping
from enum import StrEnum
from functools import partial
from typing import NamedTuple

import msgspec

from muster.adapters.preflight.facts import Facts, NodeFacts
from muster.dialects.gangs import native
from muster.dialects.gangs.podgroups import APIS
from muster.dialects.keys import NODE_AGENT, SECOND_ENDPOINT
from muster.domain import exactness
from muster.domain.allocation import SECOND_RESOURCE, SEVERAL_ENDPOINTS_SINCE
from muster.domain.levels import DEFAULT_LEVELS
from muster.domain.words import list_names

BUILT_FOR = 37
"""The minor version of the kube-scheduler from which the shim is built."""
OLDEST = 34
"""The oldest minor version whose API is enough for the shim, if features are switched off."""
MUSTER = "muster"
SKEW_S = 2.0
"""Seconds of difference between clocks that matter: leases, tokens and the order of events depend on time."""

NEEDED_RESOURCES = {
    "v1": {"pods", "nodes", "bindings", "events"},
    "policy/v1": {"poddisruptionbudgets"},
    "storage.k8s.io/v1": {"csistoragecapacities", "volumeattachments"},
    "coordination.k8s.io/v1": {"leases"},
    "resource.k8s.io/v1": {"deviceclasses", "resourceclaims", "resourceslices"},
    "admissionregistration.k8s.io/v1": {"validatingadmissionpolicies"},
}
"""The resources that the shim and the manifests need."""

GATED = {("resource.k8s.io/v1", "devicetaintrules"): "DRADeviceTaintRules"}
"""Resource → the feature gate. With the gate on, the shim waits for the resource at its start."""

POD_GROUPS = tuple(version for versions in APIS for version in versions)
"""API groups whose PodGroups are read."""

OTHER_SCHEDULERS = {
    "scheduling.volcano.sh/v1beta1": "Volcano",
    "kai.scheduler/v1": "KAI",
    "scheduling.koordinator.sh/v1alpha1": "Koordinator",
}
"""API groups of other schedulers of gangs."""

EXEMPT = "gpu.topology/nri-annotations=allowed"
"""The label of namespaces whose pods may name GPUs."""
LABEL_GUARD = "muster-namespace-labels"
ROLE_BINDINGS = {"muster-system": {"muster-election", "muster-policies"}, "muster-nodes": set[str]()}
"""The namespaces of scheduler-config/, and the RoleBindings that it puts there."""


class Level(StrEnum):
    """How bad a finding is. Only an error changes the exit status."""

    OK = "ok"
    NOTE = "note"
    WARNING = "warning"
    ERROR = "error"


class Finding(msgspec.Struct, frozen=True):
    """The result of one check. `remedy` says what to do, and is empty if there is nothing to do."""

    check: str
    level: Level
    message: str
    remedy: str = ""


class CheckResult(NamedTuple):
    """The result of a check: a `Finding` without the name of the check."""

    level: Level
    message: str
    remedy: str = ""


ok, note, warning, error = (partial(CheckResult, level) for level in Level)


def judge(facts: Facts) -> list[Finding]:
    """Return one finding of each check, in the order of the table."""
    return [Finding(name, *check(facts)) for name, check in CHECKS.items()]


def server_version(facts: Facts) -> CheckResult:
    """Compare the API server's version with the versions that the shim supports."""
    match = re.match(r"v1\.(\d+)", facts.version)
    if match is None:
        return warning(f"the API server's version {facts.version!r} is not known")
    minor = int(match[1])
    if minor < OLDEST:
        return error(
            f"Kubernetes {facts.version} is older than 1.{OLDEST}, whose API the scheduler needs",
            f"upgrade the control plane to 1.{BUILT_FOR}",
        )
    if minor == BUILT_FOR:
        return ok(f"Kubernetes {facts.version}, which the scheduler was built from")
    age = "older" if minor < BUILT_FOR else "newer"
    return warning(
        f"Kubernetes {facts.version} is {age} than the scheduler (1.{BUILT_FOR}); Muster was not tried on it",
        f"use Kubernetes 1.{BUILT_FOR}" if minor < BUILT_FOR else "use the Muster that is built for it",
    )


def apis(facts: Facts) -> CheckResult:
    """Name resources of the API that the shim waits for and the server does not serve."""
    absent = [
        f"{resource}.{group}"
        for group, resources in NEEDED_RESOURCES.items()
        for resource in sorted(resources - facts.served.get(group, frozenset()))
    ]
    if absent:
        return error(
            f"the API server does not serve {list_names(absent)}",
            "upgrade the control plane, or remove what switches these off in --runtime-config",
        )
    gates = [
        gate
        for (group, resource), gate in GATED.items()
        if resource not in facts.served.get(group, frozenset())
    ]
    if gates:
        switched = ",".join(f"{gate}=false" for gate in gates)
        return error(
            f"the API server does not serve what {list_names(gates)} reads: the scheduler would bind nothing",
            f"add {switched} to --feature-gates of the container shim",
        )
    return ok("all resources that the scheduler reads are served")


def rbac(facts: Facts) -> CheckResult:
    """Name missing rights: those of Muster's account, or of the user who wants to install Muster."""
    if facts.missing_rights is None:
        return warning(
            "you may not ask which rights Muster's account has",
            "run this as a user who may create SubjectAccessReviews",
        )
    if not facts.missing_rights:
        whose = (
            "Muster's account has its rights" if facts.installed else "you may create all that is installed"
        )
        return ok(whose)
    lacking = list_names(
        sorted(
            f"{verb} {resource}{'.' * bool(group)}{group}" for group, resource, verb in facts.missing_rights
        )
    )
    if facts.installed:
        return error(f"Muster's account may not {lacking}", "apply scheduler-config/ again")
    return error(f"you may not {lacking}", "install Muster as a cluster administrator")


def admission(facts: Facts) -> CheckResult:
    """Say whether users can write the annotations that give a pod GPUs."""
    if facts.policy and facts.policy_bound:
        return ok("the policy muster-allocations guards the annotations of GPUs")
    if not facts.installed:
        return note("Muster is not installed, and nor is its policy")
    lacks = "policy" if not facts.policy else "binding of the policy"
    return error(
        f"there is no {lacks} muster-allocations: a user who creates pods can claim the GPUs of others",
        "apply scheduler-config/admission.yaml, or run helm upgrade: the chart always has it",
    )


def namespaces(facts: Facts) -> CheckResult:
    """Name ways for others to act as Muster: rights in its namespaces, or a label that everyone may set."""
    foreign = [
        f"{name}/{binding}"
        for name, namespace in sorted(facts.namespaces.items())
        for binding in namespace.role_bindings
    ]
    if foreign:
        return warning(
            f"RoleBindings {list_names(foreign)} are not Muster's: those whom they name "
            "may use Muster's accounts",
            "delete them; if another user made the namespace, delete it and install Muster again",
        )
    if not facts.installed:
        return _namespaces_before_install(facts)
    if not facts.labels_guarded:
        return warning(
            f"there is no policy {LABEL_GUARD}: who may label a namespace may let its pods name any GPU",
            "apply scheduler-config/admission-labels.yaml, or run helm upgrade: the chart always has it",
        )
    system = facts.namespaces.get("muster-system")
    if system is not None and not system.restricted:
        return warning(
            "the namespace muster-system does not enforce the Pod Security level restricted",
            "kubectl label namespace muster-system pod-security.kubernetes.io/enforce=restricted",
        )
    exempt = (
        f"; pods of {list_names(facts.exempt)} may name GPUs for NVIDIA's NRI plugin" if facts.exempt else ""
    )
    return ok(f"only Muster has RoleBindings in its namespaces{exempt}")


def _namespaces_before_install(facts: Facts) -> CheckResult:
    if facts.exempt:
        return warning(
            f"{list_names(facts.exempt)} have the label {EXEMPT} before a policy guards it",
            "take the label from those whose pods may not name any GPU",
        )
    if facts.namespaces:
        return note(
            f"there is {list_names(sorted(facts.namespaces))} before Muster: "
            "who made it may have rights in it",
            "if it was not you, delete it before you install Muster",
        )
    return ok("the namespaces of Muster are free")


def dra_guard(facts: Facts) -> CheckResult:
    """Name DRA drivers of GPUs whose devices other schedulers can allocate too."""
    drivers = {driver for node in facts.nodes for driver in node.drivers}
    if not drivers:
        return ok("no GPUs are planned that a DRA driver serves")
    if open_to_all := sorted(drivers - facts.guarded_drivers):
        return CheckResult(
            Level.WARNING if facts.installed else Level.NOTE,
            f"every scheduler can allocate devices of {list_names(open_to_all)}, so two pods may get one GPU",
            "add the component scheduler-config/dra-guard for these drivers, or set draGuard.drivers in the "
            "chart (docs/dra.md)",
        )
    return ok(f"only Muster allocates devices of {list_names(sorted(drivers))}")


def pod_groups(facts: Facts) -> CheckResult:
    """Say which PodGroups can be read."""
    served = [group for group in POD_GROUPS if "podgroups" in facts.served.get(group, frozenset())]
    gate = ""
    if not any(group in native.APIS for group in served):
        gate = "; Kubernetes' own are not served (feature gate GenericWorkload of the API server)"
    if served:
        return ok(f"PodGroups of {list_names(served)} are read{gate}")
    return note(
        f"no CRD of PodGroups is installed: gangs come from labels, annotations and jobs{gate}",
        "if PodGroups are wanted, create scheduler-config/podgroups/crd-podgroup.yaml",
    )


def gpus(facts: Facts) -> CheckResult:
    """Say which components offer GPUs, and which nodes should offer GPUs but do not."""
    offering = [node for node in facts.nodes if node.gpus]
    if not offering:
        if facts.gpu_drivers:
            return error(
                f"only DRA offers GPUs ({list_names(sorted(facts.gpu_drivers))}), and no DeviceClass that "
                "can be read has them as an extended resource",
                "set extendedResourceName in the DeviceClass (docs/dra.md), or run a device plugin",
            )
        return error(
            "no node offers nvidia.com/gpu, aliyun.com/gpu, aliyun.com/gpu-mem or amd.com/gpu",
            "install a device plugin, for example NVIDIA's GPU operator",
        )
    total = Counter[str]()
    for node in offering:
        total.update(node.gpus)
    offers = ("1 node offers " if len(offering) == 1 else f"{len(offering)} nodes offer ") + ", ".join(
        f"{count} {name}" for name, count in sorted(total.items())
    )
    empty = [
        node.name
        for node in facts.nodes
        if not node.gpus and node.labels.get("nvidia.com/gpu.present") == "true"
    ]
    if empty:
        return warning(
            f"{offers}; {list_names(empty)} have GPUs by their labels and offer none",
            "look at the device plugin's pods on these nodes",
        )
    return ok(offers)


def devices(facts: Facts) -> CheckResult:
    """Name nodes where containers may get other GPUs than the planned ones. The finding is a warning where a
    label asks for a node agent and no agent is ready."""
    by_other_plugin, reading, away = (
        [node for node in facts.nodes if node.not_exact is why] for why in exactness.WHYS
    )
    if not (by_other_plugin or reading or away):
        return ok("containers get the planned GPUs on all nodes")
    clauses, helps = [], []
    second = [node for node in by_other_plugin if SECOND_RESOURCE in node.gpus]
    if by_other_plugin:
        resources = sorted({resource for node in by_other_plugin for resource in node.gpus})
        plugins = f"the device plugin of {' or '.join(resources)} chooses which GPUs a container gets"
        clauses.append(f"on {_list_names(by_other_plugin)} {plugins}")
    if second:
        label = f"{NODE_AGENT}={SECOND_ENDPOINT}"
        nodes_to_label = f"those with {SECOND_RESOURCE} and a kubelet of 1.{SEVERAL_ENDPOINTS_SINCE} or newer"
        helps.append(f"install the node agent, and label {nodes_to_label} {label}")
    if len(by_other_plugin) > len(second):
        helps.append("ask for all GPUs of a node where its device plugin has no node agent")
    if reading:
        clauses.append(f"on {_list_names(reading)} the device plugin may swap the GPUs of equal pods")
        helps.append(f"put the node agent in place of the device plugin of {_list_names(reading)}")
    if away:
        clauses.append(f"on {_list_names(away)} no node agent is seen to be ready")
        helps.append(f"look at the node agents of {_list_names(away)}")
    level = Level.WARNING if away else Level.NOTE
    remedy = f"for the planned ones {'; '.join(helps)} (docs/devices.md)"
    return CheckResult(level, "; ".join(clauses), remedy)


def _list_names(nodes: list[NodeFacts]) -> str:
    return list_names([node.name for node in nodes])


def topology(facts: Facts) -> CheckResult:
    """Say for how many GPU nodes the links are known, and the domains of each level."""
    offering = [node for node in facts.nodes if node.gpus]
    if not offering:
        return note("there are no nodes with GPUs yet")
    levels = DEFAULT_LEVELS[::-1]
    lacks = {
        f"no {level.scope}": [node.name for node in offering if node.labels.keys().isdisjoint(level.labels)]
        for level in levels
    }
    lacks["unknown links"] = [
        node.name for node in offering if not node.links_known and _has_whole_gpus(node)
    ]
    gaps = [
        f"{len(names)} of {len(offering)} nodes have {lack} ({list_names(names)})"
        for lack, names in lacks.items()
        if names
    ]
    if gaps:
        return warning(
            "; ".join(gaps),
            "label the nodes, or name your labels in the policies (docs/policies.md); links: docs/links.md",
        )
    levels_known = f"{', '.join(level.scope for level in levels)} and links"
    return ok(f"{levels_known} of all {len(offering)} nodes with GPUs are known")


def other_schedulers(facts: Facts) -> CheckResult:
    """Name other schedulers whose pods have GPUs, because two schedulers can give away the same GPU."""
    pods_by_scheduler = {name: count for name, count in facts.gpu_pods.items() if name != MUSTER}
    installed = [name for group, name in OTHER_SCHEDULERS.items() if group in facts.served]
    if not pods_by_scheduler and not installed:
        return ok("no other scheduler's pods have GPUs")
    sentences = [f"{count} pods with GPUs are of {name}" for name, count in sorted(pods_by_scheduler.items())]
    sentences += [f"{name} is installed" for name in installed]
    return CheckResult(
        Level.WARNING if pods_by_scheduler else Level.NOTE,
        "; ".join(sentences),
        "let one scheduler have each GPU node: with taints, or schedulerName muster for all pods with GPUs",
    )


def clocks(facts: Facts) -> CheckResult:
    """Compare this machine's clock and the clocks of the nodes with the API server's."""
    ahead = sorted(name for name, seconds in facts.leases_ahead.items() if seconds > SKEW_S)
    if ahead:
        max_ahead_s = max(facts.leases_ahead.values())
        return warning(
            f"the clocks of {list_names(ahead)} are ahead of the API server's, by up to {max_ahead_s:.0f} s",
            "run NTP on these nodes",
        )
    if facts.clock is None:
        return note("the API server does not tell its time")
    skew = max(facts.clock.at_least_s, -facts.clock.at_most_s)
    if skew > SKEW_S:
        return warning(
            f"the API server's clock differs from this machine's by {skew:.0f} s or more", "run NTP on both"
        )
    return ok("the clocks of API server, nodes and this machine agree")


def unread_parts(facts: Facts) -> CheckResult:
    """Name the parts that could not be read, so that no check looks good only for missing facts."""
    if facts.unread:
        return warning(
            f"not everything could be read: {list_names(facts.unread)}",
            "run this as a user who may list these",
        )
    return ok("everything was read")


CHECKS: Mapping[str, Callable[[Facts], CheckResult]] = {
    "version": server_version,
    "api": apis,
    "rights": rbac,
    "admission": admission,
    "namespaces": namespaces,
    "dra-guard": dra_guard,
    "podgroups": pod_groups,
    "gpus": gpus,
    "devices": devices,
    "topology": topology,
    "schedulers": other_schedulers,
    "clocks": clocks,
    "read": unread_parts,
}


def _has_whole_gpus(node: NodeFacts) -> bool:
    return any(not resource.endswith("gpu-mem") and count > 1 for resource, count in node.gpus.items())
