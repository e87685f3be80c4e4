"""In-tree answers about devices → the GPUs that pods may have, by each subrequest of their claims."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache

from muster.domain.causes.ill_formed import BadValue
from muster.domain.node import Device, Node
from muster.domain.request import Role, Subrequest
from muster.domain.topology import mask_of
from muster.gangs.messages.calls import InTreeAnswer

MOST_GPU_LISTS = 16
"""Lists of matching GPUs that the answers for one gang may have: for each kind of its pods, each subrequest,
and with allocationMode All for each number of GPUs.

Each of them is looked at on all nodes for each plan, on the event loop: 2 ms at 5,000 nodes.
"""
MOST_NUMBERS = 8
"""Different numbers of matching GPUs on nodes, for a subrequest with allocationMode All."""
MOST_LISTED_NODES = 1 << 18
"""Nodes in all lists of a gang that are looked at for each plan. Roles share lists.

That takes 0.5 s; 1.8 s if each node has 16 devices with names and pools of its own.
"""
_MOST_NODES = 1 << 15
"""Nodes whose names of devices are remembered."""


Known = dict[tuple[int, ...], tuple[Subrequest, ...]]
"""What was made for one plan, by the lists that they are from: roles are many, and lists are few."""
_ALL: Mapping[str, frozenset[str]] = {}


def subrequests(
    role: Role, answers: Iterable[InTreeAnswer], nodes: Mapping[str, Node], known: Known
) -> tuple[Subrequest, ...]:
    """Return how the role's members may get GPUs if all these answers hold, the best first.

    Other nodes than those that answers name are left out. An answer with fewer subrequests counts with its
    last one. A device that no slice offers any more is no GPU.

    With allocationMode All a member takes all matching GPUs of a node. Each number of them is a subrequest of
    its own here, the largest first.
    `known` is for one plan, while nothing changes.
    """
    answers = tuple(answers)
    counts = role.gpu_counts or (role.slice.gpus if role.slice else role.gpus,)
    ranks = max(len(role.gpu_counts), *(len(answer.devices) for answer in answers), 1)
    found = list[Subrequest]()
    for rank in range(ranks):
        by_answer = _lists(answers, rank)
        count = counts[: rank + 1][-1]
        every = bool(role.gpu_counts) and not count
        key = (every, *map(id, by_answer))
        if key not in known:
            made = _every(by_answer, nodes) if every else [Subrequest(_masks(by_answer, nodes), 0)]
            known[key] = tuple(made)
        found += (replace(each, gpus=each.gpus if every else count, number=rank + 1) for each in known[key])
    return tuple(found)


def _lists(answers: Iterable[InTreeAnswer], rank: int) -> list[Mapping[str, frozenset[str]]]:
    """Return what each answer says for this subrequest, or for its last one."""
    return [answer.devices[: rank + 1][-1] if answer.devices else _ALL for answer in answers]


def too_many_nodes(gang: str, asking: Iterable[Sequence[InTreeAnswer]]) -> BadValue | None:
    """Return that the lists have too many nodes for one plan; None if they do not.

    `asking`: the answers that count together for some members.
    """
    nodes = dict[tuple[int, ...], int]()
    for answers in asking:
        for rank in range(max((len(answer.devices) for answer in answers), default=0)):
            lists = [
                *_lists(answers, rank),
                *(each.groups[: rank + 1][-1] for each in answers if each.groups),
            ]
            nodes[tuple(map(id, lists))] = sum(map(len, lists))
    if (total := sum(nodes.values())) <= MOST_LISTED_NODES:
        return None
    value = f"lists of matching GPUs on {total} nodes"
    expected = f"{MOST_LISTED_NODES} at most in all lists: ask alike in more of its members"
    return BadValue(f"the claims of gang {gang}", "selectors", value, expected)


def too_many(gang: str, lists: int, roles: Iterable[tuple[Role, Iterable[InTreeAnswer]]]) -> BadValue | None:
    """Return that the answers for the gang's roles have too many lists of matching GPUs; None if they do not.

    `lists`: how many there are, apart from those for different numbers of GPUs.
    """
    where, most = f"the claims of gang {gang}", MOST_GPU_LISTS
    if lists > most:
        value = f"{lists} lists of matching GPUs"
        return BadValue(where, "selectors", value, f"{most} at most: ask alike in more of its members")
    for role, answers in roles:
        for answer in answers if 0 in role.gpu_counts else ():
            for rank, devices in enumerate(answer.devices):
                numbers = len({len(names) for names in devices.values()} - {0})
                if role.gpu_counts[: rank + 1][-1] == 0 and numbers > 1:
                    lists += numbers - 1
                    if numbers > MOST_NUMBERS or lists > most:
                        value = f"All, and nodes have {numbers} different numbers of matching GPUs"
                        expected = f"{MOST_NUMBERS} at most, and {most} lists of matching GPUs in the gang"
                        return BadValue(where, "allocationMode", value, expected)
    return None


def _every(
    by_answer: Sequence[Mapping[str, frozenset[str]]], nodes: Mapping[str, Node]
) -> Iterator[Subrequest]:
    """Yield a subrequest for each number of matching GPUs. Its members take all of them, on nodes where all
    answers name the same devices, and where each of these can be planned."""
    by_count: dict[int, dict[str, int]] = {}
    for name in by_answer[0] if by_answer else ():
        node, named = nodes.get(name), by_answer[0][name]
        if node is not None and named and all(devices.get(name) == named for devices in by_answer):
            mask = mask_on(node, named)
            if mask.bit_count() == len(named):
                by_count.setdefault(len(named), {})[name] = mask
    none = dict.fromkeys(nodes, 0)
    if not by_count:
        yield Subrequest(none, 1, every=True)
    for count in sorted(by_count, reverse=True):
        yield Subrequest(none | by_count[count], count, every=True)


def _masks(by_answer: Sequence[Mapping[str, frozenset[str]]], nodes: Mapping[str, Node]) -> dict[str, int]:
    """Return node → mask of the GPUs that all answers allow."""
    found: dict[str, int] = {}
    for name in dict.fromkeys(name for devices in by_answer for name in devices):
        node = nodes.get(name)
        if node is not None:
            found[name] = -1
            for devices in by_answer:
                found[name] &= mask_on(node, devices.get(name))
    return found


def mask_on(node: Node, allowed: frozenset[str] | None) -> int:
    """Return the mask of a node's GPUs with these names. None: of all that have no taint."""
    if allowed is None:
        return node.untainted
    mask = _among(names_on(node), allowed)
    return mask | (_among(_with_pools(node), allowed) if _name_pools(allowed) else 0)


def names_on(node: Node) -> tuple[str, ...]:
    """Return the names of devices as most answers have them.

    Nodes without a "" in them are alike if these are.
    """
    known = _known.get(node.name)
    if known is None or known[0] is not node.devices:
        if len(_known) >= _MOST_NODES:
            _known.clear()
        known = _known[node.name] = (node.devices, _names(node))
    return known[1]


def _names(node: Node) -> tuple[str, ...]:
    """Return the devices' names as answers have them, "" for a GPU without a device.

    Also "" where the driver has GPUs in several pools of the node: answers name these with their pools.
    """
    pools: dict[str, set[str]] = {}
    for device in filter(None, node.devices):
        pools.setdefault(device.driver, set()).add(device.pool)
    return tuple(
        f"{device.driver}/{device.name}" if device is not None and len(pools[device.driver]) == 1 else ""
        for device in node.devices
    )


def _with_pools(node: Node) -> tuple[str, ...]:
    """Return the names with pools. They are always right: the shim may count pools that are not used here."""
    return tuple("" if device is None else str(device) for device in node.devices)


@lru_cache(maxsize=1 << 12)
def _name_pools(allowed: frozenset[str]) -> bool:
    return any(name.count("/") > 1 for name in allowed)


@lru_cache(maxsize=1 << 12)
def _among(names: tuple[str, ...], allowed: frozenset[str]) -> int:
    """Return the mask of the GPUs with an allowed name. Nodes of a cluster are much alike in these."""
    return mask_of([number for number, name in enumerate(names) if name in allowed])


_known: dict[str, tuple[tuple[Device | None, ...], tuple[str, ...]]] = {}
"""Node → its devices, and their names: a request with eight subrequests asks for them on all nodes."""
