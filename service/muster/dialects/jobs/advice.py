"""Say what would make the pods of a job a gang, if they name none."""

from __future__ import annotations

from collections.abc import Iterator

from muster.dialects.gangs import own
from muster.dialects.kinds import kai_keys
from muster.dialects.kinds.description import Described, Kind, Owner
from muster.dialects.settings import BY_REQUEST


def ways(kind: Kind, owner: Owner, described: Described, with_gpus: bool) -> tuple[str, ...]:
    """Return each way to make the pods of an object the gangs that it describes.

    A way that makes another gang is left out. A pod template can't name the gang if its object has several
    gangs, or if other objects of its maker have the same template. Nor can it if some pods come later: those
    of another controller would be the next gang of that name. Pods that ask for no GPUs (but for TPUs) and
    have no label of their controller are only held if they name the gang themselves.
    """
    made_by_another = any(each.controller for each in owner.meta.owner_references or ())
    some_later = any(role.later for role in described.roles)
    template_names = not (described.numbered or made_by_another or some_later)
    possible = tuple(_ways(kind, owner.name, described, template_names))
    if with_gpus or kind.label:
        return possible
    return tuple(way for way in possible if way.startswith(_ANNOTATE))


_ANNOTATE = "annotate each pod template: "


def _ways(kind: Kind, name: str, described: Described, template_names: bool) -> Iterator[str]:
    size, least = described.size, described.least
    all_together = least == size
    infer = f"set infer_gangs to on for {kind.kind}"
    annotate = f'{_ANNOTATE}{own.GROUP}: {name}, {own.MIN_MEMBER}: "{size}"'
    change = f", and {described.change}" if described.change else ""
    if len(described.roles) > 1 or all_together:
        yield infer
        if template_names and all_together:
            yield annotate
        elif kind.kind not in BY_REQUEST:
            yield f"label the job {kai_keys.QUEUE}: default"
    elif kind.kind in BY_REQUEST:
        yield f"{infer}{change}"
        yield f"{annotate}{change}"
    else:
        if template_names:
            yield annotate
        if described.change:
            yield f"{infer}{change}"
        if not template_names:
            yield f'annotate the job {kai_keys.MIN_MEMBER}: "{size}"'


def sentence(described: Described, possible: tuple[str, ...]) -> str:
    """Return what the pods of an object are now, and what would make them gangs."""
    size, least, copies = described.size, described.least, described.copies
    most = sum(role.count for role in described.roles)
    gangs = "one gang" if copies == 1 else f"{copies} gangs"
    some = ""
    if size < most:
        some = f", of which {size} {'comes' if size == 1 else 'come'} first"
    elif len(described.roles) > 1 and least < size:
        # Of pods that are all alike, each way makes a gang whose members all start together.
        some = f", of which {least} must start together"
    how = f". To make them {gangs} of {most}{some}, {'; or '.join(possible)}" if possible else ""
    return f"its {most * copies} pods name no gang: each is placed alone, and the job may start in part{how}"
