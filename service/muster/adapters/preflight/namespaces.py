"""Judge the namespaces that Muster trusts: who else has rights in them, and who may trust another one."""

from __future__ import annotations

from muster.adapters.preflight.facts import Facts
from muster.adapters.preflight.finding import Finding, Level
from muster.domain.words import listed

CHECK = "namespaces"
LABEL = "gpu.topology/nri-annotations=allowed"
GUARD = "muster-namespace-labels"
BINDINGS = {"muster-system": {"muster-election", "muster-policies"}, "muster-nodes": set[str]()}
"""The namespaces of scheduler-config/, and the RoleBindings that it puts there."""


def namespaces(facts: Facts) -> Finding:
    """Name what would let others act as Muster: rights in its namespaces, or a label that all may set."""
    foreign = [
        f"{name}/{binding}"
        for name, namespace in sorted(facts.namespaces.items())
        for binding in namespace.role_bindings
    ]
    if foreign:
        return Finding(
            CHECK,
            Level.WARNING,
            f"RoleBindings {listed(foreign)} are not Muster's: those whom they name "
            "may use Muster's accounts",
            "delete them; if another user made the namespace, delete it and install Muster again",
        )
    if not facts.installed:
        return _before(facts)
    if not facts.labels_guarded:
        return Finding(
            CHECK,
            Level.WARNING,
            f"there is no policy {GUARD}: who may label a namespace may let its pods name any GPU",
            "apply scheduler-config/admission-labels.yaml, or run helm upgrade: the chart always has it",
        )
    system = facts.namespaces.get("muster-system")
    if system is not None and not system.restricted:
        return Finding(
            CHECK,
            Level.WARNING,
            "the namespace muster-system does not enforce the Pod Security level restricted",
            "kubectl label namespace muster-system pod-security.kubernetes.io/enforce=restricted",
        )
    exempt = f"; pods of {listed(facts.exempt)} may name GPUs for NVIDIA's NRI plugin" if facts.exempt else ""
    return Finding(CHECK, Level.OK, f"only Muster has RoleBindings in its namespaces{exempt}")


def _before(facts: Facts) -> Finding:
    if facts.exempt:
        return Finding(
            CHECK,
            Level.WARNING,
            f"{listed(facts.exempt)} have the label {LABEL} before a policy guards it",
            "take the label from those whose pods may not name any GPU",
        )
    if facts.namespaces:
        return Finding(
            CHECK,
            Level.NOTE,
            f"there is {listed(sorted(facts.namespaces))} before Muster: who made it may have rights in it",
            "if it was not you, delete it before you install Muster",
        )
    return Finding(CHECK, Level.OK, "the namespaces of Muster are free")
