"""Turn an owner's description into the PodGroup of its gangs, with KAI's keys in their own meaning."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace

import msgspec

from muster.dialects.devices.accelerators import CLAIMS, accelerators
from muster.dialects.gangs import kai, ranks
from muster.dialects.gangs.own import GROUP, MIN_MEMBER, SEGMENT_SIZE
from muster.dialects.gangs.podgroups import MAX_QUEUE
from muster.dialects.gangs.subgroups import SubgroupConstraint, Topologies
from muster.dialects.jobs import slips
from muster.dialects.kinds.description import Described, JobObject, JobPod, JobRole, Kind
from muster.dialects.objects import Affinity, CustomObject, Metadata, PodObject, PodSpec
from muster.dialects.pods import pods
from muster.dialects.reading import Fields, positive
from muster.dialects.settings import BY_REQUEST, DialectSettings
from muster.domain.levels import FabricLevel
from muster.domain.node import GPU_MEM
from muster.domain.pod import KUBERNETES, Controller, GangClaim, TopologyRequest
from muster.domain.podgroup import FollowerTemplate, PodGroup
from muster.domain.request import Segment
from muster.domain.words import counted_noun

_PLACEMENT = (kai.TOPOLOGY, kai.REQUIRED, kai.PREFERRED)
_SEGMENTS = (kai.TOPOLOGY, kai.SEGMENT_REQUIRED, kai.SEGMENT_PREFERRED)
_PREEMPTIBILITIES = ("preemptible", "non-preemptible")
_MAX_CONTAINERS = 64
_MAX_FOLLOWERS = 256
"""Largest number of followers of a gang for which room is planned."""
_ANNOTATE = "annotate each pod template: "


@dataclass(frozen=True, slots=True)
class JobGangs:
    """The gangs of a job, which differ only in their names."""

    group: PodGroup
    pods: int
    """Number of pods of all its gangs that come at once."""
    full_size: int
    """Number of pods of one gang, including followers."""
    by_key: bool
    """Whether its pods are a gang with any setting: it has KAI's keys, or its controller's label for
    gangs."""
    skipped: bool
    """Whether a key says that its pods are no gang."""
    with_gpus: bool
    """Whether some of its pods request GPUs."""
    with_accelerators: bool
    """Whether some of its pods request GPUs or other accelerators."""
    shim_holds: bool
    """Whether the shim holds its pods even if they request no GPUs."""
    advice: str
    """A sentence on its pods if they name no gang, and on how they become a gang."""
    partly_later: Mapping[str, int] = field(default_factory=dict)
    """Role that comes in two parts → number of members in the second part."""

    @property
    def kind(self) -> str:
        """Return the object's kind, which is the dialect of its gangs."""
        return self.group.dialect

    def gang(self, name: str) -> PodGroup:
        """Return the gang of this name."""
        return replace(self.group, name=name)

    def gang_of_all(self, name: str) -> PodGroup:
        """Return the gang of this name as it is once its followers are there too."""
        group, later_members = self.gang(name), sum(self.partly_later.values())
        role_min = {role: least + self.partly_later.get(role, 0) for role, least in group.role_min.items()}
        least, size = (group.min_member or 0) + later_members, (group.size or 0) + later_members
        return replace(group, min_member=least, size=size, role_min=role_min)

    def is_gang(self, settings: DialectSettings) -> bool:
        """Return whether its pods are a gang although they name no gang."""
        as_gang = self.by_key or settings.infers(self.kind) == "on"
        return as_gang and not self.skipped and (self.with_gpus or self.shim_holds)

    def is_warned_of(self, settings: DialectSettings) -> bool:
        """Return whether its pods are no gang, but could be a gang, and the settings ask for a warning."""
        could_be_gang = self.with_accelerators and not self.skipped and self.full_size > 1
        return could_be_gang and settings.infers(self.kind) != "off" and not self.is_gang(settings)

    def difference(self, claim: GangClaim, pod_group: PodGroup | None) -> str:
        """Return how the number that is stated for the pods' gang differs from the number of the job's pods.

        `pod_group`: the PodGroup that the pods name. If it exists, its number counts, else that of the pods.
        Return "" if the numbers agree, or if the job's numbers can't be read. A min-member may be smaller.
        """
        statement, stated = f"they say {claim.count_key}", claim.min_member
        if pod_group is not None:
            field = "minCount" if claim.dialect == KUBERNETES else "minMember"
            statement, stated = f"their PodGroup {claim.name} says {field}", pod_group.min_member
        if stated is None or claim.dialect == self.kind or self.group.causes:
            return ""
        if stated > self.pods:
            effect = f"unless another job makes the other {stated - self.pods}, the gang waits for ever"
        elif stated == claim.replicas and stated < self.pods:
            effect = f"the gang is refused when more than {stated} are there"
        else:
            return ""
        makes = f"it makes {counted_noun('pod', self.pods)} at once"
        return f"{makes}, and {statement}: {stated}. That counts: {effect}"


def job_gangs(
    kind: Kind,
    obj: CustomObject,
    settings: DialectSettings,
    levels: tuple[FabricLevel, ...],
    topologies: Topologies | None,
    made_by: Metadata | None = None,
) -> JobGangs:
    """Return the gangs of a job. Of keys that the job lacks, those of its maker `made_by` count."""
    meta = _with_keys_of(obj.metadata, made_by)
    owner = JobObject.of(kind.kind, msgspec.structs.replace(obj, metadata=meta))
    reader = _JobReader(owner, kind.describe(owner), levels, topologies)
    group = replace(reader.group(), follower_templates=tuple(_followers(owner, reader.described, settings)))
    on_job = {**(meta.labels or {}), **(meta.annotations or {})}
    key_maps = [on_job, *reader.templates.values()]
    roles = [role for role in reader.described.roles if role.count]
    resources = [_requested_resources(role) for role in roles]
    with_gpus = any(not names.isdisjoint((*settings.gpu_resources, GPU_MEM)) for names in resources)
    possible = _instructions(kind, owner, reader.described, with_gpus)
    by_key = any(map(kai.has_podgrouper_keys, key_maps)) or slips.has_misspelt_kai_key(on_job)
    by_key = by_key or on_job.get(kind.gang_label, "false") != "false"
    gangs = JobGangs(
        group,
        pods=reader.described.size * reader.described.copies,
        full_size=sum(role.count for role in reader.described.roles),
        by_key=by_key and kind.kind not in BY_REQUEST,
        skipped=kai.is_skipped(meta),
        with_gpus=with_gpus,
        with_accelerators=with_gpus
        or any(map(accelerators, resources))
        or any(_template(role).part("spec").raw(CLAIMS) for role in roles),
        shim_holds=bool(kind.label),
        advice=_advice(reader.described, possible),
        partly_later={r.name: r.later for r in reader.described.roles if 0 < r.later < r.count},
    )
    if not gangs.is_gang(settings):
        return gangs
    problems = (*gangs.group.problems, *reader.described.gang_notes)
    return replace(gangs, group=replace(gangs.group, problems=problems))


class _JobReader:
    """Reads one object. `owner.spec` collects its problems."""

    def __init__(
        self,
        owner: JobObject,
        described: Described,
        levels: tuple[FabricLevel, ...],
        topologies: Topologies | None,
    ) -> None:
        self.owner = owner
        self.templates = {role.name: _keys_of_template(role) for role in described.roles}
        self._whole_roles = [
            role.name for role in described.roles if role.min_of_replica and self._in_segments(role)
        ]
        """Replicated Jobs that could start in part if they had no segments."""
        roles = (
            replace(role, min_members=role.count - (role.later % role.count), min_of_replica=0)
            if role.name in self._whole_roles
            else role
            for role in described.roles
        )
        self.described = replace(described, roles=tuple(roles))
        self._levels = levels
        self._topologies = topologies
        self._labels = owner.meta.labels or {}
        self._annotations = owner.meta.annotations or {}

    def group(self) -> PodGroup:
        owner, described = self.owner, self.described
        self._note_misspelt()
        gang_constraint = self._constraint(self._annotations, _PLACEMENT)
        role_of = {role.name: role for role in described.roles if role.name}
        topology_request = {role.name: self._topology_request(role) for role in described.roles}
        return PodGroup(
            owner.meta.namespace,
            owner.kind,
            owner.name,
            uid=owner.meta.uid,
            min_member=max(1, described.min_members),
            size=described.size,
            topology_request=replace(
                topology_request.pop("", TopologyRequest()),
                required_scope=gang_constraint.required,
                preferred_scopes=gang_constraint.preferred,
            ),
            role_topology_requests=topology_request,
            role_min={name: 0 if role.follows else role.min_members for name, role in role_of.items()}
            if len(role_of) > 1
            else {},
            role_unit={name: role.hosts for name, role in role_of.items() if role.hosts > 1},
            role_first={role.name: role.min_of_replica for role in described.roles if role.min_of_replica},
            role_later={name: role.min_members for name, role in role_of.items() if role.follows},
            queue=self._queue()[:MAX_QUEUE],
            problems=tuple(self._ineffective_keys()),
            causes=tuple(owner.spec.causes),
            api_version=owner.api_version,
            owner=Controller(owner.api_version, owner.kind, owner.name, owner.meta.uid),
        )

    def _note_misspelt(self) -> None:
        spec = self.owner.spec
        slips.note_misspelt(spec, "annotation", self._annotations)
        slips.note_misspelt(spec, "label", self._labels)
        for role in self.described.roles:
            pod_keys = self.templates[role.name]  # the pods themselves report these
            slips.note_misspelt(spec, "annotation", {k: v for k, v in role.keys.items() if k not in pod_keys})

    def _in_segments(self, role: JobRole) -> bool:
        """Return whether the order of the members decides which members lie together."""
        has_size = not {kai.SEGMENT_SIZE, SEGMENT_SIZE}.isdisjoint(self.templates[role.name])
        return has_size or kai.REQUIRED in role.keys or bool(role.exclusive)

    def _topology_request(self, role: JobRole) -> TopologyRequest:
        """Return the constraints of one role.

        The keys on its part of the object give its scope, and the keys on its pod template its segments.
        """
        placement = self._constraint(role.keys, _PLACEMENT)
        scope, preferred = placement.required, placement.preferred
        segments = [Segment(role.unit, scope)] if scope is not None and role.unit else []
        keys = {**self._annotations, **self.templates[role.name]}
        inner = None
        if kai.SEGMENT_SIZE in self.templates[role.name]:
            inner = self._constraint(keys, _SEGMENTS).required
        if inner is not None:
            text = keys[kai.SEGMENT_SIZE]
            size = positive(text)
            if size is None or (role.segments_fill and role.count % size):
                even = f" that divides {role.count}, the pods of the role" if role.segments_fill else ""
                expected = f"a positive whole number{even}"
                self.owner.spec.bad_value(f"annotation {kai.SEGMENT_SIZE}", text, expected)
            else:
                segments.append(Segment(size, inner))
        if role.unit:
            return TopologyRequest(role.name, segments=tuple(segments))
        return TopologyRequest(
            role.name, role_scope=scope, role_preferred=preferred, segments=tuple(segments)
        )

    def _constraint(self, annotations: Mapping[str, str], keys: tuple[str, str, str]) -> SubgroupConstraint:
        fields = self.owner.spec.sibling("annotation ", annotations)
        return SubgroupConstraint.of(fields, keys, self._levels, self._topologies)

    def _queue(self) -> str:
        key_maps = [self._labels, *self.templates.values()]
        return next((queue for keys in key_maps if (queue := keys.get(kai.QUEUE))), "")

    def _ineffective_keys(self) -> Iterator[str]:
        """Yield a sentence for each ineffective key of KAI, and for our keys on the job."""
        if priority := self._labels.get(kai.PRIORITY):
            yield (
                f"label {kai.PRIORITY}: {priority[:63]} is not applied: the pods have the priority of "
                "their spec.priorityClassName"
            )
        kind = self._labels.get(kai.PREEMPTIBILITY, _PREEMPTIBILITIES[0])
        if kind not in _PREEMPTIBILITIES:
            expected = " or ".join(_PREEMPTIBILITIES)
            yield f"label {kai.PREEMPTIBILITY} is {kind[:63]}, expected {expected}"
        yield from kai.unread_fractions({key for keys in self.templates.values() for key in keys})
        in_units = [r.name[:63] for r in self.described.roles if r.unit and kai.PREFERRED in r.keys]
        if in_units:
            yield (
                f"annotation {kai.PREFERRED} has no effect on a part that is replicated as a whole "
                f"({', '.join(in_units[:8])}): write {kai.REQUIRED}"
            )
        if any(kai.SEGMENT_PREFERRED in keys for keys in (self._annotations, *self.templates.values())):
            yield (
                f"annotation {kai.SEGMENT_PREFERRED} has no effect: "
                f"write {kai.SEGMENT_REQUIRED}, which every segment keeps"
            )
        yield from self._misplaced_keys()
        yield from slips.own_keys_on_job((*self._annotations, *self._labels))

    def _misplaced_keys(self) -> Iterator[str]:
        """Yield a sentence for each key of KAI that counts in another place, or only in other kinds."""
        roles, key = self.described.roles, kai.MIN_MEMBER
        if self._whole_roles:
            names = ", ".join(name[:63] for name in self._whole_roles[:8])
            yield (
                f"annotation {key} has no effect on {names}: "
                "its Jobs lie by segments, or each in one part, and so all their pods start together"
            )
        for level in (kai.REQUIRED, kai.PREFERRED):
            if any(level in self.templates[role.name] and level not in role.keys for role in roles):
                yield f"annotation {level} has no effect on the pod template: write it on the job"
        on_pods = any(key in keys for keys in self.templates.values())
        if self.owner.kind not in kai.COUNTED and (on_pods or key in self._annotations):
            yield f"annotation {key} has no effect: it counts in a {' or a '.join(kai.COUNTED)}"
        elif on_pods:
            yield f"annotation {key} has no effect on the pod template: write it on the job"


def _keys_of_template(role: JobRole) -> Mapping[str, str]:
    """Return the labels and annotations of a role's pod template together."""
    meta = _template(role).part("metadata")
    return {**kai.labels_of(meta), **kai.annotations_of(meta)}


def _requested_resources(role: JobRole) -> frozenset[str]:
    """Return the resources that the containers of the template request."""
    pod = _template(role).part("spec")
    resources = [
        container.part("resources")
        for key in ("containers", "initContainers")
        for container in pod.objects_in(key, _MAX_CONTAINERS)
    ]
    return frozenset(
        name for r in resources for part in ("limits", "requests") for name in r.part(part).names()
    )


def _template(role: JobRole) -> Fields:
    """Return a role's pod template. Its problems are not collected, because its pods will show them."""
    return Fields.of("", "template", role.template if isinstance(role.template, dict) else None)


def _with_keys_of(meta: Metadata, made_by: Metadata | None) -> Metadata:
    if made_by is None:
        return meta
    labels = {**(made_by.labels or {}), **(meta.labels or {})}
    annotations = {**(made_by.annotations or {}), **(meta.annotations or {})}
    return msgspec.structs.replace(meta, labels=labels, annotations=annotations)


# --- members that come later ----------------------------------------------------------------------


class _Template(msgspec.Struct):
    spec: PodSpec = PodSpec()


def _followers(
    owner: JobObject, described: Described, settings: DialectSettings
) -> Iterator[FollowerTemplate]:
    """Yield the followers of each role whose pods come later and run together with the others."""
    later = [role for role in described.roles if role.later and role.runs_with_first]
    for role in later if sum(role.later for role in later) <= _MAX_FOLLOWERS else ():
        yield from _followers_of(owner, role, settings)


def _followers_of(owner: JobObject, role: JobRole, settings: DialectSettings) -> Iterator[FollowerTemplate]:
    """Yield the role's followers; none if the template can't be read, or does not fix the pods' requests.

    Only the parts that the service keeps of a template are read: resources, and rules for nodes.
    """
    try:
        template = msgspec.convert(role.template, _Template).spec
    except msgspec.ValidationError:
        return  # its pods will show the problem
    if template.resource_claims or template.scheduler_name not in settings.scheduler_names:
        return
    affinity = template.affinity
    spec = PodSpec(
        scheduler_name=template.scheduler_name,
        containers=template.containers,
        init_containers=template.init_containers,
        overhead=template.overhead,
        node_selector=template.node_selector,
        affinity=Affinity(node_affinity=affinity.node_affinity) if affinity is not None else None,
        tolerations=template.tolerations,
    )
    new_pods = [role.pod(0, number) for number in range(role.count)]
    first_unit = new_pods[: (role.unit or role.count) if role.unit_label else role.count]
    labels = {
        key
        for key, value in new_pods[0].labels.items()
        if all(new.labels.get(key) == value for new in first_unit)
    }
    meta = Metadata(name=new_pods[0].name, namespace=owner.meta.namespace, labels=dict(new_pods[0].labels))
    place = JobPod(owner.kind, owner.name, owner.name, role.name)
    pod = pods.read(PodObject(metadata=meta, spec=spec), settings, place)
    if pod.claim is not None and not pod.causes:
        ranks_of_all = tuple(
            ranks.rank_of(Metadata(name=new.name, labels=dict(new.labels), annotations=dict(new.annotations)))
            for new in new_pods
        )
        unit = role.unit or role.count
        yield FollowerTemplate(pod, ranks_of_all, frozenset(labels), role.exclusive, unit, role.unit_label)


# --- instructions that make the pods a gang -------------------------------------------------------


def _instructions(kind: Kind, owner: JobObject, described: Described, with_gpus: bool) -> tuple[str, ...]:
    """Return instructions for the user. Each makes the pods of a job the gangs that its description has.

    A pod template can't name the gang in three cases: the job has several gangs, other jobs of its maker have
    the same template, or some pods come later. Later pods of another controller would be the next gang of
    that name. The shim holds pods that request no GPUs (but TPUs), and have no label of their controller,
    only if the pods name the gang themselves.
    """
    made_by_another = any(reference.controller for reference in owner.meta.owner_references or ())
    some_later = any(role.later for role in described.roles)
    template_names = not (described.numbered or made_by_another or some_later)
    possible = tuple(_possible_instructions(kind, owner.name, described, template_names))
    if with_gpus or kind.label:
        return possible
    return tuple(instruction for instruction in possible if instruction.startswith(_ANNOTATE))


def _possible_instructions(
    kind: Kind, name: str, described: Described, template_names: bool
) -> Iterator[str]:
    size, least = described.size, described.min_members
    all_together = least == size
    infer = f"set infer_gangs to on for {kind.kind}"
    annotate = f'{_ANNOTATE}{GROUP}: {name}, {MIN_MEMBER}: "{size}"'
    change = f", and {described.change}" if described.change else ""
    if len(described.roles) > 1 or all_together:
        yield infer
        if template_names and all_together:
            yield annotate
        elif kind.kind not in BY_REQUEST:
            yield f"label the job {kai.QUEUE}: default"
    elif kind.kind in BY_REQUEST:
        yield f"{infer}{change}"
        yield f"{annotate}{change}"
    else:
        if template_names:
            yield annotate
        if described.change:
            yield f"{infer}{change}"
        if not template_names:
            yield f'annotate the job {kai.MIN_MEMBER}: "{size}"'


def _advice(described: Described, possible: tuple[str, ...]) -> str:
    """Return a sentence on the pods of a job that name no gang, with the instructions that make them
    gangs."""
    size, least, copies = described.size, described.min_members, described.copies
    total = sum(role.count for role in described.roles)
    gangs = "one gang" if copies == 1 else f"{copies} gangs"
    startup_clause = ""
    if size < total:
        startup_clause = f", of which {size} {'comes' if size == 1 else 'come'} first"
    elif len(described.roles) > 1 and least < size:
        # If all pods are alike, each instruction makes a gang whose members all start together.
        startup_clause = f", of which {least} must start together"
    how = f". To make them {gangs} of {total}{startup_clause}, {'; or '.join(possible)}" if possible else ""
    return f"its {total * copies} pods name no gang: each is placed alone, and the job may start in part{how}"
