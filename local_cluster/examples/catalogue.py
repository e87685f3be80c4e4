"""The files of examples/ that can be applied, as their first lines describe them.

# Document: where it comes from
# Shows:    what it shows, in a sentence or two;
#           lines of one field go on so
# Cluster:  documents                      the nodes that it is for, clusters/<this>.yaml
# With:     kai-recipe/tas-config          another example that is applied before it
# Outcome:  2 of 3 run                     pods that run, of those that there are; or: no pods
# Outcome:  0 of 2 run, TopologyWaiting    and the event on those that do not
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from local_cluster.api import Object
from local_cluster.places import SOURCE

EXAMPLES = SOURCE.parent / "examples"
ABSENT = frozenset({"kubeflow.org", "resource.nvidia.com", "scheduling.x-k8s.io"})
"""Groups of APIs that the local cluster has no CRDs for, nor controllers that would make pods of them."""

_FIELD = re.compile(r"# ([A-Z][a-z]+): +(.*)")
_MORE = re.compile(r"# {11}(.*)")
_OUTCOME = re.compile(r"(\d+) of (\d+) run(?:, (Topology[A-Z][a-z]+))?")
_NEEDED = ("Document", "Shows", "Cluster", "Outcome")


class ExampleError(ValueError):
    """No such example, or one whose first lines can't be read. The text says what would do."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """`running` of `pods` pods run in the end; the others carry an event `reason`."""

    running: int
    pods: int
    reason: str = ""

    def __str__(self) -> str:
        if self.pods == 0:
            return "no pods"
        return f"{self.running} of {self.pods} run" + (f", {self.reason}" if self.reason else "")


@dataclass(frozen=True, slots=True)
class Example:
    """`name` is the path without its end: ack/pytorchjob. `before` names examples that are applied first."""

    name: str
    path: Path
    document: str
    shows: str
    cluster: Path
    before: tuple[str, ...]
    outcome: Outcome

    @property
    def objects(self) -> list[Object]:
        """Return the objects in the example's file."""
        return objects_in(self.path)

    @property
    def on_files(self) -> bool:
        """Whether it is of an API that the local cluster does not have: `muster place` decides on it."""
        return any(body["apiVersion"].split("/")[0] in ABSENT for body in self.objects)

    @property
    def namespace(self) -> str:
        """Where its pods are: that of its last object."""
        return str(self.objects[-1]["metadata"].get("namespace", "default"))


def objects_in(path: Path) -> list[Object]:
    """All objects of a file, those of a List one by one."""
    documents: list[Any] = [document for document in yaml.safe_load_all(path.read_text()) if document]
    return [item for document in documents for item in document.get("items", [document])]


def catalogue(folder: Path = EXAMPLES) -> dict[str, Example]:
    """Name → example, by folder and name. Files without a field `Cluster` are parts of something else."""
    examples = (read(path, folder) for path in sorted(folder.glob("*/*.yaml")))
    return {example.name: example for example in examples if example is not None}


def read(path: Path, folder: Path = EXAMPLES) -> Example | None:
    """Read one file; return None if it has no cluster of its own.

    Raises:
        ExampleError: a field is missing, or can't be read.
    """
    fields = dict(_fields(path.read_text()))
    if "Cluster" not in fields:
        return None
    for field in _NEEDED:
        if field not in fields:
            raise ExampleError(f"{path}: its first lines have no field {field!r}")
    cluster = folder / "clusters" / f"{fields['Cluster']}.yaml"
    if not cluster.is_file():
        raise ExampleError(f"{path}: Cluster: there is no file {cluster}")
    return Example(
        name=str(path.relative_to(folder).with_suffix("")),
        path=path,
        document=fields["Document"],
        shows=fields["Shows"],
        cluster=cluster,
        before=tuple(fields.get("With", "").split()),
        outcome=_outcome(path, fields["Outcome"]),
    )


def find(word: str, examples: Mapping[str, Example]) -> Example:
    """The example of that name, or of that file name where only one folder has it.

    Raises:
        ExampleError: none, or several; the text names those that come near.
    """
    name = word.removeprefix("examples/").removesuffix(".yaml")
    matching = [example for example in examples.values() if name in (example.name, example.path.stem)]
    if len(matching) == 1:
        return matching[0]
    near = [example.name for example in matching] or difflib.get_close_matches(
        name, examples, n=3, cutoff=0.4
    )
    hint = f"did you mean {', '.join(near)}?" if near else "`make example` lists all"
    raise ExampleError(f"no example {word!r}: {hint}")


def _fields(text: str) -> Iterator[tuple[str, str]]:
    """The fields of the comment at the top, up to its first blank line."""
    name, parts = "", list[str]()
    for line in text.splitlines():
        if field := _FIELD.fullmatch(line):
            yield name, " ".join(parts)
            name, parts = field[1], [field[2]]
        elif more := _MORE.fullmatch(line):
            parts.append(more[1])
        else:
            break
    yield name, " ".join(parts)


def _outcome(path: Path, text: str) -> Outcome:
    if text == "no pods":
        return Outcome(0, 0)
    match = _OUTCOME.fullmatch(text)
    if match is None or bool(match[3]) != (int(match[1]) < int(match[2])):
        raise ExampleError(
            f"{path}: Outcome: {text!r}: write '2 of 2 run', '0 of 2 run, TopologyWaiting' or 'no pods'"
        )
    return Outcome(int(match[1]), int(match[2]), match[3] or "")
