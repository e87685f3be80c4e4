"""Read gangs from the jobs among the documents."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace

from muster.adapters.files.reading import shapes
from muster.adapters.files.reading.sources import Document, Key
from muster.adapters.files.reading.templates import RUNTIMES, TRAINER, makes_jobs
from muster.dialects.devices import accelerators
from muster.dialects.gangs.subgroups import Topologies
from muster.dialects.jobs import slips
from muster.dialects.jobs.families import JobGangs, job_gangs
from muster.dialects.kinds.description import JobPod
from muster.dialects.kinds.table import KINDS, member
from muster.dialects.objects import CustomObject, Metadata
from muster.dialects.settings import DialectSettings
from muster.domain.levels import FabricLevel
from muster.domain.pod import GangClaim, Pod, TopologyRequest
from muster.domain.podgroup import PodGroup
from muster.domain.words import list_names, plural


@dataclass(slots=True)
class OwnerObjects:
    """Objects of the known kinds, and the metadata of the objects that made some of them."""

    objects: dict[Key, CustomObject] = field(default_factory=dict)
    makers: dict[Key, Metadata] = field(default_factory=dict)
    job_gangs: dict[Key, JobGangs] = field(default_factory=dict)
    versions: list[str] = field(default_factory=list)
    """Sentences about versions of the API that are not known."""
    runtimes: list[str] = field(default_factory=list)

    def take(self, document: Document) -> bool:
        """Take in a document. Return True if the object (RayJob, TrainJob, runtime) makes no pods itself.

        Raises:
            Malformed: the document has no name, or does not have the shape of an object.
        """
        runtime = document.group == TRAINER and document.kind in RUNTIMES
        if runtime:
            self.runtimes.append(document.name)
        if runtime or makes_jobs(document):
            self.makers[document.key] = shapes.as_stored(document, CustomObject).metadata
            return True
        kind = KINDS.get(document.kind)
        if kind is not None and document.group == kind.group:
            if (version := str(document.value["apiVersion"]).rpartition("/")[2]) not in kind.versions:
                self.versions.append(
                    f"{document.name}: version {version} of {kind.group} is not known, and is read as "
                    f"{kind.versions[0]}: an API server may refuse it"
                )
            self.objects[document.key] = shapes.as_stored(document, CustomObject)
        return False

    def read(
        self, settings: DialectSettings, levels: tuple[FabricLevel, ...], topologies: Topologies | None
    ) -> Iterator[str]:
        """Read the gangs of the objects. Yield a sentence for each ineffective key."""
        yield from self.versions
        if self.runtimes and not any(kind == "TrainJob" for kind, _, _ in self.makers):
            yield f"{list_names(self.runtimes)}: no pods are made, since no TrainJob is in the input"
        for key, obj in self.objects.items():
            kind = KINDS[key.kind]
            owners = (Key(owner, key.namespace, name) for owner, name in _controllers(obj.metadata))
            made_by = next(map(self.makers.get, owners), None)
            self.job_gangs[key] = job_gangs(kind, obj, settings, levels, topologies, made_by)
            yield from (f"{_title(key)}: {problem}" for problem in self.job_gangs[key].group.problems)

    def place_of(self, meta: Metadata, settings: DialectSettings) -> JobPod | None:
        """Return the place of a pod whose owner's pods are a gang. Return None for any other pod."""
        place = member(meta)
        if place is None:
            return None
        gangs_of_job = self.job_gangs.get(Key(place.kind, meta.namespace or "default", place.owner))
        return place if gangs_of_job is not None and gangs_of_job.is_gang(settings) else None

    def groups(self, members: Iterable[tuple[str, JobPod]]) -> tuple[PodGroup, ...]:
        """Return the gangs of these members, each with its namespace.

        There is no controller here, so followers are present at once.
        """
        present = Counter((place.kind, namespace, place.owner, place.gang) for namespace, place in members)
        return tuple(
            gangs.gang_of_all(gang) if count > (gangs.group.size or 0) else gangs.gang(gang)
            for (kind, namespace, owner, gang), count in sorted(present.items())
            for gangs in [self.job_gangs[Key(kind, namespace, owner)]]
        )

    def warnings(self, pods: Sequence[tuple[Metadata, Pod]], settings: DialectSettings) -> Iterator[str]:
        """Yield a sentence on how waiting pods of a job become a gang, if they name no gang."""
        lone = Counter(
            Key(place.kind, pod.namespace, place.owner)
            for meta, pod in pods
            if (pod.claim.lone if pod.claim is not None else accelerators.asked_by(pod, settings))
            and pod.present
            and not pod.node
            and (place := member(meta)) is not None
        )
        for key, count in sorted(lone.items()):
            gangs_of_job = self.job_gangs.get(key)
            if gangs_of_job is None and count > 1 and settings.infers(key.kind) != "off":
                yield (
                    f"{_title(key)} is not in the input, so its {count} pods are placed alone. "
                    "If it makes them a gang, add it with -f"
                )
            elif gangs_of_job is not None and gangs_of_job.is_warned_of(settings):
                yield f"{_title(key)}: {gangs_of_job.advice}"

    def ineffective_keys(self, pods: Sequence[tuple[Metadata, Pod]]) -> Iterator[str]:
        """Yield a sentence for each ineffective key on waiting pods: of KAI, or of an unknown system for
        gangs."""
        pods_by_sentence = defaultdict[str, list[str]](list)
        for meta, pod in pods:
            for sentence in slips.ineffective_on_pod(meta, pod):
                pods_by_sentence[sentence].append(f"{pod.namespace}/{pod.name}")
        for sentence, names in pods_by_sentence.items():
            yield f"{plural('Pod', len(names))} {list_names(names)}: {sentence}"

    def differences(self, pods: Sequence[tuple[Metadata, Pod]], groups: Iterable[PodGroup]) -> Iterator[str]:
        """Yield a sentence if the number that pods or their PodGroup state is not the number of their job's
        pods.

        Gangs of several jobs are left out: they count the pods of all these jobs together.
        """
        pod_groups = {group.key: group for group in groups}
        gangs = defaultdict[tuple[str, GangClaim], set[Key | None]](set)
        for meta, pod in pods:
            if pod.claim is not None and not pod.claim.lone and pod.present and not pod.node:
                place = member(meta)
                key = Key(place.kind, pod.namespace, place.owner) if place is not None else None
                gangs[pod.namespace, replace(pod.claim, topology_request=TopologyRequest())].add(key)
        sentences = set[str]()
        for (namespace, claim), (key, *more_keys) in gangs.items():
            if key is not None and not more_keys and (gangs_of_job := self.job_gangs.get(key)) is not None:
                group_key = (namespace, claim.dialect, claim.name)
                pod_group = pod_groups.get(group_key) if claim.by_object else None
                if difference := gangs_of_job.difference(claim, pod_group):
                    sentences.add(f"{_title(key)}: {difference}")
        yield from sorted(sentences)


def _controllers(meta: Metadata) -> Iterator[tuple[str, str]]:
    return ((owner.kind, owner.name) for owner in meta.owner_references or () if owner.controller)


def _title(key: Key) -> str:
    return f"{key.kind} {key.namespace}/{key.name}"
