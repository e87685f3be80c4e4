"""Admission policies: where they are, how long until they act, and the one that bounds pods."""

from __future__ import annotations

import threading
from collections.abc import Callable

from local_cluster.api import Api
from local_cluster.patience import Guard
from local_cluster.stack_config import MANIFESTS, apply_kinds, manifests_of

GROUP = "/apis/admissionregistration.k8s.io/v1"
POLICY, BINDING = "ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding"
POLICIES = {
    POLICY: f"{GROUP}/validatingadmissionpolicies",
    BINDING: f"{GROUP}/validatingadmissionpolicybindings",
}
"""Kind → path of its objects."""
MAX_INIT_CONTAINERS = 256
"""Of a pod that the policy allows."""
LOOKS_EVERY_S = 0.05
FORBIDDEN = 403


def bound_sizes(api: Api) -> None:
    """Install scheduler-config/admission-sizes.yaml, and wait until the API server refuses by it.

    Without this policy, any kube-scheduler works for seconds on a pod of thousands of init containers.

    Raises:
        TimeoutError: the API server still takes what the policy refuses.
    """
    apply_kinds(api, manifests_of(MANIFESTS / "admission-sizes.yaml"), POLICIES)
    containers = [{"name": f"c{number}", "image": "none"} for number in range(MAX_INIT_CONTAINERS + 1)]
    spec = {"containers": [{"name": "main", "image": "none"}], "initContainers": containers}
    too_large = {"metadata": {"name": "too-large"}, "spec": spec}
    pods = "/api/v1/namespaces/default/pods?dryRun=All"
    await_policy(lambda: api.send("POST", pods, too_large).status == FORBIDDEN, "comes into force")


def await_policy(question: Callable[[], bool], effect: str) -> None:
    """Wait until a policy acts, which is a little after it was written: no watch tells when.

    Raises:
        TimeoutError: the answer is still no. `effect` completes the sentence "the policy …".
    """
    never, guard = threading.Event(), Guard()
    while not question():
        if guard.over:
            raise TimeoutError(f"not within {guard.whole_s:.0f} s: the policy {effect}")
        never.wait(LOOKS_EVERY_S)
