"""Say where members lie: their spots, and the parts of the scopes that nodes and GPUs lie in.

Labels name the parts. Parts with equal names differ by the names of the wider parts around them.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple

from muster.domain.decision import MemberPlacement
from muster.domain.node import Node
from muster.domain.request import Request
from muster.domain.snapshot import NodeState, Snapshot
from muster.domain.topology import GpuTopology

Names = tuple[str, ...]
"""What a node's labels say for a scope and for each wider scope around it: a part's name, or ""."""

ScopeKeys = tuple[str, tuple[str, ...]]
"""A scope and its label keys: any of these labels names the part of a node."""

NVLINK = ("nvlink-domain", ("gpu.topology/nvlink-domain", "nvidia.com/gpu.clique"))
UNIQUE = (
    "nvidia.com/gpu.clique",
    "accelerator.topograph.run/domain",
    "network.topology.nvidia.com/accelerator",
)
"""Labels whose values are unique in the cluster."""


class Labels:
    """The labels of a snapshot's nodes."""

    def __init__(self, snapshot: Snapshot) -> None:
        self._snapshot = snapshot
        self._order = [*((level.scope, level.labels) for level in snapshot.levels), NVLINK]

    def parts(self, scope: str, nodes: Iterable[Node], *, in_words: bool = False) -> Mapping[str, str]:
        """Return node → its part, as a text with everything that labels say about the part; "" for none.

        Equal texts are one part. A node that lacks labels of wider scopes belongs to the only part of the
        cluster that fits. This part is looked up if these nodes differ in their labels. With `in_words` it is
        always looked up, so that each text has the names of the wider parts.
        """
        scopes = self._enclosing_scopes(scope)
        names_by_node = self._names_by_node(nodes, scopes)
        by_first_name, distinct = dict[str, set[Names]](), set(names_by_node.values())
        for names in distinct:
            by_first_name.setdefault(names[0], set()).add(names)
        unclear = {
            name: several
            for name, several in by_first_name.items()
            if name and (in_words or len(several) > 1) and any("" in names for names in several)
        }
        all_names_by_first = self._all_names(unclear, scopes)
        resolved_names = dict[Names, Names]()
        for name, several in unclear.items():
            resolved_names |= _resolve_names(several, all_names_by_first[name])
        words = [word for word, _ in scopes]
        texts = {names: _part_text(words, resolved_names.get(names, names)) for names in distinct}
        return {node: texts[names] for node, names in names_by_node.items()}

    def _all_names(self, first_names: Iterable[str], scopes: list[ScopeKeys]) -> Mapping[str, set[Names]]:
        """Return for each of these parts' names what the labels of all nodes with this name say."""
        names_by_first: dict[str, set[Names]] = {name: set() for name in first_names}
        if names_by_first:
            all_nodes = [state.node for state in self._snapshot.nodes.values()]
            for names in set(self._names_by_node(all_nodes, scopes).values()):
                if names[0] in names_by_first:
                    names_by_first[names[0]].add(names)
        return names_by_first

    def _names_by_node(self, nodes: Iterable[Node], scopes: list[ScopeKeys]) -> Mapping[str, Names]:
        """Return node → the names that its labels give. Nodes with equal labels are read once."""
        keys = [key for _, labels in scopes for key in labels]
        names_by_values: dict[tuple[object, ...], Names] = {}
        names_by_node = {}
        for node in nodes:
            values = (node.topology.gpu_count > 0, *map(node.labels.get, keys))
            names = names_by_values.get(values)
            if names is None:
                names = names_by_values[values] = self._names_of_node(node, scopes)
            names_by_node[node.name] = names
        return names_by_node

    def _names_of_node(self, node: Node, scopes: list[ScopeKeys]) -> Names:
        names, labels = [""] * len(scopes), node.labels
        for i, (word, keys) in enumerate(scopes):
            has_no_domain = keys == NVLINK[1] and not node.topology.gpu_count
            for key in () if has_no_domain else keys:
                if name := labels.get(key):
                    names[i] = name
                    break
            if not names[0]:
                break
            if names[i] and (key in UNIQUE or word in self._snapshot.naming.unique):
                break
        return tuple(names)

    def _enclosing_scopes(self, scope: str) -> list[ScopeKeys]:
        """Return the scope, then each wider scope of the snapshot's levels and trees, from narrow to wide."""
        positions = [i for i, (name, keys) in enumerate(self._order) if scope in (name, *keys)]
        not_wider = self._order[positions[0] :] if positions else []
        scopes: list[ScopeKeys] = [(scope, (scope,))]
        if not_wider and (scope == not_wider[0][0] or not_wider[0][1] == (scope,)):
            scopes = not_wider[:1]
        unvisited = deque(scopes)
        while unvisited:
            _, keys = unvisited.popleft()
            for wider in self._next_wider(keys):
                if wider not in scopes and wider not in not_wider:
                    scopes.append(wider)
                    unvisited.append(wider)
        return scopes

    def _next_wider(self, keys: tuple[str, ...]) -> Iterator[ScopeKeys]:
        """Yield the scopes one step wider than the scope with these label keys."""
        for outer_level, (_, inner_keys) in pairwise(self._order):
            if keys[0] in inner_keys:
                yield outer_level
        for tree in self._snapshot.naming.trees:
            for outer, inner in pairwise(tree):
                if inner in keys:
                    same_level = (level for level in self._order if level[1] == (outer,))
                    yield next(same_level, (outer, (outer,)))


def _resolve_names(unclear: set[Names], all_names: set[Names]) -> Mapping[Names, Names]:
    """Return names → the names of the part that nodes with these labels belong to.

    If the labels of all nodes fit together, they are one part. Otherwise names that lack a label belong to
    the only part that fits and has more labels.
    """
    levels = list(zip(*all_names, strict=True))
    if all(len({*level} - {""}) < 2 for level in levels):
        return dict.fromkeys(unclear, max(all_names, key=lambda names: (len(names) - names.count(""), names)))
    resolved_names = {}
    for names in unclear:
        fuller = [candidate for candidate in all_names if candidate != names and _fits(names, candidate)]
        fullest = [
            candidate
            for candidate in fuller
            if not any(
                candidate != fuller_names and _fits(candidate, fuller_names) for fuller_names in fuller
            )
        ]
        resolved_names[names] = fullest[0] if len(fullest) == 1 else names
    return resolved_names


def _fits(names: Names, longer: Names) -> bool:
    return all(own_name in ("", theirs) for own_name, theirs in zip(names, longer, strict=True))


def _part_text(words: list[str], names: Names) -> str:
    wider_names = zip(words[1:], names[1:], strict=True)
    return names[0] and names[0] + "".join(f" of {word} {name}" for word, name in wider_names if name)


def describes(description: str, part: str) -> bool:
    """Return whether a description fits a part: it has the part's name, and perhaps names of its wider parts.

    "of no zone" fits a part without a zone.
    """
    (name, *wider_phrases), (part_name, *wider) = description.split(" of "), part.split(" of ")
    denied = {f"no {phrase.partition(' ')[0]}" for phrase in wider}
    absent = {phrase for phrase in wider_phrases if phrase.startswith("no ")} - denied
    return name == part_name and {*wider_phrases} <= {*wider, *absent}


class Spot(NamedTuple):
    """Where a placed or running member lies, or all members on one node.

    `gpus` is a bit mask. `indices_known` is false if a running member has GPUs whose indices are unknown.
    """

    role: str
    state: NodeState
    gpus: int
    indices_known: bool = True


Spots = Mapping[str, Spot]
"""Spots by the members' uids, or by the nodes' names."""

Groups = Mapping[str, Sequence[MemberPlacement]]
"""The members of a plan by node."""


def by_node(members: Iterable[MemberPlacement]) -> Groups:
    """Return the members of a plan by node, in their order."""
    members_by_node: dict[str, list[MemberPlacement]] = {}
    for member in members:
        members_by_node.setdefault(member.node, []).append(member)
    return members_by_node


def spots_of_nodes(snapshot: Snapshot, groups: Groups) -> Spots:
    """Return a spot for each node of the plan."""
    return {name: _spot(snapshot.nodes[name], "", members) for name, members in groups.items()}


def spots_of_members(snapshot: Snapshot, members: Iterable[MemberPlacement]) -> Spots:
    """Return a spot for each member of the plan."""
    return {member.uid: _spot(snapshot.nodes[member.node], member.role, (member,)) for member in members}


def spots_of_running(snapshot: Snapshot, request: Request) -> Spots:
    """Return a spot for each running member. Members on nodes that are gone are left out."""
    asks = {role.name: role.gpus or role.slice for role in request.roles}
    spots = {}
    for r in request.running:
        if r.node in snapshot.nodes:
            unindexed_gpus = r.usage.unindexed_gpus if r.usage is not None else 0
            is_known = r.gpus > 0 or not (unindexed_gpus or asks.get(r.role))
            spots[r.member.uid] = Spot(r.role, snapshot.nodes[r.node], r.gpus, is_known)
    return spots


def spots_of_all(new_spots: Spots, old: Spots) -> Spots:
    """Return a spot for each node with members, placed or running, for all of them."""
    united = {**new_spots}
    for spot in old.values():
        name = spot.state.node.name
        other = united.get(name, spot)
        united[name] = Spot(
            "", spot.state, spot.gpus | other.gpus, spot.indices_known and other.indices_known
        )
    return united


def _spot(state: NodeState, role: str, members: Iterable[MemberPlacement]) -> Spot:
    """Return the spot of these members, without indices that the node does not have: another check reports
    such indices."""
    mask = 0
    for member in members:
        for gpu in member.gpus:
            mask |= 1 << gpu if gpu >= 0 else 0
    return Spot(role, state, mask & ((1 << state.node.topology.gpu_count) - 1))


class NodeKind(NamedTuple):
    """The properties of a node that decide the values of the gang's GPUs there. Values are computed once for
    nodes of one kind.

    `in_wide_domain` is whether labels name the node's NVLink domain, and `slices_only` whether it serves no
    GPU whole. `new` masks the GPUs of placed members, and `gpus` those of all members.
    """

    topology: GpuTopology
    in_wide_domain: bool
    slices_only: bool
    free_gpus: int
    unindexed_gpus: int
    new: int
    gpus: int


Part = tuple[str, str]
"""The name of a part. If the node or GPU is a part of its own, "" and the name of that node or GPU."""


class Fabric:
    """The parts of the scopes in which the nodes of some spots lie. Results are kept for one verdict.

    With `in_words`, the names of parts have the names of the wider parts too (`Labels.parts`).
    """

    def __init__(self, snapshot: Snapshot, spots: Iterable[Spot], *, in_words: bool) -> None:
        self.levels = snapshot.levels
        self._labels = Labels(snapshot)
        self._in_words = in_words
        self._nodes = [spot.state.node for spot in spots]
        self._parts: dict[str, Mapping[str, str]] = {"node": {node.name: node.name for node in self._nodes}}
        self._nvlink_domains: dict[str, Mapping[str, int]] = {}

    def common_parts(self, spots: Iterable[Spot], scope: str) -> set[str]:
        """Return the parts of the scope that hold all of these spots."""
        common: set[str] | None = None
        for spot in spots:
            holding_parts = self._parts_holding(spot, scope)
            common = holding_parts if common is None else common & holding_parts
            if not common:
                break
        return common or set()

    def count_touched(self, spots: Spots, scope: str) -> int:
        """Return how many parts of the scope these spots, one for each node, touch."""
        names, parts = self.part_by_node(scope), set[Part]()
        nodes_by_kind = Counter[tuple[GpuTopology, int]]()
        if scope != NVLINK[0]:
            return len({names[name] or (name,) for name in spots})
        for name, spot in spots.items():
            if names[name] or spot.state.unindexed_gpus or not spot.indices_known:
                parts |= self.touched_parts(spot, scope)
            else:
                nodes_by_kind[spot.state.node.topology, spot.gpus] += 1
        return len(parts) + sum(
            nodes * sum(island & gpus > 0 for island in topology.islands)
            for (topology, gpus), nodes in nodes_by_kind.items()
        )

    def count_by_part(self, spots: Iterable[Spot], scope: str) -> Counter[Part]:
        """Return how many of these spots lie in each part of the scope, or touch it."""
        return Counter(part for spot in spots for part in self.touched_parts(spot, scope))

    def touched_parts(self, spot: Spot, scope: str) -> set[Part]:
        """Return the parts of the scope that the spot touches.

        A node without the label is a part of its own. If no NVLink domain can be promised on the node, each
        GPU is a domain of its own.
        """
        node = spot.state.node
        if scope != "nvlink-domain":
            part = self.part_by_node(scope)[node.name]
            return {(part, "" if part else node.name)}
        parts = self._promised_domains(spot.state)
        if not spot.indices_known and len(parts) == 1:
            return {(part, "") for part in parts}
        if parts:
            return {(part, "") for part, mask in parts.items() if spot.gpus & mask}
        return {("", f"{node.name}/gpu{i}") for i in range(spot.gpus.bit_length()) if spot.gpus >> i & 1}

    def _parts_holding(self, spot: Spot, scope: str) -> set[str]:
        """Return the parts of the scope that hold the spot.

        A spot without GPUs lies in each part of its node. A spot whose GPU indices are unknown does so only
        if the node is one NVLink domain.
        """
        state, node = spot.state, spot.state.node
        is_inside = scope in ("gpu", "nvlink-domain")
        if is_inside and not spot.indices_known and len(self._promised_domains(state)) != 1:
            return set()
        if scope == "nvlink-domain":
            return {part for part, mask in self._promised_domains(state).items() if not spot.gpus & ~mask}
        if scope == "gpu":  # if some GPUs that look free are taken, no GPU can be promised
            count = 0 if state.unindexed_gpus else node.topology.gpu_count
            return {f"{node.name}/{i}" for i in range(count) if not spot.gpus & ~(1 << i)}
        return {part} if (part := self.part_by_node(scope)[node.name]) else set()

    def kinds(self, new_spots: Spots, everyone: Spots) -> Counter[NodeKind]:
        """Return how many nodes of the plan are of each kind."""
        names = self.part_by_node(NVLINK[0])
        return Counter(
            NodeKind(
                state.node.topology,
                names[name] != "",
                bool(state.node.gpu_memory) and not state.node.gpu_resources,
                state.free_gpus,
                state.unindexed_gpus,
                new,
                everyone[name].gpus,
            )
            for name, (_, state, new, _) in new_spots.items()
        )

    def part_by_node(self, scope: str) -> Mapping[str, str]:
        """Return node → its part of the scope that is a node or wider, "" for none."""
        if scope not in self._parts:
            self._parts[scope] = self._labels.parts(scope, self._nodes, in_words=self._in_words)
        return self._parts[scope]

    def _promised_domains(self, state: NodeState) -> Mapping[str, int]:
        """Return the NVLink domains of the node that can be promised: name → mask of its GPUs there."""
        node = state.node
        if node.name not in self._nvlink_domains:
            islands = node.topology.islands
            if name := self.part_by_node(NVLINK[0])[node.name]:
                domains = {name: (1 << node.topology.gpu_count) - 1}
            elif state.unindexed_gpus and len(islands) > 1:
                domains = {}
            else:
                domains = {f"{node.name}/{i}": mask for i, mask in enumerate(islands)}
            self._nvlink_domains[node.name] = domains
        return self._nvlink_domains[node.name]
