"""An API server that takes no Binding of one pod, for as long as a test likes."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from e2e.scene import Scene
from local_cluster.api import ApiError
from local_cluster.policies import BINDING, POLICIES, POLICY, await_policy

GROUP = "admissionregistration.k8s.io/v1"


@contextlib.contextmanager
def refused(scene: Scene, pod: str) -> Iterator[None]:
    """Within, Bindings of the pod, which exists unbound, are refused by an admission policy."""
    client, name = scene.client, scene.name
    rule = {"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"]}
    policy = {
        "apiVersion": GROUP,
        "kind": POLICY,
        "metadata": {"name": name},
        "spec": {
            "matchConstraints": {"resourceRules": [rule | {"resources": ["pods/binding"]}]},
            "validations": [{"expression": f"request.namespace != '{name}' || request.name != '{pod}'"}],
        },
    }
    binding = {"policyName": name, "validationActions": ["Deny"]}
    try:
        client.post(POLICIES[POLICY], policy)
        client.post(POLICIES[BINDING], policy | {"kind": BINDING, "spec": binding})
        await_policy(lambda: _refuses(scene, pod), "comes into force")
        yield
    finally:
        for path in reversed(POLICIES.values()):
            if client.find(f"{path}/{name}") is not None:
                client.delete(f"{path}/{name}")
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
