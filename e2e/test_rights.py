"""The account has the rights that it uses and no others: roles against the API server's audit log.

The scenes here bring about, one by one, what other tests have no reason to; the last tests compare what all
of them asked for with what scheduler-config/ grants. Run the whole file.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest
import yaml

from e2e import objects
from e2e.arena import Arena
from e2e.audit import EVICTED_S
from e2e.record import Record
from e2e.refusals import refused as refusing
from e2e.rights import Grant, Request, borrowed, grants, refused, requests, unused
from e2e.scene import Scene
from local_cluster.api import Api, Object
from local_cluster.stack import Stack
from local_cluster.stack_config import MANIFESTS
from muster.adapters.kube.decode import COMPOSITE_POD_GROUPS, WORKLOADS, jobs, makers, pod_groups
from muster.dialects.kinds.table import KINDS, MAKERS

EXCEPTIONS = {
    "get pods": "asked when a Binding met a conflict; the plugin has tests of that (renew_test.go)",
    "get resourceclaims.resource.k8s.io": "read again only when an update met a conflict",
    "update pods/finalizers": "asked for by the admission plugin OwnerReferencesPermissionEnforcement alone, "
    "which is off here: a claim for an extended resource has its pod as owner",
    "update resourceclaims.resource.k8s.io/binding": "no request of its own: updating /status asks for it",
    "patch resourceclaims.resource.k8s.io/binding": "and patching it",
    "patch podgroups.scheduling.k8s.io/status": "used in test_native.py: the API server here serves none",
    **{
        f"watch {resource.plural}": "its CRD is not installed here: it is listed, again and again"
        for resource in (*map(jobs, KINDS), *map(makers, MAKERS), *pod_groups(), COMPOSITE_POD_GROUPS)
        if not resource.plural.endswith((".batch", ".apps", ".scheduling.run.ai", ".scheduling.x-k8s.io"))
    },
    f"watch {WORKLOADS.plural}": "the API server does not serve it here: it is listed, again and again",
}
"""Rights that no scene uses → why they are granted all the same."""

Create = Callable[[str, Object], str]

# --- the comparison ---------------------------------------------------------------------------------


def event(verb: str, resource: str, agent: str = "shim/v1", **fields: str) -> str:
    """A line of an audit log."""
    group, _, resource_path = resource.rpartition("!")
    first, _, sub = resource_path.partition("/")
    about = {"resource": first, "subresource": sub, "apiGroup": group, **fields}
    return json.dumps({"verb": verb, "userAgent": agent, "objectRef": about, "annotations": {}})


def forbidden(line: str) -> str:
    """The same, refused."""
    return json.dumps(json.loads(line) | {"annotations": {"authorization.k8s.io/decision": "forbid"}})


LIVEZ = json.dumps({"verb": "get", "userAgent": "muster", "requestURI": "/livez?verbose"})
ROLE: Object = {
    "kind": "Role",
    "metadata": {"name": "muster-election", "namespace": "home"},
    "rules": [
        {"apiGroups": [""], "resources": ["pods/binding"], "verbs": ["create"]},
        {"apiGroups": ["c.io"], "resources": ["leases"], "resourceNames": ["m"], "verbs": ["get", "update"]},
    ],
}
USED = [
    event("create", "pods/binding", namespace="home"),
    event("get", "c.io!leases", namespace="home", name="m"),
    event("update", "c.io!leases", namespace="home", name="m"),
]
LEASE = "scheduler: update leases.c.io in home named m"
LOGS = {
    "all is used": (USED, []),
    "a verb is not": (USED[:2], [LEASE]),
    "it is used on another name": ([*USED[:2], event("update", "c.io!leases", namespace="home")], [LEASE]),
    "it is used in another namespace": ([*USED[:2], event("update", "c.io!leases", name="m")], [LEASE]),
    "the other part uses it": (
        [*USED[:2], event("update", "c.io!leases", "muster", namespace="home", name="m")],
        [LEASE],
    ),
}


@pytest.mark.parametrize("name", LOGS)
def test_a_right_that_nobody_uses_is_found(name: str) -> None:
    lines, unused_rights = LOGS[name]
    assert unused(grants([ROLE]), requests(lines), {}) == unused_rights
    assert not unused(grants([ROLE]), requests(lines), {"update leases.c.io": "a reason"})


def test_who_watches_may_list() -> None:
    rule = {"apiGroups": [""], "resources": ["pods"], "verbs": ["list", "watch"]}
    all_grants = grants([ROLE | {"rules": [rule]}])
    assert not unused(all_grants, requests([event("watch", "pods", namespace="home")]), {})
    assert unused(all_grants, requests([event("list", "pods", namespace="home")]), {})


def test_a_request_without_a_right_is_found() -> None:
    all_grants = grants([ROLE])
    assert refused(all_grants, requests([*USED, forbidden(event("list", "secrets"))])) == [
        "scheduler: list secrets /"
    ]
    assert not refused(all_grants, requests(USED))


def test_what_is_refused_by_a_server_that_just_started_is_no_missing_right() -> None:
    all_grants = grants([ROLE])
    early = [forbidden(line) for line in USED]
    assert not refused(all_grants, requests([*early, *USED]))
    assert len(unused(all_grants, requests(early), {})) == len(all_grants)  # but nothing shows that it works
    assert not refused(all_grants, requests([forbidden(LIVEZ)]))
    assert refused(all_grants, requests([forbidden(LIVEZ.replace("livez", "metrics"))])) == [
        "service: get /metrics /"
    ]


def test_a_request_under_the_other_parts_role_is_found() -> None:
    assert not borrowed(grants([ROLE]), requests(USED))
    assert not borrowed(grants([ROLE]), requests([LIVEZ]))
    stranger = event("create", "pods/binding", "muster", namespace="home")
    assert borrowed(grants([ROLE]), requests([stranger])) == ["service: create pods/binding home/"]


# --- scenes -----------------------------------------------------------------------------------------


@pytest.fixture
def create(scene: Scene) -> Iterator[Create]:
    """Creates an object in a collection, and deletes it after the test; its name."""
    with ExitStack() as undo:

        def create_object(collection: str, body: Object) -> str:
            name = str(scene.client.post(collection, body)["metadata"]["name"])
            undo.callback(scene.client.delete, f"{collection}/{name}")
            return name

        yield create_object
        scene.clear()


def cpu_pod(name: str, cpu: str, **spec: object) -> Object:
    pod = objects.pod(name, gpus=0, spec=dict(spec))
    pod["spec"]["containers"][0]["resources"]["requests"]["cpu"] = cpu
    return pod


def test_preemption_and_an_event_that_repeats(scene: Scene, stack: Stack, create: Create) -> None:
    for name, value in (("low", 1), ("high", 2)):
        create(
            "/apis/scheduling.k8s.io/v1/priorityclasses",
            {"metadata": {"name": f"{scene.name}-{name}"}, "value": value},
        )
    labels_of_node = {"e2e.muster.dev/chosen": "yes"}
    scene.node(objects.node("a", labels=labels_of_node))
    scene.runs(scene.create(cpu_pod("victim", "60", priorityClassName=f"{scene.name}-low")))
    scene.runs(scene.create(cpu_pod("preemptor", "60", priorityClassName=f"{scene.name}-high")))
    scene.create(cpu_pod("waits", "60", nodeSelector=labels_of_node))
    scene.says("waits", "0/1 nodes")
    scene.node(objects.node("b"))  # with room, so that it is tried again, and without the label
    scene.says("waits", "0/2 nodes")


def test_volumes(scene: Scene, stack: Stack, create: Create) -> None:
    """One that is there, and one that a provisioner, which there is none, is asked for."""
    scene.node(objects.node("a"))
    claims = f"/api/v1/namespaces/{scene.name}/persistentvolumeclaims"
    terms: Object = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}
    for name, provisioner in (("there", "kubernetes.io/no-provisioner"), ("asked", "example.com/nobody")):
        storage: Object = {"metadata": {"name": f"{scene.name}-{name}"}, "provisioner": provisioner}
        storage |= {"volumeBindingMode": "WaitForFirstConsumer"}
        of_class = {"storageClassName": create("/apis/storage.k8s.io/v1/storageclasses", storage)}
        create(claims, {"metadata": {"name": name}, "spec": terms | of_class})
        if name == "there":
            volume: Object = {"capacity": {"storage": "1Gi"}, "hostPath": {"path": "/nowhere"}}
            volume |= {"accessModes": terms["accessModes"], **of_class}
            create("/api/v1/persistentvolumes", {"metadata": {"name": scene.name}, "spec": volume})
    for name in ("there", "asked"):
        claim = {"name": "v", "persistentVolumeClaim": {"claimName": name}}
        scene.create(cpu_pod(name, "1", volumes=[claim]))
    scene.runs(["there"])
    with Record(scene.client, (claims,)) as record:
        annotation = "volume.kubernetes.io/selected-node"
        record.until(
            lambda: any(
                annotation in (claim["metadata"].get("annotations") or {}) for claim in record.live(claims)
            ),
            "a provisioner is asked",
            30.0,
        )


def test_devices(scene: Scene, stack: Stack, create: Create) -> None:
    """A claim of a pod's own, and one that the scheduler makes for an extended resource; the Bindings of both
    pods are refused at first, and what was allocated is taken back."""
    node, driver, resource = scene.node(objects.node("a")), f"{scene.name}.example.com", "example.com/thing"
    group = "/apis/resource.k8s.io/v1"
    selector = {"cel": {"expression": f"device.driver == '{driver}'"}}
    offered = {"selectors": [selector], "extendedResourceName": resource}
    devices = create(f"{group}/deviceclasses", {"metadata": {"name": scene.name}, "spec": offered})
    slices = {
        "driver": driver,
        "nodeName": node,
        "pool": {"name": node, "generation": 1, "resourceSliceCount": 1},
        "devices": [{"name": "d0"}, {"name": "d1"}],
    }
    create(f"{group}/resourceslices", {"metadata": {"name": scene.name}, "spec": slices})
    claim_spec = {"devices": {"requests": [{"name": "r", "exactly": {"deviceClassName": devices}}]}}
    claim = {"metadata": {"name": "claim"}, "spec": claim_spec}
    scene.client.post(f"{group}/namespaces/{scene.name}/resourceclaims", claim)
    gate = {"schedulingGates": [{"name": "e2e.muster.dev/later"}]}
    with_claim = cpu_pod("own", "1", resourceClaims=[{"name": "c", "resourceClaimName": "claim"}], **gate)
    with_claim["spec"]["containers"][0]["resources"]["claims"] = [{"name": "c"}]
    extended = cpu_pod("extended", "1", **gate)
    asked_for = extended["spec"]["containers"][0]["resources"]
    asked_for["requests"][resource] = "1"
    asked_for["limits"] = {resource: "1"}
    for name in scene.create(with_claim, extended):
        with refusing(scene, name):
            ungated = {"spec": {"schedulingGates": None}}
            scene.client.patch(f"/api/v1/namespaces/{scene.name}/pods/{name}", ungated)
            scene.event("FailedScheduling", name)
        scene.runs([name])


def test_who_may_read_the_metrics_is_asked(scene: Scene, stack: Stack) -> None:
    ca = str(stack.cluster.layout.pki / "ca.crt")
    stranger = Api(stack.scheduler_url, ca, token=stack.cluster.token_for(f"{scene.name}/default"))
    assert stranger.send("GET", "/metrics").status == 403


def test_other_kinds_of_podgroups(arena: Arena, scene: Scene, stack: Stack) -> None:
    """Their CRDs come; the service sees them at once when it starts."""
    definitions = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
    approved = {"api-approved.kubernetes.io": "https://github.com/kubernetes-sigs/scheduler-plugins/pull/50"}
    schema = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    version = {"name": "v1alpha1", "served": True, "storage": True, "schema": {"openAPIV3Schema": schema}}
    kinds = (
        ("podgroups", "scheduling.x-k8s.io", "PodGroup", "Namespaced"),
        ("topologies", "kai.scheduler", "Topology", "Cluster"),
    )
    with Record(scene.client, (definitions,)) as record, ExitStack() as undo:
        for plural, group, kind, scope in kinds:
            names = {"kind": kind, "plural": plural, "singular": kind.lower()}
            spec = {"group": group, "scope": scope, "names": names, "versions": [version]}
            meta = {"name": f"{plural}.{group}", "annotations": approved}
            scene.client.post(definitions, {"metadata": meta, "spec": spec})
            undo.callback(scene.client.delete, f"{definitions}/{meta['name']}")
        ours = {f"{plural}.{group}" for plural, group, _, _ in kinds}
        record.until(lambda: ours <= served(record.live(definitions)), "the CRDs are served", 30.0)
        stack.service.kill()
        stack.start_service()


def served(definitions: list[Object]) -> set[str]:
    """Names of the CRDs that the API server serves."""
    return {
        str(body["metadata"]["name"])
        for body in definitions
        for condition in (body.get("status") or {}).get("conditions") or ()
        if condition["type"] == "Established" and condition["status"] == "True"
    }


@pytest.mark.grace(EVICTED_S)
def test_a_podgroup_that_is_given_up(scene: Scene, stack: Stack) -> None:
    scene.node(objects.node("a"))
    group = {"apiVersion": "scheduling.run.ai/v2", "kind": "PodGroup", "metadata": {"name": "g"}}
    groups = f"/apis/scheduling.run.ai/v2/namespaces/{scene.name}/podgroups"
    scene.client.post(groups, group | {"spec": {"minMember": 2}})
    words = objects.Words({}, {"scheduling.run.ai/pod-group": "g"})
    scene.create(objects.pod("w-0", gang=words))
    scene.until(lambda: "gpu.topology/WaitingForMembers" in scene.conditions("w-0"), "it says that it waits")
    with refusing(scene, "w-0"):
        scene.create(objects.pod("w-1", gang=words))
        scene.until(lambda: scene.bound() == {"w-1"}, "one of two is bound")
        scene.until(lambda: "w-1" not in scene.pods(), "it is evicted")
    scene.delete("w-0")


# --- what all of them asked for ---------------------------------------------------------------------


@pytest.fixture(scope="module")
def all_grants() -> set[Grant]:
    files = sorted((*MANIFESTS.glob("rbac-*.yaml"), MANIFESTS / "jobs" / "rbac.yaml"))
    return grants(role for file in files for role in yaml.safe_load_all(file.read_text()))


@pytest.fixture
def sent(arena: Arena) -> set[Request]:
    if arena.cluster is None:
        pytest.skip("the audit log of this cluster is somebody else's")
    return {*requests(arena.cluster.audit_log.read_text().splitlines())}


def test_no_right_is_granted_that_is_not_used(all_grants: set[Grant], sent: set[Request]) -> None:
    assert not unused(all_grants, sent, EXCEPTIONS)


def test_no_right_is_missing(all_grants: set[Grant], sent: set[Request]) -> None:
    assert sent
    assert not refused(all_grants, sent)
    assert not borrowed(all_grants, sent)


def test_every_exception_is_granted(all_grants: set[Grant]) -> None:
    assert not EXCEPTIONS.keys() - {f"{grant.verb} {grant.resource}" for grant in all_grants}
