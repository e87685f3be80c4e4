"""Place one published file as a new user would: only the scheduler's name is changed."""

from __future__ import annotations

import io
import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from muster.adapters.files.reading.sources import BadInput, Document, read
from muster.adapters.files.run import place_files
from muster.dialects.kinds.table import modes_of
from muster.dialects.settings import DialectSettings

AS_IS = DialectSettings()
INFERRED = DialectSettings(infer_gangs=modes_of(["on"]))

WITHOUT_CONTAINERS = ("TrainJob", "RayJob", "PodGroup")
"""Kinds that say something of pods whose containers are in another object."""


@dataclass(frozen=True)
class Outcome:
    """What `muster place` says of a file. `status` counts gangs, as in "placed 2, waiting 1"."""

    status: str
    pods: int
    refusals: tuple[str, ...] = ()
    placements: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def said(self) -> tuple[str, ...]:
        """What needs a judgement: why gangs are not placed, and what is noted."""
        return (*self.refusals, *self.notes)


def kinds(path: Path) -> tuple[str, ...]:
    """Return the kinds of a file's objects if it has pods, and nothing otherwise.

    Of a file that can't be read, such as a template, return "unreadable" if it has containers.
    """
    try:
        documents = _documents(path)
    except BadInput:
        return ("unreadable",) if "containers:" in path.read_text() else ()
    manifests = [document for document in documents if document.kind != "CustomResourceDefinition"]
    if not any(_has_pods(document.value) for document in manifests):
        return ()
    return tuple(dict.fromkeys(document.kind for document in documents))


def renamed(path: Path, into: Path) -> Path:
    """Write the file with our scheduler's name in each pod template. An unreadable one stays as it is."""
    try:
        documents = _documents(path)
    except BadInput:
        return path
    for document in documents:
        _rename(document.value)
    into.mkdir(parents=True, exist_ok=True)
    changed = into / path.name
    changed.write_text("\n".join(json.dumps(document.value) for document in documents))
    return changed


def outcome(files: Sequence[Path], settings: DialectSettings) -> Outcome:
    """Run `muster place -o json` on the files, and keep what it says."""
    stdout, stderr = io.StringIO(), io.StringIO()
    place_files(
        [str(file) for file in files],
        "json",
        time_limit_s=None,
        settings=settings,
        stdin=io.BytesIO(),
        stdout=stdout,
        stderr=stderr,
    )
    if not stdout.getvalue():
        problems = (line.partition(": ")[2] for line in stderr.getvalue().splitlines())
        return Outcome("bad input", 0, tuple(problems))
    answer = json.loads(stdout.getvalue())
    gangs = answer["gangs"]
    counts = Counter(gang["status"] for gang in gangs)
    notes = (note for note in answer["notes"] if not note.startswith("nothing to place"))
    return Outcome(
        ", ".join(f"{name} {count}" for name, count in sorted(counts.items())) or "nothing to place",
        sum(len(gang["members"]) for gang in gangs),
        tuple(dict.fromkeys(gang["message"] for gang in gangs if gang["status"] != "placed")),
        tuple(dict.fromkeys(gang["message"] for gang in gangs if gang["status"] == "placed")),
        tuple(notes),
    )


def _documents(path: Path) -> list[Document]:
    return [document for document in read([str(path)], io.BytesIO()) if isinstance(document, Document)]


def _has_pods(value: Any) -> bool:
    if isinstance(value, dict):
        if isinstance(value.get("containers"), list) or value.get("kind") in WITHOUT_CONTAINERS:
            return True
        return any(_has_pods(inner) for inner in value.values())
    return isinstance(value, list) and any(_has_pods(inner) for inner in value)


def _rename(value: Any) -> None:
    """A dictionary that has containers is the specification of a pod."""
    if isinstance(value, dict):
        if isinstance(value.get("containers"), list):
            value["schedulerName"] = "muster"
        for inner in value.values():
            _rename(inner)
    elif isinstance(value, list):
        for inner in value:
            _rename(inner)
