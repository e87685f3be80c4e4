"""`python -m local_cluster.examples NAME…`: apply examples on a local cluster and show what comes of each.

Exit status: 0 when each ends as its first lines say, 1 when one does not or something failed, 2 for a name
that is none, 130 when Ctrl-C cut it short.
"""

from __future__ import annotations

import argparse
import io
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from local_cluster.api import Object
from local_cluster.demo.interrupts import Interrupts
from local_cluster.demo.observer import NotSeen, Observer, StreamingApi
from local_cluster.demo.sandbox import INTERRUPTED, Sandbox, run
from local_cluster.demo.show import WIDTH, Show
from local_cluster.examples import screen
from local_cluster.examples.catalogue import Example, ExampleError, Outcome, catalogue, find, objects_in
from local_cluster.examples.objects import apply, collection, remove
from local_cluster.examples.seen import counted, held, ours, outcome, told
from local_cluster.nodes import apply_nodes

BAD_NAME = 2


class Tryout:
    """Examples on one cluster, one after the other; each is removed before the next."""

    def __init__(self, directory: Path, known: Mapping[str, Example], show: Show, console: Console) -> None:
        self._known, self._show, self._interrupts = known, show, Interrupts()
        self._sandbox = Sandbox(directory, console, show, self._interrupts)

    def run(self, examples: Sequence[Example], *, keep: bool) -> bool:
        """Whether each ends as it should. All are for one cluster file; the last stays with `keep`."""
        cluster = objects_in(examples[0].cluster)
        try:
            self._sandbox.boot(f"nodes of {examples[0].cluster.name} Ready", lambda: self._create(cluster))
            with self._sandbox.api() as api:
                hold = [self._one(api, example, last=example is examples[-1]) for example in examples]
            if keep:
                namespace = examples[-1].namespace
                self._sandbox.keep(
                    f"kubectl -n {namespace} get pods,podgroups -o wide",
                    f"kubectl -n {namespace} get events | grep -i topology",
                )
        finally:
            self._sandbox.stop()
        return all(hold)

    def _create(self, objects: Sequence[Object]) -> None:
        """The nodes first: pods that run on them come with the cluster."""
        nodes = [body for body in objects if body["kind"] == "Node"]
        apply_nodes(self._sandbox.cluster.api, nodes)
        apply(self._sandbox.cluster, (body for body in objects if body["kind"] != "Node"))

    def _one(self, api: StreamingApi, example: Example, *, last: bool) -> bool:
        self._interrupts.check()
        screen.opening(self._show, example)
        before = [body for name in example.before for body in self._known[name].objects]
        cluster = self._sandbox.cluster
        cluster.create_namespace(example.namespace)
        groups = sorted({collection(body) for body in example.objects if body["kind"] == "PodGroup"})
        with Observer(api, example.namespace, groups) as observer:
            seen = Seen(observer, groups, frozenset(_names(api, example.namespace)))
            apply(cluster, before)
            apply(cluster, example.objects)
            try:
                observer.wait_for(str(example.outcome), lambda: seen.ended(example.outcome) or None)
            except NotSeen as problem:
                self._show.note(str(problem))
            self._tell(api, observer, seen, example)
            holds = seen.ended(example.outcome)
            screen.verdict(self._show, example.outcome, seen.outcome, holds)
            if not last:
                remove(api, [*before, *example.objects])
                observer.wait_for("all its pods are gone", lambda: not seen.pods)
        return holds

    def _tell(self, api: StreamingApi, observer: Observer, seen: Seen, example: Example) -> None:
        screen.applied(self._show, example.objects)
        if seen.pods:
            screen.pods_table(self._show, seen.pods)
        screen.nodes(self._show, api, observer.pods(), example.objects)
        if seen.pods:
            screen.written(self._show, [seat for pod in seen.pods if (seat := held(pod))])
            screen.why(self._show, seen.pods)
        screen.events(self._show, seen.events)
        for path in seen.groups:
            screen.podgroups(self._show, api.table(path))


def _names(api: StreamingApi, namespace: str) -> Iterator[str]:
    """Of the events that are there already."""
    for event in api.get(f"/api/v1/namespaces/{namespace}/events")["items"]:
        yield str(event["metadata"]["name"])


@dataclass(frozen=True, slots=True)
class Seen:
    """The example's pods and their events, as they are now; not those of examples before it."""

    observer: Observer
    groups: Sequence[str]
    earlier: Set[str]

    @property
    def pods(self) -> list[Object]:
        """Return the pods that Muster schedules."""
        return ours(self.observer.pods())

    @property
    def events(self) -> list[Object]:
        """Return the events since the example began."""
        return [each for each in self.observer.events() if each["metadata"]["name"] not in self.earlier]

    @property
    def outcome(self) -> Outcome:
        """Return what became of the example so far."""
        return outcome(self.pods, self.events)

    def ended(self, expected: Outcome) -> bool:
        """Whether it came to this, and all has been said of it."""
        groups = [group for path in self.groups for group in self.observer.objects(path)]
        return self.outcome == expected and told(self.pods, self.events) and counted(groups, expected)


def main(arguments: list[str] | None = None) -> int:
    """Play the named examples and return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m local_cluster.examples", description=__doc__)
    parser.add_argument(
        "names", nargs="*", metavar="NAME", help="ack/pytorchjob-pods, one-rack; none lists all"
    )
    parser.add_argument("--all", action="store_true", help="every example, one after the other")
    parser.add_argument("--keep", action="store_true", help="leave the last one running until Ctrl-C")
    parser.add_argument("--dir", type=Path, help="keep cluster and logs in this folder")
    given = parser.parse_args(arguments)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(encoding="utf-8")
    console = Console(width=WIDTH, highlight=False)
    show = Show(console)
    try:
        known = catalogue()
        chosen = list(known.values()) if given.all else [find(name, known) for name in given.names]
    except ExampleError as problem:
        print(f"error: {problem}", file=sys.stderr)
        return BAD_NAME
    if not chosen:
        screen.listing(show, known.values())
        return 0
    statuses = [_on_files(show, example) for example in chosen if example.on_files]
    chosen = [example for example in chosen if not example.on_files]
    for cluster in dict.fromkeys(example.cluster for example in chosen):
        examples = [example for example in chosen if example.cluster == cluster]

        def work(directory: Path, examples: list[Example] = examples) -> bool:
            return Tryout(directory, known, show, console).run(examples, keep=given.keep)

        statuses.append(run(work, given.dir and given.dir / cluster.stem))
        if statuses[-1] == INTERRUPTED:
            break
    return max(statuses)


def _on_files(show: Show, example: Example) -> int:
    """`muster place`, for an example of an API that the local cluster does not have."""
    screen.opening(show, example)
    show.note("The local cluster does not have this API: `muster place` decides on the files.")
    program = Path(sys.executable).with_name("muster")
    command = [str(program), "place", "-f", str(example.cluster), "-f", str(example.path)]
    return min(1, subprocess.run(command, check=False).returncode)


if __name__ == "__main__":
    sys.exit(main())
