"""Our own annotations through the command: each example on two racks, free and busy; what templates carry.

The cluster: racks r1, r2; in each the NVLink domains a, b; in each of these the nodes 1, 2 with four GPUs.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from muster.dialects.reading import A_SCOPE
from tests.files.manifests import (
    EXAMPLES,
    Object,
    controller,
    decisions,
    node,
    place,
    pod,
    spots,
    template,
    write,
)

CLUSTER = str(EXAMPLES / "clusters" / "two-racks.yaml")
Places = dict[str, str]
"""pod → node."""


def racks(at: Places) -> set[str]:
    return {name[:2] for name in at.values()}


def domains(at: Places) -> set[str]:
    return {name[:4] for name in at.values()}


def of(at: Places, *pods: str) -> Places:
    """Those whose names begin so."""
    return {name: node_name for name, node_name in at.items() if name.startswith(pods)}


def ranked(at: Places, *ranks: int) -> Places:
    """Those of an indexed Job."""
    return {name: node_name for name, node_name in at.items() if int(name.split("-")[-2]) in ranks}


def pairs_share_nodes(at: Places) -> bool:
    return all(len(set(ranked(at, i, i + 1).values())) == 1 for i in (0, 2, 4, 6))


@dataclass(frozen=True)
class Case:
    """An example; GPUs that are busy by node; how many of its pods are placed, and what holds of where."""

    example: str
    placed: int
    holds: Callable[[Places], bool] = lambda at: True
    busy: dict[str, int] = field(default_factory=dict)
    status: str = "placed"
    says: str = ""


FULL = {"r1-a-1": 4, "r1-b-1": 4, "r2-a-1": 4, "r2-b-1": 4}
CASES = {
    "one rack": Case("one-rack", 3, lambda at: len(racks(at)) == 1),
    "the rack that has room": Case("one-rack", 3, lambda at: racks(at) == {"r2"}, {"r1-a-1": 1, "r1-b-1": 1}),
    "no rack has room": Case("one-rack", 0, busy=FULL, status="unplaceable", says="rack"),
    "one NVLink domain": Case("one-nvlink-domain", 1),
    "segments": Case(
        "segments",
        8,
        lambda at: (
            len(domains(ranked(at, 0, 1, 2, 3))) == len(domains(ranked(at, 4, 5, 6, 7))) == 1
            and pairs_share_nodes(at)
        ),
    ),
    "segments where whole domains are rare": Case(
        "segments",
        8,
        lambda at: (
            {*domains(ranked(at, 0, 1, 2, 3)), *domains(ranked(at, 4, 5, 6, 7))} == {"r1-b", "r2-a"}
            and pairs_share_nodes(at)
        ),
        {"r1-a-1": 1, "r2-b-2": 2},
    ),
    "no pair of GPUs for a segment": Case("segments", 0, busy=FULL, status="unplaceable"),
    "at most two a rack": Case(
        "spread-over-racks",
        4,
        lambda at: sorted(name[:2] for name in set(at.values())) == ["r1", "r1", "r2", "r2"],
    ),
    "one rack is not enough for four": Case(
        "spread-over-racks",
        0,
        busy={f"r1-{name}": 4 for name in ("a-1", "a-2", "b-1", "b-2")},
        status="unplaceable",
    ),
    "each role in a domain": Case(
        "prefill-and-decode",
        6,
        lambda at: len(domains(of(at, "prefill"))) == len(domains(of(at, "decode"))) == len(racks(at)) == 1,
    ),
    "each role where it has room": Case(
        "prefill-and-decode",
        6,
        lambda at: {*domains(of(at, "prefill")), *domains(of(at, "decode"))} == {"r1-b", "r2-a"},
        {"r1-a-1": 1, "r2-b-2": 2},
    ),
    "the narrowest scope first": Case("preferred-scopes", 4, lambda at: len(domains(at)) == 1),
    "then the next": Case(
        "preferred-scopes",
        4,
        lambda at: racks(at) == {"r2"} and len(domains(at)) == 2,
        {"r1-a-1": 4, "r1-a-2": 4, "r1-b-1": 2, "r2-a-1": 2, "r2-b-1": 2},
    ),
    "then any": Case(
        "preferred-scopes",
        4,
        lambda at: len(racks(at)) == 2,
        {**FULL, "r1-a-2": 2, "r1-b-2": 2, "r2-a-2": 2, "r2-b-2": 2},
    ),
    "all of an elastic gang": Case("elastic", 8),
    "as many of it as fit": Case("elastic", 6, busy={"r1-a-1": 1, "r2-b-2": 1}),
    "fewer than it needs": Case(
        "elastic", 0, busy={**FULL, "r1-a-2": 1}, status="unplaceable"
    ),
    "a ComputeDomain in one NVLink domain": Case(
        "compute-domain", 2, lambda at: len(domains(at)) == 1 and len(set(at.values())) == 2
    ),
    "a ComputeDomain in two": Case(
        "compute-domain", 2, lambda at: len(domains(at)) == 2,
        dict.fromkeys(("r1-a-1", "r1-b-1", "r2-a-1", "r2-b-1"), 3),
        says="no preferred scope holds the members",
    ),
    "a slip is said": Case("slip-in-a-key", 0, status="invalid", says="gpu.topology/gruop is"),
    "neighbours by rank": Case(
        "ranks", 4, lambda at: at["north"] == at["east"] != at["south"] == at["west"]
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_the_examples(name: str, tmp_path: Path) -> None:
    case = CASES[name]
    busy = [pod(f"busy-{at}", gpus=gpus, nodeName=at) for at, gpus in case.busy.items()]
    for manifest in busy:
        count = manifest["spec"]["containers"][0]["resources"]["limits"]["nvidia.com/gpu"]
        indices = f'{{"version":1,"gpus":{list(range(count))}}}'
        manifest["metadata"]["annotations"] = {"gpu.topology/allocation": indices}
    files = [
        CLUSTER,
        str(EXAMPLES / "features" / f"{case.example}.yaml"),
        *([write(tmp_path, *busy)] if busy else []),
    ]
    (gang_shown,) = decisions(*files)["gangs"]
    assert gang_shown["status"] == case.status, gang_shown["message"]
    at = {pod: spot.split(":")[0] for pod, spot in spots(gang_shown).items()}
    assert len(at) == case.placed
    assert case.holds(at), at
    assert case.says in gang_shown["message"]


def test_every_example_of_these_annotations_is_tried() -> None:
    tried = {case.example for case in CASES.values()}
    texts = {path.stem: path.read_text() for path in (EXAMPLES / "features").glob("*.yaml")}
    assert tried == {
        name for name, text in texts.items() if " gpu.topology/" in text and "Cluster:  two-racks" in text
    }


def with_topology(manifest: Object, **annotations: str) -> Object:
    """With our annotations: `min_member="2"` is gpu.topology/min-member."""
    keys = {f"gpu.topology/{key.replace('_', '-')}": text for key, text in annotations.items()}
    manifest["metadata"].setdefault("annotations", {}).update(keys)
    return manifest


def test_templates_carry_annotations_and_the_jobs_index_is_the_rank(tmp_path: Path) -> None:
    """Of elastic gangs the last ranks are left out; by name j-10 would come before j-2."""
    manifest = with_topology(template(), group="g", min_member="2")
    job = controller("Job", "batch/v1", "j", parallelism=12, completionMode="Indexed", template=manifest)
    (gang_shown,) = decisions(write(tmp_path, node("a", 8), node("b", 3), job))["gangs"]
    assert (gang_shown["dialect"], gang_shown["name"], gang_shown["needed"], gang_shown["present"]) == (
        "annotations",
        "g",
        2,
        12,
    )
    assert sorted(int(name.split("-")[1]) for name in spots(gang_shown)) == list(range(11))


TWO_ELASTIC: dict[str, tuple[dict[str, int], dict[str, int]]] = {
    "the minimums of both fit": ({"g": 4, "h": 4}, {"g": 2, "h": 2}),
    "there is room for more": ({"g": 3, "h": 2}, {"g": 2, "h": 2}),
    "the other can't have what it needs": ({"g": 4, "h": 1}, {"g": 4, "h": 0}),
}


@pytest.mark.parametrize("name", TWO_ELASTIC)
def test_of_two_elastic_gangs_the_first_leaves_what_the_other_needs(name: str, tmp_path: Path) -> None:
    """On four GPUs; each needs two members."""
    pods, placed_counts = TWO_ELASTIC[name]
    manifests = [
        with_topology(pod(f"{gang}-{i}"), group=gang, min_member="2")
        for gang, count in pods.items()
        for i in range(count)
    ]
    gangs = decisions(write(tmp_path, node("a"), *manifests))["gangs"]
    assert {gang["name"]: len(spots(gang)) for gang in gangs} == placed_counts


def test_what_a_gang_can_do_without_comes_after_what_the_others_need(tmp_path: Path) -> None:
    manifests = [
        with_topology(pod(f"{gang}-{i}"), group=gang, min_member="1") for gang in "gh" for i in range(3)
    ]
    gangs = decisions(write(tmp_path, node("a"), *manifests))["gangs"]
    assert {gang["name"]: len(spots(gang)) for gang in gangs} == {"g": 3, "h": 1}


OURS = {"group": "g", "min_member": "2"}
BESIDE: dict[str, tuple[Object, Object]] = {
    "required": (
        with_topology(pod("g-0", gpus=2, nodeName="a"), **OURS, scope="node"),
        with_topology(pod("g-1", gpus=2), **OURS, scope="node"),
    ),
    "elastic": (
        with_topology(pod("g-0", gpus=2, nodeName="a"), group="g", min_member="1"),
        with_topology(pod("g-1", gpus=2), group="g", min_member="1"),
    ),
    "of an older template": (
        with_topology(pod("g-0", gpus=2, nodeName="a"), group="g", min_member="4", max_per="node=1"),
        with_topology(pod("g-1", gpus=2), **OURS, scope="node"),
    ),
    "of ACK": (pod("g-0", "g", 2, gpus=2, nodeName="a"), pod("g-1", "g", 2, gpus=2)),
}


@pytest.mark.parametrize("name", BESIDE)
def test_a_replacement_goes_where_the_others_run(name: str, tmp_path: Path) -> None:
    """b's GPUs are as good, and its two would leave nothing broken behind."""
    ran, new = BESIDE[name]
    ran = with_topology(ran, allocation='{"version":1,"gpus":[0,1]}')
    (gang_shown,) = decisions(write(tmp_path, node("a", 8), node("b", 2), ran, new))["gangs"]
    assert spots(gang_shown)["g-1"].startswith("a:")


BAD: dict[str, tuple[list[Object], str]] = {
    "a value that is none": (
        [with_topology(pod("x"), scope="/")],
        f'pod/default/x: gpu.topology/scope is "/", expected {A_SCOPE}',
    ),
    "no count": (
        [with_topology(pod("x"), group="g"), with_topology(pod("y"), group="g")],
        'gang/default/g: min-member is "", expected how many',
    ),
    "two scopes": (
        [
            with_topology(pod(x), group="g", min_member="2", scope=s)
            for x, s in (("x", "rack"), ("y", "node"))
        ],
        'Pods of one gang disagree on scope: "node" (pod y), "rack" (pod x)',
    ),
    "two dialects": (
        [with_topology(pod(x, "g", 2), group="h") for x in ("x", "y")],
        "od x is the first) name two different gangs or counts: ack: gang g of 2 and annotations: gang h",
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_what_is_ill_formed_says_why(name: str, tmp_path: Path) -> None:
    objects, says = BAD[name]
    file = write(tmp_path, node("a"), *objects)
    (gang_shown,) = decisions(file)["gangs"]
    assert gang_shown["status"] == "invalid"
    assert says in gang_shown["message"]
    assert place(file).exit_code == 3
