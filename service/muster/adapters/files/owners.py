"""Read gangs from the jobs among the documents, and make the jobs that other jobs make.

A RayJob makes a RayCluster, and a TrainJob makes a JobSet from its runtime, as their controllers do.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from muster.adapters.files import templates
from muster.adapters.files.sources import Document, Object
from muster.dialects.kinds import slips
from muster.dialects.kinds.description import Member, letters
from muster.dialects.kinds.gangs import Family, family
from muster.dialects.kinds.table import KINDS, member
from muster.dialects.objects import CustomObject, Metadata
from muster.dialects.settings import Settings
from muster.dialects.subgroups import Topologies
from muster.domain.levels import Level
from muster.domain.pod import GangClaim, Pod, Wishes
from muster.domain.podgroup import PodGroup
from muster.domain.words import listed, plural
from muster.gangs.membership.podgroups import key_of

RUNTIMES = ("ClusterTrainingRuntime", "TrainingRuntime")
_TRAINER = "trainer.kubeflow.org"
_ANCESTOR = f"{_TRAINER}/trainjob-ancestor-step"

Key = tuple[str, str, str]
"""Kind, namespace, name."""


@dataclass(slots=True)
class Owners:
    """Objects of the known kinds, and the metadata of the objects that made some of them."""

    objects: dict[Key, CustomObject] = field(default_factory=dict)
    makers: dict[Key, Metadata] = field(default_factory=dict)
    families: dict[Key, Family] = field(default_factory=dict)

    def take(self, document: Document) -> bool:
        """Take in a document. Return True if it makes no pods itself: a RayJob, a TrainJob or a runtime.

        Raises:
            Malformed: it has no name, or not the shape of an object.
        """
        if (document.group == _TRAINER and document.kind in (*RUNTIMES, "TrainJob")) or _is_ray_job(document):
            self.makers[_key(document)] = templates.custom_object(document).metadata
            return True
        kind = KINDS.get(document.kind)
        if kind is not None and document.group == kind.group:
            self.objects[_key(document)] = templates.custom_object(document)
        return False

    def read(
        self, settings: Settings, levels: tuple[Level, ...], topologies: Topologies | None
    ) -> Iterator[str]:
        """Read what the objects say of their gangs. Yield a sentence about each key that has no effect."""
        for key, obj in self.objects.items():
            kind = KINDS[key[0]]
            made_by = next((self.makers.get((k, key[1], name)) for k, name in _owners(obj.metadata)), None)
            self.families[key] = family(kind, obj, settings, levels, topologies, made_by)
            yield from (f"{_title(key)}: {problem}" for problem in self.families[key].group.problems)

    def place_of(self, meta: Metadata, settings: Settings) -> Member | None:
        """Return the place of a pod whose owner's pods are a gang. Return None for any other pod."""
        found = member(meta)
        if found is None:
            return None
        of_owner = self.families.get((found.kind, meta.namespace or "default", found.owner))
        return found if of_owner is not None and of_owner.is_gang(settings) else None

    def groups(self, members: Iterable[tuple[str, Member]]) -> tuple[PodGroup, ...]:
        """Return the gangs of these members, each with its namespace."""
        named = {(found.kind, namespace, found.owner, found.gang) for namespace, found in members}
        return tuple(
            self.families[kind, namespace, owner].gang(gang) for kind, namespace, owner, gang in sorted(named)
        )

    def warnings(self, pods: Sequence[tuple[Metadata, Pod]], settings: Settings) -> Iterator[str]:
        """Yield what would make pods of one job a gang, if they wait and name none."""
        lone = Counter(
            (found.kind, pod.namespace, found.owner)
            for meta, pod in pods
            if pod.claim is not None and pod.claim.lone and pod.present and not pod.node
            if (found := member(meta)) is not None
        )
        for key, count in sorted(lone.items()):
            of_owner = self.families.get(key)
            if of_owner is None and count > 1 and settings.infers(key[0]) != "off":
                yield (
                    f"{_title(key)} is not in the input, so its {count} pods are placed alone. "
                    "If it makes them a gang, add it with -f"
                )
            elif of_owner is not None and of_owner.is_warned_of(settings):
                yield f"{_title(key)}: {of_owner.advice}"

    def ignored(self, pods: Sequence[tuple[Metadata, Pod]]) -> Iterator[str]:
        """Yield which of KAI's keys on waiting pods have no effect, because their gang is not read here."""
        said = defaultdict[str, list[str]](list)
        for meta, pod in pods:
            for sentence in slips.on_pod(meta) if slips.counts_for_none(pod) else ():
                said[sentence].append(f"{pod.namespace}/{pod.name}")
        for sentence, names in said.items():
            yield f"{plural('Pod', len(names))} {listed(names)}: {sentence}"

    def differences(self, pods: Sequence[tuple[Metadata, Pod]], groups: Iterable[PodGroup]) -> Iterator[str]:
        """Yield where the number that pods or their PodGroup state is not the number of their job's pods.

        Gangs of several jobs are left out: their number is that of all these jobs together.
        """
        stated = {group.key: group.min_member for group in groups}
        gangs = defaultdict[tuple[str, GangClaim], set[Key | None]](set)
        for meta, pod in pods:
            if pod.claim is not None and not pod.claim.lone and pod.present and not pod.node:
                found = member(meta)
                key = (found.kind, pod.namespace, found.owner) if found is not None else None
                group = key_of(pod)
                least = pod.claim.min_member or (stated.get(group) if group is not None else None)
                gangs[pod.namespace, replace(pod.claim, min_member=least, wishes=Wishes())].add(key)
        said = {
            f"{_title(key)}: {difference}"
            for (_, claim), (key, *others) in gangs.items()
            if key is not None and not others and (of_owner := self.families.get(key)) is not None
            if (difference := of_owner.difference(claim))
        }
        yield from sorted(said)


def with_children(documents: Sequence[Document]) -> Iterator[Document]:
    """Yield the documents, and after each RayJob and TrainJob the object that its controller makes of it.

    Raises:
        Malformed: what would be made of it has not the shape of an object.
    """
    made = {
        (owner.get("kind"), _namespace(document), owner.get("name"))
        for document in documents
        for owner in _references(document.value)
    }
    runtimes = {
        (
            document.kind,
            "" if document.kind == RUNTIMES[0] else _namespace(document),
            _name(document),
        ): document
        for document in documents
        if document.group == _TRAINER and document.kind in RUNTIMES
    }
    for document in documents:
        yield document
        if (document.kind, _namespace(document), _name(document)) in made:
            continue
        spec = _part(document.value, "spec")
        if _is_ray_job(document) and not spec.get("clusterSelector"):
            name = f"{_name(document)}-{letters(0)}"
            yield _child(document, "ray.io/v1", "RayCluster", name, _part(spec, "rayClusterSpec"))
        elif document.group == _TRAINER and document.kind == "TrainJob":
            reference = _part(spec, "runtimeRef")
            kind, name = reference.get("kind") or RUNTIMES[0], str(reference.get("name"))
            runtime = runtimes.get((kind, "" if kind == RUNTIMES[0] else _namespace(document), name))
            if runtime is None:
                raise document.malformed(
                    f"spec.runtimeRef: {kind} {name} is not in the input, and it has the pod templates: "
                    f"add it with -f, from `kubectl get {kind.lower()} {name} -o yaml`"
                )
            yield _child(
                document, "jobset.x-k8s.io/v1alpha2", "JobSet", _name(document), _job_set(spec, runtime)
            )


def _job_set(spec: Object, runtime: Document) -> Object:
    """Return the spec of a TrainJob's JobSet: its runtime's, with the number of nodes and their resources.

    (kubeflow/trainer, pkg/runtime/framework/plugins/{jobset,mpi}.)
    """
    of_runtime = _part(runtime.value, "spec")
    trainer, policy = _part(spec, "trainer"), _part(of_runtime, "mlPolicy")
    mpi = _part(policy, "mpi")
    nodes, each = trainer.get("numNodes"), policy.get("numNodes") or 1
    if nodes and mpi.get("runLauncherAsNode") is True:
        nodes = max(1, nodes - 1)
    made = {**_part(_part(of_runtime, "template"), "spec")}
    if spec.get("suspend"):
        made["suspend"] = True
    jobs = []
    for job in made.get("replicatedJobs") or []:
        labels = _part(_part(_part(job, "template"), "metadata"), "labels")
        count = each if labels.get(_ANCESTOR) == "trainer" else None
        if nodes and (job.get("name") == "node" if mpi else count):
            count = nodes
        jobs.append(_sized(job, count, _part(trainer, "resourcesPerNode")) if count else job)
    return {**made, "replicatedJobs": jobs}


def _sized(job: Object, count: object, resources: Object) -> Object:
    """Return a replicated Job with this number of pods, whose container "node" asks for these resources."""
    template = _part(job, "template")
    of_job = {**_part(template, "spec"), "parallelism": count, "completions": count}
    pods = _part(of_job, "template")
    pod = _part(pods, "spec")
    containers = [
        {**each, "resources": {**_part(each, "resources"), **resources}}
        if each.get("name") == "node"
        else each
        for each in pod.get("containers") or []
    ]
    of_job["template"] = {**pods, "spec": {**pod, "containers": containers}}
    return {**job, "replicas": 1, "template": {**template, "spec": of_job}}


def _child(parent: Document, api_version: str, kind: str, name: str, spec: Object) -> Document:
    by = {"apiVersion": parent.value["apiVersion"], "kind": parent.kind, "name": _name(parent)}
    meta = {"name": name, "namespace": _namespace(parent), "ownerReferences": [{**by, "controller": True}]}
    return Document(
        parent.source,
        parent.place,
        {"apiVersion": api_version, "kind": kind, "metadata": meta, "spec": spec},
    )


def _is_ray_job(document: Document) -> bool:
    return document.group == "ray.io" and document.kind == "RayJob"


def _owners(meta: Metadata) -> Iterator[tuple[str, str]]:
    return ((owner.kind, owner.name) for owner in meta.owner_references or () if owner.controller)


def _references(value: Object) -> Iterator[Object]:
    found = _part(value, "metadata").get("ownerReferences")
    return (each for each in found if isinstance(each, dict)) if isinstance(found, list) else iter(())


def _part(value: Any, name: str) -> Object:
    found = value.get(name) if isinstance(value, dict) else None
    return found if isinstance(found, dict) else {}


def _name(document: Document) -> str:
    return str(_part(document.value, "metadata").get("name"))


def _namespace(document: Document) -> str:
    return str(_part(document.value, "metadata").get("namespace") or "default")


def _key(document: Document) -> Key:
    return (document.kind, _namespace(document), _name(document))


def _title(key: Key) -> str:
    kind, namespace, name = key
    return f"{kind} {namespace}/{name}"
