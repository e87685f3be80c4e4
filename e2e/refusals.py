"""An API server that takes no Binding of one pod, for as long as a test likes."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator

from e2e.scene import Scene
from local_cluster.api import ApiError
from local_cluster.patience import Guard

GROUP = "admissionregistration.k8s.io/v1"
POLICIES = f"/apis/{GROUP}/validatingadmissionpolicies"
BINDINGS = f"/apis/{GROUP}/validatingadmissionpolicybindings"
LOOKS_EVERY_S = 0.05


@contextlib.contextmanager
def refused(scene: Scene, pod: str) -> Iterator[None]:
    """Within, Bindings of the pod, which exists unbound, are refused by an admission policy."""
    client, name = scene.client, scene.name
    rule = {"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"]}
    policy = {
        "apiVersion": GROUP,
        "kind": "ValidatingAdmissionPolicy",
        "metadata": {"name": name},
        "spec": {
            "matchConstraints": {"resourceRules": [rule | {"resources": ["pods/binding"]}]},
            "validations": [{"expression": f"request.namespace != '{name}' || request.name != '{pod}'"}],
        },
    }
    binding = {"policyName": name, "validationActions": ["Deny"]}
    try:
        client.post(POLICIES, policy)
        client.post(BINDINGS, policy | {"kind": "ValidatingAdmissionPolicyBinding", "spec": binding})
        await_policy(lambda: _refuses(scene, pod), "comes into force")
        yield
    finally:
        for path in (f"{BINDINGS}/{name}", f"{POLICIES}/{name}"):
            if client.find(path) is not None:
                client.delete(path)
    await_policy(lambda: not _refuses(scene, pod), "is over")


def _refuses(scene: Scene, pod: str) -> bool:
    """Whether the API server would refuse the Binding now. Of a pod that is bound or gone it would not for
    this reason."""
    body = {"apiVersion": "v1", "kind": "Binding", "metadata": {"name": pod}}
    body |= {"target": {"kind": "Node", "name": "nowhere"}}
    try:
        scene.client.post(f"/api/v1/namespaces/{scene.name}/pods/{pod}/binding?dryRun=All", body)
    except ApiError as problem:
        return "ValidatingAdmissionPolicy" in str(problem)
    return False


def await_policy(question: Callable[[], bool], effect: str) -> None:
    """A policy acts a little after it was written, and no watch tells when."""
    never, guard = threading.Event(), Guard()
    while not question():
        if guard.over:
            raise AssertionError(f"not within {guard.whole_s:.0f} s: the policy {effect}")
        never.wait(LOOKS_EVERY_S)
