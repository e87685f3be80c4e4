"""Lists that pages, manifests and help repeat by hand: each has every word that the code knows."""

from __future__ import annotations

import re

import pytest

from muster.dialects.reading import A_SCOPE
from muster.domain.constraints import PER_SCOPE
from muster.domain.levels import DEFAULT_LEVELS
from muster.domain.request import Scope
from tests.files.manifests import REPOSITORY

SCOPES = {*Scope}
LISTS = {
    "docs/coming-from.md": SCOPES,
    "docs/glossary.md": SCOPES,
    "docs/objective.md": SCOPES,
    "docs/policies.md": SCOPES,
    "docs/preflight.md": {level.scope for level in DEFAULT_LEVELS},
    "docs/surfaces.md": SCOPES,
    "service/muster/questions.py": SCOPES - {Scope.GPU},
}
"""File → the scopes that it lists."""


@pytest.mark.parametrize("file", LISTS)
def test_a_list_of_scopes_has_all_of_them(file: str) -> None:
    """A list is a paragraph or a row of a table, with the words as they are or in prose: "NVLink domain"."""
    text = (REPOSITORY / file).read_text().lower().replace("nvlink domain", "nvlink-domain")
    words = [set(re.findall(r"[\w-]+", part)) for part in re.split(r"\n\n|\n(?=\|)", text)]
    lacking = min((LISTS[file] - scopes_listed for scopes_listed in words), key=len)
    assert lacking == set(), "the list that has most scopes lacks some"


def test_the_page_of_the_objective_has_each_constraint_by_number() -> None:
    text = (REPOSITORY / "docs/objective.md").read_text()
    section = text.partition("## What binds members")[2].partition("\n## ")[0]
    assert [kind.annotation for kind in PER_SCOPE if f"`{kind.annotation}`" not in section] == []


def test_the_crd_lists_scopes_as_the_annotations_do() -> None:
    """In the description of the field, and in the message about a wrong one."""
    text = (REPOSITORY / "scheduler-config/podgroups/crd-podgroup.yaml").read_text()
    assert " ".join(text.split()).count(A_SCOPE.removeprefix("one of ")) == 2


def test_the_page_of_the_architecture_has_each_folder_of_the_shim() -> None:
    text = (REPOSITORY / "docs/architecture.md").read_text()
    section = text.partition("### `shim/`")[2].partition("\n## ")[0]
    folders = re.findall(r"`(\w+)/`", "".join(re.findall(r"(?m)^\|([^|]*)\|", section)))
    assert sorted(folders) == sorted(folder.name for folder in (REPOSITORY / "shim/internal").iterdir())
