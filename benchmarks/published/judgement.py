"""Join outcomes with what people judged of them, and make the tables of the page."""

from __future__ import annotations

import re
import tomllib
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path

from benchmarks.published.place import Outcome

CAUSES = Path(__file__).parent / "causes.toml"
MARK = "<!-- made by python -m benchmarks.published -->\n"
MAX_SENTENCE = 200
"""The most characters of a sentence in the list."""


@dataclass(frozen=True)
class Rule:
    """One cause: the sentences that have it, or the files in which something is missing, and our verdict."""

    name: str
    verdict: str
    why: str
    says: str = ""
    files: tuple[str, ...] = ()

    def explains(self, sentence: str, path: str) -> bool:
        """Return whether a refusal or a note of this file has this cause."""
        is_of_file = not self.files or self.names(path)
        return bool(self.says) and is_of_file and re.search(self.says, sentence) is not None

    def names(self, path: str) -> bool:
        """Return whether the file is one of those named."""
        return any(fnmatch(path, pattern) for pattern in self.files)


def rules() -> list[Rule]:
    """Read the judged causes."""
    rules_by_name = tomllib.loads(CAUSES.read_text(encoding="utf-8"))
    return [
        Rule(name, **{**fields, "files": tuple(fields.get("files", ()))})
        for name, fields in rules_by_name.items()
    ]


@dataclass(frozen=True)
class Row:
    """A published file, what `muster place` says of it, and why."""

    project: str
    file: str
    kinds: tuple[str, ...]
    as_is: Outcome
    inferred: Outcome
    causes: tuple[Rule, ...]
    unjudged: tuple[str, ...]

    @classmethod
    def of(
        cls,
        project: str,
        file: str,
        kinds: tuple[str, ...],
        as_is: Outcome,
        inferred: Outcome,
        all_rules: Sequence[Rule],
    ) -> Row:
        """Make the row, with the causes that explain it."""
        sentences = list(dict.fromkeys((*as_is.said, *inferred.said)))
        path = f"{project}/{file}"
        first = [
            next((rule for rule in all_rules if rule.explains(sentence, path)), None)
            for sentence in sentences
        ]
        causes = [rule for rule in all_rules if rule in first or (not rule.says and rule.names(path))]
        unjudged = [sentence for sentence, rule in zip(sentences, first, strict=True) if rule is None]
        return cls(project, file, kinds, as_is, inferred, tuple(causes), tuple(unjudged))

    def cells(self) -> tuple[str, ...]:
        """Return the row's cells. The sentence is the first refusal, else a note, else a placement."""
        plain, by_inference = self.as_is, self.inferred
        sentences = (
            *plain.refusals,
            *by_inference.refusals,
            *plain.notes,
            *by_inference.notes,
            *plain.placements,
        )
        changed = by_inference.status if by_inference.status != plain.status else ""
        causes = "; ".join(rule.name for rule in self.causes)
        kinds, first_sentence = " ".join(self.kinds), next(iter(sentences), "")[:MAX_SENTENCE]
        return (
            self.project,
            self.file,
            kinds,
            str(plain.pods),
            plain.status,
            changed,
            causes,
            first_sentence,
        )

    @property
    def outcome(self) -> str:
        """One word: the worst status of the file's gangs, as it is or inferred."""
        statuses = f"{self.as_is.status} {self.inferred.status}"
        return next(word for word in _WORDS if word in statuses)


_WORDS = ("bad input", "invalid", "unplaceable", "waiting", "placed", "nothing to place")


def page(text: str, rows: Sequence[Row]) -> str:
    """Return the page with new tables below the mark."""
    return text.partition(MARK)[0] + MARK + "\n".join([*_by_project(rows), "", *_by_cause(rows), ""])


def _by_project(rows: Sequence[Row]) -> list[str]:
    lines = [f"| project | files | {' | '.join(_WORDS)} |", f"| --- | --- |{' --- |' * len(_WORDS)}"]
    counts = Counter((row.project, row.outcome) for row in rows)
    projects = dict.fromkeys(row.project for row in rows)
    for project in projects:
        numbers = [counts[project, word] for word in _WORDS]
        lines.append(f"| {project} | {sum(numbers)} | {' | '.join(str(n or '') for n in numbers)} |")
    totals = [sum(counts[project, word] for project in projects) for word in _WORDS]
    return [*lines, f"| all | {len(rows)} | {' | '.join(map(str, totals))} |"]


def _by_cause(rows: Sequence[Row]) -> list[str]:
    lines = ["| cause | files | verdict | why |", "| --- | --- | --- | --- |"]
    counts = Counter(rule for row in rows for rule in row.causes)
    for rule, count in counts.most_common():
        lines.append(f"| {rule.name} | {count} | {rule.verdict} | {rule.why} |")
    return lines
