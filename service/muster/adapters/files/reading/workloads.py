"""Make the PodGroups of Kubernetes' own API that controllers make: of Jobs with spec.scheduling, and of
Workloads.

The Job controller makes one PodGroup of a Job (Kubernetes 1.37, job_scheduling_manager.go and pkg/api/job).
A Workload has templates of PodGroups. The controller that made the Workload, or its user, makes PodGroups of
them. Names that depend on a UID or on another controller are made up here, as far as no pod names the group.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from muster.adapters.files.reading.notes import NotesByObject
from muster.adapters.files.reading.sources import (
    Document,
    Key,
    Object,
    field_at,
    object_at,
    objects_at,
    quote_value,
)
from muster.adapters.files.reading.templates import child, merge
from muster.dialects.gangs import native
from muster.dialects.reading import AN_OBJECT_NAME, OBJECT_NAME
from muster.domain.words import list_names, plural

POD_GROUP, COMPOSITE, WORKLOAD = "PodGroup", "CompositePodGroup", "Workload"
LISTS = {POD_GROUP: "podGroupTemplates", COMPOSITE: "compositePodGroupTemplates"}
"""Kind → the field with the templates of this kind, in a Workload and in a template of CompositePodGroups."""
MAX_TEMPLATES, MAX_LEVELS = 8, 4
"""Largest number of templates in one list, and of levels of templates, as in the API."""
_OF_JOBS = ("schedulingConstraints", "disruptionMode", "resourceClaims")
"""Fields of a Job's spec.scheduling that its PodGroup gets as they are."""


def with_pod_groups(documents: Sequence[Document], notes: NotesByObject) -> Iterator[Document]:
    """Yield the documents, and the groups that controllers make of them.

    Raises:
        Malformed: The API server refuses a Job's spec.scheduling, or a Workload.
    """
    yield from _with_groups_of_workloads(list(_with_groups_of_jobs(documents, notes)), notes)


# --- Jobs ------------------------------------------------------------------------------------------


def _with_groups_of_jobs(documents: Sequence[Document], notes: NotesByObject) -> Iterator[Document]:
    """Yield the documents. A Job with spec.scheduling gets a PodGroup, which its pod template names."""
    objects = {document.key for document in documents}
    owned_keys = {
        (owner.get("kind"), document.key.namespace, owner.get("name"), document.kind): document.key
        for document in documents
        if (document.group, document.kind) in (("", "Pod"), (native.API_GROUP, POD_GROUP))
        for owner in objects_at(document.metadata, "ownerReferences")
    }
    for document in documents:
        is_job = (document.group, document.kind) == ("batch", "Job")
        has_scheduling = isinstance(field_at(document.value, "spec", "scheduling"), dict)
        if not (is_job and has_scheduling) or (*document.key, "Pod") in owned_keys:
            yield document
            continue
        if why_none := _why_job_gets_none(document):
            notes.add(document.name, (f"spec.scheduling has no effect: {why_none}",))
            yield document
            continue
        key = Key(POD_GROUP, document.key.namespace, f"{document.key.name}-pgt-0")
        key = owned_keys.get((*document.key, POD_GROUP), key)
        membership = {"schedulingGroup": {"podGroupName": key.name}}
        yield replace(document, value=merge(document.value, {"spec": {"template": {"spec": membership}}}))
        if key not in objects:
            notes.add(document.name, _notes_on_scheduling(document))
            yield child(document, native.APIS[1], POD_GROUP, key.name, _group_of_job(document))


def _why_job_gets_none(job: Document) -> str:
    """Return why the Job controller makes no PodGroup of a Job; "" if it makes one."""
    if field_at(job.value, "spec", "template", "spec", "schedulingGroup") is not None:
        return "the pod template names a PodGroup itself"
    for owner in objects_at(job.metadata, "ownerReferences"):
        if owner.get("controller") is True:
            return f"{owner.get('kind')} {owner.get('name')} controls the Job"
    return ""


def _group_of_job(job: Document) -> Object:
    """Return the spec of the PodGroup that the Job controller makes.

    Raises:
        Malformed: More pods must start together than the Job runs at once.
    """
    spec, scheduling = object_at(job.value, "spec"), object_at(job.value, "spec", "scheduling")
    parallelism = spec.get("parallelism")
    at_once = parallelism if isinstance(parallelism, int) else 1
    policy = scheduling.get("schedulingPolicy")
    gang = object_at(policy, "gang")
    min_count = gang.get("minCount")
    if min_count is None and isinstance(policy, dict) and isinstance(policy.get("gang"), dict):
        policy = {**policy, "gang": {**gang, "minCount": max(1, at_once)}}
    if isinstance(min_count, int) and min_count > at_once:
        expected = f"expected at most spec.parallelism, which is {at_once}"
        path = "spec.scheduling.schedulingPolicy.gang.minCount"
        raise job.error(f"{path}: {expected}, got {quote_value(min_count)}")
    priority_class = field_at(spec, "template", "spec", "priorityClassName")
    return {
        "schedulingPolicy": policy if policy is not None else {"basic": {}},
        **{field: scheduling[field] for field in _OF_JOBS if scheduling.get(field) is not None},
        **({"priorityClassName": priority_class} if priority_class else {}),
    }


def _notes_on_scheduling(job: Document) -> Iterator[str]:
    yield (
        "spec.scheduling makes a PodGroup, as the Job controller does with the feature gate WorkloadWithJob. "
        "Without the gate the API server drops the field"
    )
    known_fields = ("schedulingPolicy", *_OF_JOBS)
    for field in sorted(map(str, object_at(job.value, "spec", "scheduling").keys() - {*known_fields})):
        yield f"spec.scheduling.{field} is not read: known are {', '.join(known_fields)}"


# --- Workloads -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Template:
    """A template of a Workload. `parent` is the name of the template that has it in a list; "" for none."""

    kind: str
    name: str
    spec: Object
    parent: str
    path: str


def _with_groups_of_workloads(documents: Sequence[Document], notes: NotesByObject) -> Iterator[Document]:
    """Yield the documents, and after each Workload the groups of its templates for which the input has none.

    A Workload that a cluster has stored has its groups already.
    """
    groups = [document for document in documents if document.group == native.API_GROUP]
    made_already = {_template_of(group): group.key.name for group in groups if group.kind in LISTS}
    keys_in_use = {group.key for group in groups}
    named_keys = set(_named_by_pods(documents)) if any(map(_is_new_workload, documents)) else set()
    for document in documents:
        yield document
        if not _is_new_workload(document):
            continue
        templates = _read_templates(document)
        workload = (document.key.namespace, document.key.name)
        names = {
            template.name: name
            for template in templates
            if (name := made_already.get((*workload, template.name))) is not None
        }
        missing_templates = [template for template in templates if template.name not in names]
        leaves = [template for template in missing_templates if template.kind == POD_GROUP]
        for template in missing_templates:
            key = _choose_name(document, template, keys_in_use, named_keys, is_only=[template] == leaves)
            keys_in_use.add(key)
            names[template.name] = key.name
            group = _group_of(document, template, names)
            yield child(document, document.value["apiVersion"], key.kind, key.name, group)
        made_names = [names[template.name] for template in missing_templates]
        notes.add(document.name, _notes_on_made(document, made_names))


def _is_new_workload(document: Document) -> bool:
    is_workload = (document.group, document.kind) == (native.API_GROUP, WORKLOAD)
    is_read, is_stored = document.value["apiVersion"] in native.APIS, document.metadata.get("uid")
    return is_workload and is_read and not is_stored


def _template_of(group: Document) -> tuple[str, str, str]:
    """Return the namespace of a group, its Workload and its template."""
    reference = object_at(group.value, "spec", "workloadRef")
    return group.key.namespace, str(reference.get("workloadName")), str(reference.get("templateName"))


def _named_by_pods(documents: Iterable[Document]) -> Iterator[Key]:
    """Yield the PodGroups that pods and pod templates name."""
    for document in documents:
        values: list[object] = [document.value]
        visited = set[int]()  # an alias in YAML can name one object very often
        while values:
            value = values.pop()
            if id(value) in visited:
                continue
            if isinstance(value, dict | list):
                visited.add(id(value))
            if isinstance(value, dict):
                name = object_at(value, "schedulingGroup").get("podGroupName")
                if isinstance(name, str):
                    yield Key(POD_GROUP, document.key.namespace, name)
                values.extend(value.values())
            elif isinstance(value, list):
                values.extend(value)


def _choose_name(
    workload: Document, template: _Template, keys_in_use: set[Key], named_keys: set[Key], is_only: bool
) -> Key:
    """Return the key of the group that is made of a template.

    It is the template's name, or the Workload's and the template's name, perhaps with an ending, whichever
    pods name in vain. The only PodGroup of a Workload gets the only name that pods name in vain.
    """
    namespace, own_name = workload.key.namespace, f"{workload.key.name}-{template.name}"
    keys = [Key(template.kind, namespace, name) for name in (template.name, own_name)]
    named_in_vain = {key for key in named_keys - keys_in_use if key.namespace == namespace}
    with_ending = {key for key in named_in_vain if key.name.startswith(f"{own_name}-")}
    for key in keys:
        if key in named_in_vain:
            return key
    for candidates in (with_ending, named_in_vain if is_only else set[Key]()):
        if template.kind == POD_GROUP and len(candidates) == 1:
            return candidates.pop()
    return next((key for key in keys if key not in keys_in_use), keys[0])


def _group_of(workload: Document, template: _Template, names: Mapping[str, str]) -> Object:
    """Return the spec of the group that is made of a template. `names`: template → name of its group."""
    parent = {"parentCompositePodGroupName": names[template.parent]} if template.parent else {}
    reference = {"workloadName": workload.key.name, "templateName": template.name}
    return {**template.spec, **parent, "workloadRef": reference}


def _notes_on_made(workload: Document, names: Sequence[str]) -> Iterator[str]:
    if not names:
        return
    verb = "is" if len(names) == 1 else "are"
    sentence = f"{list_names(names)} {verb} made of its {plural('template', len(names))}"
    reference = object_at(workload.value, "spec", "controllerRef")
    if reference:
        yield f"{sentence}, as {reference.get('kind')} {reference.get('name')} does in a cluster"
    else:
        yield f"{sentence}. Kubernetes makes none by itself: in a cluster, create them too"


def _read_templates(workload: Document) -> list[_Template]:
    """Return the templates of a Workload, each after the template that has it.

    Raises:
        Malformed: The API server refuses the Workload.
    """
    spec = object_at(workload.value, "spec")
    if bool(spec.get(LISTS[POD_GROUP])) == bool(spec.get(LISTS[COMPOSITE])):
        raise workload.error(f"spec: expected either {' or '.join(LISTS.values())}")
    templates: dict[str, _Template] = {}
    for template in _templates_in(workload, spec, "spec", "", 1):
        if template.name in templates:
            raise workload.error(f"{template.path}.name: {template.name} is given twice")
        templates[template.name] = template
    priorities = {
        (str(template.spec.get("priorityClassName") or ""), str(template.spec.get("priority")))
        for template in templates.values()
    }
    if len(priorities) > 1:
        raise workload.error("spec: expected one priorityClassName and priority in all templates")
    return list(templates.values())


def _templates_in(
    workload: Document, holder: Object, path: str, parent: str, level: int
) -> Iterator[_Template]:
    """Yield the templates in the lists of a Workload's spec, or of a template, and those within them."""
    for kind, field in LISTS.items():
        items = holder.get(field)
        if not isinstance(items, list | None) or len(items or ()) > MAX_TEMPLATES:
            raise workload.error(f"{path}.{field}: expected a list of at most {MAX_TEMPLATES} templates")
        for number, item in enumerate(items or ()):
            place = f"{path}.{field}[{number}]"
            name = item.get("name") if isinstance(item, dict) else None
            if not isinstance(name, str) or not OBJECT_NAME.fullmatch(name):
                raise workload.error(f"{place}.name: expected {AN_OBJECT_NAME}")
            spec = {key: value for key, value in item.items() if key not in ("name", *LISTS.values())}
            yield _Template(kind, name, spec, parent, place)
            if kind == COMPOSITE:
                if level == MAX_LEVELS:
                    raise workload.error(f"{place}: expected at most {MAX_LEVELS} levels of templates")
                if not any(item.get(inner) for inner in LISTS.values()):
                    raise workload.error(f"{place}: expected at least one template in it")
                yield from _templates_in(workload, item, place, name, level + 1)
