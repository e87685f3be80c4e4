"""Read the members that a controller makes later, as their template shows them.

The first members must not settle where these have no room. See `gangs.membership.group`.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from muster.dialects import pods, ranks
from muster.dialects.kinds.description import Described, Owner, Role
from muster.dialects.kinds.description import Member as Place
from muster.dialects.objects import Metadata, PodObject, PodSpec
from muster.dialects.settings import Settings
from muster.domain.podgroup import Coming

MAX_COMING = 1024
"""The most members of a role for which room is looked for before they are there."""


class _Template(msgspec.Struct):
    metadata: Metadata = Metadata()
    spec: PodSpec = PodSpec()


def coming(owner: Owner, described: Described, settings: Settings) -> Iterator[Coming]:
    """Yield the roles whose pods come later, and run with the others."""
    for role in described.roles:
        if role.later and role.beside and role.count <= MAX_COMING:
            yield from _of_role(owner, role, settings)


def _of_role(owner: Owner, role: Role, settings: Settings) -> Iterator[Coming]:
    """Yield the role; nothing if its template can't be read, or leaves open what its pods ask for."""
    try:
        template = msgspec.convert(role.template, _Template)
    except msgspec.ValidationError:
        return  # its pods will say what is wrong
    if template.spec.resource_claims:
        return
    made = [role.pod(0, number) for number in range(role.count)]
    rank_of = [
        ranks.read(Metadata(name=new.name, labels=dict(new.labels), annotations=dict(new.annotations)))
        for new in made
    ]
    of_first = made[0].labels.items()
    of_gang = (key for key, value in of_first if all(new.labels.get(key) == value for new in made))
    meta = Metadata(
        name=made[0].name,
        namespace=owner.meta.namespace,
        labels={**(template.metadata.labels or {}), **made[0].labels},
        annotations=template.metadata.annotations,
    )
    ours = min(settings.scheduler_names)
    spec = msgspec.structs.replace(template.spec, scheduler_name=ours, node_name="")
    place = Place(owner.kind, owner.name, owner.name, role.name)
    pod = pods.read(PodObject(metadata=meta, spec=spec), settings, place)
    if pod.claim is not None and not pod.causes:
        yield Coming(pod, tuple(rank_of), frozenset(of_gang))
