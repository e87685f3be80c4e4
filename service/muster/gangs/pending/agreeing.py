"""GPUs with which other devices of a member must agree, such as a network card at their PCIe root.

The planner knows GPUs alone. An in-tree answer says for how many members the other devices at a group of
GPUs are enough. So members are shown as many of its free GPUs as that number of members takes. That is no
rule for the planner: it sees a node with fewer GPUs that match.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from muster.domain.request import Request, Role, Subrequest
from muster.domain.snapshot import NodeState, Snapshot
from muster.gangs.messages.calls import AgreeingGroup, InTreeAnswer
from muster.gangs.pending.matching import mask_on, names_on

_Masks = dict[str, int]
"""Node → bit mask of GPUs."""
_Known = dict[tuple[int, ...], _Masks]
"""What was made for one plan, by what it is from: roles are many, and most have the same answers."""


def limited(request: Request, answers: Mapping[str, Sequence[InTreeAnswer]], snapshot: Snapshot) -> Request:
    """Return the request, whose members may have no more GPUs than other devices agree with.

    `answers` has those for the members of each role. If several roles may have the same GPUs of a node, the
    other devices must be enough for all of them: each role gets what the role with the fewest gets.
    """
    if not any(answer.groups for found in answers.values() for answer in found):
        return request
    asking = [role for role in request.roles if role.gpus and role.members]
    made, known = _Known(), _Known()
    cut = {role.name: _cut(role, answers[role.name], snapshot, made) for role in asking}
    if len(asking) > 1 and len({len(masks) for masks in cut.values()}) == 1:
        for rank in range(len(next(iter(cut.values())))):
            pairs = [(cut[role.name][rank], _choices(role)[rank].matching) for role in asking]
            unlike = {(id(masks), id(matching)): (masks, matching) for masks, matching in pairs}.values()
            _join([masks for masks, _ in unlike], [matching for _, matching in unlike], snapshot)
    roles = [_with(role, cut[role.name], known) if role.name in cut else role for role in request.roles]
    return replace(request, roles=tuple(roles))


def _choices(role: Role) -> tuple[Subrequest, ...]:
    return role.subrequests or (Subrequest(role.matching, role.gpus),)


def _with(role: Role, cut: Sequence[_Masks], known: _Known) -> Role:
    found = list[Subrequest]()
    for each, fewer in zip(_choices(role), cut, strict=True):
        key = (id(each.matching), id(fewer))
        if key not in known:
            known[key] = {**each.matching, **fewer}
        found.append(replace(each, matching=known[key]))
    if role.subrequests:
        return replace(role, subrequests=tuple(found))
    return replace(role, matching=found[0].matching)


def _cut(role: Role, answers: Sequence[InTreeAnswer], snapshot: Snapshot, made: _Known) -> list[_Masks]:
    """Return node → bit mask of the GPUs that are left, for each subrequest, where an answer has groups."""
    found, known = list[_Masks](), dict[object, int]()
    for rank, each in enumerate(_choices(role)):
        by_answer = [answer.groups[: each.number][-1] for answer in answers if answer.groups]
        key = (rank, each.gpus, id(each.matching), *map(id, by_answer))
        if key in made:
            found.append(made[key])
            continue
        masks = made[key] = _Masks()
        for groups in by_answer:
            for name, of_node in groups.items():
                state = snapshot.nodes.get(name)
                if state is None:
                    continue
                mask, names = masks.get(name, _mask(each.matching, name, state)), names_on(state.node)
                # Nodes are much alike, and this runs on the event loop for each plan.
                kind = (
                    id(of_node),
                    each.gpus,
                    mask,
                    state.free_gpus | state.tainted,
                    names if all(names) else name,
                )
                if kind not in known:
                    known[kind] = _less(mask, state, of_node, each.gpus)
                masks[name] = known[kind]
        found.append(masks)
    return found


def _mask(matching: Mapping[str, int], name: str, state: NodeState) -> int:
    return matching.get(name, state.node.untainted)


def _less(mask: int, state: NodeState, groups: Sequence[AgreeingGroup], gpus: int) -> int:
    """Return the mask without free GPUs beyond those of as many members as each group is enough for."""
    for group in groups:
        free = mask & mask_on(state.node, group.devices) & (state.free_gpus | state.tainted)
        for _ in range(free.bit_count() - group.most * gpus):
            highest = 1 << free.bit_length() - 1
            free, mask = free ^ highest, mask ^ highest
    return mask


def _join(cut: Sequence[_Masks], matching: Sequence[Mapping[str, int]], snapshot: Snapshot) -> None:
    """Leave all roles the same GPUs on each node where they had the same."""
    for name in dict.fromkeys(name for masks in cut for name in masks):
        state = snapshot.nodes[name]
        whole = {_mask(each, name, state) for each in matching}
        if len(whole) == 1:
            fewest = whole.pop()
            for masks in cut:
                fewest &= masks.get(name, fewest)
            for masks in cut:
                masks[name] = fewest
