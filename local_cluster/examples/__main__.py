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

    def __init__(
        self, directory: Path, examples: Mapping[str, Example], show: Show, console: Console
    ) -> None:
        self._known, self._show, self._interrupts = examples, show, Interrupts()
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
            sight = Seen(observer, groups, frozenset(_names(api, example.namespace)))
            apply(cluster, before)
            apply(cluster, example.objects)
            try:
                observer.wait_for(str(example.outcome), lambda: sight.ended(example.outcome) or None)
            except NotSeen as problem:
                self._show.note(str(problem))
            self._tell(api, observer, sight, example)
            holds = sight.ended(example.outcome)
            screen.verdict(self._show, example.outcome, sight.outcome, holds)
            if not last:
                remove(api, [*before, *example.objects])
                observer.wait_for("all its pods are gone", lambda: not sight.pods)
        return holds

    def _tell(self, api: StreamingApi, observer: Observer, sight: Seen, example: Example) -> None:
        screen.applied(self._show, example.objects)
        if sight.pods:
            screen.pods_table(self._show, sight.pods)
        screen.nodes(self._show, api, observer.pods(), example.objects)
        if sight.pods:
            screen.written(self._show, [seat for pod in sight.pods if (seat := held(pod))])
            screen.why(self._show, sight.pods)
        screen.events(self._show, sight.events)
        for path in sight.groups:
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
        return [event for event in self.observer.events() if event["metadata"]["name"] not in self.earlier]

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
    parsed = parser.parse_args(arguments)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(encoding="utf-8")
    console = Console(width=WIDTH, highlight=False)
    show = Show(console)
    try:
        by_name = catalogue()
        selected = list(by_name.values()) if parsed.all else [find(name, by_name) for name in parsed.names]
    except ExampleError as problem:
        print(f"error: {problem}", file=sys.stderr)
        return BAD_NAME
    if not selected:
        screen.listing(show, by_name.values())
        return 0
    statuses = [_on_files(show, example) for example in selected if example.on_files]
    selected = [example for example in selected if not example.on_files]
    for cluster in dict.fromkeys(example.cluster for example in selected):
        examples = [example for example in selected if example.cluster == cluster]

        def work(directory: Path, examples: list[Example] = examples) -> bool:
            return Tryout(directory, by_name, show, console).run(examples, keep=parsed.keep)

        statuses.append(run(work, parsed.dir and parsed.dir / cluster.stem))
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
