"""How the demo looks, without a cluster: golden pages, and first-fit's choices."""

from __future__ import annotations

import io

from rich.console import Console
from syrupy.assertion import SnapshotAssertion

from local_cluster.demo import manifests
from local_cluster.demo.claims import check
from local_cluster.demo.facts import Seat, free_gpus, mismatched, seats_of
from local_cluster.demo.firstfit import first_fit
from local_cluster.demo.show import WIDTH, Show
from tests.demo.samples import MATRICES, NODES, good_facts


def page(quiet: bool = False) -> str:
    facts, out = good_facts(), io.StringIO()
    show = Show(Console(file=out, width=WIDTH, no_color=True, highlight=False), quiet=quiet)
    show.scene("A title", "examples/some.yaml", "What it is about, in a sentence or two. " * 3)
    for gang in facts.placed.values():
        show.holders([("A", seat) for seat in gang.muster.seats])
        show.compare(gang)
    assert facts.held
    assert facts.pending
    show.held(facts.held)
    show.pending(facts.pending)
    show.claims(check(facts, MATRICES))
    show.verdict(check(facts, MATRICES), 23.4)
    return out.getvalue()


def test_page(snapshot: SnapshotAssertion) -> None:
    assert page() == snapshot
    assert max(len(line) for line in page().splitlines()) <= WIDTH


def test_quiet_says_nothing() -> None:
    assert page(quiet=True) == ""


def test_first_fit_takes_the_lowest_free_gpus() -> None:
    pods = manifests.load("ack/pytorchjob-pods.yaml")
    assert [(seat.node, seat.gpus) for seat in first_fit(NODES, [], pods)] == [
        ("v100-1", (0,)),
        ("v100-1", (1,)),
    ]


def test_first_fit_places_of_a_gang_what_fits() -> None:
    seats = first_fit(NODES, [], manifests.load("demo/gang-that-does-not-fit.yaml") * 3)
    assert len(seats) == 24
    assert {seat.node for seat in seats} == {"v100-1", "v100-2", "v100-3"}


def test_free_gpus_are_those_that_no_bound_pod_holds() -> None:
    def pod(name: str, node: str, gpus: str, phase: str = "Running") -> dict[str, object]:
        annotations = {"gpu.topology/allocation": f'{{"version":1,"gpus":{gpus}}}'}
        return {
            "metadata": {"name": name, "annotations": annotations},
            "spec": {"nodeName": node},
            "status": {"phase": phase},
        }

    pods = [pod("b", "v100-1", "[0,3]"), pod("a", "v100-1", "[6]"), pod("c", "v100-1", "[1]", "Succeeded")]
    assert seats_of(pods) == (Seat("a", "v100-1", (6,)), Seat("b", "v100-1", (0, 3)))
    free = free_gpus(NODES, seats_of(pods))
    assert free["v100-1"] == (1, 2, 4, 5, 7)
    assert free["h100-1"] == tuple(range(8))


def test_pods_without_the_gpus_they_asked_for_are_seen() -> None:
    def pod(name: str, gpus: str, group: str, node: str = "v100-1") -> dict[str, object]:
        annotations = {"gpu.topology/allocation": f'{{"gpus":{gpus}}}', "ALIYUN_COM_GPU_GROUP": group}
        container = {"resources": {"limits": {"aliyun.com/gpu": "2"}}}
        return {
            "metadata": {"name": name, "annotations": annotations},
            "spec": {"nodeName": node, "containers": [container]},
        }

    pods = [
        pod("right", "[0,3]", "0,3"),
        pod("short", "[1]", "1"),
        pod("torn", "[4,5]", "4,6"),
        pod("waits", "[]", "", node=""),
    ]
    assert mismatched(pods) == ("short", "torn")
