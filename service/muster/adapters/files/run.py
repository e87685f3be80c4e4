"""Run `muster place` and `muster capture`, from their options to their exit codes."""

from __future__ import annotations

import asyncio
import os
import tempfile
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import BinaryIO, TextIO

from muster.adapters.files.decide import Cluster, Outcomes, Place, decide
from muster.adapters.files.reading import sources, templates
from muster.adapters.files.reading.capture import CapturedCluster, capture, text_of
from muster.adapters.files.reading.cluster import cluster_of
from muster.adapters.files.reading.notes import nothing_pending
from muster.adapters.files.reading.sources import BadInput
from muster.adapters.files.showing import report
from muster.adapters.files.victims import Clear
from muster.adapters.kube.client import KubeClient
from muster.dialects.settings import DialectSettings
from muster.domain.alternatives import AS_DECIDED, Alternatives, Question
from muster.domain.causes.not_planned import PlannerDefect
from muster.domain.clearing import Clearing, ClearQuestion, NoClearing
from muster.domain.decision import Decision, Placed, Unplaceable
from muster.domain.printable import printable
from muster.domain.request import Request
from muster.domain.snapshot import Snapshot
from muster.domain.words import list_names, plural
from muster.placement.limits import Limits, Timings

ALL_PLACED, NOT_ALL_PLACED, BAD_INPUT, NOTHING_PENDING, DEFECT = 0, 3, 2, 4, 5
NOTES_SHOWN = 20
MAX_GANGS_WITH_ALTERNATIVES = 16
"""Number of gangs of one input for which --explain computes alternatives. The first placed gangs are taken.
"""
ALTERNATIVES_TIME = 0.1
"""Deterministic time for each alternative."""
PIPED_WIDTH = 100
"""Number of columns of the output without a terminal, which is enough for the drawings."""


OpenQuestion = tuple[Snapshot, Question]
"""The cluster as a gang found it, and the gang with its places."""


def place_files(
    files: Sequence[str],
    output: str,
    *,
    time_limit_s: float | None,
    settings: DialectSettings,
    explain: bool = False,
    stdin: BinaryIO,
    stdout: TextIO,
    stderr: TextIO,
) -> int:
    """Decide, print the answer, and return the exit code.

    If the files cannot be used, only their problems are printed.
    """
    try:
        cluster = cluster_of(sources.read(files, stdin), settings)
    except BadInput as problem:
        stderr.writelines(f"{line}\n" for line in problem.lines)
        return BAD_INPUT
    questions: dict[str, OpenQuestion] = {}
    plan = planner(time_limit_s)
    defects = list[str]()
    decided = decide(
        cluster,
        _record_questions(plan, questions) if explain else plan,
        time.perf_counter,
        finder_of_victims(time_limit_s, defects),
    )
    notes = (*cluster.notes, *defects)
    if cluster.skipped:
        kinds = ", ".join(f"{kind} {count}{_right_group(kind)}" for kind, count in cluster.skipped.items())
        total = sum(cluster.skipped.values())
        notes += (f"skipped {total} {plural('object', total)} of kinds not read here: {kinds}",)
    if names := cluster.made_up_names:
        notes += (f"{list_names(names)}: the name is made up, since it has metadata.generateName",)
    if not decided.outcomes:
        notes = (nothing_pending(settings), *notes)
    alternatives = _alternatives(questions) if explain else None
    _print(decided, output, stdout, cluster, notes, alternatives)
    for note in notes[:NOTES_SHOWN]:
        stderr.write(f"note: {printable(note)}\n")
    if len(notes) > NOTES_SHOWN:
        stderr.write(f"note: and {len(notes) - NOTES_SHOWN} notes more; -o json has all\n")
    if not decided.outcomes:
        return NOTHING_PENDING
    if any(isinstance(cause, PlannerDefect) for outcome in decided.outcomes for cause in outcome.causes):
        return DEFECT
    return ALL_PLACED if decided.all_placed else NOT_ALL_PLACED


def planner(time_limit_s: float | None) -> Place:
    """Return `place` with a wall-clock guard for each gang, if a limit is given. A defect is a cause of its
    gang.

    The solver is imported here, because this takes 1.5 s, and neither bad input nor a capture must wait for
    it.
    """
    from muster.placement.place import PlacementDefect, place

    def plan(snapshot: Snapshot, request: Request, timings: Timings) -> Decision:
        try:
            return place(snapshot, request, replace(_limits(time_limit_s), timings=timings))
        except (PlacementDefect, LookupError) as defect:  # one gang's defect must not stop the others
            return Unplaceable(request.gang, (PlannerDefect(f"{type(defect).__name__}: {defect}"),))

    return plan


def _limits(time_limit_s: float | None) -> Limits:
    if time_limit_s is None:
        return Limits()
    until = time.monotonic() + time_limit_s
    return Limits(seconds_left=lambda: until - time.monotonic())


def finder_of_victims(time_limit_s: float | None, notes: list[str]) -> Clear:
    """Return `clear` with the same guard as `planner`. A defect becomes a note."""
    from muster.placement.clearing import clear
    from muster.placement.place import PlacementDefect

    def find(snapshot: Snapshot, question: ClearQuestion) -> Clearing | NoClearing | None:
        try:
            return clear(snapshot, question, _limits(time_limit_s))
        except PlacementDefect as defect:
            notes.append(f"{question.request.gang}: the search for victims has a defect: {defect}")
            return None

    return find


def _record_questions(plan: Place, questions: dict[str, OpenQuestion]) -> Place:
    """Return a planner that also records a question about each of the first gangs that are placed."""

    def plan_and_record(snapshot: Snapshot, request: Request, timings: Timings) -> Decision:
        decision = plan(snapshot, request, timings)
        key = request.gang.key
        if isinstance(decision, Placed) and (
            key in questions or len(questions) < MAX_GANGS_WITH_ALTERNATIVES
        ):
            questions[key] = (snapshot, Question(request, decision.members))
        return decision

    return plan_and_record


def _alternatives(questions: Mapping[str, OpenQuestion]) -> dict[str, Alternatives]:
    """Return where else these gangs could go. Results repeat exactly: no wall clock bounds them."""
    from muster.placement.alternatives import alternatives

    limits = Limits(ALTERNATIVES_TIME)
    return {
        key: replace(alternatives(snapshot, question, limits), note=AS_DECIDED)
        for key, (snapshot, question) in questions.items()
    }


def _print(
    decided: Outcomes,
    output: str,
    stdout: TextIO,
    cluster: Cluster,
    notes: tuple[str, ...],
    alternatives: Mapping[str, Alternatives] | None,
) -> None:
    if output == "json":
        by_kind = Counter[str]()
        for name, count in cluster.skipped.items():
            by_kind[name.partition(".")[0]] += count
        stdout.write(report.as_json(decided, by_kind, notes, alternatives))
    elif output == "svg":
        from muster.adapters.files.showing import svg

        stdout.write(svg.draw(decided))
    else:
        from rich.console import Console

        from muster.adapters.files.showing import pictures

        width = None if stdout.isatty() or "COLUMNS" in os.environ else PIPED_WIDTH
        pictures.show(Console(file=stdout, highlight=False, width=width), decided, cluster.made_up_names)


def capture_cluster(
    kubeconfig: Path | None, context: str | None, output: Path | None, stdout: TextIO
) -> CapturedCluster:
    """Read the cluster and write the file, completely or not at all.

    Raises:
        KubeError: The API server refuses or does not answer.
        Undecodable: Its answer is no list.
        OSError: The file cannot be written.
    """
    captured = read_cluster(kubeconfig, context)
    as_yaml = output is not None and output.suffix in (".yaml", ".yml")
    text = text_of(captured.items, as_yaml)
    if output is None or str(output) == "-":
        stdout.write(text)
    else:
        _write(output, text)
    return captured


def read_cluster(kubeconfig: Path | None, context: str | None) -> CapturedCluster:
    """Read the cluster. Raises the same exceptions as `capture_cluster`."""

    async def read() -> CapturedCluster:
        async with KubeClient(str(kubeconfig) if kubeconfig else None, context) as client:
            return await capture(client)

    return asyncio.run(read())


def _write(path: Path, text: str) -> None:
    """Write a temporary file in the same folder, which only its owner can read, and rename it."""
    if path.exists() and not path.is_file():  # /dev/stdout, a pipe
        path.write_text(text, encoding="utf-8")
        return
    handle, temporary_path = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
        Path(temporary_path).replace(path)
    except BaseException:
        Path(temporary_path).unlink(missing_ok=True)
        raise


def _right_group(skipped: str) -> str:
    """Return the API group in which a skipped kind is read, if its apiVersion names no group of its own."""
    kind, _, group = skipped.partition(".")
    groups = [right for right, read in templates.MAKERS if read == kind and right]
    return f" (read with apiVersion {groups[0]}/…)" if groups and group in ("", "extensions") else ""
