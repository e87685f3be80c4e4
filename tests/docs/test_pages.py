"""Pages for people: their links, the paths that they name, and the tutorial's manifest."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.files.manifests import REPOSITORY, decisions, node, write

PAGES = sorted(
    page
    for folder in (".", "docs", "docs/decisions", "examples", "local_cluster", "kind-cluster", "e2e", "shim")
    for page in (REPOSITORY / folder).glob("*.md")
)
LINK = re.compile(r"\]\((?!https?:)([^)\s#]*)(?:#([^)\s]*))?\)")
HEADING = re.compile(r"(?m)^#+ (.*)$")
MANIFEST = re.compile(r"(?ms)^```yaml\n(.*?)^```")
TUTORIAL = REPOSITORY / "docs/tutorial.md"


def anchors(page: Path) -> set[str]:
    """The anchors that GitHub gives to the headings of a page."""
    text = re.sub(r"(?ms)^```.*?^```", "", page.read_text())
    plain = (re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).lower() for heading in HEADING.findall(text))
    return {re.sub(r"[^\w\- ]", "", heading).replace(" ", "-") for heading in plain}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(REPOSITORY)))
def test_links_lead_somewhere(page: Path) -> None:
    for path, anchor in LINK.findall(page.read_text()):
        target = page.parent / path if path else page
        assert target.exists(), f"{page.name} links to {path}"
        if anchor and target.suffix == ".md":
            assert anchor in anchors(target), f"{page.name} links to {path}#{anchor}"


def test_contributing_names_files_that_exist() -> None:
    text = (REPOSITORY / "CONTRIBUTING.md").read_text()
    rows = text[text.index("## To add X") : text.index("## Test a change")]
    paths = [path for path in re.findall(r"`([\w./-]+)`", rows) if "/" in path]
    assert len(paths) > 40
    roots = (REPOSITORY, REPOSITORY / "service/muster")
    missing = [path for path in paths if not any((root / path).exists() for root in roots)]
    assert [path for path in missing if "gpu.topology/" not in path] == []


def test_contributing_has_a_row_for_each_task() -> None:
    text = (REPOSITORY / "CONTRIBUTING.md").read_text()
    for task in (
        "scope by node label", "built-in scope", "dialect", "cause", "constraint", "level of the objective",
        "field of a gRPC call", "field of the stream", "event reason",
        "partially bound", "metric", "chaos fault", "exact method",
        "key of another dialect", "input of the gangs", "phase of a gang", "option of `muster place`",
        "kind of job", "example", "timer of a gang", "column of `muster status`", "preemption by a gang",
    ):  # fmt: skip
        assert re.search(rf"(?m)^\| [^|]*{task}", text), task


def test_every_page_is_in_the_index() -> None:
    index = (REPOSITORY / "docs/README.md").read_text()
    pages = [page.name for page in (REPOSITORY / "docs").glob("*.md") if page.name != "README.md"]
    assert [page for page in pages if f"({page}" not in index] == []


def test_the_tutorials_job_waits_and_then_takes_one_rack(tmp_path: Path) -> None:
    (manifest,) = MANIFEST.findall(TUTORIAL.read_text())
    nodes = write(tmp_path, *(node(f"n{i}", 8, f"rack-{i // 2}") for i in range(4)))
    job = tmp_path / "train.yaml"
    job.write_text(manifest)
    assert [gang["status"] for gang in decisions(nodes, str(job))["gangs"]] == ["waiting"]
    job.write_text(manifest.replace("parallelism: 2", "parallelism: 4"))
    (gang,) = decisions(nodes, str(job))["gangs"]
    assert (gang["status"], gang["scope"]["reached"]) == ("placed", "rack")


def test_the_kai_job_is_one_gang_in_one_rack(tmp_path: Path) -> None:
    (manifest,) = MANIFEST.findall((REPOSITORY / "docs/coming-from.md").read_text())
    nodes = write(tmp_path, *(node(f"n{i}", 8, f"rack-{i // 4}") for i in range(8)))
    job = tmp_path / "job.yaml"
    job.write_text(manifest)
    (gang,) = decisions(nodes, str(job))["gangs"]
    assert (gang["status"], gang["scope"]["reached"]) == ("placed", "rack")
    assert len(gang["members"]) == 4
