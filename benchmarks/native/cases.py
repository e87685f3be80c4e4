"""The manifests of `python -m benchmarks.native.compare`: what a user creates, and what happens then.

The cluster has 24 nodes of eight GPUs: four in each rack, three racks in each zone. A pod asks for a whole
node, if nothing else is stated. The trees are those of Kubernetes' own test (test/integration/scheduler/
podgroup/cpg_test.go of 1.37), and more.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from benchmarks.throughput.site import GPUS
from e2e import objects
from local_cluster.api import Object
from local_cluster.nodes import HOSTNAME, RACK, ZONE

BLOCK = "example.com/block"
"""A level between zone and rack that only a label gives. The first two racks of a zone are one block."""
ZONES, RACKS, NODES = 2, 3, 4
"""Zones, racks in a zone, nodes in a rack."""
PRIORITY_OF_OTHERS, HIGH, LOW, NEVER = "native-taken", "native-high", "native-low", "native-never"
CLASSES: tuple[Object, ...] = (
    {"metadata": {"name": PRIORITY_OF_OTHERS}, "value": 1_000_000},
    {"metadata": {"name": HIGH}, "value": 1000},
    {"metadata": {"name": LOW}, "value": 10},
    {"metadata": {"name": NEVER}, "value": 10, "preemptionPolicy": "Never"},
)
CPUS = 6
"""CPUs that a pod asks for with each GPU. A node has 64. kube-scheduler's scores count CPU and not GPUs."""
TOO_LARGE = 2 * GPUS
"""More GPUs than a node has."""
_API = {"PodGroup": "scheduling.k8s.io/v1beta1", "CompositePodGroup": "scheduling.k8s.io/v1alpha3"}


@dataclass(frozen=True)
class Create:
    """Create objects, in this order."""

    objects: tuple[Object, ...]


@dataclass(frozen=True)
class Change:
    """Merge a patch into the object of this kind and name."""

    kind: str
    name: str
    patch: Object


@dataclass(frozen=True)
class Delete:
    """Delete objects of one kind."""

    kind: str
    names: tuple[str, ...]


@dataclass(frozen=True)
class Finish:
    """Have a pod succeed."""

    pod: str


@dataclass(frozen=True)
class Look:
    """Wait until this number of pods is bound in all; 0: wait a moment, in which nothing should start."""

    bound: int = 0


Step = Create | Change | Delete | Finish | Look


@dataclass(frozen=True)
class Case:
    """`starts`: number of pods that can start. `key`: the label whose domains are counted."""

    name: str
    shows: str
    starts: int
    steps: tuple[Step, ...]
    key: str = RACK

    @property
    def objects(self) -> list[Object]:
        """All objects that are created, in order."""
        return [body for step in self.steps if isinstance(step, Create) for body in step.objects]

    def root_of(self, group: str) -> str:
        """Return the root of a PodGroup's tree."""
        parents = {body["metadata"]["name"]: parent_of(body) for body in self.objects}
        while parents.get(group):
            group = parents[group]
        return group


def parent_of(body: Object) -> str:
    """Return the name of the CompositePodGroup that is the parent of a group; "" if it has none."""
    return str(body["spec"].get("parentCompositePodGroupName", ""))


def nodes() -> list[Object]:
    """Return the nodes. Node n<i> is in rack r<i // 4>."""
    return [
        objects.node(f"n{index:02}", gpus=GPUS, labels=_labels(index))
        for index in range(ZONES * RACKS * NODES)
    ]


def _labels(index: int) -> dict[str, str]:
    rack = index // NODES
    zone, place = divmod(rack, RACKS)
    return {ZONE: f"z{zone}", RACK: f"r{rack}", BLOCK: f"b{2 * zone + place // 2}"}


def group(name: str, minimum: int = 0, *, key: str = "", parent: str = "", **more: object) -> Object:
    """Return a PodGroup. Its policy is basic without a minimum."""
    policy = {"gang": {"minCount": minimum}} if minimum else {"basic": {}}
    above = {"parentCompositePodGroupName": parent, "workloadRef": _workload("pods")} if parent else {}
    return _group("PodGroup", name, policy, key, {**above, **more})


def tree(name: str, minimum: int = 0, *, key: str = "", parent: str = "", **more: object) -> Object:
    """Return a CompositePodGroup. Its policy is basic without a minimum."""
    policy = {"gang": {"minGroupCount": minimum}} if minimum else {"basic": {}}
    above = {"parentCompositePodGroupName": parent} if parent else {}
    return _group(
        "CompositePodGroup", name, policy, key, {"workloadRef": _workload("groups"), **above, **more}
    )


def _workload(template: str) -> Object:
    return {"workloadName": "work", "templateName": template}


def _group(kind: str, name: str, policy: Object, key: str, more: Mapping[str, object]) -> Object:
    constraints = {"schedulingConstraints": {"topology": [{"key": key}]}} if key else {}
    return {
        "apiVersion": _API[kind],
        "kind": kind,
        "metadata": {"name": name},
        "spec": {"schedulingPolicy": policy, **constraints, **more},
    }


def pod(name: str, gpus: int = GPUS, **spec: object) -> Object:
    """Return a pod that asks for GPUs, and for CPUs as GPU pods do."""
    body = objects.pod(name, gpus=gpus, spec=spec)
    body["spec"]["containers"][0]["resources"]["requests"]["cpu"] = str(CPUS * gpus or 1)
    return body


def pods(
    group_name: str, count: int, gpus: int = GPUS, *, first: int = 0, **spec: object
) -> tuple[Object, ...]:
    """Return pods of a PodGroup, numbered from `first`."""
    membership = {"schedulingGroup": {"podGroupName": group_name}}
    return tuple(
        pod(f"{group_name}-{number}", gpus, **membership, **spec) for number in range(first, first + count)
    )


def gang(name: str, count: int, gpus: int = GPUS, *, key: str = "", parent: str = "") -> tuple[Object, ...]:
    """Return a PodGroup of policy gang, and as many pods as its minimum."""
    return (group(name, count, key=key, parent=parent), *pods(name, count, gpus))


def taken(numbers: Iterable[int]) -> tuple[Object, ...]:
    """Return pods of another scheduler that take these nodes, with a priority that no gang preempts."""

    def on(number: int) -> Object:
        name, node = f"taken-{number}", f"n{number:02}"
        return pod(name, schedulerName="another", nodeName=node, priorityClassName=PRIORITY_OF_OTHERS)

    return tuple(on(number) for number in numbers)


def all_but(*numbers: int) -> tuple[Object, ...]:
    """Return pods of another scheduler that take all other nodes."""
    return taken(number for number in range(ZONES * RACKS * NODES) if number not in numbers)


def free(*numbers: int) -> Delete:
    """Make nodes free again that are taken."""
    return Delete("Pod", tuple(f"taken-{number}" for number in numbers))


def _case(name: str, shows: str, starts: int, *steps: Step | Sequence[Object], key: str = RACK) -> Case:
    done = tuple(
        step if isinstance(step, Create | Change | Delete | Finish | Look) else Create(tuple(step))
        for step in steps
    )
    return Case(name, shows, starts, done, key)


def _min_count(name: str, number: int) -> Change:
    return Change("PodGroup", name, {"spec": {"schedulingPolicy": {"gang": {"minCount": number}}}})


def single() -> list[Case]:
    """Return the cases of one gang, or two, without a key."""
    a, b = gang("a", 3), gang("b", 4)
    lone = pod("lone")
    return [
        _case("single-fits", "four pods, room for all", 4, gang("a", 4)),
        _case("single-more-pods", "minCount 2 of four pods", 4, [group("a", 2), *pods("a", 4)]),
        _case(
            "single-quorum",
            "the fourth pod comes later",
            4,
            [group("a", 4), *pods("a", 3)],
            Look(),
            pods("a", 1, first=3),
        ),
        _case(
            "single-late-group", "the PodGroup comes after its pods", 4, pods("a", 4), Look(), [group("a", 4)]
        ),
        _case("single-room", "room comes later", 4, all_but(0, 1), gang("a", 4), Look(), free(2, 3)),
        _case("single-two", "gangs of 3 and 4, room for four pods", 3, all_but(0, 1, 2, 3), (*a, *b)),
        _case("single-two-turned", "gangs of 4 and 3, room for four pods", 4, all_but(0, 1, 2, 3), (*b, *a)),
        _case("single-and-lone", "a gang of 4 and a single pod", 4, all_but(0, 1, 2, 3), (*b, lone)),
    ]


def basic() -> list[Case]:
    """Return the cases of the policy basic."""
    in_rack = group("a", key=RACK)
    return [
        _case("basic", "five pods, room for three", 3, all_but(0, 1, 2), [group("a"), *pods("a", 5)]),
        _case("basic-late", "the PodGroup comes after its pods", 3, pods("a", 3), Look(), [group("a")]),
        _case("basic-key", "three pods in one rack", 3, [in_rack, *pods("a", 3)]),
        _case("basic-key-part", "six pods, the rack has room for four", 4, [in_rack, *pods("a", 6)]),
        _case(
            "basic-key-room",
            "room in the rack comes later",
            4,
            all_but(0, 1),
            [in_rack, *pods("a", 4)],
            Look(2),
            free(2, 3),
        ),
    ]


def keys() -> list[Case]:
    """Return the cases of one gang, or two, with a key."""
    one_of_each = taken(NODES * rack for rack in range(ZONES * RACKS))
    but_r4 = taken(NODES * rack for rack in range(ZONES * RACKS) if rack != 4)
    a, b = gang("a", 4, key=RACK), gang("b", 4, key=RACK)
    return [
        _case("key-one-rack", "only one rack has room", 4, but_r4, a),
        _case("key-nothing", "no rack has room", 0, one_of_each, a),
        _case(
            "key-used-rack", "two pods, a rack with two free nodes", 2, taken((0, 1)), gang("a", 2, key=RACK)
        ),
        _case("key-two-racks", "two gangs, two free racks", 8, all_but(*range(4), *range(12, 16)), (*a, *b)),
        _case(
            "key-same-rack",
            "two gangs of 2, one free rack",
            4,
            all_but(*range(4)),
            (*gang("a", 2, key=RACK), *gang("b", 2, key=RACK)),
        ),
        _case(
            "key-zone-and-rack",
            "8 pods in a zone, 4 in a rack, one free zone",
            12,
            all_but(*range(12)),
            (*gang("z", 8, key=ZONE), *a),
        ),
        _case(
            "key-one-never", "a gang of 5 that no rack takes, then one of 4", 4, (*gang("n", 5, key=RACK), *a)
        ),
        _case(
            "key-small-racks",
            "minCount 2 of four pods, racks with room for three",
            3,
            one_of_each,
            [group("a", 2, key=RACK), *pods("a", 4)],
        ),
        _case(
            "key-hostname", "four pods of 2 GPUs on one node", 4, gang("a", 4, 2, key=HOSTNAME), key=HOSTNAME
        ),
    ]


def trees() -> list[Case]:
    """Return the cases of trees without keys. Most are Kubernetes' own."""
    hierarchy = (
        tree("root", 2),
        *(tree("one", 2, parent="root"), tree("two", parent="root"), tree("three", 2, parent="root")),
        *(*gang("pg1", 3, 1, parent="one"), *gang("pg2", 3, 1, parent="one")),
        *gang("pg3", 3, TOO_LARGE, parent="one"),
        *(group("pg4", parent="two"), *pods("pg4", 3, 1), *gang("pg5", 3, 1, parent="two")),
        *(*gang("pg6", 3, 1, parent="three"), *gang("pg7", 3, TOO_LARGE, parent="three")),
    )
    a, b = gang("a", 3, 1, parent="root"), gang("b", 3, 1, parent="root")
    large = gang("c", 3, TOO_LARGE, parent="root")
    loose = (*(group("a", parent="root"), *pods("a", 3, 1)), group("b", parent="root"))
    nowhere = (group("b", 3, parent="root"), *pods("b", 3, 1, nodeSelector={"example.com/none": "true"}))
    many = [body for number in range(8) for body in gang(f"g{number}", 4, 1, parent="root")]
    return [
        _case("tree-levels", "three levels of both policies", 12, hierarchy),
        _case(
            "tree-two-of-three",
            "minGroupCount 2, the third is too large",
            6,
            (tree("root", 2), *a, *b, *large),
        ),
        _case(
            "tree-basic-gangs", "a basic parent, one of two gangs is too large", 3, (tree("root"), *a, *large)
        ),
        _case(
            "tree-basic-basic",
            "a basic parent, the pods of one basic child are too large",
            3,
            (tree("root"), *loose, *pods("b", 3, TOO_LARGE)),
        ),
        _case(
            "tree-gang-basic",
            "minGroupCount 2 of basic children",
            6,
            (tree("root", 2), *loose, *pods("b", 3, 1)),
        ),
        _case("tree-late-child", "the second child comes later", 6, (tree("root", 2), *a), Look(), b),
        _case(
            "tree-refused-child",
            "minGroupCount 1, no node suits the other",
            3,
            (tree("root", 1), *nowhere, *a),
        ),
        _case("tree-eight", "eight children of four", 32, (tree("root", 8), *many)),
    ]


def tree_keys() -> list[Case]:
    """Return the cases of trees with keys."""

    def levels(top: str, middle: str, bottom: str) -> tuple[Object, ...]:
        leaves = (gang(name, 3, key=bottom, parent="middle") for name in ("a", "b"))
        above = (tree("root", 1, key=top), tree("middle", 2, key=middle, parent="root"))
        return (*above, *(body for leaf in leaves for body in leaf))

    def children(count: int, key: str = "", other: str = "") -> tuple[Object, ...]:
        return (*gang("a", count, key=key, parent="root"), *gang("b", count, key=other, parent="root"))

    return [
        _case("tree-rack", "two children in one rack", 4, (tree("root", 2, key=RACK), *children(2))),
        _case(
            "tree-zone-rack",
            "each child in a rack, both in a zone",
            6,
            (tree("root", 2, key=ZONE), *children(3, RACK, RACK)),
        ),
        _case("tree-one-key", "one of two children in a rack", 8, (tree("root", 2), *children(4, RACK))),
        _case("tree-zone-block-rack", "keys at three levels", 6, levels(ZONE, BLOCK, RACK)),
        _case("tree-zone-rack-bottom", "no key in the middle", 6, levels(ZONE, "", RACK)),
        _case("tree-block-rack", "no key at the top", 6, levels("", BLOCK, RACK)),
        _case("tree-zone-block", "no key at the bottom", 6, levels(ZONE, BLOCK, ""), key=BLOCK),
        _case(
            "tree-pinned",
            "the second child comes when the first runs in a zone",
            6,
            taken((0, 4, 8)),
            (tree("root", 1, key=ZONE), *gang("a", 3, key=RACK, parent="root")),
            Look(3),
            gang("b", 3, key=RACK, parent="root"),
            key=ZONE,
        ),
    ]


def joint() -> list[Case]:
    """Return the cases in which the children of a tree must be placed together."""

    def rack_children(*counts: int) -> tuple[Object, ...]:
        leaves = (gang(f"c{i}", count, key=RACK, parent="root") for i, count in enumerate(counts))
        return (tree("root", len(counts), key=ZONE), *(body for leaf in leaves for body in leaf))

    small, large = gang("small", 2, 1, parent="root"), gang("large", 3, parent="root")
    options = (*gang("a", 3, parent="root"), *gang("b", 4, parent="root"))
    return [
        _case(
            "joint-small-first",
            "two small pods must share a node, so that three whole nodes are left",
            5,
            all_but(*range(4)),
            (tree("root", 2, key=RACK), *small, *large),
        ),
        _case(
            "joint-packing",
            "children of 1, 1, 3, 3 in two racks of 4",
            8,
            all_but(*range(8)),
            rack_children(1, 1, 3, 3),
        ),
        _case(
            "joint-second-rack",
            "children of 1, 3, 3 in racks of 3 and 4: the first must go to the larger rack",
            7,
            all_but(*range(1, 8)),
            rack_children(1, 3, 3),
        ),
        _case(
            "joint-one-of-two",
            "minGroupCount 1, room for either child",
            3,
            all_but(*range(4)),
            (tree("root", 1), *options),
        ),
    ]


def priorities() -> list[Case]:
    """Return the cases of priorities. The API server's admission wants a group's preemptionPolicy stated if
    its class has another one than the default."""

    def of_class(name: str, pod_class: str, group_class: str = "") -> tuple[Object, ...]:
        leader = group(name, 4, priorityClassName=group_class or pod_class)
        return (leader, *pods(name, 4, priorityClassName=pod_class))

    low, high = of_class("low", LOW), of_class("high", HIGH)
    never = group("a", 4, priorityClassName=NEVER, preemptionPolicy="Never")
    return [
        _case(
            "priority-higher-later",
            "the later gang is higher",
            4,
            all_but(),
            (*low, *high),
            Look(),
            free(*range(4)),
        ),
        _case(
            "priority-equal",
            "two gangs, one room",
            4,
            all_but(),
            (*low, *of_class("b", LOW)),
            Look(),
            free(*range(4)),
        ),
        _case("priority-differs", "the group's class is not the pods'", 0, of_class("a", LOW, HIGH)),
        _case("priority-never", "preemptionPolicy Never", 4, (never, *pods("a", 4, priorityClassName=NEVER))),
    ]


def life() -> list[Case]:
    """Return the cases in which a group changes, ends, or is made anew."""
    running = (Create(gang("a", 2)), Look(2), _min_count("a", 4), Look(2))
    no_finalizers = Change("PodGroup", "a", {"metadata": {"finalizers": None}})
    anew = (Delete("PodGroup", ("a",)), no_finalizers, Create((group("a", 4, key=RACK),)))
    return [
        _case(
            "life-lower",
            "minCount falls to the pods that are there",
            2,
            [group("a", 4), *pods("a", 2)],
            Look(),
            _min_count("a", 2),
        ),
        _case(
            "life-raise",
            "minCount rises while the gang waits",
            0,
            [group("a", 3), *pods("a", 2)],
            Look(),
            _min_count("a", 4),
            pods("a", 1, first=2),
        ),
        _case(
            "life-raise-running",
            "minCount rises above a running gang and one more pod",
            2,
            *running,
            pods("a", 1, first=2),
        ),
        _case(
            "life-deleted",
            "the PodGroup is deleted while its pods wait: its finalizer keeps it",
            4,
            all_but(0, 1),
            gang("a", 4),
            Look(),
            Delete("PodGroup", ("a",)),
            free(2, 3),
        ),
        _case(
            "life-anew", "made anew with a key that can hold", 4, gang("a", 4, key=HOSTNAME), Look(), *anew
        ),
        _case(
            "life-replaced",
            "one of four pods has succeeded, another one comes",
            5,
            gang("a", 4),
            Look(4),
            Finish("a-0"),
            pods("a", 1, first=4),
        ),
    ]


def mixed() -> list[Case]:
    """Return the cases of other constraints in a gang."""
    term = {"topologyKey": HOSTNAME, "labelSelector": {"matchLabels": {"app": "a"}}}
    apart = {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}
    spread = pods("a", 4, 1, affinity=apart)
    for pod in spread:
        pod["metadata"]["labels"]["app"] = "a"
    leader = pods("a", 1, 0, first=3)
    return [
        _case(
            "mixed-apart",
            "anti-affinity: each pod on a node of its own",
            4,
            [group("a", 4, key=RACK), *spread],
        ),
        _case("mixed-no-gpu", "a member without GPUs", 4, [group("a", 4, key=RACK), *pods("a", 3), *leader]),
    ]


def all_cases() -> list[Case]:
    """Return all cases."""
    parts = (single, basic, keys, trees, tree_keys, joint, priorities, life, mixed)
    return [case for part in parts for case in part()]
