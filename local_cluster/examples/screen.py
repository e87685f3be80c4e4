"""How an example and its outcome look."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Sequence

from rich.text import Text

from local_cluster.api import Api, Object
from local_cluster.demo.firstfit import read_node, read_pod
from local_cluster.demo.show import Show
from local_cluster.examples.catalogue import Example, Outcome
from local_cluster.examples.seen import Held, condition, held, ours, said
from muster.adapters.drawing import Mark, NodePicture

MANY = 12
"""Pods that are listed one by one; of more, the first of them."""
OURS, OTHERS = "A", "x"


def listing(show: Show, examples: Iterable[Example]) -> None:
    """All examples, by folder, with what each shows."""
    for example in examples:
        show.say(example.name, "bold")
        show.say(textwrap.indent(textwrap.fill(example.shows, 92), "    "))
    show.say("\nmake example NAME=<one of these>   applies it on a local cluster and shows what comes of it")


def opening(show: Show, example: Example) -> None:
    """Print the example's heading and what it shows."""
    show.scene(
        example.name, f"examples/{example.name}.yaml, on clusters/{example.cluster.name}", example.shows
    )


def applied(show: Show, objects: Iterable[Object]) -> None:
    """Print which objects were applied."""
    show.note("applied: " + ", ".join(f"{body['kind']} {body['metadata']['name']}" for body in objects))


def pods_table(show: Show, pods: Sequence[Object]) -> None:
    """Pod by pod: where it is and what it has, as its annotations say."""
    rows = [("POD", "PHASE", "NODE", "GPUS")]
    for pod in pods[:MANY]:
        seat = held(pod)
        phase = str(pod.get("status", {}).get("phase", ""))
        name = str(pod["metadata"]["name"])
        rows.append((name, phase, seat.node, seat.phrase) if seat else (name, phase, "–", "–"))
    if len(pods) > MANY:
        rows.append((f"and {len(pods) - MANY} more", "", "", ""))
    show.gap()
    show.rows(rows)


def written(show: Show, seats: Sequence[Held]) -> None:
    """What the first pod's Binding carries for the device plugin."""
    for seat in seats[:1]:
        if seat.written:
            show.gap()
            show.rows([(f"annotations of {seat.pod}", ""), *seat.written.items()])


def nodes(show: Show, api: Api, pods: Sequence[Object], applied: Iterable[Object]) -> None:
    """One line for each node that has pods of the example, or is applied by it: its GPUs, or their memory."""
    touched = {pod["spec"]["nodeName"] for pod in ours(pods) if pod["spec"].get("nodeName")}
    touched |= {body["metadata"]["name"] for body in applied if body["kind"] == "Node"}
    read = [read_node(node) for node in api.get("/api/v1/nodes")["items"]]
    read = [node for node in read if node.name in touched]
    pictures = [
        NodePicture(node.name, node.topology, _marks(pods, node.name), machine=node.machine)
        for node in read
        if node.topology.gpu_count and not node.gpu_memory
    ]
    if pictures:
        show.gap()
        show.strips(pictures)
        show.note(f"{OURS}: a GPU of these pods   {OTHERS}: of others   ·: free")
    shared = [(node.name, _memory(node.gpu_memory, pods, node.name)) for node in read if node.gpu_memory]
    if shared:
        show.gap()
        show.rows([("NODE", "GiB TAKEN OF EACH GPU"), *shared])


def _marks(pods: Iterable[Object], node: str) -> dict[int, Mark]:
    marks: dict[int, Mark] = {}
    for pod in pods:
        seat = held(pod)
        if seat is not None and seat.node == node:
            is_ours = bool(ours([pod]))
            marks |= dict.fromkeys(seat.gpus, Mark(OURS if is_ours else OTHERS, is_ours))
    return marks


def _memory(total: Sequence[int], pods: Iterable[Object], node: str) -> str:
    """`15/16  0/16`: what is taken of each GPU; one that is taken whole counts with all its memory."""
    units_taken = [0] * len(total)
    for pod in pods:
        usage = read_pod(pod).usage
        if usage is None or usage.node != node:
            continue
        for gpu, whole in enumerate(total):
            if usage.gpus is not None and usage.gpus >> gpu & 1:
                units_taken[gpu] += usage.units or whole
    return "  ".join(f"{gpu_units}/{whole}" for gpu_units, whole in zip(units_taken, total, strict=True))


def events(show: Show, event_objects: Iterable[Object]) -> None:
    """What `kubectl get events | grep -i topology` tells; equal ones on several pods once."""
    lines = said(event_objects)
    if lines:
        show.gap()
    for line in lines:
        about = line.about[0] if len(line.about) == 1 else f"{line.about[0]} and {len(line.about) - 1} more"
        show.rows([(Text(line.reason, "yellow"), Text(f"{about}: {line.message}"))])


def why(show: Show, pods: Iterable[Object]) -> None:
    """The condition of the first pod that waits."""
    texts = [(str(pod["metadata"]["name"]), text) for pod in pods if (text := condition(pod))]
    for name, text in texts[:1]:
        show.gap()
        show.rows([(f"condition of {name}", Text(text, "yellow"))])


def podgroups(show: Show, table: Object) -> None:
    """What `kubectl get podgroups` prints."""
    names = [column["name"].upper() for column in table["columnDefinitions"] if not column.get("priority")]
    rows: list[Sequence[str]] = [names]
    for row in table["rows"]:
        cells = [
            str(cell) if cell is not None else "–"
            for cell, column in zip(row["cells"], table["columnDefinitions"], strict=True)
            if not column.get("priority")
        ]
        rows.append(cells)
    show.gap()
    show.rows(rows)


def verdict(show: Show, expected: Outcome, actual: Outcome, holds: bool) -> None:
    """Print whether the outcome is the expected one."""
    if holds:
        show.say(f"\n  ✓ as expected: {expected}", "bold green")
    else:
        show.say(f"\n  ✗ expected: {expected}; seen: {actual}", "bold red")
