"""`make try`: the first command of a new user shows a gang that is placed, one that is not, and pictures."""

from __future__ import annotations

import re
import shlex
from xml.etree import ElementTree

from muster.cli import main
from tests.command import PLAIN, invoke
from tests.files.manifests import EXAMPLES, REPOSITORY, decisions, place


def arguments() -> list[str]:
    """What the Makefile passes to `muster place`, with files by their whole path."""
    text = (REPOSITORY / "Makefile").read_text().replace("\\\n", " ")
    (command,) = re.findall(r"(?m)^TRY = \$\(TOOL\)/muster place (.*)$", text)
    return [str(REPOSITORY / word) if "/" in word else word for word in shlex.split(command)]


def test_its_files_have_a_gang_that_is_placed_and_one_that_is_not() -> None:
    gangs = decisions(*arguments())["gangs"]
    assert [gang["status"] for gang in gangs] == ["placed", "unplaceable", "placed"]


def test_it_draws_in_the_terminal_and_as_svg() -> None:
    answer = place(*arguments())
    assert answer.exit_code == 3
    readme = (REPOSITORY / "README.md").read_text()
    picture = answer.stdout[answer.stdout.index("v100-3   ecs") :].split("\n══")[0]
    assert "║ NV2" in picture
    assert picture in readme, "README shows another picture than `make try`"
    ElementTree.fromstring(place(*arguments(), "-o", "svg").stdout)


def test_the_readme_begins_with_a_job_and_its_answer() -> None:
    readme = (REPOSITORY / "README.md").read_text()
    lines = (EXAMPLES / "features/one-rack.yaml").read_text().splitlines()
    job = "\n".join(line for line in lines if not line.startswith("#"))
    (command, table), *_ = re.findall(r"(?ms)^\$ muster (place .*?)\n(.*?)```", readme)
    assert f"```yaml\n{job}\n```" in readme[: readme.index(command)]
    words = [str(REPOSITORY / word) if "/" in word else word for word in shlex.split(command)]
    answer = invoke(main, *words, env=PLAIN | {"COLUMNS": "80"})
    assert answer.exit_code == 0
    shown = "\n".join(line.rstrip() for line in answer.stdout.splitlines())
    assert shown.startswith(table)
