"""The admission policy against pods that any kube-scheduler works on for seconds, as users install it."""

from __future__ import annotations

import threading

from local_cluster.api import Api
from local_cluster.patience import Guard
from local_cluster.stack_config import MANIFESTS, manifests_of

GROUP = "/apis/admissionregistration.k8s.io/v1"
POLICIES = {
    "ValidatingAdmissionPolicy": f"{GROUP}/validatingadmissionpolicies",
    "ValidatingAdmissionPolicyBinding": f"{GROUP}/validatingadmissionpolicybindings",
}
"""Kind → path of its objects."""
MAX_INIT_CONTAINERS = 256
"""Of a pod that the policy allows."""
LOOKS_EVERY_S = 0.1
FORBIDDEN = 403


def bound_sizes(api: Api) -> None:
    """Install scheduler-config/admission-sizes.yaml, and wait until the API server refuses by it.

    Raises:
        TimeoutError: the API server still takes what the policy refuses.
    """
    for manifest in manifests_of(MANIFESTS / "admission-sizes.yaml"):
        api.create(POLICIES[manifest["kind"]], manifest)
    containers = [{"name": f"c{number}", "image": "none"} for number in range(MAX_INIT_CONTAINERS + 1)]
    spec = {"containers": [{"name": "main", "image": "none"}], "initContainers": containers}
    too_large = {"metadata": {"name": "too-large"}, "spec": spec}
    never, guard = threading.Event(), Guard()
    while api.send("POST", "/api/v1/namespaces/default/pods?dryRun=All", too_large).status != FORBIDDEN:
        if guard.over:
            raise TimeoutError(f"not within {guard.whole_s:.0f} s: the policy muster-sizes comes into force")
        never.wait(LOOKS_EVERY_S)
