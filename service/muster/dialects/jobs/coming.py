"""Read the members that a controller makes later, as their template shows them.

The first members must not settle where these have no room. See `gangs.membership.coming`.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from muster.dialects.gangs import ranks
from muster.dialects.kinds.description import Described, Owner, Role
from muster.dialects.kinds.description import Member as Place
from muster.dialects.objects import Affinity, Metadata, PodObject, PodSpec
from muster.dialects.pods import pods
from muster.dialects.settings import Settings
from muster.domain.podgroup import Coming

MAX_COMING = 256
"""The most members of a gang for which room is looked for before they are there."""


class _Template(msgspec.Struct):
    spec: PodSpec = PodSpec()


def coming(owner: Owner, described: Described, settings: Settings) -> Iterator[Coming]:
    """Yield the roles whose pods come later, and run with the others."""
    later = [role for role in described.roles if role.later and role.beside]
    for role in later if sum(role.later for role in later) <= MAX_COMING else ():
        yield from _of_role(owner, role, settings)


def _of_role(owner: Owner, role: Role, settings: Settings) -> Iterator[Coming]:
    """Yield the role; nothing if its template can't be read, or leaves open what its pods ask for.

    What the service keeps of a template is read: resources, and which nodes admit its pods.
    """
    try:
        template = msgspec.convert(role.template, _Template).spec
    except msgspec.ValidationError:
        return  # its pods will say what is wrong
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
    made = [role.pod(0, number) for number in range(role.count)]
    of_first = made[: (role.unit or role.count) if role.unit_label else role.count]
    shared = {
        key for key, value in made[0].labels.items() if all(new.labels.get(key) == value for new in of_first)
    }
    meta = Metadata(name=made[0].name, namespace=owner.meta.namespace, labels=dict(made[0].labels))
    place = Place(owner.kind, owner.name, owner.name, role.name)
    pod = pods.read(PodObject(metadata=meta, spec=spec), settings, place)
    if pod.claim is not None and not pod.causes:
        ranks_of_all = tuple(
            ranks.read(Metadata(name=new.name, labels=dict(new.labels), annotations=dict(new.annotations)))
            for new in made
        )
        unit = role.unit or role.count
        yield Coming(pod, ranks_of_all, frozenset(shared), role.exclusive, unit, role.unit_label)
