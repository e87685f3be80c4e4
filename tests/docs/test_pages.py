"""Pages for people: their links, the paths that they name, and the tutorial's manifest."""

from __future__ import annotations

import re
import shlex
from collections import Counter
from pathlib import Path

import pytest

from muster.cli import main
from muster.dialects.gangs import native
from muster.domain.decision import Placed
from muster.placement.place import place
from tests.command import PLAIN, invoke
from tests.files.manifests import REPOSITORY, Object, decisions, gang, node, write
from tests.placement.drawings import cluster as drawn_cluster
from tests.placement.drawings import gang as drawn_gang

PAGES = sorted(
    page
    for folder in (".", "docs", "docs/decisions", "examples", "local_cluster", "kind-cluster", "e2e", "shim")
    for page in (REPOSITORY / folder).glob("*.md")
)
LINK = re.compile(r"\]\((?!https?:)([^)\s#]*)(?:#([^)\s]*))?\)")
HEADING = re.compile(r"(?m)^#+ (.*)$")
MANIFEST = re.compile(r"(?ms)^```yaml\n(.*?)^```")
TUTORIAL = REPOSITORY / "docs/tutorial.md"
OBJECTIVE = REPOSITORY / "docs/objective.md"


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


def test_the_page_of_native_groups_has_each_field_and_tests_that_are_there() -> None:
    text = (REPOSITORY / "docs/native.md").read_text()
    fields = text.partition("| PodGroup | read as |")[2].partition("\n\n")[0]
    assert [name for name in native.FIELDS if f"`{name}" not in fields] == []
    paths = re.findall(r"`(\w+/test_\w+\.py)`", text)
    assert [path for path in {*paths} if not (REPOSITORY / "tests" / path).exists()] == []


def rack_nodes(rack: str) -> list[Object]:
    """The nodes that the example of objective.md draws in this rack: a circle is a free GPU."""
    (drawn_rack,) = re.findall(rf"(?m)^rack {rack}: (.*)$", OBJECTIVE.read_text())
    return [node(name, len(gpus), rack) for name, gpus in re.findall(r"(\w+) (○+)", drawn_rack)]


def test_the_example_of_the_objective_has_the_values_of_both_plans(tmp_path: Path) -> None:
    example = OBJECTIVE.read_text().partition("\n## An example\n")[2].partition("\n## ")[0]
    columns: list[list[str]] = []
    for rack in ("r1", "r2"):
        (placed,) = decisions(write(tmp_path, *rack_nodes(rack), *gang("train", 4, 2)))["gangs"]
        values = placed["objective"]
        parts = [crossing["parts"] for crossing in values["crossings"]]
        rings = [f"{values[key]:.0f}" for key in ("weakest_link_gb_per_s", "ring_gb_per_s")]
        numbers = (values["members"], *parts, *rings, values["socket_distance"])
        columns.append([*map(str, numbers), str(values["damage_gpu_thousandths"])])
    rows = [
        [cell.strip(" *") for cell in row.strip("|").split("|")]
        for row in example.splitlines()
        if row[:1] == "|"
    ]
    assert [row[1:] for row in rows[2:]] == [list(row) for row in zip(*columns, strict=True)]


def test_the_example_of_the_objective_is_decided_by_damage(tmp_path: Path) -> None:
    cluster = write(tmp_path, *rack_nodes("r1"), *rack_nodes("r2"), *gang("train", 4, 2))
    (placed,) = decisions(cluster, "--explain")["gangs"]
    assert [member["node"] for member in placed["members"]] == ["c", "c", "c", "d"]
    (other_rack,) = placed["alternatives"]["tried"]
    assert (other_rack["domain"], other_rack["level"]) == ("rack r1", "damage")


@pytest.mark.parametrize("page", ["dra.md", "native.md", "surfaces.md", "victims.md"])
def test_the_answer_on_a_page_is_what_muster_place_says(page: str, tmp_path: Path) -> None:
    """The last word of the command is a file of the repository, or the manifest in the block before it."""
    text = (REPOSITORY / "docs" / page).read_text()
    (shown,) = re.finditer(r"(?ms)^\$ muster (place -f examples/.*?)\n(.*?)^…\n```", text)
    if "/" not in (last_word := shown[1].split()[-1]):
        (tmp_path / last_word).write_text(MANIFEST.findall(text[: shown.start()])[-1])
    words = [
        str((REPOSITORY if "/" in word else tmp_path) / word) if word.endswith("yaml") else word
        for word in shlex.split(shown[1])
    ]
    answer = invoke(main, *words, env=PLAIN | {"COLUMNS": "100"})
    lines = (line.rstrip() for line in answer.stdout.splitlines())
    assert "\n".join(lines).startswith(shown[2].rstrip())


def members_by_node(cluster: str, members: str) -> list[tuple[int, ...]]:
    """Return the GPUs of each member, node by node, of the best plan."""
    plan = place(drawn_cluster(cluster), drawn_gang(members))
    assert isinstance(plan, Placed)
    by_node: dict[str, Counter[int]] = {}
    for member in plan.members:
        by_node.setdefault(member.node, Counter())[len(member.gpus)] += 1
    return sorted(tuple(sorted(sizes.elements(), reverse=True)) for sizes in by_node.values())


def free(name: str, gpus: int) -> str:
    return f"{name}[8, free {'1' * gpus:0<8}]"


def test_the_picture_of_role_aggregation_shows_the_best_plan() -> None:
    shown = members_by_node(f"rack r1: {free('a', 6)} {free('b', 8)}", "2 x 4 GPU + 3 x 2 GPU")
    assert shown == [(4, 2), (4, 2, 2)]
    assert re.search(r"dealt out +a 4444 22 +b 4444 22 22 ", OBJECTIVE.read_text())


def test_the_picture_of_the_core_shows_the_best_plan() -> None:
    counts = {8: 2, 5: 4, 3: 10}
    nodes = " ".join(free(f"n{gpus}-{i}", gpus) for gpus, count in counts.items() for i in range(count))
    shown = members_by_node(f"rack r1: {nodes}", "4 x 3 GPU + 4 x 2 GPU")
    assert shown == [(2, 2), (3, 3, 2), (3, 3, 2)]
    assert "3+3+2, 3+3+2 and 2+2 are 3 nodes" in OBJECTIVE.read_text()
