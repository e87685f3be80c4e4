"""Create the pods that the controllers of Jobs, StatefulSets, Deployments, PyTorchJobs and others would
create.

Fixed names are those of the controllers (StatefulSet, indexed Job, kubeflow). If a controller ends a name at
random, the name here ends with letters that count up. So the same file gives the same names, and no end is
read as a rank.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import msgspec

from muster.adapters.files.reading import shapes
from muster.adapters.files.reading.shapes import PodManifest, Template
from muster.adapters.files.reading.sources import (
    Document,
    Key,
    Object,
    object_at,
    objects_at,
    quote_value,
    type_name,
)
from muster.dialects.gangs.podgroups import COSCHEDULING_API
from muster.dialects.kinds.description import Described, JobObject, JobRole, NewPod, check_pod_count, letters
from muster.dialects.kinds.table import KINDS
from muster.dialects.kinds.table import MAKERS as JOB_MAKERS
from muster.dialects.objects import CustomObject, Metadata, OwnerReference
from muster.dialects.pods.pods import TEMPLATE_HASH

_API_VERSIONS = {"Job": "batch/v1", "ReplicaSet": "apps/v1", "StatefulSet": "apps/v1"}
"""Kind → API version, of objects that a controller makes and that then make the pods."""


@dataclass(frozen=True, slots=True)
class ControllerPods:
    """A controller's pods, or `why_none`. `ordered`: each pod is created only when the pod before it runs."""

    pods: tuple[PodManifest, ...] = ()
    why_none: str = ""
    ordered: bool = False


def pods_of_controller(document: Document) -> ControllerPods | None:
    """Return the pods that an object stands for; None if its kind creates no pods that are read.

    Raises:
        Malformed: A field is wrong. The message names it.
    """
    describe = MAKERS.get((document.group, document.kind))
    if describe is None:
        return None
    obj = shapes.as_stored(document, CustomObject)
    owner = JobObject.of(document.kind, obj)
    described = describe(owner)
    for cause in owner.spec.causes:
        if cause.field.startswith(("spec", "status")):
            got = f", got {cause.value}" if cause.value else ", but not given"
            raise document.error(f"{cause.field}: expected {cause.expected}{got}")
    templates = [_template(document, role) for role in described.roles]
    if described.idle:
        return ControllerPods(why_none=described.idle)
    reference = OwnerReference(
        owner.api_version, obj.metadata.uid, document.kind, owner.name, controller=True
    )
    pods = (
        _pod(role.pod(copy, number), template, obj.metadata.namespace, reference)
        for copy in range(described.copies)
        for role, template in zip(described.roles, templates, strict=True)
        for number in range(role.count)
    )
    return ControllerPods(tuple(pods), ordered=described.ordered)


def _template(document: Document, role: JobRole) -> Template:
    """Return the pod template of a role. Raise Malformed if the API server would refuse its pods."""
    if role.template is None:
        raise document.error(f"{role.path}: expected, but not given")
    template = shapes.convert(document, Template, role.template, role.path)
    shapes.check_metadata(document, template.metadata, f"{role.path}.metadata")
    shapes.check_spec(document, template.spec, f"{role.path}.spec")
    return template


def _pod(new: NewPod, template: Template, namespace: str, owner: OwnerReference) -> PodManifest:
    """Return a pod of a template, with the additions of its controller."""
    if new.controller is not None:
        kind, name = new.controller
        uid = shapes.uid_of(kind, namespace, name)
        owner = OwnerReference(_API_VERSIONS[kind], uid, kind, name, controller=True)
    meta, spec = template.metadata, template.spec
    if new.node_selector or new.tolerations or new.containers or new.init_containers:
        spec = msgspec.structs.replace(
            spec,
            node_selector={**(spec.node_selector or {}), **new.node_selector},
            tolerations=[*(spec.tolerations or ()), *new.tolerations],
            containers=[*(spec.containers or ()), *new.containers],
            init_containers=[*(spec.init_containers or ()), *new.init_containers],
        )
    labels, annotations = (
        {**(meta.labels or {}), **new.labels},
        {**(meta.annotations or {}), **new.annotations},
    )
    meta = Metadata(
        new.name, namespace=namespace, labels=labels, annotations=annotations, owner_references=[owner]
    )
    return PodManifest(metadata=meta, spec=spec)


def _replicas(owner: JobObject) -> Described:
    """Describe a Deployment, ReplicaSet or ReplicationController: equal pods with random names.

    The owner of a Deployment's pods is a ReplicaSet, named by a hash of the template.
    """
    spec, stem, labels, controller = owner.spec, owner.name, dict[str, str](), None
    replicas, template = spec.natural("replicas"), spec.raw("template")
    count = check_pod_count(spec, "replicas", 1 if replicas is None else replicas)
    if owner.kind == "Deployment":
        digest = hashlib.sha256(repr(template).encode()).digest()
        labels[TEMPLATE_HASH] = letters(int.from_bytes(digest[:8]), 9)
        stem = f"{stem}-{labels[TEMPLATE_HASH]}"
        controller = ("ReplicaSet", stem)

    def pod(_: int, number: int) -> NewPod:
        return NewPod(f"{stem}-{letters(number)}", labels, controller=controller)

    return Described((JobRole("", count, min(1, count), template, "spec.template", pod),))


MAKERS: Mapping[tuple[str, str], Callable[[JobObject], Described]] = MappingProxyType(
    {
        ("apps", "Deployment"): _replicas,
        ("apps", "ReplicaSet"): _replicas,
        ("", "ReplicationController"): _replicas,
        **{(kind.group, kind.kind): kind.describe for kind in KINDS.values()},
    }
)
"""(API group, kind) → the description of its pods. Other kinds are skipped: Volcano's Job, for example, is
not the Job of batch."""


# --- jobs that make other jobs -------------------------------------------------------------------

TRAINER = "trainer.kubeflow.org"
RUNTIMES = ("ClusterTrainingRuntime", "TrainingRuntime")
_ANCESTOR = f"{TRAINER}/trainjob-ancestor-step"
_NAMED_ITEMS = frozenset({
    "replicatedJobs", "containers", "initContainers", "volumes", "schedulingGates",
})  # fmt: skip
"""Lists in which a strategic merge patch finds items by their names. The patch replaces other lists."""
_TRAINER, _NODE = "trainer", "node"
"""The step of the trainer, and the name of its container and of MPI's replicated Job."""
_COSCHEDULING_GROUP = "scheduling.x-k8s.io/pod-group"
_VOLCANO_API, _VOLCANO_GROUP = "scheduling.volcano.sh/v1beta1", "scheduling.k8s.io/group-name"
_SUBMITTER = {
    "name": "ray-job-submitter",
    "resources": {"requests": {"cpu": "500m", "memory": "200Mi"}, "limits": {"cpu": "1", "memory": "1Gi"}},
}
"""The container that KubeRay adds to the head in SidecarMode."""


def with_children(documents: Sequence[Document]) -> Iterator[Document]:
    """Yield the documents, and after each RayJob and TrainJob the objects that its controller makes of it.

    Raises:
        Malformed: an object that a job makes does not have the shape of an object.
    """
    parents = {
        (owner.get("kind"), document.key.namespace, owner.get("name"))
        for document in documents
        for owner in objects_at(document.metadata, "ownerReferences")
    }
    objects = {document.key: document for document in documents}
    for document in documents:
        yield document
        if document.key in parents or not makes_jobs(document):
            continue
        if document.kind == "RayJob":
            children = _children_of_ray_job(document)
        else:
            children = _children_of_train_job(document, _runtime_of(document, objects))
        yield from (child for child in children if child.key not in objects)


def makes_jobs(document: Document) -> bool:
    """Return whether the document is a RayJob or a TrainJob."""
    group, _ = JOB_MAKERS.get(document.kind, ("", ()))
    return document.group == group != ""


# --- RayJob ----------------------------------------------------------------------------------------


def _children_of_ray_job(document: Document) -> Iterator[Document]:
    spec = object_at(document.value, "spec")
    if spec.get("clusterSelector"):
        return
    cluster = {**object_at(spec, "rayClusterSpec"), **({"suspend": True} if spec.get("suspend") else {})}
    if spec.get("submissionMode") == "SidecarMode":
        head = object_at(cluster, "headGroupSpec")
        template = object_at(head, "template")
        pod = object_at(template, "spec")
        pod = {**pod, "containers": [*objects_at(pod, "containers"), _SUBMITTER]}
        cluster = {**cluster, "headGroupSpec": {**head, "template": {**template, "spec": pod}}}
    name = f"{document.key.name}-{letters(0)}"
    yield child(document, "ray.io/v1", "RayCluster", name, cluster)


# --- TrainJob --------------------------------------------------------------------------------------


def _runtime_of(document: Document, objects: Mapping[Key, Document]) -> Document:
    reference = object_at(document.value, "spec", "runtimeRef")
    kind, name = str(reference.get("kind") or RUNTIMES[0]), str(reference.get("name"))
    runtime = objects.get(Key(kind, "" if kind == RUNTIMES[0] else document.key.namespace, name))
    if runtime is None or runtime.group != TRAINER:
        raise document.error(
            f"spec.runtimeRef: {kind} {name} is not in the input, and it has the pod templates: "
            f"add it with -f, from `kubectl get {kind.lower()} {name} -o yaml`"
        )
    return runtime


def _children_of_train_job(document: Document, runtime: Document) -> Iterator[Document]:
    """Yield the JobSet of a TrainJob, and the PodGroup if its runtime asks for one."""
    spec, runtime_spec = object_at(document.value, "spec"), object_at(runtime.value, "spec")
    for holder, fields in (
        (document, object_at(spec, "trainer")),
        (runtime, object_at(runtime_spec, "mlPolicy")),
    ):
        if not isinstance(nodes := fields.get("numNodes"), int | None):
            raise holder.error(
                f"numNodes: expected a whole number, got {type_name(nodes)} {quote_value(nodes)}"
            )
    template = _patch(document, spec, object_at(runtime_spec, "template"))
    job_set = _job_set(spec, object_at(template, "spec"), object_at(runtime_spec, "mlPolicy"))
    name, policy = document.key.name, object_at(runtime_spec, "podGroupPolicy")
    api, group = "", dict[str, object]()
    if "coscheduling" in policy:
        api, keys = COSCHEDULING_API, {"labels": {_COSCHEDULING_GROUP: name}}
        job_set = _patch_pods(job_set, {"metadata": keys})
    elif "volcano" in policy:
        api, keys = _VOLCANO_API, {"annotations": {_VOLCANO_GROUP: name}}
        job_set = _patch_pods(job_set, {"metadata": keys})
        if topology := object_at(policy, "volcano", "networkTopology"):
            group["networkTopology"] = topology
    metadata = object_at(template, "metadata")
    # Before runtimePatches, a TrainJob had labels and annotations of its JobSet.
    meta = {
        field: {**object_at(metadata, field), **object_at(spec, field)} for field in ("labels", "annotations")
    }
    yield child(document, "jobset.x-k8s.io/v1alpha2", "JobSet", name, job_set, meta)
    if api:
        size = sum(_pods_of(job) for job in objects_at(job_set, "replicatedJobs"))
        yield child(document, api, "PodGroup", name, {"minMember": size, **group})


def _patch(document: Document, spec: Object, template: Object) -> Object:
    """Return the runtime's template with the TrainJob's patches, in the forms of all versions of the API.

    Raises:
        Malformed: A patch is for a replicated Job that the runtime does not have.
    """
    job_names = [str(job.get("name")) for job in objects_at(template, "spec", "replicatedJobs")]
    patches = [
        (f"runtimePatches[{number}]", object_at(patch, "trainingRuntimeSpec", "template"))
        for number, patch in enumerate(objects_at(spec, "runtimePatches"))
    ]
    for field in ("podTemplateOverrides", "podSpecOverrides"):
        for number, override in enumerate(objects_at(spec, field)):
            pod_fields = override if field == "podSpecOverrides" else object_at(override, "spec")
            pods = {"metadata": object_at(override, "metadata"), "spec": pod_fields}
            jobs = [
                {"name": target.get("name"), "template": {"spec": {"template": pods}}}
                for target in objects_at(override, "targetJobs")
            ]
            patches.append((f"{field}[{number}]", {"spec": {"replicatedJobs": jobs}}))
    for patch_path, patch in patches:
        for job in objects_at(patch, "spec", "replicatedJobs"):
            if (name := str(job.get("name"))) not in job_names:
                expected = f"expected replicated Jobs of its runtime ({', '.join(job_names)})"
                raise document.error(f"spec.{patch_path}: {expected}, got {quote_value(name)}")
        template = merge(template, patch)
    return template


def merge(value: Object, patch: Object) -> Object:
    """Return the object with a strategic merge patch. A null removes its field."""
    result = {**value}
    for field, new in patch.items():
        old = result.get(field)
        if new is None:
            result.pop(field, None)
        elif isinstance(new, dict):
            result[field] = merge(object_at(result, field), new)
        elif field in _NAMED_ITEMS and isinstance(new, list) and isinstance(old, list):
            result[field] = _merge_items(old, new)
        else:
            result[field] = new
    return result


def _merge_items(old: list[Any], new: list[Any]) -> list[Any]:
    patches = {patch.get("name"): patch for patch in new if isinstance(patch, dict)}
    merged = [
        merge(item, patches.pop(item.get("name"), {})) if isinstance(item, dict) else item for item in old
    ]
    return [*merged, *patches.values()]


def _job_set(spec: Object, template: Object, policy: Object) -> Object:
    """Return the spec of a TrainJob's JobSet: that of its runtime, with the number of nodes and their
    resources."""
    trainer, mpi = object_at(spec, "trainer"), object_at(policy, "mpi")
    nodes, nodes_by_default = trainer.get("numNodes"), policy.get("numNodes") or 1
    if nodes and mpi.get("runLauncherAsNode") is True:
        nodes = max(1, nodes - 1)
    job_set = {**template}
    if spec.get("suspend"):
        job_set["suspend"] = True
    jobs = []
    for job in objects_at(job_set, "replicatedJobs"):
        labels = object_at(job, "template", "metadata", "labels")
        is_trainer, is_node = labels.get(_ANCESTOR) == _TRAINER, job.get("name") == _NODE
        count = nodes_by_default if is_trainer else None
        if nodes and (is_node if mpi else count):
            count = nodes
        is_sized = is_trainer or (is_node and mpi.get("runLauncherAsNode") is True)
        child = _with_resources(job, object_at(trainer, "resourcesPerNode")) if is_sized else job
        job_size = {"template": {"spec": {"parallelism": count, "completions": count}}}
        jobs.append(merge(child, {"replicas": 1, **job_size}) if count else child)
    return {**job_set, "replicatedJobs": jobs}


def _with_resources(job: Object, resources: Object) -> Object:
    """Return a replicated Job whose container "node" requests these resources too."""
    pod = object_at(job, "template", "spec", "template", "spec")
    containers = [
        merge(container, {"resources": resources}) if container.get("name") == _NODE else container
        for container in objects_at(pod, "containers")
    ]
    return merge(job, {"template": {"spec": {"template": {"spec": {"containers": containers}}}}})


def _patch_pods(job_set: Object, patch: Object) -> Object:
    """Return the spec of a JobSet with a patch on each of its pod templates."""
    jobs = [
        merge(job, {"template": {"spec": {"template": patch}}})
        for job in objects_at(job_set, "replicatedJobs")
    ]
    return {**job_set, "replicatedJobs": jobs}


def _pods_of(job: Object) -> int:
    count = object_at(job, "template", "spec").get("parallelism")
    return count if isinstance(count, int) else 1


# --- objects as they are written -------------------------------------------------------------------


def child(
    parent: Document, api_version: str, kind: str, name: str, spec: Object, metadata: Object | None = None
) -> Document:
    """Return an object that the controller of `parent` makes."""
    reference = {"apiVersion": parent.value["apiVersion"], "kind": parent.kind, "name": parent.key.name}
    owner = {
        "name": name,
        "namespace": parent.key.namespace,
        "ownerReferences": [{**reference, "controller": True}],
    }
    meta = {**(metadata or {}), **owner}
    value = {"apiVersion": api_version, "kind": kind, "metadata": meta, "spec": spec}
    return Document(parent.source, parent.place, value)
