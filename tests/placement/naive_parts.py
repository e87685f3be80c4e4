"""In which part of a scope that labels give each node lies, by the definition in docs/objective.md alone."""

from __future__ import annotations

from dataclasses import replace

from muster.domain.node import Node
from muster.domain.request import Request
from muster.domain.snapshot import NodeState, Snapshot

UNIQUE = (
    "nvidia.com/gpu.clique",
    "accelerator.topograph.run/domain",
    "network.topology.nvidia.com/accelerator",
)
NVLINK = ("nvlink-domain", ("gpu.topology/nvlink-domain", "nvidia.com/gpu.clique"))

_last: list[tuple[Snapshot, dict[str, dict[str, str]]]] = [(Snapshot({}), {})]
"""The parts of the nodes of one snapshot, by scope and node."""


def label(snapshot: Snapshot, state: NodeState, scope: str) -> str:
    """The part of a level, of a label of its own, or of NVLink domains over nodes, in which the node lies."""
    if _last[0][0] is not snapshot:
        _last[0] = (snapshot, {})
    parts = _last[0][1]
    if scope not in parts:
        parts[scope] = _parts(snapshot, scope)
    return parts[scope][state.node.name]


def _parts(snapshot: Snapshot, scope: str) -> dict[str, str]:
    every = [*((level.scope, level.labels) for level in snapshot.levels), NVLINK]
    wider = next((every[:i][::-1] for i, (word, keys) in enumerate(every) if scope in (word, *keys)), [])
    for tree in snapshot.naming.trees:
        if scope in tree:
            outer = tree[: tree.index(scope)][::-1]
            wider += [next((level for level in every if level[1] == (key,)), (key, (key,))) for key in outer]
    own_level = next(
        (level for level in every if scope == level[0] or level[1] == (scope,)), (scope, (scope,))
    )
    outward = [own_level, *wider]
    paths = {name: _path(snapshot, state.node, outward) for name, state in snapshot.nodes.items()}
    return {name: _name_of(path, [*paths.values()], outward) for name, path in paths.items()}


def _path(snapshot: Snapshot, node: Node, outward: list[tuple[str, tuple[str, ...]]]) -> tuple[str, ...]:
    path, ended = [], False
    for word, keys in outward:
        keys_here = [key for key in keys if node.labels.get(key)]
        if word == NVLINK[0] and not node.topology.gpu_count:
            keys_here = []
        path.append(node.labels[keys_here[0]] if keys_here and not ended else "")
        ended |= bool(keys_here) and (keys_here[0] in UNIQUE or word in snapshot.naming.unique)
    return tuple(path)


def _name_of(
    path: tuple[str, ...], every: list[tuple[str, ...]], outward: list[tuple[str, tuple[str, ...]]]
) -> str:
    same_name = {path_of_name for path_of_name in every if path_of_name[0] == path[0]}
    twofold = [
        i for i in range(1, len(path)) if len({path_of_name[i] for path_of_name in same_name} - {""}) > 1
    ]
    if not path[0] or not twofold:
        return path[0]
    homes = {_home(path_of_name, same_name) for path_of_name in same_name}
    home = _home(path, same_name)
    differ = [i for i in range(1, len(path)) if len({path_of_name[i] for path_of_name in homes}) > 1]
    for count in range(1, len(differ) + 1):
        if len({tuple(path_of_name[i] for i in differ[:count]) for path_of_name in homes}) == len(homes):
            break
    phrases = [f"{outward[i][0]} {home[i]}" if home[i] else f"no {outward[i][0]}" for i in differ[:count]]
    return " of ".join([path[0], *phrases])


def _home(path: tuple[str, ...], same_name: set[tuple[str, ...]]) -> tuple[str, ...]:
    """The only fullest path that says more than this one and agrees with it; else this one."""
    more = [path_of_name for path_of_name in same_name if _less(path, path_of_name)]
    most = [
        path_of_name for path_of_name in more if not any(_less(path_of_name, another) for another in more)
    ]
    return most[0] if len(most) == 1 else path


def _less(path: tuple[str, ...], longer: tuple[str, ...]) -> bool:
    return path != longer and all(a in ("", b) for a, b in zip(path, longer, strict=True))


def without_unmatched_gpus(snapshot: Snapshot, request: Request) -> Snapshot:
    """The cluster without the GPUs that the gang may not have, and without those of nodes where its roles may
    have different ones, of the roles that the node can serve. Tainted GPUs are there if all roles name them,
    but nothing of their memory."""
    asking = [role for role in request.roles if (role.gpus or role.slice) and role.members]
    if all(role.matching == {} for role in asking):
        return snapshot
    nodes = {}
    for name, state in snapshot.nodes.items():
        node, count = state.node, state.node.topology.gpu_count
        sets = [
            frozenset(
                gpu
                for gpu in range(count)
                if (
                    role.matching[name] >> gpu & 1
                    if name in role.matching
                    else not state.node.tainted >> gpu & 1
                )
            )
            for role in asking
            if (
                role.slice.resource in (node.memory_resources if node.gpu_memory else ())
                if role.slice
                else role.gpu_resource in node.gpu_resources
            )
        ]
        if not sets:
            nodes[name] = state
            continue
        gpus_kept = sets[0] if sets.count(sets[0]) == len(sets) else frozenset()
        free = sum(1 << gpu for gpu in gpus_kept if (state.free_gpus | state.tainted) >> gpu & 1)
        memory = tuple(units if gpu in gpus_kept else 0 for gpu, units in enumerate(state.memory))
        nodes[name] = replace(state, free_gpus=free, memory=memory)
    return replace(snapshot, nodes=nodes)
