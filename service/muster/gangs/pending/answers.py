"""Turn in-tree answers into facts of a request: variants of roles, and the GPUs that members may have.

If plugins answer differently for members of a role, the role is split into variants, one for each answer. An
answer says which GPUs a member may have, for each subrequest of its claims.

Other devices of a member may have to agree with its GPUs, such as a network card at their PCIe root. The
planner knows GPUs only. An answer says for how many members the other devices at a group of GPUs are enough.
The request allows only as many free GPUs of the group as these members take. So the planner needs no rule for
other devices: it sees a node with fewer matching GPUs.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache

from muster.domain.causes.ill_formed import BadValue
from muster.domain.constraints import Affinity, AntiAffinity, PeerConstraint
from muster.domain.node import Device, Node
from muster.domain.request import Request, Role, Subrequest
from muster.domain.snapshot import NodeState, Snapshot
from muster.domain.topology import mask_of
from muster.gangs.capacity.requests import names_of_roles
from muster.gangs.messages.calls import AgreeingGroup, InTreeAnswer


def name_variants(variants: Mapping[str, list[Role]]) -> dict[str, list[Role]]:
    """Name the variants of each role. A role that is not split keeps its name; several variants get numbered
    names that no other role has."""
    names = iter(names_of_roles([role for role, role_variants in variants.items() for _ in role_variants]))
    return {
        role: [replace(variant, name=next(names)) for variant in role_variants]
        for role, role_variants in variants.items()
    }


def rename_roles(constraint: PeerConstraint, names: Mapping[str, tuple[str, ...]]) -> PeerConstraint:
    """Return the constraint for all variants of its roles."""
    roles = variants_of(constraint.roles, names)
    if isinstance(constraint, AntiAffinity | Affinity):
        return replace(constraint, roles=roles, other_roles=variants_of(constraint.other_roles, names))
    return replace(constraint, roles=roles, counted_roles=variants_of(constraint.counted_roles, names))


def variants_of(roles: frozenset[str], names: Mapping[str, tuple[str, ...]]) -> frozenset[str]:
    """Return the names of all variants of these roles. `names`: role → names of its variants."""
    return frozenset(variant for role in roles for variant in names.get(role, (role,)))


NOTHING = InTreeAnswer()
"""The answer for a pod that was not asked about."""


MAX_GPU_LISTS = 16
"""Largest number of lists of matching GPUs in the answers for one gang. There is a list for each kind of its
pods and each subrequest, and with allocationMode All for each number of GPUs.

Each plan reads each list for all nodes. That blocks the event loop for 2 ms at 5,000 nodes.
"""
MAX_NUMBERS = 8
"""Most different numbers of matching GPUs on nodes, for allocationMode All. Each becomes a subrequest."""
MAX_LISTED_NODES = 1 << 18
"""Largest number of nodes in all lists that one plan of a gang reads together. Roles share lists.

Reading them takes 0.5 s, or 1.8 s if each node has 16 devices with names and pools of its own.
"""
_MAX_NODES = 1 << 15
"""Largest number of nodes whose names of devices are cached."""


SubrequestCache = dict[tuple[int, ...], tuple[Subrequest, ...]]
"""The subrequests made for one plan, by the ids of their lists: there are many roles, and few lists."""
_ALL: Mapping[str, frozenset[str]] = {}


def subrequests(
    role: Role, answers: Iterable[InTreeAnswer], nodes: Mapping[str, Node], cache: SubrequestCache
) -> tuple[Subrequest, ...]:
    """Return the subrequests by which the role's members may get GPUs if all these answers hold, the best
    first.

    Nodes that no answer names are left out. If an answer has fewer subrequests than others, its last
    subrequest stands for the missing subrequests. A device that is in no ResourceSlice any more is no GPU.

    With allocationMode All a member takes all matching GPUs of a node. Each number of matching GPUs is a
    subrequest of its own here, the largest first. `cache` is for one plan, while nothing changes.
    """
    answers = tuple(answers)
    counts = role.gpu_counts or (role.slice.gpus if role.slice else role.gpus,)
    ranks = max(len(role.gpu_counts), *(len(answer.devices) for answer in answers), 1)
    choices = list[Subrequest]()
    for rank in range(ranks):
        by_answer = _lists(answers, rank)
        count = counts[: rank + 1][-1]
        takes_all_gpus = bool(role.gpu_counts) and not count
        key = (takes_all_gpus, *map(id, by_answer))
        if key not in cache:
            new_choices = (
                _subrequests_for_all(by_answer, nodes)
                if takes_all_gpus
                else [Subrequest(_masks(by_answer, nodes), 0)]
            )
            cache[key] = tuple(new_choices)
        choices += (
            replace(choice, gpus=choice.gpus if takes_all_gpus else count, number=rank + 1)
            for choice in cache[key]
        )
    return tuple(choices)


def _lists(answers: Iterable[InTreeAnswer], rank: int) -> list[Mapping[str, frozenset[str]]]:
    """Return each answer's list for this subrequest; the answer's last list if it has fewer lists."""
    return [answer.devices[: rank + 1][-1] if answer.devices else _ALL for answer in answers]


def too_many_nodes(gang: str, answers_by_variant: Iterable[Sequence[InTreeAnswer]]) -> BadValue | None:
    """Return a cause if the lists have too many nodes for one plan; else None.

    `answers_by_variant`: for each variant of a role, the answers that count together for its members.
    """
    nodes = dict[tuple[int, ...], int]()
    for answers in answers_by_variant:
        for rank in range(max((len(answer.devices) for answer in answers), default=0)):
            lists = [
                *_lists(answers, rank),
                *(answer.groups[: rank + 1][-1] for answer in answers if answer.groups),
            ]
            nodes[tuple(map(id, lists))] = sum(map(len, lists))
    if (total := sum(nodes.values())) <= MAX_LISTED_NODES:
        return None
    value = f"lists of matching GPUs on {total} nodes"
    expected = f"{MAX_LISTED_NODES} at most in all lists: ask alike in more of its members"
    return BadValue(f"the claims of gang {gang}", "selectors", value, expected)


def too_many_lists(
    gang: str, lists: int, roles: Iterable[tuple[Role, Iterable[InTreeAnswer]]]
) -> BadValue | None:
    """Return a cause if the answers for the gang's roles have too many lists of matching GPUs; else None.

    `lists`: the number of lists, without the additional lists for different numbers of GPUs.
    """
    title, limit = f"the claims of gang {gang}", MAX_GPU_LISTS
    if lists > limit:
        value = f"{lists} lists of matching GPUs"
        return BadValue(title, "selectors", value, f"{limit} at most: ask alike in more of its members")
    for role, answers in roles:
        for answer in answers if 0 in role.gpu_counts else ():
            for rank, devices in enumerate(answer.devices):
                numbers = len({len(names) for names in devices.values()} - {0})
                if role.gpu_counts[: rank + 1][-1] == 0 and numbers > 1:
                    lists += numbers - 1
                    if numbers > MAX_NUMBERS or lists > limit:
                        value = f"All, and nodes have {numbers} different numbers of matching GPUs"
                        expected = f"{MAX_NUMBERS} at most, and {limit} lists of matching GPUs in the gang"
                        return BadValue(title, "allocationMode", value, expected)
    return None


def _subrequests_for_all(
    by_answer: Sequence[Mapping[str, frozenset[str]]], nodes: Mapping[str, Node]
) -> Iterator[Subrequest]:
    """Yield a subrequest for each number of matching GPUs, whose members take all matching GPUs of a node.

    Only nodes count where all answers name the same devices, and where each of these devices can be planned.
    """
    by_count: dict[int, dict[str, int]] = {}
    for name in by_answer[0] if by_answer else ():
        node, device_names = nodes.get(name), by_answer[0][name]
        if (
            node is not None
            and device_names
            and all(devices.get(name) == device_names for devices in by_answer)
        ):
            mask = _mask_on(node, device_names)
            if mask.bit_count() == len(device_names):
                by_count.setdefault(len(device_names), {})[name] = mask
    no_gpus = dict.fromkeys(nodes, 0)
    if not by_count:
        yield Subrequest(no_gpus, 1, takes_all=True)
    for count in sorted(by_count, reverse=True):
        yield Subrequest(no_gpus | by_count[count], count, takes_all=True)


def _masks(by_answer: Sequence[Mapping[str, frozenset[str]]], nodes: Mapping[str, Node]) -> dict[str, int]:
    """Return node → mask of the GPUs that all answers allow."""
    masks: dict[str, int] = {}
    for name in dict.fromkeys(name for devices in by_answer for name in devices):
        node = nodes.get(name)
        if node is not None:
            masks[name] = -1
            for devices in by_answer:
                masks[name] &= _mask_on(node, devices.get(name))
    return masks


def _mask_on(node: Node, allowed: frozenset[str] | None) -> int:
    """Return the bit mask of a node's GPUs with `allowed` names; of all untainted GPUs if `allowed` is
    None."""
    if allowed is None:
        return node.untainted_gpus
    mask = _mask_of_names(_short_names(node), allowed)
    # The shim may see more pools of the driver than this node has here, and then adds the pool to the name.
    if not _name_pools(allowed):
        return mask
    return mask | _mask_of_names(tuple(str(device or "") for device in node.devices), allowed)


def _short_names(node: Node) -> tuple[str, ...]:
    """Return the short names ("driver/device") of the node's GPUs, cached by node.

    Nodes with equal names have equal masks, unless a name is "".
    """
    cached = _names_by_node.get(node.name)
    if cached is None or cached[0] is not node.devices:
        if len(_names_by_node) >= _MAX_NODES:
            _names_by_node.clear()
        cached = _names_by_node[node.name] = (node.devices, _find_short_names(node))
    return cached[1]


def _find_short_names(node: Node) -> tuple[str, ...]:
    """Return the names of the GPUs' devices as most answers have them; "" for a GPU without a device.

    The name is also "" if the driver has GPUs in several pools of the node, as answers then add the pool.
    """
    pools: dict[str, set[str]] = {}
    for device in filter(None, node.devices):
        pools.setdefault(device.driver, set()).add(device.pool)
    return tuple(
        f"{device.driver}/{device.name}" if device is not None and len(pools[device.driver]) == 1 else ""
        for device in node.devices
    )


@lru_cache(maxsize=1 << 12)
def _name_pools(allowed: frozenset[str]) -> bool:
    """Return whether some of these names have a pool."""
    return any(name.count("/") > 1 for name in allowed)


@lru_cache(maxsize=1 << 12)
def _mask_of_names(names: tuple[str, ...], allowed: frozenset[str]) -> int:
    """Return the bit mask of the GPUs with an allowed name. Cached, because most nodes have the same
    names."""
    return mask_of([number for number, name in enumerate(names) if name in allowed])


_names_by_node: dict[str, tuple[tuple[Device | None, ...], tuple[str, ...]]] = {}
"""Node → its devices and their names: a request with eight subrequests reads them for all nodes."""


_Masks = dict[str, int]
"""Node → bit mask of GPUs."""
_MaskCache = dict[tuple[int, ...], _Masks]
"""Masks made for one plan, by the ids of their inputs: most of the many roles have the same answers."""


def limit_by_other_devices(
    request: Request, answers: Mapping[str, Sequence[InTreeAnswer]], snapshot: Snapshot
) -> Request:
    """Return the request with only as many GPUs of each node as other devices agree with.

    `answers`: role → the answers for its members. Roles that may have the same GPUs of a node also share the
    other devices there. So each of these roles may have only the GPUs that all of them may have.
    """
    if not any(answer.groups for role_answers in answers.values() for answer in role_answers):
        return request
    gpu_roles = [role for role in request.roles if role.gpus and role.members]
    limit_cache, matching_cache = _MaskCache(), _MaskCache()
    masks_by_role = {
        role.name: _limit_masks(role, answers[role.name], snapshot, limit_cache) for role in gpu_roles
    }
    if len(gpu_roles) > 1 and len({len(masks) for masks in masks_by_role.values()}) == 1:
        for rank in range(len(next(iter(masks_by_role.values())))):
            pairs = [(masks_by_role[role.name][rank], _choices(role)[rank].matching) for role in gpu_roles]
            distinct_pairs = {
                (id(masks), id(matching)): (masks, matching) for masks, matching in pairs
            }.values()
            _align_masks(
                [masks for masks, _ in distinct_pairs], [matching for _, matching in distinct_pairs], snapshot
            )
    roles = [
        _with_masks(role, masks_by_role[role.name], matching_cache) if role.name in masks_by_role else role
        for role in request.roles
    ]
    return replace(request, roles=tuple(roles))


def _choices(role: Role) -> tuple[Subrequest, ...]:
    """Return the role's subrequests; if the role has none, one with the role's own GPUs."""
    return role.subrequests or (Subrequest(role.matching, role.gpus),)


def _with_masks(role: Role, masks_by_choice: Sequence[_Masks], cache: _MaskCache) -> Role:
    """Return the role with new masks for each subrequest. Nodes without a new mask keep the old mask."""
    choices = list[Subrequest]()
    for choice, masks in zip(_choices(role), masks_by_choice, strict=True):
        key = (id(choice.matching), id(masks))
        if key not in cache:
            cache[key] = {**choice.matching, **masks}
        choices.append(replace(choice, matching=cache[key]))
    if role.subrequests:
        return replace(role, subrequests=tuple(choices))
    return replace(role, matching=choices[0].matching)


def _limit_masks(
    role: Role, answers: Sequence[InTreeAnswer], snapshot: Snapshot, cache: _MaskCache
) -> list[_Masks]:
    """Return, for each subrequest, node → bit mask of the GPUs that the role may still have.

    Only nodes for which an answer has groups are listed.
    """
    masks_by_choice, mask_by_kind = list[_Masks](), dict[object, int]()
    for rank, choice in enumerate(_choices(role)):
        by_answer = [answer.groups[: choice.number][-1] for answer in answers if answer.groups]
        key = (rank, choice.gpus, id(choice.matching), *map(id, by_answer))
        if key in cache:
            masks_by_choice.append(cache[key])
            continue
        masks = cache[key] = _Masks()
        for groups in by_answer:
            for name, groups_of_node in groups.items():
                state = snapshot.nodes.get(name)
                if state is None:
                    continue
                mask, names = masks.get(name, _mask(choice.matching, name, state)), _short_names(state.node)
                # Equal nodes are computed once, because this runs on the event loop for each plan.
                kind = (
                    id(groups_of_node),
                    choice.gpus,
                    mask,
                    state.free_gpus | state.tainted,
                    names if all(names) else name,
                )
                if kind not in mask_by_kind:
                    mask_by_kind[kind] = _limit_mask(mask, state, groups_of_node, choice.gpus)
                masks[name] = mask_by_kind[kind]
        masks_by_choice.append(masks)
    return masks_by_choice


def _mask(matching: Mapping[str, int], name: str, state: NodeState) -> int:
    """Return the bit mask of the GPUs of a node that a member may have; of its untainted GPUs if no answer
    limits them."""
    return matching.get(name, state.node.untainted_gpus)


def _limit_mask(mask: int, state: NodeState, groups: Sequence[AgreeingGroup], gpus: int) -> int:
    """Return the bit mask with only as many free GPUs of each group as `group.max_pods` members take."""
    for group in groups:
        free = mask & _mask_on(state.node, group.devices) & (state.free_gpus | state.tainted)
        for _ in range(free.bit_count() - group.max_pods * gpus):
            highest = 1 << free.bit_length() - 1
            free, mask = free ^ highest, mask ^ highest
    return mask


def _align_masks(
    masks_by_role: Sequence[_Masks], matching: Sequence[Mapping[str, int]], snapshot: Snapshot
) -> None:
    """Where `matching` allows all roles the same GPUs, leave each role only what all roles still may have."""
    for name in dict.fromkeys(name for masks in masks_by_role for name in masks):
        state = snapshot.nodes[name]
        full_masks = {_mask(role_matching, name, state) for role_matching in matching}
        if len(full_masks) == 1:
            common_gpus = full_masks.pop()
            for masks in masks_by_role:
                common_gpus &= masks.get(name, common_gpus)
            for masks in masks_by_role:
                masks[name] = common_gpus
