"""One version in all places: CONTRIBUTING.md, "Release"."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[1]
VERSION = str(tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]["version"])

PLACES = {
    "uv.lock": r'name = "muster"\nversion = "(.+)"',
    "Makefile": r"VERSION \?= (\S+)|VERSION=(\d\S+)\)",
    "service/Dockerfile": r"ARG VERSION=(\S+)|--tag muster-\S+:(\S+)",
    "shim/Dockerfile": r"ARG VERSION=(\S+)|--tag muster-\S+:(\S+)",
    "charts/muster/Chart.yaml": r"(?m)^(?:version|appVersion): (\S+)$",
    "scheduler-config/kustomization.yaml": r"newTag: (\S+)",
    "scheduler-config/node-agent/kustomization.yaml": r"newTag: (\S+)",
    "docs/install.md": r"/?muster-\w+:(\d[\w.]+)|newTag: ([\w.]+)",
    "docs/images.md": r"`VERSION`, `REVISION` \| all \| `([\w.]+)`",
}
"""Where the version is written, and how."""


@pytest.mark.parametrize("place", PLACES)
def test_each_place_has_the_version(place: str) -> None:
    matches = re.finditer(PLACES[place], (REPOSITORY / place).read_text())
    versions = [next(filter(None, match.groups())) for match in matches]
    assert versions
    assert set(versions) == {VERSION}


def test_the_changelog_begins_with_changes_that_are_not_released() -> None:
    """Below them stand the releases, each with its date. The newest one has the version of all places."""
    headings = re.findall(r"(?m)^## (.+)$", (REPOSITORY / "CHANGELOG.md").read_text())
    released = [heading for heading in headings if heading != "Unreleased"]
    assert headings == ["Unreleased", *released]
    assert all(re.fullmatch(r"\d+\.\d+\.\d+ \(\d{4}-\d\d-\d\d\)", heading) for heading in released)
    assert [heading.split()[0] for heading in released[:1]] in ([], [VERSION])
