"""Report which pods have which GPUs, and the details of one gang. This module changes nothing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

from muster.domain.alternatives import Question
from muster.domain.causes.out_of_place import DomainTooSmall, RoleScope, place_in_words
from muster.domain.causes.too_little import RoomTaken
from muster.domain.decision import Unplaceable
from muster.domain.node import Usage
from muster.domain.pod import Pod
from muster.domain.snapshot import Snapshot
from muster.gangs.capacity.ledger import Ledger
from muster.gangs.record.gang import Gang, GangView


@dataclass(frozen=True, slots=True)
class PodGpus:
    """The GPUs of a node that one pod has."""

    gang: str
    """Key of its gang; "" if it is no member of a gang."""
    pod: str
    node: str
    gpus: int
    """Bit mask of its GPUs."""
    unindexed: int
    """Number of its GPUs with unknown indices."""
    units: int
    """GiB of memory that it has of each GPU; 0 for whole GPUs."""
    reserved: bool
    """Whether a plan or a Binding under way holds the GPUs, and the pod is not seen bound yet."""


@dataclass(frozen=True, slots=True)
class Owner:
    """The number of GPUs of a node that a gang has or is planned to have. `namespace` and `gang` are "" for
    pods without a gang."""

    namespace: str
    gang: str
    gpus: int


@dataclass(frozen=True, slots=True)
class RefusedNode:
    """A node that an in-tree plugin refused to a member after it was planned there."""

    node: str
    plugin: str
    message: str


@dataclass(frozen=True, slots=True)
class GangDetails:
    """A gang with the places of its members, the number of members without a place, and refused nodes."""

    view: GangView
    places: tuple[PodGpus, ...]
    without_place: int
    refused: tuple[RefusedNode, ...]


@dataclass(frozen=True, slots=True)
class AskAlternatives:
    """A question for a planner about other places: the cluster without the gang, and the gang with its
    places."""

    gang: str
    snapshot: Snapshot
    request: Question
    excluded: Mapping[str, Mapping[str, str]]


def gpus_of_pods(
    ledger: Ledger, nodes: Iterable[str], gangs_of: Callable[[Iterable[str]], Mapping[str, str]]
) -> list[tuple[PodGpus, ...]]:
    """Return the GPUs of each pod, for each of these nodes. `gangs_of` returns UID → gang."""
    usages = [
        [(uid, usage) for uid, usage in ledger.usages_on(node).items() if usage.holds_gpus] for node in nodes
    ]
    gang_of = gangs_of(uid for pairs in usages for uid, _ in pairs)
    return [
        tuple(_pod_gpus(usage, gang_of.get(uid, ""), "", uid not in ledger.bound) for uid, usage in pairs)
        for pairs in usages
    ]


def owners(usages: Iterable[PodGpus], gangs: Mapping[str, Gang]) -> tuple[Owner, ...]:
    """Return the gangs that have GPUs of a node, by name. A GPU with slices of several gangs counts for
    each."""
    masks: Counter[tuple[str, str]] = Counter()
    unindexed: Counter[tuple[str, str]] = Counter()
    for usage in usages:
        gang = gangs.get(usage.gang)
        owner = (gang.group.gang.namespace, gang.group.gang.name) if gang is not None else ("", "")
        masks[owner] |= usage.gpus
        unindexed[owner] += usage.unindexed
    return tuple(Owner(*owner, masks[owner].bit_count() + unindexed[owner]) for owner in sorted(masks))


def details(ledger: Ledger, gang: Gang, view: GangView) -> GangDetails:
    """Return the details of a gang."""
    places = tuple(_places(ledger, gang))
    excluded = sorted(gang.exclusions.by_pair.items(), key=lambda item: item[0][1])
    refused = tuple(
        RefusedNode(node, exclusion.plugin, exclusion.message) for (_, node), exclusion in excluded
    )
    return GangDetails(view, places, gang.group.present - len(places), refused)


def _places(ledger: Ledger, gang: Gang) -> Iterator[PodGpus]:
    """Yield the GPUs of each member with a place, by the members' names."""
    usages_by_node: dict[str, Mapping[str, Usage]] = {}
    for pod in sorted(gang.group.members, key=lambda pod: (pod.name, pod.uid)):
        if (usage := ledger.usage(pod.uid)) is not None:
            if usage.node not in usages_by_node:
                usages_by_node[usage.node] = ledger.usages_on(usage.node)
            usage = usages_by_node[usage.node][pod.uid]
            yield _pod_gpus(usage, gang.key, pod.name, pod.uid not in ledger.bound)


def _pod_gpus(usage: Usage, gang: str, pod: str, reserved: bool) -> PodGpus:
    return PodGpus(gang, pod, usage.node, usage.gpus, usage.unindexed_gpus, usage.units, reserved)


_NO_GANG = ("", "")
"""Stands for the pods without a gang."""


def with_holders(refused: Unplaceable, priority: int, ledger: Ledger, pods: Mapping[str, Pod]) -> Unplaceable:
    """Return the refusal with a further cause: the gangs that have the GPUs where the refused gang nearly
    fits.

    `pods`: UID → pod, of all pods that claim a gang. `priority` is the priority of the refused gang.
    """
    own_gang = (refused.gang.namespace, refused.gang.name)
    gpus: dict[tuple[str, str], int] = {}
    priorities: dict[tuple[str, str], int] = {}
    for node in refused.contested:
        for uid, usage in ledger.stated_usages_on(node).items():
            pod = pods.get(uid)
            gang = _NO_GANG
            if pod is not None and pod.claim is not None:
                gang = pod.namespace, pod.claim.name
                if gang not in priorities or priorities[gang] < pod.priority:
                    priorities[gang] = pod.priority
            if not usage.units:
                gpus[gang] = gpus.get(gang, 0) + usage.gpus.bit_count() + usage.unindexed_gpus
    gpus.pop(own_gang, 0)
    without_gang = gpus.pop(_NO_GANG, 0)
    gpus_by_gang = {gang: count for gang, count in gpus.items() if count}
    gpus_of_lower = [count for gang, count in gpus_by_gang.items() if priorities[gang] < priority]
    if not gpus_by_gang and not without_gang:
        return refused
    others = len(gpus_by_gang) - len(gpus_of_lower), sum(gpus_by_gang.values()) - sum(gpus_of_lower)
    cause = RoomTaken(_where(refused), len(gpus_of_lower), sum(gpus_of_lower), *others, without_gang)
    return replace(refused, causes=(*refused.causes, cause))


def _where(refused: Unplaceable) -> str:
    """Return where the gang nearly fits, as words of a sentence."""
    for cause in refused.causes:
        if isinstance(cause, DomainTooSmall | RoleScope) and cause.best:
            return place_in_words(cause.scope, cause.best)
    return "on nodes that admit it"
