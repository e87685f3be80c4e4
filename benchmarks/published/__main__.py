"""python -m benchmarks.published FOLDER: place all published manifests, and write the list."""

from __future__ import annotations

import csv
import json
import re
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from textwrap import dedent
from typing import Annotated

from benchmarks.published.cluster import nodes
from benchmarks.published.judgement import Row, page, rules
from benchmarks.published.place import AS_IS, INFERRED, kinds, outcome, renamed
from muster.command_line import USAGE, Argument, Failed, run_command

HERE = Path(__file__).parent
COLUMNS = ("project", "file", "kinds", "pods", "outcome", "with --infer-gangs on", "causes", "said")


def main(
    folder: Annotated[Path, Argument(help="One folder for each project of sources.csv, by its name.")],
) -> int:
    """Place each manifest as it is and with --infer-gangs on, in a minute.

    It writes outcomes.csv and the tables of README.md next to it, and prints each refusal and note that no
    entry of causes.toml explains. The exit code is 1 if there is one.
    """
    rows = list(_rows(folder))
    with (HERE / "outcomes.csv").open("w", newline="", encoding="utf-8") as file:
        lines = csv.writer(file, lineterminator="\n")
        lines.writerow(COLUMNS)
        lines.writerows(row.cells() for row in rows)
    readme = HERE / "README.md"
    readme.write_text(page(readme.read_text(encoding="utf-8"), rows), encoding="utf-8")
    unjudged = [f"{row.project}/{row.file}: {sentence}" for row in rows for sentence in row.unjudged]
    print(*unjudged, f"{len(rows)} files, {len(unjudged)} sentences not judged", sep="\n")
    return 1 if unjudged else 0


def _rows(folder: Path) -> Iterator[Row]:
    all_rules = rules()
    with (
        tempfile.TemporaryDirectory() as work_folder,
        (HERE / "sources.csv").open(encoding="utf-8") as sources,
    ):
        cluster = Path(work_folder, "cluster.json")
        cluster.write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": nodes()}))
        for source in csv.DictReader(sources):
            project, top = source["project"], folder / source["project"]
            more = [
                renamed(file, Path(work_folder, project, "with"))
                for path in source["with"].split()
                for _, file in _manifests(top / path, Path(work_folder))
            ]
            for path in source["folders"].split():
                for place, file in _manifests(top / path, Path(work_folder, project, "blocks")):
                    if not (of_file := kinds(file)):
                        continue
                    changed = renamed(file, Path(work_folder, project))
                    siblings = [
                        sibling for sibling in more if "TrainJob" in of_file and sibling.name != file.name
                    ]
                    as_is, inferred = (
                        outcome([cluster, *siblings, changed], mode) for mode in (AS_IS, INFERRED)
                    )
                    yield Row.of(project, f"{path}/{place}", of_file, as_is, inferred, all_rules)


def _manifests(path: Path, into: Path) -> Iterator[tuple[str, Path]]:
    """Yield each manifest below a folder with its path there. Blocks of YAML in Markdown go to `into`."""
    if not path.exists():
        raise Failed(f"{path} is missing: see README.md", USAGE)
    if path.is_file():
        yield "", path
    for file in sorted(file for file in path.rglob("*.*") if not file.is_symlink()):
        place = str(file.relative_to(path))
        if file.suffix in (".yaml", ".yml") and not file.name.startswith("kustomiz"):
            yield place, file
        elif file.suffix == ".md":
            into.mkdir(parents=True, exist_ok=True)
            for number, (_, block) in enumerate(_BLOCK.findall(file.read_text(encoding="utf-8")), start=1):
                if "kind:" in block and "containers:" in block:
                    written = into / f"{file.stem}-{number}.yaml"
                    written.write_text(dedent(block))
                    yield f"{place}, block {number}", written


_BLOCK = re.compile(r"^([ \t]*)```ya?ml[^\n]*\n(.*?)^[ \t]*```", re.MULTILINE | re.DOTALL)


if __name__ == "__main__":
    sys.exit(run_command(main, "python -m benchmarks.published"))
